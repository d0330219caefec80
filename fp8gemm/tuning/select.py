"""From a problem and a chip to a config: pure functions, cached."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

from fp8gemm.tuning.config import MAX_WAVE_COLS, WAVE_ROWS, TileConfig, candidate_configs
from fp8gemm.tuning.hopper import Chip, named_chip
from fp8gemm.tuning.model import predict
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind


def select(m: int, n: int, k: int, *, chip: str = "h200", batch_invariant: bool = False) -> TileConfig:
    """The config that a packed bfloat16 output of this shape is computed with, B scaled by blocks. Needs no GPU.

    Raises:
        InputError: for an impossible shape or an unknown chip.
    """
    return select_config(Problem(m, n, k, batch_invariant=batch_invariant), named_chip(chip))


def select_config(problem: Problem, chip: Chip) -> TileConfig:
    """The config of least predicted cost."""
    return _ranked(_rounded(problem), chip)[0]


def ranked_configs(problem: Problem, chip: Chip) -> tuple[TileConfig, ...]:
    """Every legal config, best first. All of them are right for every M."""
    return _ranked(_rounded(problem), chip)


def enumerate_configs(
    n: int, k: int, max_m: int, *, chip: str = "h200", batch_invariant: bool = False
) -> tuple[TileConfig, ...]:
    """Exactly the configs that ``select`` returns for some 0 < M <= max_m, each once, in the order of that M."""
    choices = config_by_m(Problem(max_m, n, k, batch_invariant=batch_invariant), named_chip(chip))
    return tuple(dict.fromkeys(config for _, config in choices))


def config_by_m(problem: Problem, chip: Chip) -> tuple[tuple[int, TileConfig], ...]:
    """``select`` as a step function of M: (largest M, config) pairs, ascending, up to ``problem.m`` rounded up."""
    steps: list[tuple[int, TileConfig]] = []
    for m in range(WAVE_ROWS, _rounded(problem).m + 1, WAVE_ROWS):
        config = select_config(replace(problem, m=m), chip)
        if steps and steps[-1][1] == config:
            steps.pop()
        steps.append((m, config))
    return tuple(steps)


def _rounded(problem: Problem) -> Problem:
    """The same problem with M rounded up to whole waves: no config computes fewer rows than that, and choices that
    depend on M only through it change at known places, so a plan can hold them all."""
    return replace(problem, m=max(-(-problem.m // WAVE_ROWS), 1) * WAVE_ROWS)


@lru_cache(maxsize=4096)
def _ranked(problem: Problem, chip: Chip) -> tuple[TileConfig, ...]:
    def order(config: TileConfig) -> tuple[bool, float]:
        return not _pays(problem, config, chip), predict(problem, config, chip).total_us

    candidates = _candidates(problem.store, problem.output, problem.scaling)
    if problem.batch_invariant:
        candidates = tuple(filter(is_batch_invariant, candidates))
    return tuple(sorted(candidates, key=order))


def is_batch_invariant(config: TileConfig) -> bool:
    """Whether a config is one of those that add up an element of the output in one and the same way, whatever M is.

    All configs promote K blocks in ascending order. What could differ is a block's sum inside the tensor core, whose
    order is not documented: so these all use one instruction shape, m64n128k32, and K is never split.
    """
    return config.wave_cols == MAX_WAVE_COLS


def _pays(problem: Problem, config: TileConfig, chip: Chip) -> bool:
    """Whether each CTA of a cluster can have a tile of its own; a cluster that cannot is right, but partly idle."""
    return (
        config.cluster_size <= chip.num_sms
        and config.cluster_m <= -(-problem.m // config.block_m)
        and config.cluster_n <= -(-problem.n // config.block_n)
    )


@cache
def _candidates(store: StoreKind, output: OutputType, scaling: Scaling) -> tuple[TileConfig, ...]:
    return tuple(candidate_configs(store, output, scaling))
