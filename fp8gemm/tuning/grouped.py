"""From a grouped problem and a chip to a config: pure functions, cached."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fp8gemm.tuning.grouped_config import swapped_candidates, tile_candidates
from fp8gemm.tuning.grouped_model import predicted_us
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, counted_rows, counted_rows_between
from fp8gemm.tuning.select import Config, joined


def select_grouped(problem: GroupedProblem, chip: Chip) -> Config:
    """The config of the least predicted cost."""
    return ranked_grouped(problem, chip)[0]


def ranked_grouped(problem: GroupedProblem, chip: Chip) -> tuple[Config, ...]:
    """Every candidate, best first. All of them are right whatever the sizes of groups."""
    return _ranked(replace(problem, m=counted_rows(problem.m)), chip)


def grouped_config_by_m(problem: GroupedProblem, chip: Chip) -> tuple[tuple[int, Config], ...]:
    """The choice as a step function of the rows of a typical group: (most rows, config), up to ``problem.m``."""
    choices = [(m, select_grouped(replace(problem, m=m), chip)) for m in counted_rows_between(1, problem.m)]
    return joined(choices)


@lru_cache(maxsize=4096)
def _ranked(problem: GroupedProblem, chip: Chip) -> tuple[Config, ...]:
    of_all = replace(problem, m=0)
    configs: list[Config] = [*tile_candidates(of_all, chip)]
    if problem.m <= FEW_ROWS[-1]:
        configs += swapped_candidates(of_all)
    return tuple(sorted(configs, key=lambda config: predicted_us(problem, config, chip)))
