"""Every mutant, and the controls that show its tests to pass without one."""

from __future__ import annotations

from tests.mutations import (
    arithmetic,
    borders,
    epilogue,
    grouped,
    groups,
    lifetime,
    pipeline,
    placement,
    quantize,
    release,
    routing,
    scales,
    shares,
    split,
    store_ring,
    swap_ab,
    swap_ab_order,
)
from tests.mutations.mutant import Mutant

MUTANTS = (
    arithmetic.MUTANTS
    + scales.MUTANTS
    + borders.MUTANTS
    + shares.MUTANTS
    + split.MUTANTS
    + epilogue.MUTANTS
    + placement.MUTANTS
    + pipeline.MUTANTS
    + store_ring.MUTANTS
    + release.MUTANTS
    + lifetime.MUTANTS
    + swap_ab.MUTANTS
    + swap_ab_order.MUTANTS
    + groups.MUTANTS
    + grouped.MUTANTS
    + quantize.MUTANTS
    + routing.MUTANTS
)
GPU_MUTANTS = tuple(mutant for mutant in MUTANTS if mutant.gpu)


def _control(name: str, what: str, *, chaos: bool) -> Mutant:
    tests = dict.fromkeys(test for mutant in GPU_MUTANTS if mutant.chaos is chaos for test in mutant.tests)
    return Mutant(name, what, (), tuple(tests), chaos=chaos)


CONTROLS = (
    _control("control", "no fault: every named test passes", chaos=False),
    _control("control-in-chaos", "no fault, but the sleeps of the chaos build: every named test passes", chaos=True),
)


def find(name: str) -> Mutant:
    """The mutant or control of that name; KeyError if there is none."""
    return {mutant.name: mutant for mutant in (*MUTANTS, *CONTROLS)}[name]
