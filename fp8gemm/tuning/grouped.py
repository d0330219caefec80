"""From a grouped problem and a chip to a config, or to all that are chosen for some M: pure functions, cached."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted
from fp8gemm.sizes import check_whole_number
from fp8gemm.tuning.grouped_config import pair_candidates, swapped_candidates, takes_pairs, tile_candidates
from fp8gemm.tuning.grouped_model import predicted_us
from fp8gemm.tuning.grouped_problem import GroupedProblem, counted_rows_of_group, grouped_problem
from fp8gemm.tuning.hopper import Chip, named_chip
from fp8gemm.tuning.problem import (
    FEW_ROWS,
    Grouping,
    OutputType,
    counted_between,
    parse_output,
)
from fp8gemm.tuning.select import Config, joined

GROUPINGS = tuple(grouping for grouping in Grouping if grouping is not Grouping.NONE)


def select_grouped(problem: GroupedProblem, chip: Chip) -> Config:
    """The config of the least predicted cost."""
    return ranked_grouped(problem, chip)[0]


def ranked_grouped(problem: GroupedProblem, chip: Chip) -> tuple[Config, ...]:
    """Every candidate, best first. All of them are right whatever the sizes of groups."""
    return _ranked(replace(problem, m=problem.counted_m), chip)


def grouped_config_by_m(problem: GroupedProblem, chip: Chip) -> tuple[tuple[int, Config], ...]:
    """The choice as a step function of the rows of a typical group: (most rows, config), up to ``problem.m``."""
    rows = counted_between(1, problem.m, counted_rows_of_group)
    choices = [(m, select_grouped(replace(problem, m=m), chip)) for m in rows]
    return joined(choices)


def enumerate_grouped_configs(
    grouping: str,
    groups: int,
    n: int,
    k: int,
    max_m: int,
    *,
    chip: str = "h200",
    out_dtype: object = None,
    batch_invariant: bool = False,
) -> tuple[Config, ...]:
    """Exactly the configs that grouped products with a new, packed output choose for some 0 < expected_m <= max_m.

    Args:
        grouping: ``contiguous`` for `fp8gemm.gemm_grouped`, ``masked`` for `fp8gemm.gemm_masked`, ``columns`` for
            `fp8gemm.gemm_k_grouped`, with and without C.
        groups, n, k: of B (G, N, K); with ``columns`` D is (G, M, N), and k counts for nothing.
        max_m: the most rows of a typical group; with ``columns`` of each.
        chip: as `fp8gemm.tuning.hopper.named_chip` finds it.
        out_dtype: bfloat16 by default, float16 or float32, by name or as torch's; float32 alone with ``columns``.
        batch_invariant: as in `fp8gemm.gemm_grouped`.

    Returns:
        Each once, in the order of the rows that ask for it.

    Raises:
        InputError: for impossible sizes, or an unknown grouping, chip or dtype.
    """
    kind = parse_grouping(grouping)
    of_columns = kind is Grouping.COLUMNS
    usual = OutputType.FLOAT32 if of_columns else OutputType.BFLOAT16
    output = usual if out_dtype is None else parse_output(out_dtype)
    if of_columns and (output is not usual or batch_invariant):
        raise InputError(
            f"columns: expected a float32 output and no batch invariance, got {output.value}"
            f"{', batch-invariant' * batch_invariant}"
        )
    check_whole_number("max_m", max_m, 1)
    problem = grouped_problem(kind, groups, max_m, n, k, output, batch_invariant=batch_invariant)
    asked = [problem, problem.accumulating()] if of_columns else [problem]
    return tuple(dict.fromkeys(config for each in asked for config in grouped_configs(each, named_chip(chip))))


def grouped_configs(problem: GroupedProblem, chip: Chip) -> tuple[Config, ...]:
    """Those that are chosen for some M up to the problem's own, each once."""
    return tuple(dict.fromkeys(config for _, config in grouped_config_by_m(problem, chip)))


def parse_grouping(text: str) -> Grouping:
    """A grouping by its name.

    Raises:
        InputError: there is none of that name.
    """
    found = next((grouping for grouping in GROUPINGS if grouping.value == text), None)
    if found is None:
        raise InputError(f"expected {' or '.join(each.value for each in GROUPINGS)}, got {quoted(text)}")
    return found


@lru_cache(maxsize=4096)
def _ranked(problem: GroupedProblem, chip: Chip) -> tuple[Config, ...]:
    of_all = replace(problem, m=0)
    configs: list[Config] = [*tile_candidates(of_all, chip)]
    if problem.m <= FEW_ROWS[-1]:
        configs += swapped_candidates(of_all)
    if takes_pairs(problem):
        configs += pair_candidates(of_all, chip)
    return tuple(sorted(configs, key=lambda config: predicted_us(problem, config, chip)))
