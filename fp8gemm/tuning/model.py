"""What a config is predicted to cost: a roofline with waves, resource limits and fixed overheads.

The clock runs a persistent kernel as follows. Each SM takes ``waves`` tiles one after the other. A K block of a tile
costs the larger of its tensor time and of the time its bytes take from L2. A tile also pays for what is not
overlapped: the first fill of the ring, and the conversion of the output. The whole can never beat the time that
device memory needs for each operand once.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import TENSOR_MACS_PER_CYCLE, Chip
from fp8gemm.tuning.problem import Problem

# Set by hand from every candidate at 70 shapes on an H200 (docs/results/sweep-h200.json), where the choice then costs
# 1.4 % over the best candidate on average.

LAUNCH_US = 2.0

CLUSTER_US = 1.0
"""What launching and leaving as clusters adds."""

FILL_CYCLES = 300.0
"""From an idle ring to the first full stage, as far as the launch does not hide it."""

LATENCY_CYCLES = 1200.0
"""From asking for a stage to having it, while the memory system is busy."""

EPILOGUE_CYCLES_PER_COLUMN = 6.5
"""Conversion and staging of one 64-row column strip by its warpgroup."""

TENSOR_EFFICIENCY = {1: 0.75, 2: 0.88, 4: 0.92}
"""Share of the tensor rate that is reached, by 64x128 waves per K block and CTA: the more independent work between two
waits, the better promotion hides behind tensor work."""

MULTICAST_GAIN = 0.95
"""What reading a shared operand once for two CTAs leaves of the time its bytes take."""

CLUSTER_DRAG = 1.02
"""What two CTAs that wait for each other's stages lose in tensor time."""

EXPOSED_SHARE = 0.25
"""Share of the shorter of SM time and memory time that the longer one does not hide."""


@dataclass(frozen=True)
class Cost:
    """Predicted time of one config, by term. Cycles are SM cycles."""

    waves: int
    tensor_cycles: float
    load_cycles: float
    fill_cycles: float
    epilogue_cycles: float
    dram_us: float
    total_us: float


def predict(problem: Problem, config: TileConfig, chip: Chip) -> Cost:
    """Predicted cost of a problem under a legal config."""
    rows = -(-problem.m // (config.block_m * config.cluster_m))
    cols = -(-problem.n // (config.block_n * config.cluster_n))
    clusters = max(chip.num_sms // config.cluster_size, 1)
    waves = -(-rows * cols // clusters)

    k_blocks = problem.k_blocks
    wave_count = max(config.block_m * config.block_n // (64 * 128), 1)
    tensor = config.block_m * config.block_n * config.block_k / TENSOR_MACS_PER_CYCLE / TENSOR_EFFICIENCY[wave_count]
    load = config.stage_bytes(problem.scaling) / chip.l2_bytes_per_cycle
    if config.cluster_size > 1:
        load *= MULTICAST_GAIN
        tensor *= CLUSTER_DRAG
    per_block = max(tensor, load, LATENCY_CYCLES / config.stages)

    epilogue = config.block_n / config.warpgroups_n * (config.block_m / config.warpgroups_m / 64)
    epilogue *= EPILOGUE_CYCLES_PER_COLUMN
    sm_us = (FILL_CYCLES + waves * (k_blocks * per_block + epilogue)) / chip.clock_mhz
    dram = problem.bytes / chip.dram_bytes_per_us
    overhead = LAUNCH_US + (CLUSTER_US if config.cluster_size > 1 else 0.0)
    return Cost(
        waves=waves,
        tensor_cycles=waves * k_blocks * tensor,
        load_cycles=waves * k_blocks * load,
        fill_cycles=FILL_CYCLES,
        epilogue_cycles=waves * epilogue,
        dram_us=dram,
        total_us=overhead + max(sm_us, dram) + EXPOSED_SHARE * min(sm_us, dram),
    )
