"""What grouped products are taken to cost under a config.

The host knows how many groups there are and how many rows a typical one has, not how many each has; so costs are for
groups of about that size. A group's rows end inside a tile: half a tile is lost by each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.constants import GROUPED
from fp8gemm.tuning.grouped_config import COLUMN_PAIR, PAIR, swapped_resident_ctas
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.model import Predictor, launch_us, norm, tile_cost
from fp8gemm.tuning.problem import FEW_ROWS, Grouping, Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab_model import DEFAULT as SWAP_AB
from fp8gemm.tuning.swap_ab_model import step_cycles

_SIZES = (0.7, 0.85, 1.0, 1.15, 1.3)
"""Sizes of groups that are counted on, of the typical one."""

_OVERLAP_EXPONENT = 3.0
"""How well tensor work and weights from device memory hide each other, where both take long. This and the next by 64
cases of 20 to 640 rows a group, at which the choice takes 0.5 % more in bursts than the fastest of up to nine (H200,
2026-11-24)."""
_PAIR_SHARE = 0.97
"""Time of the SMs where the two tiles of a group are a cluster's, of that of the cluster's model."""
_WIDE_SHARE = 0.977
"""Time of the SMs with tiles of 128x256, of that of the model: 128x192, which the model has up to 1.3 % faster in
contiguous groups of 4096 rows with N x K = 6144x7168, takes 2.9 % longer there in bursts, and 1.3 % under load that
lasts (H200, 2026-11-25); in six masked groups of 1024 rows with 4096x4096, where it has 1.8 %, it is faster, and with
6144x7168, too, by 0.6 and 1.2 % (H100, 2026-11-26)."""
_FLAT, _FLAT_SHARE = (64, 256), 0.98
"""The same of 64x256, which the model has up to 7 % slower than it is (100 shapes, bursts, H200, 2026-11-25)."""
_SHARES_OF_COLUMNS = {COLUMN_PAIR._replace(cluster_m=2): 0.975, Tile(64, 256): 1.03}
"""Time of the SMs with these in groups of columns, of that of the model: by 4 groups of 4096x7168x8192 and 16 of
7168x2048x2048 that are accumulated (bursts and load that lasts, H200, 2026-11-27)."""
_TABLE_US = 1.0
"""Filling the table of groups."""
_SWAPPED_LAUNCH_US = 3.0
_TURN_US = 1.5
"""Products of scales ahead of a tile, sums and output behind it."""
_TOKEN_US = 0.0003
"""Loading a token of a K block, whether it exists or not. By measurement, these four (H200, 2026-11-22)."""
_NEIGHBOURS_SHARE = 1.02
"""How fast weights are read whose stages have K blocks that are neighbours, of how fast they are read else: 8, 32 and
128 groups of one row, 4096x7168 and 7168x2048 (H200, 2026-11-27)."""


def predicted_us(problem: GroupedProblem, config: Config, chip: Chip) -> float:
    """Predicted time of a config of either orientation."""
    if isinstance(config, SwapAbConfig):
        return swapped_us(problem, config, chip)
    return tile_us(problem, config, chip)


def tile_us(problem: GroupedProblem, config: TileConfig, chip: Chip) -> float:
    """Predicted time of a config of the ordinary orientation: that of one product of all groups' tiles, or of
    reading all weights."""
    constants, (one, of_any_rows) = GROUPED, _of_group(problem)
    rows_of_tile = config.block_m * config.cluster_m
    if problem.grouping is Grouping.COLUMNS:
        rows = problem.groups * -(-problem.m // rows_of_tile) * rows_of_tile
    else:
        rows = round(problem.groups * _mean_tiles(problem.m, rows_of_tile)) * rows_of_tile
    sm, l2, of_one = _predictor(of_any_rows, config, chip).times_us(max(rows, rows_of_tile))
    if problem.grouping is Grouping.COLUMNS:
        sm *= _SHARES_OF_COLUMNS.get(config.tile, 1.0)
    elif config.tile[:2] == PAIR[:2]:
        sm *= _PAIR_SHARE if config.cluster_m > 1 else _WIDE_SHARE
    elif config.tile[:2] == _FLAT:
        sm *= _FLAT_SHARE
    dram = problem.groups * (one.weight_bytes + problem.m * one.row_bytes) / chip.dram_bytes_per_us
    dram += constants.dram_latency_us
    return launch_us(config, constants) + _TABLE_US + norm(_OVERLAP_EXPONENT, max(sm, l2), max(of_one, dram))


def _mean_tiles(m: int, block_m: int) -> float:
    """Rows of tiles of a group, on average over the sizes that are counted on where choices count M as ``m``."""
    before = max((rows for rows in FEW_ROWS if rows < m), default=0)
    typical = (m + before + 1) / 2 if m <= FEW_ROWS[-1] else m
    return sum(-(-max(round(typical * size), 1) // block_m) for size in _SIZES) / len(_SIZES)


def swapped_us(problem: GroupedProblem, config: SwapAbConfig, chip: Chip) -> float:
    """Predicted time of a config of the swapped orientation: persistent CTAs that stream all weights."""
    (one, _), constants = _of_group(problem), SWAP_AB
    tiles_n = -(-problem.n // config.block_n)
    tiles = problem.groups * _mean_tiles(problem.m, config.block_m) * tiles_n
    resident = swapped_resident_ctas(problem, config)
    of_sm = -(-tiles // chip.num_sms)
    steps = config.steps(problem.k)
    at_once = min(resident, of_sm)
    step = step_cycles(config, at_once, constants)
    bytes_of_sm = of_sm * steps * config.stage_bytes
    dram_rate = chip.dram_bytes_per_us * constants.dram_share
    if config.blocks_per_stage > 1:
        dram_rate *= _NEIGHBOURS_SHARE
    dram = problem.groups * (one.weight_bytes + problem.m * one.row_bytes) / dram_rate
    l2 = bytes_of_sm / constants.l2_bytes_per_us
    ring = bytes_of_sm * constants.ring_latency_us / (at_once * config.stages * config.stage_bytes)
    turn = _TURN_US * of_sm / at_once  # products of scales before, sums and output behind each tile
    sm = of_sm * steps * step / chip.max_clock_mhz + turn
    tokens = _TOKEN_US * config.block_m * of_sm * steps * config.blocks_per_stage
    return _SWAPPED_LAUNCH_US + norm(constants.exponent, dram, l2, ring, sm) + tokens + constants.tail_us


@lru_cache(maxsize=64)
def _of_group(problem: GroupedProblem) -> tuple[Problem, Problem]:
    """The product of a typical group, and the same for any M. All candidates are asked about one after the other."""
    one = problem.of_group()
    return one, replace(one, m=0)


@lru_cache(maxsize=4096)
def _predictor(one: Problem, config: TileConfig, chip: Chip) -> Predictor:
    return Predictor(one, config, chip, tile_cost(one, config, GROUPED), GROUPED)
