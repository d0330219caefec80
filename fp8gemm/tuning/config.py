"""What a kernel is compiled for, and which of those are legal: the single source of truth for both."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from fp8gemm.frozen import dataclass
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning import hopper
from fp8gemm.tuning.problem import OutputType, Scaling, StoreKind

BARRIER_BYTES = 8
WAVE_ROWS = 64
MAX_WAVE_COLS = 192
PROMOTION_REGISTERS = 200
"""Of a thread's 232, or more where there is one warpgroup: what addresses, scales and the loop need is left."""
REGISTERS_OF_THREE = {1: 96, 2: 128}
"""The same of 160, where there are three warpgroups, by the CTAs that divide K: half of the columns leave an epilogue
that adds C and a bias as many as it needs."""
CROWDED_REGISTERS = 176
"""The same with row scales of B and a share of K; or a group's own K and addresses in the epilogue."""
ROW_SCALE_REGISTERS = 216
"""With row scales of B: what a thread keeps of them is counted in."""
STAGING_COLS = 32
STAGED_LINE_BYTES = 128
"""Of a row of the output, what a TMA store of a part writes at most: whole lines are cheaper than halves (1 % of
4096x24576x1536, in bursts, H200, 2026-11-25)."""
MAX_SPLIT = 4
"""CTAs that divide K: of a cluster of more, an H200 holds too few at once."""


class Tile(NamedTuple):
    """The part of a config that is chosen; the rest follows from what fits. Attributes as of `TileConfig`."""

    block_m: int
    block_n: int
    warpgroups_k: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    split_k: int = 1


@dataclass(frozen=True)
class TileConfig:
    """Tile config of the dense kernels. Every field becomes a constant of the kernel (``block_m`` -> ``kBlockM``).

    Attributes:
        block_m, block_n: output tile of a CTA.
        block_k: columns of a K block; one scale block, so that promotion happens once a K block.
        stages: depth of the ring in shared memory, in K blocks for each of warpgroups_k.
        cluster_m, cluster_n: CTAs along M (they share B) and along N (they share A).
        warpgroups_m, warpgroups_n: how the consumer warpgroups divide the tile. There are one or two, or three with 64
            rows each.
        warpgroups_k: consumer warpgroups that share K instead: a stage holds a K block for each, and their sums are
            added at the end of a tile.
        split_k: CTAs of a cluster that divide K instead of sharing operands: one cluster computes a tile.
        waves_in_flight: waves that a warpgroup has started at a time; two overlap promotion and tensor work.
        staging_slots: parts of the output that a warpgroup can have on their way from registers to a TMA store.
        staging_cols: columns of such a part at most; it has the greatest common divisor of this and a warpgroup's.
    """

    block_m: int
    block_n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    warpgroups_m: int = 2
    warpgroups_n: int = 1
    warpgroups_k: int = 1
    split_k: int = 1
    waves_in_flight: int = 1
    staging_slots: int = 2
    staging_cols: int = STAGING_COLS
    block_k: int = 128

    @property
    def tile(self) -> Tile:
        """What the config was made for."""
        return Tile(self.block_m, self.block_n, self.warpgroups_k, self.cluster_m, self.cluster_n, self.split_k)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def threads(self) -> int:
        """Threads of a CTA: the load warpgroup and the consumers."""
        return 128 * (1 + self.warpgroups)

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.warpgroups_m * self.warpgroups_n * self.warpgroups_k

    @property
    def wave_cols(self) -> int:
        """Columns of one WGMMA instruction, of 64 rows: a warpgroup's, or half of them."""
        cols = self.block_n // self.warpgroups_n
        return cols if cols <= MAX_WAVE_COLS else cols // 2

    @property
    def waves(self) -> int:
        """Waves that a CTA multiplies for one K block."""
        return self.block_m * self.block_n // (WAVE_ROWS * self.wave_cols)

    def whole_k_blocks(self, k_blocks: int) -> int:
        """K blocks that a CTA multiplies where a tile has so many: as many for each share of K, zeros past the end."""
        return -(-k_blocks // (self.warpgroups_k * self.split_k)) * self.warpgroups_k

    def stage_bytes(self, scaling: Scaling = Scaling.BLOCK) -> int:
        """Bytes that arrive in a CTA per stage: K blocks of A and B, and the scales of the rows."""
        return self.warpgroups_k * self.block_bytes(scaling)

    def block_bytes(self, scaling: Scaling = Scaling.BLOCK) -> int:
        """Bytes of one K block of A and B, and of the scales of the rows."""
        scaled_rows = self.block_m + (self.block_n if scaling is Scaling.ROW else 0)
        return (self.block_m + self.block_n) * self.block_k + 4 * scaled_rows

    @property
    def promotion_registers(self) -> int:
        """Registers of one thread that hold output sums and, for waves in flight, block sums."""
        sums = self.block_m * self.block_n // (128 * self.warpgroups_m * self.warpgroups_n)
        return sums + self.waves_in_flight * WAVE_ROWS * self.wave_cols // 128

    @property
    def kept_scales(self) -> int:
        """Row scales of B that one thread keeps in registers at least: mainloop/row_scales.cuh."""
        of_wave = self.wave_cols // 4
        return of_wave if self.block_m > self.warpgroups_m * WAVE_ROWS else min(of_wave, 8)

    @property
    def label(self) -> str:
        """Short name, safe in a path."""
        shares = f"-k{self.warpgroups_k}" if self.warpgroups_k > 1 else ""
        split = f"-split{self.split_k}" if self.split_k > 1 else ""
        return f"{self.block_m}x{self.block_n}{shares}-s{self.stages}-c{self.cluster_m}x{self.cluster_n}{split}"


def staged_part(config: TileConfig) -> tuple[int, int]:
    """Rows and columns that a consumer warpgroup stages at a time for a TMA store."""
    return WAVE_ROWS, gcd(_stored_cols(config), config.staging_cols)


def has_short_lines(config: TileConfig, output: OutputType) -> bool:
    """Whether rows of such a part are shorter than the lines of L2."""
    return staged_part(config)[1] * output.bytes < STAGED_LINE_BYTES


def staged_parts(config: TileConfig) -> int:
    """Such parts of a warpgroup's tile."""
    rows, cols = staged_part(config)
    return config.block_m // config.warpgroups_m // rows * (_stored_cols(config) // cols)


def _stored_cols(config: TileConfig) -> int:
    """Columns that a warpgroup writes. Those that shared K divide the columns once their sums are added."""
    return config.block_n // (config.warpgroups_n * config.warpgroups_k * config.split_k)


def shared_bytes(
    config: TileConfig,
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
    *,
    padding_bytes: int = 0,
) -> int:
    """Size of the kernel's SharedStorage. The kernel asserts at compile time that it computes the same.

    ``padding_bytes`` are between what arrives with one K block and with the next.
    """
    of_stage = config.stage_bytes(scaling) + config.warpgroups_k * padding_bytes
    size = align(config.stages * (of_stage + 2 * BARRIER_BYTES), 1024)
    if config.warpgroups_k > 1:
        size += config.block_m * config.block_n * 4 // 2  # half of a tile's sums change hands at a time
    if config.split_k > 1:  # what the other CTAs have of this one's columns, and its barrier
        of_cta = config.block_m * config.block_n * 4 // config.split_k
        size += align((config.split_k - 1) * of_cta + BARRIER_BYTES, 1024)
    if store is StoreKind.TMA:
        rows, cols = staged_part(config)
        size += align(config.warpgroups * config.staging_slots * (rows * cols * output.bytes + 2 * BARRIER_BYTES), 1024)
    return size


def violations(
    config: TileConfig,
    store: StoreKind,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
) -> list[str]:
    """Why the kernel cannot be built or launched with this config; empty if it can."""
    divided = f"{config.warpgroups_m} x {config.warpgroups_n} x {config.warpgroups_k}"
    if not 1 <= config.split_k <= MAX_SPLIT:
        return [f"1 to {MAX_SPLIT} CTAs of a cluster divide K, not {config.split_k}"]
    if min(config.warpgroups_m, config.warpgroups_n, config.warpgroups_k) < 1:
        return [f"needs one to three consumer warpgroups, has {divided}"]  # no other rule has a meaning then
    found = []
    warpgroup_cols = config.block_n // config.warpgroups_n
    are_three = config.warpgroups_m == config.warpgroups == 3
    if config.warpgroups > 2 and not are_three:
        found.append(f"needs one or two consumer warpgroups, or three above one another, has {divided}")
    if config.block_k != 128:
        found.append(f"block_k must be the scale block, 128, is {config.block_k}")
    if config.block_m % (config.warpgroups_m * WAVE_ROWS) or not 0 < config.block_m <= hopper.MAX_BOX_ROWS:
        found.append(f"block_m = {config.block_m} is not a multiple of {config.warpgroups_m * WAVE_ROWS} up to 256")
    wave_cols = config.wave_cols
    if wave_cols < 16 or config.block_n % config.warpgroups_n or wave_cols % 16 or warpgroup_cols % wave_cols:
        return [*found, f"block_n = {config.block_n} does not divide into waves of a multiple of 16 columns"]
    if config.warpgroups_k > 1 and (config.block_m != WAVE_ROWS or wave_cols != config.block_n or wave_cols % 32):
        found.append(
            f"K is shared by warpgroups with one wave of {WAVE_ROWS} rows and a multiple of 32 columns, "
            f"not {config.block_m} x {config.block_n}"
        )
    if config.split_k > 1:
        if config.warpgroups_k * config.cluster_m * config.cluster_n > 1:
            found.append("CTAs divide K where neither warpgroups share it nor operands are multicast")
        if warpgroup_cols % (16 * config.split_k) or warpgroup_cols // config.split_k > MAX_WAVE_COLS:
            found.append(f"{warpgroup_cols} columns of a warpgroup do not divide among {config.split_k} CTAs by 16")
    border_step = gcd(warpgroup_cols, SCALE_BLOCK)
    if scaling is Scaling.BLOCK and SCALE_BLOCK - border_step + warpgroup_cols > 2 * SCALE_BLOCK:
        found.append(f"block_n = {config.block_n}: {warpgroup_cols} columns may lie in three scale blocks")
    if config.block_n > hopper.MAX_BOX_ROWS:
        found.append(f"block_n = {config.block_n} exceeds a TMA box of {hopper.MAX_BOX_ROWS} rows")
    if scaling is Scaling.ROW and config.block_n % 32:
        found.append(f"block_n = {config.block_n} row scales of a stage do not end on the 128 bytes that TMA writes to")
    if config.cluster_m * config.cluster_n not in (1, 2):
        found.append(f"a cluster has one or two CTAs, not {config.cluster_m} x {config.cluster_n}")
    if config.staging_slots < 1:
        found.append(f"{config.staging_slots} staging slots cannot hold a part of the output")
    if config.staging_cols not in (STAGING_COLS, STAGED_LINE_BYTES // output.bytes):
        found.append(f"{config.staging_cols} staged columns are neither {STAGING_COLS} nor {STAGED_LINE_BYTES} bytes")
    if config.waves_in_flight not in (1, 2):
        found.append(f"one or two waves are in flight, not {config.waves_in_flight}")
    if scaling is Scaling.ROW and wave_cols != warpgroup_cols:
        found.append(f"row scales of B are kept of one wave's columns, and a warpgroup has {warpgroup_cols}")
    registers, most = config.promotion_registers, PROMOTION_REGISTERS
    if are_three:
        most = REGISTERS_OF_THREE.get(config.split_k, 0) if scaling is Scaling.BLOCK else 0
    elif scaling is Scaling.ROW and config.warpgroups_k > 1:
        most = CROWDED_REGISTERS
    elif scaling is Scaling.ROW:
        registers, most = registers + config.kept_scales, ROW_SCALE_REGISTERS
    if registers > most:
        found.append(f"{registers} registers for promotion leave too few of a thread's")
    if config.stages < 2:
        found.append(f"{config.stages} stages cannot overlap loads with tensor work")
    size = shared_bytes(config, store, output, scaling)
    if size > hopper.SHARED_BYTES_PER_CTA:
        found.append(f"{size} bytes of shared memory exceed {hopper.SHARED_BYTES_PER_CTA}")
    return found


def align(value: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return -(-value // alignment) * alignment
