"""The few kernels that serve one weight from `MANY_ROWS` rows on.

Each candidate is the fastest for some M of some weight. A kernel costs its users half a second to compile, so where
more than `MOST_KERNELS` would be chosen for a weight those are left out that are worth least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fp8gemm.sizes import LIMIT
from fp8gemm.tuning.candidates import rows_decide, why_last
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.model import Predictor
from fp8gemm.tuning.problem import Problem, counted_rows
from fp8gemm.tuning.tiles import MANY_ROWS

MOST_KERNELS = 10


def _sampled_rows() -> Iterator[int]:
    m = MANY_ROWS
    while m < LIMIT:
        yield m
        # A sixteenth more, then a fifth; beyond what a plan can have no other tile comes to be the fastest.
        m = counted_rows(m + m // 16) if m < 2**14 else counted_rows(m + m // 5) if m < 2**20 else LIMIT
    yield counted_rows(LIMIT - 1)


_SAMPLED_ROWS = {m: 1.0 if m <= 2**14 else 0.25 for m in _sampled_rows()}
"""M that stand for all, and how much each of them counts: up to 16384 they are about equally likely by their logarithm,
and products of more are rare. By all M up to there instead the choice is no better, 0.06 % over the least predicted
cost of all candidates (60 weights), and takes four times as long."""

Candidates = Sequence[tuple[TileConfig, Predictor]]


def may_be_chosen(config: TileConfig, problem: Problem, chip: Chip) -> bool:
    """Whether the choice may fall on it, which with `MANY_ROWS` it may."""
    return not (rows_decide(config) and why_last(problem, config, chip))


def fastest(candidates: Candidates, problem: Problem, chip: Chip) -> TileConfig:
    """The first of those with the least predicted cost that the choice may fall on. No other is ranked."""
    best, least = None, math.inf
    for config, predictor in candidates:
        us = predictor.total_us(problem.m, least)
        if us < least and may_be_chosen(config, problem, chip):
            best, least = config, us
    assert best is not None, "some tile is for any number of rows, and the fastest with the most"
    return best


def worth_compiling(candidates: Candidates, problem: Problem, chip: Chip) -> Candidates:
    """Those that are the fastest with some number of rows, `MOST_KERNELS` at most, in their order. Of the problem M is
    ignored.

    Of too many the one leaves first without which the choice loses least: what the next one takes longer, as a share,
    with those numbers of rows that it serves.
    """
    least_m = replace(problem, m=MANY_ROWS)
    candidates = [each for each in candidates if rows_decide(each[0]) or not why_last(least_m, each[0], chip)]
    kept = {fastest(candidates, replace(problem, m=m), chip) for m in _SAMPLED_ROWS}
    if len(kept) > MOST_KERNELS:
        kept = _worth_most({config: each for config, each in candidates if config in kept}, problem, chip)
    return tuple(each for each in candidates if each[0] in kept)


def _worth_most(candidates: Mapping[TileConfig, Predictor], problem: Problem, chip: Chip) -> set[TileConfig]:
    left = set(candidates)
    us_by_rows = [(counts, _predicted(candidates, replace(problem, m=m), chip)) for m, counts in _SAMPLED_ROWS.items()]
    while len(left) > MOST_KERNELS:
        lost = {config: 0.0 for config in candidates if config in left}
        for counts, us in us_by_rows:
            best, *others = sorted((config for config in us if config in left), key=us.__getitem__)
            lost[best] += counts * (us[others[0]] / us[best] - 1) if others else math.inf
        left.remove(min(lost, key=lost.__getitem__))
    return left


def _predicted(candidates: Mapping[TileConfig, Predictor], problem: Problem, chip: Chip) -> dict[TileConfig, float]:
    return {
        config: predictor.total_us(problem.m)
        for config, predictor in candidates.items()
        if may_be_chosen(config, problem, chip)
    }
