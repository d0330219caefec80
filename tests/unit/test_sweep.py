"""The random products of `tests/gpu/test_sweep.py`: what they cover, that they repeat, and a few of them on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fp8gemm import settings
from fp8gemm.tuning.problem import Addend, OutputType, Scaling, StoreKind
from tests.cases import fresh_seed
from tests.gpu.faults.memory import LAYOUTS
from tests.gpu.sweep import C_LAYOUTS, MAKERS, NEW, draw

COUNT = 500


def test_a_product_follows_from_its_seed_and_index() -> None:
    seed = fresh_seed()
    drawn = [draw(seed, index) for index in range(COUNT)]
    assert drawn == [draw(seed, index) for index in range(COUNT)]
    assert len(set(drawn)) == COUNT and drawn[:9] != [draw(seed + 1, index) for index in range(9)]


def test_every_choice_is_made() -> None:
    seed = fresh_seed()
    drawn = [draw(seed, index) for index in range(2 * COUNT)]
    kinds = [each.kind for each in drawn]
    assert {kind.scaling for kind in kinds} == set(Scaling)
    assert len({(kind.output, kind.c, kind.bias) for kind in kinds}) == 27 and any(kind.in_place for kind in kinds)
    assert {each.maker for each in drawn} == set(MAKERS)
    assert {each.layout for each in drawn} == {*LAYOUTS, NEW}
    assert {each.c_layout for each in drawn if each.kind.c and not each.kind.in_place} == set(C_LAYOUTS)
    assert {each.row_major for each in drawn} == {(x, y) for x in (False, True) for y in (False, True)}
    assert {each.batch_invariant for each in drawn} == {False, True}
    assert all(1 <= each.m <= 1500 and 1 <= each.n <= 3000 and 16 <= each.k <= 4096 for each in drawn)
    for name, largest in (("m", 1500), ("n", 3000), ("k", 4096)):
        sizes = [getattr(each, name) for each in drawn]
        assert min(sizes) <= largest // 256 and max(sizes) > 0.8 * largest and len(set(sizes)) > 80
    assert any(each.k % 128 for each in drawn) and any(each.k % 128 == 0 for each in drawn)


@pytest.mark.parametrize("index", range(60))
def test_small_ones_are_right_on_the_cpu(index: int) -> None:
    """By the same function that runs them on a GPU."""
    drawn = draw(fresh_seed(), index)
    drawn = replace(drawn, m=min(drawn.m, 40 + index), n=min(drawn.n, 150 + index), k=min(drawn.k, 272))
    with settings.scope(backend="reference"):
        prepared = drawn.prepare(torch.device("cpu"))
        prepared.run().raise_if_failed(drawn)
        problem = prepared.problem
    assert (problem.m, problem.n, problem.k) == (drawn.m, drawn.n, drawn.k)
    assert problem.output is OutputType(str(drawn.kind.output).removeprefix("torch."))
    assert (problem.c is Addend.NONE) == (drawn.kind.c is None) and problem.batch_invariant == drawn.batch_invariant
    assert problem.store in StoreKind and (problem.scaling is drawn.kind.scaling or drawn.n == 1)
