"""What a kernel is compiled for, and which of those are legal: the single source of truth for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8gemm.tuning import hopper
from fp8gemm.tuning.problem import OutputType, Scaling, StoreKind

BARRIER_BYTES = 8
WAVE_ROWS = 64
MAX_WAVE_COLS = 128
CONSUMER_WARPGROUPS = 2


@dataclass(frozen=True)
class TileConfig:
    """Tile config of the dense kernels. Every field becomes a constant of the kernel (``block_m`` -> ``kBlockM``).

    Attributes:
        block_m, block_n: output tile of a CTA.
        block_k: K columns of a stage; one scale block, so that promotion happens once a stage.
        stages: K blocks in flight in shared memory.
        cluster_m, cluster_n: CTAs along M (they share B) and along N (they share A).
        warpgroups_m, warpgroups_n: how the consumer warpgroups divide the tile.
        raster_band: height, in cluster tiles, of the bands in which the output is walked.
    """

    block_m: int
    block_n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    warpgroups_m: int = 2
    warpgroups_n: int = 1
    block_k: int = 128
    raster_band: int = 16

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        """Threads of a CTA: the load warpgroup and the consumers."""
        return 128 * (1 + self.warpgroups_m * self.warpgroups_n)

    @property
    def wave_cols(self) -> int:
        """Columns of one WGMMA instruction, of 64 rows: a warpgroup's, or 128 of them."""
        return min(self.block_n // self.warpgroups_n, MAX_WAVE_COLS)

    def stage_bytes(self, scaling: Scaling = Scaling.BLOCK) -> int:
        """Bytes that arrive in a CTA per stage: K blocks of A and B, and the scales of the rows."""
        scaled_rows = self.block_m + (self.block_n if scaling is Scaling.ROW else 0)
        return (self.block_m + self.block_n) * self.block_k + 4 * scaled_rows

    def promotion_registers(self, scaling: Scaling = Scaling.BLOCK) -> int:
        """Registers of one thread that hold output sums, the block sums of one wave and, if any, row scales of B."""
        sums = self.block_m * self.block_n // (128 * self.warpgroups_m * self.warpgroups_n)
        return sums + WAVE_ROWS * self.wave_cols // 128 + (self.wave_cols // 4 if scaling is Scaling.ROW else 0)

    @property
    def label(self) -> str:
        """Short name, safe in a path."""
        return f"{self.block_m}x{self.block_n}-s{self.stages}-c{self.cluster_m}x{self.cluster_n}"


def staged_part(config: TileConfig, output: OutputType) -> tuple[int, int, int]:
    """Rows and columns that a consumer warpgroup stages at a time for a TMA store, and how many slots it has for that.

    16-bit outputs: its whole tile, in one slot. 32-bit ones: parts of at most 64 x 64, in two slots.
    """
    if output.bytes == 2:
        return config.block_m // config.warpgroups_m, config.block_n // config.warpgroups_n, 1
    return WAVE_ROWS, min(config.wave_cols, 64), 2


def shared_bytes(
    config: TileConfig,
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
) -> int:
    """Size of the kernel's SharedStorage. The kernel asserts at compile time that it computes the same."""
    warpgroups = config.warpgroups_m * config.warpgroups_n
    size = _align(config.stages * config.stage_bytes(scaling), 1024)
    if store is StoreKind.TMA:
        rows, cols, slots = staged_part(config, output)
        size += _align(warpgroups * slots * (rows * cols * output.bytes + 2 * BARRIER_BYTES), 1024)
    else:
        size += BARRIER_BYTES
    return _align(size + config.stages * 2 * BARRIER_BYTES, 1024)


def violations(
    config: TileConfig,
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
) -> list[str]:
    """Why the kernel cannot be built or launched with this config; empty if it can."""
    divided = f"{config.warpgroups_m} x {config.warpgroups_n}"
    if min(config.warpgroups_m, config.warpgroups_n) < 1:
        return [f"needs {CONSUMER_WARPGROUPS} consumer warpgroups, has {divided}"]  # no other rule has a meaning then
    found = []
    warpgroup_cols = config.block_n // config.warpgroups_n
    if config.warpgroups_m * config.warpgroups_n != CONSUMER_WARPGROUPS:
        found.append(f"needs {CONSUMER_WARPGROUPS} consumer warpgroups, has {divided}")
    if config.block_k != 128:
        found.append(f"block_k must be the scale block, 128, is {config.block_k}")
    if config.block_m % (config.warpgroups_m * WAVE_ROWS) or not 0 < config.block_m <= hopper.MAX_BOX_ROWS:
        found.append(f"block_m = {config.block_m} is not a multiple of {config.warpgroups_m * WAVE_ROWS} up to 256")
    wave_cols = config.wave_cols
    if config.block_n % config.warpgroups_n or wave_cols not in (16, 32, 64, 128) or warpgroup_cols % wave_cols:
        found.append(
            f"block_n = {config.block_n} does not divide into waves that stay inside one 128-column scale block"
        )
    if config.block_n > hopper.MAX_BOX_ROWS:
        found.append(f"block_n = {config.block_n} exceeds a TMA box of {hopper.MAX_BOX_ROWS} rows")
    if config.cluster_size not in (1, 2):
        found.append(f"a cluster has one or two CTAs, not {config.cluster_m} x {config.cluster_n}")
    if config.promotion_registers(scaling) > 200:
        found.append(f"{config.promotion_registers(scaling)} registers for promotion do not fit in a thread's 232")
    if config.stages < 2:
        found.append(f"{config.stages} stages cannot overlap loads with tensor work")
    size = shared_bytes(config, store, output, scaling)
    if size > hopper.SHARED_BYTES_PER_CTA:
        found.append(f"{size} bytes of shared memory exceed {hopper.SHARED_BYTES_PER_CTA}")
    return found


TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
"""Output tiles worth compiling, block_m x block_n; of two that are predicted to cost the same the first is chosen."""

MAX_STAGES = 8
"""More stages than this hide no more latency."""


def candidate_configs(
    store: StoreKind, output: OutputType = OutputType.BFLOAT16, scaling: Scaling = Scaling.BLOCK
) -> Iterator[TileConfig]:
    """Every legal config with as many stages as fit, in a fixed order."""
    for block_m, block_n in TILES:
        # 64 rows are one wave high, so the two warpgroups divide the columns instead.
        warpgroups_m, warpgroups_n = (1, 2) if block_m == WAVE_ROWS else (2, 1)
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2)):
            for stages in range(MAX_STAGES, 1, -1):
                config = TileConfig(block_m, block_n, stages, cluster_m, cluster_n, warpgroups_m, warpgroups_n)
                if not violations(config, store, output, scaling):
                    yield config
                    break


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
