"""Dense products without a GPU: the device code, run on an emulated Hopper that does at a bad moment what it may do at
any, and what of that breaks with faults that GPU tests must catch too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from fp8gemm.lab.labels import labelled_config
from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from tests import cases
from tests.cases import Case
from tests.emulated.dense import Multiply, emulated_products
from tests.emulated.products import edited
from tests.mutations.catalogue import find
from tests.mutations.mutant import Edit
from tests.prepared import torch_dtype
from tests.thirds import third_of

BF16, F32, PREDICATED = OutputType.BFLOAT16, OutputType.FLOAT32, StoreKind.PREDICATED
ADDED = {"c": Addend.FLOAT32, "bias": Addend.BFLOAT16}

WANTED = [
    (Problem(150, 200, 400), "128x128"),
    (Problem(150, 304, 400), "128x256"),
    (Problem(300, 200, 400), "256x128"),
    (Problem(150, 200, 1168), "128x192-s2"),
    (Problem(70, 136, 656), "64x64-k2"),
    (Problem(200, 136, 656), "64x64-s3-c2x1"),
    (Problem(70, 200, 656), "64x64-s3-c1x2"),
    (Problem(70, 101, 272, F32, PREDICATED, Scaling.ROW, **ADDED), "128x64"),
    (Problem(520, 136, 1168), "64x64-s2"),
    (Problem(300, 136, 656, F32, StoreKind.TMA, Scaling.ROW), "128x128-s3-c2x1"),
    (Problem(150, 200, 400), "128x128-split2"),
    (Problem(70, 136, 1680), "128x128-split4"),
    (Problem(150, 200, 656), "128x192-split3"),
    (Problem(150, 200, 400), "128x160-split2"),
    (Problem(300, 136, 400), "256x128-split2"),
    (Problem(70, 304, 400), "64x256-split2"),
    (Problem(70, 200, 784), "64x128-split4"),
    (Problem(70, 200, 144), "64x128-split4"),
    (Problem(150, 101, 656, F32, PREDICATED, **ADDED), "128x96-split3"),
    (Problem(70, 200, 272, BF16, StoreKind.TMA, Scaling.ROW, **ADDED), "64x128-split2"),
    (Problem(130, 101, 400, F32, PREDICATED, Scaling.ROW), "128x128-split2"),
    (Problem(300, 304, 400), "128x256-s3-c2x1"),
    (Problem(70, 192, 656), "64x64-s3-c1x2"),  # the second CTA's last tile lies past N
    (Problem(150, 680, 400), "128x160"),  # every border, of either copy of the main loop
    (Problem(130, 200, 656), "64x192"),
    (Problem(70, 200, 656), "64x96"),
    (Problem(130, 304, 400), "64x128"),
    (Problem(70, 200, 400, F32, StoreKind.TMA, Scaling.ROW), "64x128"),
    (Problem(300, 136, 656, F32, scaling=Scaling.ROW).accumulating(), "128x128"),
    (Problem(150, 200, 400, F32, scaling=Scaling.ROW).accumulating(), "128x192-s2"),
    (Problem(70, 200, 1296, F32, scaling=Scaling.ROW).accumulating(), "64x64-k2"),
    (Problem(70, 200, 1296, F32, scaling=Scaling.ROW).accumulating(), "64x128-split2"),
    (Problem(200, 136, 656, F32, scaling=Scaling.ROW).accumulating(), "192x128-s2"),  # here on waves that share scales
    (Problem(150, 232, 400, F32, scaling=Scaling.ROW).accumulating(), "128x224-s2"),
    (Problem(150, 101, 656, F32, PREDICATED, Scaling.ROW), "128x192-s2"),  # with one in flight
    (Problem(300, 136, 400, F32, scaling=Scaling.ROW), "256x128-s2"),
    (Problem(300, 200, 656, F32, scaling=Scaling.ROW), "128x192-s2-c2x1"),  # with one in flight
    (Problem(150, 200, 2640), "192x96-s2"),  # of few rows beside K, so that B leaves L2 first
    (Problem(60, 101, 1168, F32, PREDICATED, **ADDED), "192x96-s3"),
    (Problem(192, 304, 784), "192x128-split2"),
    (Problem(400, 304, 1168, F32, StoreKind.TMA, **ADDED), "192x128-split2"),
    (Problem(400, 256, 656), "128x256-s4"),  # four tiles for three CTAs: two divide the columns of the last
    (Problem(150, 320, 1168), "128x256-s4"),  # whose right half has none here
    (Problem(70, 200, 272, F32, scaling=Scaling.ROW).accumulating(), "64x128-split2"),  # asked for ahead of the roles
    (Problem(150, 200, 8336), "128x160-s2"),  # K blocks so many that the look ahead comes behind the release
]
"""Products and labels of their configs: all shapes of the main loop, clusters of both kinds, more steps than stages.
From 512 rows on, where K is long, rows past M and N are zeroed."""

FAULTS = {
    "kept-scales-before-the-stage-is-full": 28,
    "full-not-awaited": 0,
    "operands-asked-for-before-barriers-are-there": 5,
    "first-steps-asked-for-twice": 3,
    "ring-goes-on-from-its-first-place": 3,
    "first-steps-of-every-tile-passed-over": 8,
    "streamed-weights-of-the-next-rows": 37,
    "bytes-expected-too-few": 0,
    "one-reader-too-few": 3,
    "no-fence-after-barrier-init": 0,
    "barriers-fenced-by-another": 0,
    "cluster-not-joined-at-set-up": 5,
    "cluster-not-joined-at-tear-down": 5,
    "missing-rows-expected": 0,
    "missing-columns-expected": 0,
    "last-slots-kept": 1,
    "youngest-reading-not-awaited": 1,
    "reading-not-awaited": 0,
    "scales-of-b-read-after-release": 9,
    "no-proxy-fence": 0,
    "stages-passed-unseen": 21,
    "last-rows-passed-over": 21,
    "split-shares-of-the-same-blocks": 10,
    "split-scales-of-a-of-the-first-share": 10,
    "split-scales-of-b-of-the-first-share": 10,
    "split-columns-of-the-first-cta": 10,
    "split-warpgroups-side-by-side": 16,
    "split-sender-mistaken": 12,
    "split-own-sums-of-the-first-part": 10,
    "split-sums-not-awaited": 10,
    "split-bytes-expected-too-few": 10,
    "split-sums-sent-too-early": 10,
    "split-bytes-expected-too-many": 10,
    "split-cluster-never-joined": 10,
    "first-stage-of-a-tile-not-awaited": 3,
    "stage-of-the-next-chunk-not-awaited": 3,
    "half-columns-of-the-left": 41,
    "half-columns-of-b-of-the-left": 41,
    "half-columns-scaled-as-the-left": 41,
    "half-columns-stored-in-part": 41,
}
"""Mutants, and of `WANTED` a product that each breaks."""
SEEDS = range(4)
_BROUGHT = "epilogue/addend_prefetch.cuh"


def config_of(problem: Problem, label: str) -> TileConfig:
    return labelled_config(label, problem)


def case_of(problem: Problem, maker: Callable[..., Case] = cases.signed) -> Case:
    dtypes = {
        name: torch_dtype(addend)
        for name, addend in (("c", problem.c), ("bias", problem.bias))
        if addend is not Addend.NONE
    }
    return maker(problem.m, problem.n, problem.k, seed=cases.fresh_seed(), scaling=problem.scaling, **dtypes)


def wrong(multiply: Multiply, case: Case, seed: int) -> str:
    """What is wrong with a product, in words; nothing if it is right."""
    out, said = multiply(case, 3, seed)
    if said:
        return said
    report = case.check(out)
    return "" if not report.failed else f"{case}: {report}"


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[Multiply]:
    pairs = [(problem, config_of(problem, label)) for problem, label in WANTED]
    return emulated_products(pairs, tmp_path_factory.mktemp("dense"))


@pytest.mark.parametrize("index", range(len(WANTED)), ids=[f"{label}-{p.m}x{p.n}x{p.k}" for p, label in WANTED])
def test_products_are_right_on_an_emulated_hopper(index: int, products: list[Multiply]) -> None:
    problem = WANTED[index][0]
    exact = cases.distinct_scales if problem.c is problem.bias is Addend.NONE else cases.small_integers
    for seed, maker in enumerate((cases.signed, exact)):
        assert wrong(products[index], case_of(problem, maker), seed) == ""


def test_an_output_larger_than_l2_is_stored_whole_too(tmp_path: Path) -> None:
    """Every output is taken for one."""
    larger = Edit("common/math.cuh", "kL2Bytes = 60 << 20", "kL2Bytes = 0")
    pairs = [(problem, config_of(problem, label)) for problem, label in (WANTED[1], WANTED[9], WANTED[10], WANTED[24])]
    for multiply, (problem, _) in zip(
        emulated_products(pairs, tmp_path, partial(edited, (larger,))), pairs, strict=True
    ):
        for seed in SEEDS:
            assert wrong(multiply, case_of(problem), seed) == ""


@pytest.mark.parametrize("fault", ["", "late-zeros-scaled-by-what-follows", "late-zeros-scaled-by-what-was"])
def test_a_late_k_block_of_zeros_has_no_scale(fault: str, tmp_path: Path) -> None:
    """Of 65 steps the second share's last is past the end of K: infinite sums stay so. Faults of that show."""
    problem = Problem(6, 136, 16400, F32)
    pairs = [(problem, config_of(problem, label)) for label in ("64x64-k2", "64x128-split2")]
    edit = partial(edited, find(fault).edits if fault else ())
    case = case_of(problem, cases.small_integers)
    cases.put_special(case, float("inf"))
    for multiply in emulated_products(pairs, tmp_path, edit):
        assert bool(wrong(multiply, case, 0)) == bool(fault)


@pytest.mark.parametrize("label", ["128x128-split2", "128x192-split3"])
def test_shares_are_added_in_their_order(label: str, tmp_path: Path) -> None:
    """The bits are those of the sum of as many products, each of one share of K."""
    plain, split = label.split("-split")
    whole = Problem(70, 200, 128 * 5 - 48, F32)
    of_share = -(-5 // int(split))
    columns = [slice(128 * first, min(128 * (first + of_share), whole.k)) for first in range(0, 5, of_share)]
    shares = [replace(whole, k=part.stop - part.start) for part in columns]
    wanted = [(whole, config_of(whole, label)), *((share, config_of(share, plain)) for share in shares)]
    multiply, *multiply_shares = emulated_products(wanted, tmp_path)
    case = case_of(whole)
    total = None
    for part, of_part in zip(columns, multiply_shares, strict=True):
        blocks = slice(part.start // 128, -(-part.stop // 128))
        scales_a, scales_b = to_mn_major(case.scales_a[:, blocks]), case.scales_b[:, blocks].contiguous()
        a, b = case.a[:, part].contiguous(), case.b[:, part].contiguous()
        sums, said = of_part(replace(case, a=a, b=b, scales_a=scales_a, scales_b=scales_b), 3, 1)
        assert said == ""
        total = sums if total is None else total + sums
    assert total is not None
    for seed in SEEDS:
        out, said = multiply(case, 3, seed)
        assert said == "" and torch.equal(out, total), case


@pytest.mark.parametrize(
    ("header", "old", "new", "index"),
    [
        (_BROUGHT, "origin(next_ / Parts::kCount)", "origin(0)", 32),
        (_BROUGHT, "{ next_ = 0; }", "{}", 32),
        (_BROUGHT, "next_ + steps_left * kBoxesOfStep < kBoxes", "next_ + 1 + steps_left * kBoxesOfStep < kBoxes", 32),
        (_BROUGHT, "tile.col_of_d() + origin.col + part", "tile.first_col() + origin.col + part", 31),
        ("mainloop/load.cuh", "beside.run(tile, 0);", "", 43),
    ],
    ids=["of-the-first-warpgroup", "of-the-first-tile", "but-the-last", "of-the-first-share", "not-of-short-tiles"],
)
def test_what_is_added_to_is_brought_into_l2_once(header: str, old: str, new: str, index: int, tmp_path: Path) -> None:
    """No result tells: the emulated products that are right have brought each box that L2 adds to, and these do not."""
    problem, label = WANTED[index]
    edit = partial(edited, (Edit(header, old, new),))
    (multiply,) = emulated_products([(problem, config_of(problem, label))], tmp_path, edit)
    assert "L2" in wrong(multiply, case_of(problem), 0)


@pytest.mark.parametrize("name", third_of(FAULTS, str))
def test_a_fault_is_noticed(name: str, tmp_path: Path) -> None:
    problem, label = WANTED[FAULTS[name]]
    edit = partial(edited, find(name).edits)
    (multiply,) = emulated_products([(problem, config_of(problem, label))], tmp_path, edit)
    assert any(wrong(multiply, case_of(problem), seed) for seed in SEEDS)
