"""Grouped products without a GPU: the device code, run on an emulated Hopper as in `test_dense_emulated`, and what of
that breaks with faults that GPU tests must catch too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fp8gemm.lab.labels import labelled_grouped_config
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, StoreKind
from tests import cases
from tests.emulated.grouped import AnyCase, Multiply, emulated_groups
from tests.emulated.products import edited
from tests.grouped import Maker, contiguous_case, k_grouped_case, masked_case
from tests.mutations.catalogue import find
from tests.thirds import third_of

F32, PREDICATED = OutputType.FLOAT32, StoreKind.PREDICATED
COUNTS, ROOM = (5, 150, 0, 128), 520
RUNS = [(0, 70), (-1, 3), (1, 150), (3, 300), (-1, 2)]
COLUMNS = (384, 0, 1152, 128)


def of_rows(grouping: Grouping, n: int, k: int, output: OutputType = OutputType.BFLOAT16) -> GroupedProblem:
    store = PREDICATED if n * output.bytes % 16 else StoreKind.TMA
    return GroupedProblem(grouping, 4, 100, n, k, output, store)


def of_columns(m: int, n: int, c: Addend = Addend.NONE) -> GroupedProblem:
    return GroupedProblem(Grouping.COLUMNS, 4, m, n, 4096, F32, StoreKind.TMA, c)


WANTED = [
    (of_rows(Grouping.CONTIGUOUS, 320, 1168), "128x192-s2"),
    (of_rows(Grouping.MASKED, 256, 1168), "128x192-s2"),
    (of_rows(Grouping.MASKED, 304, 1168), "128x256-s2-c2x1"),
    (of_rows(Grouping.CONTIGUOUS, 136, 656), "64x64-k2-s2"),
    (of_rows(Grouping.MASKED, 101, 400), "64x128"),
    (of_rows(Grouping.CONTIGUOUS, 136, 400, F32), "128x128"),
    (of_columns(200, 136), "128x128"),
    (of_columns(150, 200, Addend.IN_PLACE), "128x192-s2-c2x1"),
    (of_columns(128, 200, Addend.IN_PLACE), "128x192-s2-c2x1"),  # the second CTA's rows are the next group's
]
"""Products and labels of their configs: of groups of rows that end anywhere, some of them empty, in rooms of one size
or one behind the other, and of columns; more steps than stages. Of the first three there are zeros in the place of
what is missing of a tile."""

DIVIDED = {0: 5, 1: 7, 5: 5}
"""Of `WANTED`, products with numbers of CTAs of which at most half have a tile in the last round: these are divided."""

OF_HALVES = {
    "grouped-halves-of-the-first-rows": 0,
    "grouped-halves-of-both-warpgroups": 1,
    "grouped-half-not-released": 0,
}
FAULTS = {
    "grouped-weights-of-the-first": 0,
    "grouped-weight-scales-of-the-first": 0,
    "grouped-scales-ahead-not-skipped": 0,
    "grouped-masked-scales-of-the-first": 1,
    "grouped-masked-one-behind-the-other": 1,
    "grouped-columns-of-the-first": 6,
    "grouped-column-after-the-last": 6,
    "grouped-outputs-in-one-place": 6,
    "grouped-pieces-of-the-first-rows": 0,
    "grouped-last-piece-not-asked-for": 5,
    "grouped-last-piece-zeroed": 1,
    "missing-rows-expected": 5,
    "grouped-last-tile-stored-whole": 1,
    "grouped-last-row-not-copied": 0,
    "grouped-row-behind-the-last-copied": 0,
    "grouped-last-rows-not-copied": 1,
    "grouped-copied-without-the-swizzle": 1,
    "grouped-neighbours-written": 4,
    **OF_HALVES,
}
"""Mutants, and of `WANTED` a product that each breaks; those of halves where it is `DIVIDED`."""


def pair_of(problem: GroupedProblem, label: str) -> tuple[GroupedProblem, TileConfig]:
    return problem, labelled_grouped_config(label, problem)


def case_of(problem: GroupedProblem, maker: Maker = cases.signed) -> AnyCase:
    options = {"seed": cases.fresh_seed(), "maker": maker}
    if problem.grouping is Grouping.COLUMNS:
        return k_grouped_case(COLUMNS, problem.m, problem.n, c=problem.c is not Addend.NONE, **options)
    if problem.grouping is Grouping.MASKED:
        return masked_case(COUNTS, ROOM, problem.n, problem.k, **options)
    return contiguous_case(RUNS, problem.n, problem.k, **options)


def wrong(multiply: Multiply, case: AnyCase, seed: int, ctas: int = 3) -> str:
    """What is wrong with a product, in words; nothing if it is right."""
    out, said = multiply(case, ctas, seed)
    if said:
        return said
    try:
        case.check(out)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[Multiply]:
    return emulated_groups([pair_of(*wanted) for wanted in WANTED], tmp_path_factory.mktemp("grouped"))


@pytest.mark.parametrize("index", range(len(WANTED)), ids=[f"{p.grouping.value}-{label}" for p, label in WANTED])
def test_groups_are_right_on_an_emulated_hopper(index: int, products: list[Multiply]) -> None:
    problem = WANTED[index][0]
    exact = cases.distinct_scales if problem.c is Addend.NONE else cases.small_integers
    for seed, maker in enumerate((cases.signed, exact)):
        assert wrong(products[index], case_of(problem, maker), seed) == ""
        if index in DIVIDED:
            assert wrong(products[index], case_of(problem, maker), seed, DIVIDED[index]) == ""


@pytest.mark.parametrize("name", third_of(FAULTS, str))
def test_a_fault_of_groups_is_noticed(name: str, tmp_path: Path) -> None:
    index = FAULTS[name]
    wanted, ctas = WANTED[index], DIVIDED[index] if name in OF_HALVES else 3
    (multiply,) = emulated_groups([pair_of(*wanted)], tmp_path, partial(edited, find(name).edits))
    assert any(wrong(multiply, case_of(wanted[0]), seed, ctas) for seed in range(4))
