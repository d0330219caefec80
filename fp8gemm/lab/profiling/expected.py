"""What the design expects of a launch: work and traffic, from the shape and the config alone."""

from __future__ import annotations

from dataclasses import dataclass

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import TENSOR_MACS_PER_CYCLE, Chip
from fp8gemm.tuning.model import predict
from fp8gemm.tuning.problem import Problem, Scaling

_INSTRUCTION_K = 32
_WARPS = 4


@dataclass(frozen=True)
class Expected:
    """Of one launch.

    Attributes:
        tiles: CTA tiles, those past the edges that a cluster computes along included.
        k_blocks: of one tile; where warpgroups share K, as many for each, so that the last may lie past its end.
        busiest: tiles of the SM that has the most.
        tensor_cycles: of tensor work, at full rate, on the average SM.
        busiest_tensor_cycles: on the busiest one.
        cycles_per_k_block: of tensor work, at full rate, of one CTA.
        instructions: WGMMAs, counted once for each of the four warps that execute one.
        bytes_into_sms: of operands and scales by TMA; what is multicast counts at each CTA that it reaches.
        bytes_out_of_l2: the same, multicast counted once.
        output_bytes: written.
        least_dram_bytes: read, if each input comes from memory once.
        model_us: what the cost model that chooses configs predicts.
    """

    tiles: int
    k_blocks: int
    busiest: int
    tensor_cycles: float
    busiest_tensor_cycles: float
    cycles_per_k_block: float
    instructions: int
    bytes_into_sms: int
    bytes_out_of_l2: int
    output_bytes: int
    least_dram_bytes: int
    model_us: float


def expect(problem: Problem, config: TileConfig, chip: Chip) -> Expected:
    """The expectation for a problem under a config on a chip."""
    cluster_rows = -(-problem.m // (config.block_m * config.cluster_m))
    cluster_cols = -(-problem.n // (config.block_n * config.cluster_n))
    rows, cols = cluster_rows * config.cluster_m, cluster_cols * config.cluster_n
    tiles = rows * cols
    # Boxes past the edges of an operand arrive as zeros, which nobody sends.
    scales = 4 * problem.k_blocks * (problem.m * cols + (problem.n * rows if problem.scaling is Scaling.ROW else 0))
    into_sms = problem.k * (problem.m * cols + problem.n * rows) + scales
    tiles *= config.split_k  # of a tile of which a cluster divides K, each CTA has a part
    out_of_l2 = problem.k * (problem.m * cluster_cols + problem.n * cluster_rows) + scales
    k_blocks = config.whole_k_blocks(problem.k_blocks)
    per_block = config.block_m * config.block_n * config.block_k / TENSOR_MACS_PER_CYCLE
    multiplied = tiles * config.warpgroups_m
    if config.cluster_m > 1 and problem.scaling is Scaling.BLOCK:  # warpgroups without rows pass over
        multiplied = cols * min(-(-problem.m // (config.block_m // config.warpgroups_m)), rows * config.warpgroups_m)
    waves = multiplied * k_blocks * (config.waves // config.warpgroups_m)
    clusters = chip.clusters(config.cluster_size)
    busiest = -(-cluster_rows * cluster_cols // clusters)
    output = problem.m * problem.n * problem.output.bytes
    return Expected(
        tiles=tiles,
        k_blocks=k_blocks,
        busiest=busiest,
        tensor_cycles=waves * per_block / config.waves / chip.num_sms,
        busiest_tensor_cycles=busiest * k_blocks * per_block,
        cycles_per_k_block=per_block,
        instructions=waves * (config.block_k // _INSTRUCTION_K) * _WARPS,
        bytes_into_sms=into_sms,
        bytes_out_of_l2=out_of_l2,
        output_bytes=output,
        least_dram_bytes=problem.bytes - output,
        model_us=predict(problem, config, chip).total_us,
    )
