"""From a problem and a chip to a config: pure functions, cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from operator import itemgetter

from fp8gemm.sizes import check_whole_sizes
from fp8gemm.tuning.candidates import candidate_configs, least_k, why_last
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.constants import DEFAULT, OF_FEW_ROWS, Constants
from fp8gemm.tuning.dependent_launch import as_launched
from fp8gemm.tuning.hopper import Chip, named_chip
from fp8gemm.tuning.many_rows import Candidates, fastest, worth_compiling
from fp8gemm.tuning.model import Predictor, TileCost, tile_cost
from fp8gemm.tuning.problem import (
    FEW_ROWS,
    ROW_STEP,
    OutputType,
    Problem,
    Scaling,
    StoreKind,
    counted_between,
    packed_problem,
    parse_epilogue,
    parse_output,
    rounded,
)
from fp8gemm.tuning.swap_ab import SwapAbConfig, swap_ab_candidates, tiles_of
from fp8gemm.tuning.swap_ab_model import predict_swap_ab
from fp8gemm.tuning.table import Tables, tables_in_force
from fp8gemm.tuning.tiles import MANY_ROWS, TILES

Config = TileConfig | SwapAbConfig
"""What a kernel of either orientation is compiled for."""

LEAST_IN_TURNS = 48
"""Rows from which ordinary configs of few rows are compared by `OF_FEW_ROWS`. With 16 and 32 the choice takes 1.5 %
more than the fastest by `DEFAULT`, and 2.1 by those (42 shapes, H200, 2026-12-01)."""

TYPICAL_ROWS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The M that the one instruction shape of the batch-invariant mode is chosen for, with equal weights."""


def select(
    m: int,
    n: int,
    k: int,
    *,
    chip: str = "h200",
    out_dtype: object = "bfloat16",
    epilogue: str = "none",
    batch_invariant: bool = False,
    static_weights: bool = False,
) -> Config:
    """The config that a new, packed output of this shape is computed with, B scaled by blocks. Needs no GPU.

    Args:
        m, n, k: the sizes.
        chip: as `fp8gemm.tuning.hopper.named_chip` finds it.
        out_dtype: bfloat16, float16 or float32, by name or as torch's.
        epilogue: what is added, as `fp8gemm.tuning.problem.parse_epilogue` reads it.
        batch_invariant, static_weights: as in `fp8gemm.gemm`.

    Raises:
        InputError: for an impossible shape, an unknown chip, dtype or epilogue.
    """
    return _select(m, n, k, chip, out_dtype, epilogue, batch_invariant, static_weights, tables_in_force())


def select_config(problem: Problem, chip: Chip, tables: Tables | None = None) -> Config:
    """The config that a tuned table names or else the model: the first of `ranked_configs`."""
    return ranked_configs(problem, chip, tables)[0]


def ranked_configs(problem: Problem, chip: Chip, tables: Tables | None = None) -> tuple[Config, ...]:
    """Every legal config, best first. All of them are right for every M.

    The one that a table names comes first, or the one of least predicted cost: from `MANY_ROWS` rows on of those that
    are worth compiling for this weight. The others follow by cost. ``tables`` are those in force by default.
    """
    eligible, last = _ranked_in_force(problem, chip, tables)
    return eligible + last


def eligible_configs(problem: Problem, chip: Chip, tables: Tables | None = None) -> tuple[Config, ...]:
    """Those of `ranked_configs` that the choice may fall on, by prediction or by a table: from `MANY_ROWS` rows on most
    of them by a table alone."""
    return _ranked_in_force(problem, chip, tables)[0]


def enumerate_configs(
    n: int,
    k: int,
    max_m: int,
    *,
    chip: str = "h200",
    out_dtype: object = "bfloat16",
    epilogue: str = "none",
    batch_invariant: bool = False,
    static_weights: bool = False,
) -> tuple[Config, ...]:
    """Exactly the configs that ``select`` returns for some 0 < M <= max_m, each once, in the order of that M."""
    problem = _problem(max_m, n, k, out_dtype, epilogue, batch_invariant, static_weights)
    choices = config_by_m(problem, named_chip(chip))
    return tuple(dict.fromkeys(config for _, config in choices))


def config_by_m(problem: Problem, chip: Chip) -> tuple[tuple[int, Config], ...]:
    """``select`` as a step function of M: (largest M, config) pairs, ascending, up to ``problem.m`` rounded up."""
    tables = tables_in_force()
    last = problem.counted_m
    few = counted_between(1, min(last, MANY_ROWS - ROW_STEP))
    steps = [(m, select_config(replace(problem, m=m), chip, tables)) for m in few]
    if last >= MANY_ROWS:
        shared = problem if tables.rows(problem, chip) else replace(problem, static_weights=False)
        steps += _of_many_rows(replace(shared, m=last), chip, tables)
    return joined(steps)


@lru_cache(maxsize=4096, typed=True)  # a float that is a size asked for before is refused like any other
def _select(
    m: int,
    n: int,
    k: int,
    chip: str,
    out_dtype: object,
    epilogue: str,
    batch_invariant: bool,
    static_weights: bool,
    tables: Tables,
) -> Config:
    return select_config(_problem(m, n, k, out_dtype, epilogue, batch_invariant, static_weights), named_chip(chip))


def _problem(
    m: int, n: int, k: int, out_dtype: object, epilogue: str, batch_invariant: bool, static_weights: bool
) -> Problem:
    check_whole_sizes(m=m, n=n, k=k)
    c, bias = parse_epilogue(epilogue)
    problem = packed_problem(m, n, k, parse_output(out_dtype), batch_invariant=batch_invariant)
    return replace(problem, c=c, bias=bias, static_weights=static_weights)


@lru_cache(maxsize=1024)
def _of_many_rows(problem: Problem, chip: Chip, tables: Tables) -> tuple[tuple[int, Config], ...]:
    """`config_by_m` from `MANY_ROWS` to ``problem.m``: hundreds of choices, of which none ranks more than the best."""
    candidates, tuned = _of_weight(_without_m(problem), chip), tables.rows(problem, chip)
    by_m = ((m, replace(problem, m=m)) for m in counted_between(MANY_ROWS, problem.m))
    return joined(
        [(m, select_config(at_m, chip, tables) if m in tuned else fastest(candidates, at_m, chip)) for m, at_m in by_m]
    )


@lru_cache(maxsize=1024)
def _of_weight(problem: Problem, chip: Chip) -> Candidates:
    return worth_compiling(_predictors(problem, chip), problem, chip)


def joined(steps: Sequence[tuple[int, Config]]) -> tuple[tuple[int, Config], ...]:
    """Those of the (largest M, config) pairs that another config follows, and the last."""
    following = [config for _, config in steps[1:]]
    return *(step for step, after in zip(steps, following, strict=False) if step[1] != after), *steps[-1:]


def _ranked_in_force(
    problem: Problem, chip: Chip, tables: Tables | None
) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    return _ranked(rounded(problem), chip, tables_in_force() if tables is None else tables)


@lru_cache(maxsize=4096)
def _ranked(problem: Problem, chip: Chip, tables: Tables) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    """Those that the choice may fall on, and those that come last; both best first."""
    costs: list[tuple[float, Config]] = []
    if swaps(problem):
        for swapped in swap_ab_candidates(problem.m, problem.n, problem.k, chip.num_sms):
            ctas = tiles_of(swapped, problem.m, problem.n) * swapped.cluster_size
            if ctas <= chip.num_sms or not chip.limited:
                costs.append((predict_swap_ab(as_launched(problem, swapped, chip), swapped, chip).total_us, swapped))
    constants = constants_for(problem)
    for ordinary, each in _predictors(_without_m(problem), chip, constants):
        ahead = problem.static_weights and as_launched(problem, ordinary, chip).static_weights
        costs.append((each.total_us(problem.m, ahead=ahead), ordinary))
    eligible: list[Config] = []
    last: list[Config] = []
    for _, config in sorted(costs, key=itemgetter(0)):
        (last if why_last(problem, config, chip) else eligible).append(config)
    if problem.m >= MANY_ROWS:
        _put_first(fastest(_of_weight(_without_m(problem), chip), problem, chip), eligible)
    tuned = tables.config(problem, chip, eligible)
    if tuned is None and problem.static_weights and (launched := as_launched(problem, eligible[0], chip)) != problem:
        # Behind the kernel before it, it is the product that entries for a weight that may change are of.
        tuned = tables.config(launched, chip, eligible)
    if tuned is not None:
        _put_first(tuned, eligible)
    return tuple(eligible), tuple(last)


def _put_first(config: Config, configs: list[Config]) -> None:
    configs.remove(config)
    configs.insert(0, config)


def _without_m(problem: Problem) -> Problem:
    """What all M share, and a weight that is static and one that is not: it makes a difference to few rows alone."""
    return replace(problem, m=0, static_weights=False)


@lru_cache(maxsize=1024)
def _predictors(
    problem: Problem, chip: Chip, constants: Constants = DEFAULT
) -> tuple[tuple[TileConfig, Predictor], ...]:
    """The candidates of the ordinary orientation, each with its predictions for every M."""
    tiles = _tile_costs(problem.k, problem.store, problem.output, problem.scaling, constants)
    if problem.batch_invariant:
        width = invariant_wave_cols(problem.n, problem.k, problem.scaling, chip)
        tiles = tuple((config, tile) for config, tile in tiles if _is_invariant(config, width))
    return tuple((config, Predictor(problem, config, chip, tile, constants)) for config, tile in tiles)


@lru_cache(maxsize=4096)
def invariant_wave_cols(n: int, k: int, scaling: Scaling, chip: Chip) -> int:
    """Columns of the one instruction shape that batch-invariant products with this B use on this chip, whatever M is.

    Of the configs that do not divide K, all promote K blocks in ascending order. What could differ is a
    block's sum inside the tensor core, whose order is not documented: so one shape, m64n*k32, serves every M. It is the
    one with the least predicted cost, as a geometric mean over `TYPICAL_ROWS`; neither M nor how the output is stored
    plays a part.
    """
    predictors = _predictors(Problem(0, n, k, scaling=scaling), chip)

    def cost(width: int) -> float:
        of_width = [(config, predictor) for config, predictor in predictors if _is_invariant(config, width)]
        return sum(
            math.log(min(each.total_us(m) for config, each in of_width if _sets_width(config, m))) for m in TYPICAL_ROWS
        )

    widths = {
        config.wave_cols
        for config, _ in predictors
        if _is_in_order(config) and all(_sets_width(config, m) for m in TYPICAL_ROWS)
    }
    return min(sorted(widths, reverse=True), key=cost)


def _sets_width(config: TileConfig, m: int) -> bool:
    return TILES[config.tile].sets_width(m)


def _is_in_order(config: TileConfig) -> bool:
    """Whether the K blocks are added one by one, in ascending order."""
    return config.warpgroups_k * config.split_k == 1


def _is_invariant(config: TileConfig, wave_cols: int) -> bool:
    return _is_in_order(config) and config.wave_cols == wave_cols


def swaps(problem: Problem) -> bool:
    """Whether configs of the swapped orientation are among the candidates: for few rows of what `_may_swap`."""
    return problem.m <= FEW_ROWS[-1] and _may_swap(problem)


def _may_swap(problem: Problem) -> bool:
    """Whether they are with few rows: a weight is scaled by blocks, and the order of sums may depend on M."""
    return problem.scaling is Scaling.BLOCK and not problem.batch_invariant


def constants_for(problem: Problem) -> Constants:
    """By which ordinary configs are compared for this problem."""
    return OF_FEW_ROWS if LEAST_IN_TURNS <= problem.m < MANY_ROWS and _may_swap(problem) else DEFAULT


@cache
def _candidates(store: StoreKind, output: OutputType, scaling: Scaling, k: int) -> tuple[TileConfig, ...]:
    return tuple(candidate_configs(store, output, scaling, k))


@lru_cache(maxsize=4096)
def _tile_costs(
    k: int, store: StoreKind, output: OutputType, scaling: Scaling, constants: Constants
) -> tuple[tuple[TileConfig, TileCost], ...]:
    """The candidates, each with what its tile costs whatever M is: a plan asks for hundreds of M of one K."""
    problem = Problem(1, 1, k, output, store, scaling)
    configs = _candidates(store, output, scaling, least_k(k))
    return tuple((config, tile_cost(problem, config, constants)) for config in configs)
