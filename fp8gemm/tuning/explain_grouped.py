"""Why a config is chosen for grouped products: facts, the best configs of both orientations, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp8gemm.errors import InputError
from fp8gemm.tuning.explain import MODEL, Explanation, bound_sentence, in_us, other_name, other_orientation
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import grouped_shared_bytes, swapped_resident_ctas
from fp8gemm.tuning.grouped_model import predicted_us
from fp8gemm.tuning.grouped_problem import NOMINAL_K, GroupedProblem
from fp8gemm.tuning.hopper import SHARED_BYTES_PER_CTA, Chip
from fp8gemm.tuning.problem import Grouping
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.terms import (
    COST,
    OUTPUT,
    SHARED,
    STORE,
    TILE,
    Fact,
    Term,
    fact_rows,
    roofline_facts,
    term_rows,
)

_COUNTED_M = (
    "M as choice and costs count it: 8 to 128 in eight steps, to 256 in steps of 16, then of 64, beyond 16384 larger"
)

_Costs = dict[Config, float]


def explain_grouped(problem: GroupedProblem, chip: Chip, runners_up: int = 4) -> Explanation:
    """Derive the choice for groups of about ``problem.m`` rows, beside ``runners_up`` others or as many as there are.

    Raises:
        InputError: M is 0.
    """
    if problem.m < 1:
        raise InputError(f"expected M >= 1, since a group without rows has no tiles, got M = {problem.m}")
    counted = replace(problem, m=problem.counted_m)
    costs = {config: predicted_us(counted, config, chip) for config in ranked_grouped(problem, chip)}
    shown = tuple(costs)[: 1 + max(runners_up, 0)]
    facts = fact_rows(_facts(problem, chip))
    return Explanation(
        problem=problem,
        chip=chip,
        legal=len(costs),
        source=MODEL,
        configs=shown,
        facts=facts,
        rows=tuple(term_rows(_terms(problem, config, costs[config], chip) for config in shown)),
        verdict=(bound_sentence({fact.name: fact.values[0] for fact in facts}), *_verdict(costs)),
    )


def _facts(problem: GroupedProblem, chip: Chip) -> Iterator[Fact]:
    one, groups = problem.of_group(), problem.groups
    moved = groups * one.bytes
    yield "groups", "", "each with a weight of its own, and about M rows", groups
    if problem.grouping is Grouping.COLUMNS:
        yield "columns", "", "of a typical group, which the choice is made for whatever they are", NOMINAL_K
    yield "counted_m", "rows", _COUNTED_M, problem.counted_m
    yield "k_blocks", "", "ceil(K / 128)", one.k_blocks
    yield "rows", "", "groups * M", groups * problem.m
    yield "flops", "FLOP", "2 * rows * N * K", groups * one.flops
    yield "weight_bytes", "bytes", "B and its scales, of all groups, read once", groups * one.weight_bytes
    yield "bytes", "bytes", "these, A and its scales, and the output", moved
    yield "weight_bound", "us", "weight_bytes / dram_rate", groups * one.weight_bytes / chip.dram_bytes_per_us
    yield "store", "", STORE, problem.store.value
    yield from roofline_facts(groups * one.flops, moved, chip)


def _terms(problem: GroupedProblem, config: Config, us: float, chip: Chip) -> Iterator[Term]:
    """Group, name, unit, formula and value of each row; the same rows for both orientations."""
    swapped = isinstance(config, SwapAbConfig)
    stage = config.stage_bytes if isinstance(config, SwapAbConfig) else config.stage_bytes(problem.scaling)
    shared = grouped_shared_bytes(problem, config)
    tiles_of_group = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    useful = 100 * problem.m * problem.n / (tiles_of_group * config.block_m * config.block_n)
    tiles, resident = problem.groups * tiles_of_group, _resident_ctas(problem, config, chip)

    yield TILE, "orientation", "", "swapped: weights on WGMMA's 64-row side", "swapped" if swapped else "ordinary"
    yield TILE, "block_m", "rows", "of A, of one group", config.block_m
    yield TILE, "block_n", "columns", "of the output", config.block_n
    yield TILE, "wave_cols", "columns", "of one WGMMA, of 64 rows", config.wave_cols
    yield TILE, "warpgroups_k", "", "that share K", config.warpgroups_k
    yield TILE, "threads", "", "of a CTA", config.threads
    yield TILE, "cluster", "CTAs", "whose tiles are of one group", config.cluster_size

    yield SHARED, "stage_bytes", "bytes", "of operands, and of scales where rings hold them", stage
    yield SHARED, "stages", "", "in flight", config.stages
    table = problem.table_bytes(config.threads)
    yield SHARED, "table_bytes", "bytes", "where each group begins and ends, and its tiles", table
    yield SHARED, "shared_bytes", "bytes", f"all of it; at most {SHARED_BYTES_PER_CTA}", shared

    yield OUTPUT, "tiles_of_group", "", "ceil(M / block_m) * ceil(N / block_n)", tiles_of_group
    lost = "100 * M * N / (tiles_of_group * block_m * block_n); ragged ends of groups cost the rest"
    yield OUTPUT, "useful_share", "%", lost, useful
    yield OUTPUT, "tiles", "", "groups * tiles_of_group", tiles
    yield OUTPUT, "resident_ctas", "", "on all SMs at once", resident
    yield OUTPUT, "tiles_of_cta", "", "tiles / resident_ctas, the most that one has", -(-tiles // resident)

    yield COST, "total_us", "us", "sizes of groups 0.6 to 1.4 times M", us


def _resident_ctas(problem: GroupedProblem, config: Config, chip: Chip) -> int:
    if isinstance(config, SwapAbConfig):
        return chip.num_sms * swapped_resident_ctas(problem, config)
    return max(chip.num_sms // config.cluster_size, 1) * config.cluster_size


def _verdict(costs: _Costs) -> Iterator[str]:
    """Sentences: the winner, what comes next, and the best of the other orientation."""
    winner, *others = costs
    least = costs[winner]
    yield f"{winner.label} has the least predicted cost of {len(costs)} legal configs, {in_us(least)}."
    if others:
        more = costs[others[0]] - least
        yield f"{others[0].label} comes next, {in_us(more)} ({more / least:.1%}) behind."
    swapped = isinstance(winner, SwapAbConfig)
    other = next((config for config in others if isinstance(config, SwapAbConfig) != swapped), None)
    if other is not None:
        yield other_orientation(winner, costs[other], other)
    elif not swapped:
        name = other_name(winner)
        yield f"The {name} is for up to 128 rows, a B scaled by blocks, and sums whose order may depend on M: not here."
