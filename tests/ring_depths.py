"""Which of the two depths of a tile's ring a product is to have, by the rules as docs/tuning.md says them."""

from __future__ import annotations

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, Problem, Scaling, StoreKind
from fp8gemm.tuning.tiles import MANY_ROWS


def wants_deeper_ring(problem: Problem, config: TileConfig, num_sms: int) -> bool:
    """Whether the deeper one of 128x128 or 128x256, where there are two."""
    tiles = -(-problem.m // 128) * -(-problem.n // config.block_n)
    if config.block_n == 128:
        return problem.m < MANY_ROWS or (problem.k >= 2048 and tiles <= num_sms)
    if problem.n < 2048:
        return False
    if _divides_last_round(problem, tiles, num_sms):
        return tiles <= 5 * num_sms
    return problem.m < MANY_ROWS and tiles <= num_sms


def _divides_last_round(problem: Problem, tiles: int, num_sms: int) -> bool:
    plain = problem.c is problem.bias is Addend.NONE and problem.scaling is Scaling.BLOCK
    in_pieces = problem.store is StoreKind.TMA and problem.output.bytes == 2 and problem.n % 64 == 0
    return plain and in_pieces and tiles > num_sms and 0 < tiles % num_sms <= num_sms // 2
