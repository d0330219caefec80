"""Whether a product starts while the kernel ahead of it ends (programmatic dependent launch), or behind it.

Starting ahead hides a launch and, where the weight does not change, the first reads of it: 1 to 2 us. But CTAs that
start so take the SMs in the order in which these fall free. Where they are fewer than SMs, they lie no more as evenly
over the GPU as those of a grid that starts as a whole; and CTAs that share the rows of a weight start apart, and read
them apart. Both cost a share of the time, so that they count where a weight is large.

With a weight that does not change, 21 N x K (H200, 2026-11-27): of 48 to 192 rows products one behind the other are as
fast on average if all start ahead, and 14 % slower at worst; by the rule here 2 % faster, and 2 % slower. Behind a
quantiser: as fast, and 26 % slower at worst; by the rule 2 % faster, and 5 % slower. Of 8 to 32 rows they are 9 and 6 %
faster, by the rule 10 and 7; from 256 rows on as fast either way (docs/tuning.md, "Ahead or behind").

Ordinary tiles lose by lying unevenly from half of that weight on: with 48 to 192 rows of 21 N x K those that leave SMs
without one have 0.98 of their speed ahead, from 0.77 to 1.10, and the swapped ones 1.06 (H200, 2026-12-01).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fp8gemm.tuning.problem import Problem, rounded
from fp8gemm.tuning.swap_ab import SwapAbConfig

if TYPE_CHECKING:
    from fp8gemm.tuning.config import TileConfig
    from fp8gemm.tuning.hopper import Chip

PLAIN_PRODUCTS = 2**36
"""Products M N K from which nothing starts ahead: 0.1 ms and more, beside which 1 or 2 us are nothing."""
SHARED_WEIGHT = 2**24
"""Elements N K of a weight from which CTAs that read the same rows of it are not to start apart, if their tiles are of
less than `ROWS_OF_SLOW_TILE` rows: the others wait for tensor cores more than for the weight."""
ROWS_OF_SLOW_TILE = 128
UNEVEN_WEIGHT, UNEVEN_WEIGHT_OF_ORDINARY = 2**25, 2**24
"""Elements of a weight from which CTAs are to lie evenly, unless their last round is nearly all of the SMs; of ordinary
tiles that nothing shares the weight with."""
MOST_OF_A_ROUND = 0.85
"""Of the SMs, that is enough up to `UNEVEN_WEIGHT`."""
WHOLE_ROUND, WHOLE_ROUND_OF_FEW = 0.95, 0.8
"""Of the SMs; the latter up to `FEW` rows, with which what starts ahead is up to 13 % faster from 0.85 on, 0 to 10 %
slower at 0.81 and 0.73 (16 to 32 rows, nine N x K, H200, 2026-11-27)."""
FEW = 32


def starts_ahead(m: int, n: int, k: int, config: TileConfig | SwapAbConfig, num_sms: int) -> bool:
    """Whether a product of these sizes is faster if it starts ahead, with a kernel of this config on so many SMs."""
    weight = n * k
    if m * weight >= PLAIN_PRODUCTS:
        return False
    rows_of_tiles = -(-m // config.block_m)
    if rows_of_tiles > 1 and weight >= SHARED_WEIGHT and config.block_m < ROWS_OF_SLOW_TILE:
        return False
    ctas = rows_of_tiles * -(-n // config.block_n) * config.split_k
    places = -(-ctas // num_sms) * num_sms
    if weight < UNEVEN_WEIGHT_OF_ORDINARY:
        return True
    if weight < UNEVEN_WEIGHT:
        return isinstance(config, SwapAbConfig) or rows_of_tiles > 1 or ctas >= MOST_OF_A_ROUND * places
    return ctas >= (WHOLE_ROUND_OF_FEW if m <= FEW else WHOLE_ROUND) * places


def as_launched(problem: Problem, config: TileConfig | SwapAbConfig, chip: Chip) -> Problem:
    """The problem, M as choices count it; with no static weight where a kernel of this config has no use of one,
    because it starts behind the kernel before it."""
    counted = rounded(problem)
    if not counted.static_weights or starts_ahead(counted.m, counted.n, counted.k, config, chip.num_sms):
        return counted
    return replace(counted, static_weights=False)
