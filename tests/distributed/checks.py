"""All checks, by the number of ranks that they are for, in their order."""

from __future__ import annotations

from tests.distributed import (
    copying,
    layers,
    mixtures,
    operators,
    overlapping,
    overlapping_experts,
    plans,
    states,
    training,
    unasked,
)
from tests.distributed.world import Check

_ANY: tuple[Check, ...] = (
    *operators.CHECKS,
    *layers.CHECKS,
    *overlapping.CHECKS,
    *copying.CHECKS,
    *unasked.CHECKS,
    *mixtures.CHECKS,
    *overlapping_experts.CHECKS,
    *plans.CHECKS,
    *states.CHECKS,
    *training.CHECKS,
)

DYING: Check = states.a_rank_that_dies_is_an_error

CHECKS: dict[int, dict[str, Check]] = {
    ranks: {check.__name__: check for check in checks}
    for ranks, checks in ((2, (*_ANY, *states.OF_TWO)), (4, (*_ANY, *mixtures.OF_FOUR, *states.OF_FOUR)))
}
