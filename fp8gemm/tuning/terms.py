"""The figures that a tile choice is derived from, each with its unit and its formula: rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from fp8gemm.tuning import swap_ab
from fp8gemm.tuning.config import TileConfig, shared_bytes
from fp8gemm.tuning.hopper import SHARED_BYTES_PER_CTA, TENSOR_MACS_PER_CYCLE, Chip
from fp8gemm.tuning.l2 import raster_band
from fp8gemm.tuning.model import Cost
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab_model import SwapAbCost

Value = int | float | str

FACTS = "problem and chip"
TILE = "tile and registers"
SHARED = "shared memory and stages"
OUTPUT = "tiles of the output"
COST = "predicted cost"
"""Groups of rows. Terms of the model name their own."""

COUNTED_M = "M as choice and costs count it: 8 to 128 in eight steps, then in steps of 64, beyond 16384 larger"
STORE = "tma if rows of the packed output are multiples of 16 bytes"

Fact = tuple[str, str, str, Value]
"""Name, unit, formula and value of a row that does not depend on the config."""

Term = tuple[str, str, str, str, Value]
"""Group, name, unit, formula and value of a row, for one config."""


@dataclass(frozen=True)
class Row:
    """One term.

    Attributes:
        group: what it belongs to.
        name: the name that formulas call it by.
        unit: of its values; empty for plain numbers and words.
        formula: how it comes about, or what it is.
        values: one per config, the winner's first; one alone if it does not depend on the config.
    """

    group: str
    name: str
    unit: str
    formula: str
    values: tuple[Value, ...]


def product_facts(problem: Problem, counted: Problem, chip: Chip) -> list[Fact]:
    """What does not depend on the config. ``counted`` is the problem as the choice counts its rows."""
    return [
        ("counted_m", "rows", COUNTED_M, counted.m),
        ("k_blocks", "", "ceil(K / 128)", problem.k_blocks),
        ("flops", "FLOP", "2 * M * N * K", problem.flops),
        ("bytes", "bytes", "operands and scales read once, the output written once", problem.bytes),
        ("store", "", STORE, problem.store.value),
        *roofline_facts(problem.flops, problem.bytes, chip),
    ]


def fact_rows(facts: Iterable[Fact]) -> tuple[Row, ...]:
    """Rows of one value."""
    return tuple(Row(FACTS, name, unit, formula, (value,)) for name, unit, formula, value in facts)


def term_rows(terms: Iterable[Iterable[Term]]) -> Iterator[Row]:
    """Rows of a value for each config, from the terms of each; all have the same, in one order."""
    for same in zip(*terms, strict=True):
        group, name, unit, formula, _ = same[0]
        yield Row(group, name, unit, formula, tuple(value for *_, value in same))


def roofline_facts(flops: int, moved: int, chip: Chip) -> list[Fact]:
    """The chip, and what bounds so many operations and bytes on it."""
    flops_per_us = 2.0 * TENSOR_MACS_PER_CYCLE * chip.num_sms * chip.max_clock_mhz
    return [
        ("num_sms", "", "of the chip", chip.num_sms),
        ("l2_bytes", "bytes", "of the chip", chip.l2_bytes),
        (
            "tensor_rate",
            "TFLOPS",
            f"2 * {TENSOR_MACS_PER_CYCLE} * num_sms at {chip.max_clock_mhz:g} MHz",
            flops_per_us / 1e6,
        ),
        ("dram_rate", "TB/s", "that a copy reaches", chip.dram_bytes_per_us / 1e6),
        ("intensity", "FLOP/byte", "flops / bytes", flops / moved),
        ("chip_intensity", "FLOP/byte", "tensor_rate / dram_rate", flops_per_us / chip.dram_bytes_per_us),
        ("tensor_bound", "us", "flops / tensor_rate", flops / flops_per_us),
        (
            "dram_bound",
            "us",
            "bytes / dram_rate; none is faster than the longer of both",
            moved / chip.dram_bytes_per_us,
        ),
    ]


def config_rows(
    problem: Problem, chip: Chip, configs: Sequence[Config], costs: Sequence[Cost | SwapAbCost]
) -> Iterator[Row]:
    """What configs of one orientation are and what the model says of them, groups together; the model's word where both
    have one."""
    rows = list(_cost_rows(costs))
    of_model = {row.name for row in rows}
    of_configs = term_rows(_of_config(problem, config, chip) for config in configs)
    rows += (row for row in of_configs if row.name not in of_model)
    groups = dict.fromkeys([TILE, SHARED, OUTPUT, *(row.group for row in rows)])
    for group in groups:
        yield from (row for row in rows if row.group == group)


def _of_config(problem: Problem, config: Config, chip: Chip) -> Iterator[Term]:
    if isinstance(config, SwapAbConfig):
        return _of_swapped(problem, config)
    return _of_tile(problem, config, chip)


def _of_swapped(problem: Problem, config: SwapAbConfig) -> Iterator[Term]:
    most, shared = SHARED_BYTES_PER_CTA, swap_ab.shared_bytes(config, problem.k)

    yield TILE, "block_m", "rows", "of A: tokens, WGMMA's columns", config.block_m
    yield TILE, "block_n", "rows", "of B: weights, on WGMMA's 64-row side", config.block_n
    yield TILE, "slices", "K blocks", "64 / block_n, that an instruction multiplies side by side", config.slices
    yield TILE, "wave_cols", "columns", "of one WGMMA, block_m * slices", config.wave_cols
    yield TILE, "warpgroups_k", "", "that divide the K blocks of a stage", config.warpgroups_k
    yield TILE, "split_k", "CTAs", "of a cluster, that divide K", config.split_k
    yield TILE, "threads", "", "128 per warpgroup, and the load warp", config.threads

    yield SHARED, "stage_bytes", "bytes", "K blocks of weights and tokens for all slices", config.stage_bytes
    yield SHARED, "stages", "", "in flight", config.stages
    yield SHARED, "shared_bytes", "bytes", f"ring, products of scales, sums, barriers; at most {most}", shared


def _of_tile(problem: Problem, config: TileConfig, chip: Chip) -> Iterator[Term]:
    registers, stage = config.promotion_registers, config.stage_bytes(problem.scaling)
    shared, most = shared_bytes(config, problem.store, problem.output, problem.scaling), SHARED_BYTES_PER_CTA
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    useful = 100 * problem.m * problem.n / (tiles * config.block_m * config.block_n)
    resident = chip.clusters(config.cluster_size) * config.cluster_size

    yield TILE, "tile", "", "block_m x block_n", f"{config.block_m}x{config.block_n}"
    yield TILE, "warpgroups", "", "consumers along M x along N x that share K", _warpgroups(config)
    yield TILE, "threads", "", "128 per warpgroup, one of which loads", config.threads
    yield TILE, "wave_cols", "columns", "of one WGMMA, of 64 rows", config.wave_cols
    yield TILE, "waves_in_flight", "", "started at a time by a warpgroup", config.waves_in_flight
    yield TILE, "promotion_registers", "a thread", "sums of output and waves in flight", registers

    yield SHARED, "stage_bytes", "bytes", "a K block of A and B with its row scales, one for each share of K", stage
    yield SHARED, "stages", "", "in flight", config.stages
    yield SHARED, "ring_bytes", "bytes", "stages * stage_bytes", config.stages * stage
    yield SHARED, "shared_bytes", "bytes", f"ring_bytes, staged output, shared sums, barriers; at most {most}", shared
    yield SHARED, "unused_bytes", "bytes", f"{most} - shared_bytes", most - shared

    yield OUTPUT, "tiles", "", "ceil(M / block_m) * ceil(N / block_n)", tiles
    yield OUTPUT, "useful_share", "%", "100 * M * N / (tiles * block_m * block_n)", useful
    yield OUTPUT, "cluster", "CTAs", "along M (they share B) x along N", f"{config.cluster_m}x{config.cluster_n}"
    yield OUTPUT, "split_k", "CTAs", "of a cluster, that divide K", config.split_k
    yield OUTPUT, "resident_ctas", "", "num_sms in whole clusters", resident
    # Where CTAs divide K each cluster has one tile, and walks nothing.
    band: Value = raster_band(config, problem.n) if config.split_k == 1 else "none"
    yield OUTPUT, "raster_band", "rows", "of cluster tiles in a band; bands are walked column by column", band


def _warpgroups(config: TileConfig) -> str:
    return f"{config.warpgroups_m}x{config.warpgroups_n}x{config.warpgroups_k}"


def _cost_rows(costs: Sequence[Cost | SwapAbCost]) -> Iterator[Row]:
    for term in fields(costs[0]):
        group, unit, formula = (str(term.metadata[word]) for word in ("group", "unit", "formula"))
        yield Row(group, term.name, unit, formula, tuple(getattr(cost, term.name) for cost in costs))
