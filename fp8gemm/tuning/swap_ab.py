"""Configs of the swapped orientation, for few rows, and which are legal: the single source of truth for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from fp8gemm.frozen import dataclass
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning import hopper
from fp8gemm.tuning.config import BARRIER_BYTES, MAX_WAVE_COLS, WAVE_ROWS, align
from fp8gemm.tuning.problem import Scaling

MAX_TOKENS = 64
"""More rows than this are several tiles: a token is then read as often as the weight."""
MAX_SPLIT = 8
LEAST_STAGES = 3
_OTHER_REGISTERS = 18
MOST_REGISTERS = {1: 255, 2: 168}
"""Of a thread, by warpgroups: what the compiler may use, to which the load warp is a whole warpgroup."""


@dataclass(frozen=True)
class SwapAbConfig:
    """Tile config of the swap-AB kernels. Every field becomes a constant of the kernel (``block_m`` -> ``kBlockM``).

    Attributes:
        block_m: rows of the output (tokens) of a CTA, on the side of WGMMA that has steps of 8.
        block_n: columns of the output (weight rows) of a CTA: 16, 32 or 64. Less than 64 leave room for 4 or 2 K
            blocks, the slices, in the 64 rows of an instruction.
        stages: depth of the ring in shared memory; each holds a K block for every slice of every warpgroup.
        warpgroups_k: consumer warpgroups; they divide K.
        split_k: CTAs of a cluster; they divide K.
        block_k: columns of a K block; one scale block, so that promotion happens once a K block.
    """

    block_m: int
    block_n: int
    stages: int
    warpgroups_k: int = 1
    split_k: int = 1
    block_k: int = 128

    @property
    def slices(self) -> int:
        """K blocks that one instruction multiplies side by side."""
        return WAVE_ROWS // self.block_n

    @property
    def wave_cols(self) -> int:
        """Columns of one WGMMA instruction, of 64 rows."""
        return self.block_m * self.slices

    @property
    def blocks_per_stage(self) -> int:
        """K blocks of a stage."""
        return self.slices * self.warpgroups_k

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.split_k

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and the load warp."""
        return 128 * self.warpgroups_k + 32

    @property
    def registers(self) -> int:
        """Registers of a thread, about: sums and two waves in flight, their products of scales, and what is left.

        The compiler takes up to eleven more or fewer (NVRTC 12.9, all that is considered for six N x K).
        """
        return self.wave_cols * 3 // 2 + self.block_m // 2 + _OTHER_REGISTERS

    @property
    def stage_bytes(self) -> int:
        """Bytes that arrive in a CTA per stage: K blocks of weights and of tokens."""
        return self.blocks_per_stage * (self.block_m + self.block_n) * self.block_k

    def steps(self, k: int) -> int:
        """Stages that each CTA multiplies."""
        return -(-k // (SCALE_BLOCK * self.blocks_per_stage * self.split_k))

    @property
    def label(self) -> str:
        """Short name, safe in a path."""
        shares = f"-k{self.warpgroups_k}" if self.warpgroups_k > 1 else ""
        return f"swap{self.block_m}x{self.block_n}{shares}-d{self.stages}-c{self.split_k}"


@lru_cache(maxsize=4096)
def shared_bytes(config: SwapAbConfig, k: int) -> int:
    """Size of the kernel's SharedStorage. The kernel asserts at compile time that it computes the same."""
    return align(used_bytes(config, k), 1024)


def used_bytes(config: SwapAbConfig, k: int) -> int:
    """Of that, what its parts take up to the end of the last one, a multiple of 16."""
    ring = config.stages * (config.stage_bytes + 2 * BARRIER_BYTES)
    products = config.steps(k) * config.blocks_per_stage * config.block_m * 4
    shares = config.split_k * config.blocks_per_stage
    piece = _piece_cols(config)
    cols = -(-config.block_n // (piece * config.split_k)) * piece
    sums = shares * config.block_m * (align(cols, 4) + 4) * 4
    return align(align(ring, 1024) + products, 16) + align(sums + BARRIER_BYTES, 16)


def violations(config: SwapAbConfig, k: int, scaling: Scaling = Scaling.BLOCK) -> list[str]:
    """Why the kernel cannot be built or launched with this config; empty if it can."""
    found = []
    if config.block_n not in (16, 32, 64):
        return [f"block_n = {config.block_n} is none of 16, 32 and 64"]
    if scaling is not Scaling.BLOCK:
        found.append("a tile has one weight scale for each K block, so B is scaled by blocks")
    if config.block_k != SCALE_BLOCK:
        found.append(f"block_k must be the scale block, 128, is {config.block_k}")
    if not 1 <= config.split_k <= MAX_SPLIT:
        found.append(f"1 to {MAX_SPLIT} CTAs of a cluster divide K, not {config.split_k}")
    most = MOST_REGISTERS.get(config.warpgroups_k)
    if most is None:
        found.append(f"one or two warpgroups divide K, not {config.warpgroups_k}")
    if config.block_m % 8 or not 0 < config.wave_cols <= MAX_WAVE_COLS:
        found.append(
            f"block_m = {config.block_m} is not a multiple of 8 up to {MAX_WAVE_COLS // config.slices}, of which "
            f"{config.slices} slices fit an instruction"
        )
    elif most is not None and config.registers > most:
        found.append(f"{config.registers} registers of a thread do not fit in {most}")
    if config.stages < 2:
        found.append(f"{config.stages} stages cannot overlap loads with tensor work")
    if config.split_k < 1 or config.warpgroups_k < 1:
        return found  # no other rule has a meaning then
    size = shared_bytes(config, k)
    if size > hopper.SHARED_BYTES_PER_CTA:
        found.append(f"{size} bytes of shared memory exceed {hopper.SHARED_BYTES_PER_CTA}")
    return found


CTAS_PER_SM = (1, 2, 3, 4, 6)
"""How many CTAs an SM may have to hold: the fewer, the deeper their rings."""
LEAST_SHARE_OF_SMS = 2
"""Configs that keep less than one of so many SMs busy are passed over."""


@lru_cache(maxsize=4096)
def resident_ctas(config: SwapAbConfig, k: int) -> int:
    """CTAs that an SM holds at once."""
    return fitting_ctas(config, shared_bytes(config, k))


def fitting_ctas(config: SwapAbConfig, shared: int) -> int:
    """The same, where each takes so many bytes of shared memory."""
    by_memory = hopper.SHARED_BYTES_PER_SM // (shared + hopper.RESERVED_SHARED_BYTES)
    by_registers = hopper.REGISTERS_PER_SM // (align(config.registers, 8) * config.threads)
    return min(by_memory, by_registers, hopper.THREADS_PER_SM // config.threads)


def busiest_sm(config: SwapAbConfig, tiles: int, num_sms: int) -> int:
    """CTAs of the SM that has most of them, of so many tiles."""
    if config.split_k == 1:
        return -(-tiles // num_sms)
    gpcs = min(hopper.GPCS, num_sms)
    evenly = -(-(-(-tiles // gpcs) * config.split_k) // (num_sms // gpcs))
    return max(evenly, -(-tiles // hopper.clusters_at_once(num_sms, config.split_k)))


def tiles_of(config: SwapAbConfig, m: int, n: int) -> int:
    """Tiles of the output."""
    return -(-m // config.block_m) * -(-n // config.block_n)


@lru_cache(maxsize=1024)
def swap_ab_candidates(m: int, n: int, k: int, num_sms: int) -> tuple[SwapAbConfig, ...]:
    """Every config worth considering for M rows, in a fixed order: those that run in one wave and keep SMs busy.

    M is one that choices are made for (`fp8gemm.tuning.problem.FEW_ROWS`).
    """
    found: list[SwapAbConfig] = []
    block_m = m if m <= MAX_TOKENS else m // 2
    for block_n in (64, 32, 16):
        tiles = -(-m // block_m) * -(-n // block_n)
        if tiles > num_sms * max(CTAS_PER_SM):
            continue
        for warpgroups_k in (1, 2):
            for split_k in range(1, MAX_SPLIT + 1):
                if tiles * split_k * LEAST_SHARE_OF_SMS < num_sms:
                    continue
                config = SwapAbConfig(block_m, block_n, 2, warpgroups_k, split_k)
                if config.registers <= MOST_REGISTERS[warpgroups_k] and _all_have_work(config, k):
                    found += _of_each_depth(config, tiles, k, num_sms)
    return tuple(found)


def _all_have_work(config: SwapAbConfig, k: int) -> bool:
    """Whether the last CTA of a cluster has a K block that is not past the end of K."""
    blocks = config.steps(k) * config.blocks_per_stage
    return blocks * (config.split_k - 1) < -(-k // SCALE_BLOCK)


def _of_each_depth(shallow: SwapAbConfig, tiles: int, k: int, num_sms: int) -> Iterator[SwapAbConfig]:
    """The deepest rings with which so many CTAs fit an SM, if all tiles then run at once."""
    steps = shallow.steps(k)
    beside_ring = shared_bytes(shallow, k) - shallow.stages * shallow.stage_bytes
    busiest = busiest_sm(shallow, tiles, num_sms)
    last = 0
    for ctas in CTAS_PER_SM:
        room = hopper.SHARED_BYTES_PER_SM // ctas - hopper.RESERVED_SHARED_BYTES - beside_ring
        stages = min(room // (shallow.stage_bytes + 2 * BARRIER_BYTES), steps)
        if stages < min(steps, LEAST_STAGES) or stages == last or busiest > ctas and stages < steps:
            continue
        config = replace(shallow, stages=max(stages, 2))
        resident = resident_ctas(config, k)
        # Clusters that do not all run at once double the time (64x2048x7168 by 32 of four 13.1 us, by 16 8.2, H100).
        all_at_once = tiles <= hopper.clusters_at_once(num_sms, config.split_k) * resident
        if not violations(config, k) and busiest <= resident and (all_at_once or config.split_k == 1):
            last = stages
            yield config


def _piece_cols(config: SwapAbConfig) -> int:
    """Neighbouring columns of two rows that a thread writes: few, if there are not enough for all threads."""
    of_thread = config.block_m * config.block_n // (config.split_k * 128 * config.warpgroups_k)
    return next((cols for cols in (4, 2) if of_thread >= cols), 1)
