"""Sizes: every kind of tail, more than 2^31 elements, any number of SMs, any number of K blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.scales import block_count, to_mn_major
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.problem import Scaling, StoreKind
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import (
    BF16,
    E4M3,
    F16,
    F32,
    KINDS,
    Kind,
    build_chosen,
    configs_of,
    every_kind,
    kernels_of_every_config,
    launch,
    make_kernels,
    multiply,
    nans,
)

ROWS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 255, 257)
COLUMNS = (1, 7, 8, 127, 128, 129, 576, 2112)
DEPTHS = (16, 112, 128, 144, 256, 7168)
LIMIT = 2**31


WHOLE = (KINDS[0], KINDS[1], KINDS[3], KINDS[7])
"""Kinds that have every product: all outputs, both scalings, in place. Others have each N x K, with M in rotation."""


@every_kind
def test_fault_01_every_m_n_and_k(kind, device, seed):
    products = list(itertools.product(ROWS, COLUMNS, DEPTHS))
    if kind not in WHOLE:
        products = products[:: len(ROWS)]
    build_chosen((kind.problem(*product) for product in products), device)
    wrong = []
    for m, n, k in products:
        case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
        into = torch.empty(m, n, dtype=kind.output, device=device)
        out, into = multiply(case, kind), multiply(case, kind, into)
        assert out.shape == (m, n) and out.dtype == kind.output and out.is_contiguous() and out.device == device
        report = case.check(out)
        if report.failed or not same_bits(out, into):
            wrong.append(f"{case}: {', '.join(report.failed) or 'other bits in an output of the caller'}\n{report}")
    assert not wrong, f"{len(wrong)} of {len(products)} are wrong\n" + "\n".join(wrong[:5])


def refuse_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr("fp8gemm.kernels.gemm.BoundLaunch", refuse)


@every_kind
@pytest.mark.parametrize(("n", "k"), [(8, 16), (576, 512), (577, 512), (7168, 7168)])
def test_fault_01_no_rows_launch_nothing(kind, n, k, device, monkeypatch):
    refuse_launches(monkeypatch)
    case = cases.signed(0, n, k, seed=0, device=device, **kind.options)
    out = multiply(case, kind)
    assert out.shape == (0, n) and out.dtype == kind.output and out.device == device


@every_kind
@pytest.mark.parametrize("k", [0, 1, 8, 15, 17, 24, 40, 120, 136, 1000, 7160])
def test_fault_01_other_k_are_refused_before_any_launch(kind, k, device, monkeypatch):
    refuse_launches(monkeypatch)
    m, n = 65, 136
    codes = torch.ones(m + n, k, device=device).to(E4M3)
    scales_b = torch.ones(n if kind.scaling is Scaling.ROW else block_count(n), block_count(k), device=device)
    terms = {} if kind.c is None else {"c": torch.ones(m, n, dtype=kind.c, device=device)}
    if kind.bias is not None:
        terms["bias"] = torch.ones(n, dtype=kind.bias, device=device)
    out = torch.full((m, n), 7.0, dtype=kind.output, device=device)
    with pytest.raises(ValueError, match=f"multiple of 16.*K = {k}$"):
        fp8gemm.gemm(codes[:m], torch.ones(m, block_count(k), device=device), codes[m:], scales_b, out=out, **terms)
    assert (out == 7).all()


def random_codes(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Codes of sizes 1/4 to 4 and either sign, made without a larger temporary: there are 2^31 of them."""
    shape, options = (rows, columns), {"generator": generator, "device": generator.device, "dtype": torch.uint8}
    sizes = torch.randint(0x28, 0x48, shape, **options)
    return sizes.bitwise_or_(torch.randint(0, 2, shape, **options).bitwise_left_shift_(7)).view(E4M3)


def large_case(m: int, n: int, k: int, kind: Kind, generator: torch.Generator) -> Case:
    def scales(rows: int) -> Tensor:
        return (2 * torch.rand(rows, block_count(k), generator=generator, device=generator.device) - 1).exp2()

    by_rows = kind.scaling is Scaling.ROW
    return Case(
        "signed",
        generator.initial_seed(),
        random_codes(m, k, generator),
        to_mn_major(scales(m)),
        random_codes(n, k, generator),
        to_mn_major(scales(n)) if by_rows else scales(block_count(n)),
        None if kind.c is None else torch.randn(m, n, generator=generator, device=generator.device, dtype=kind.c),
        None if kind.bias is None else torch.randn(n, generator=generator, device=generator.device, dtype=kind.bias),
    )


def parts_around(size: int, other: int) -> Iterator[slice]:
    """The first and the last lines, and those around the one in which element 2^31 lies if each has `other` elements.

    They begin at multiples of 128, so that a part of a weight takes whole blocks of scales along.
    """
    last = size - 1
    for line in {block // SCALE_BLOCK * SCALE_BLOCK for block in (0, min(LIMIT // other, last), last)}:
        yield slice(max(line - SCALE_BLOCK, 0), min(line + 2 * SCALE_BLOCK, size))


def check_part(case: Case, out: Tensor, rows: slice, columns: slice) -> None:
    by_rows = case.scaling is Scaling.ROW
    blocks = columns if by_rows else slice(columns.start // SCALE_BLOCK, block_count(columns.stop))
    part = replace(
        case,
        a=case.a[rows],
        scales_a=case.scales_a[rows],
        b=case.b[columns],
        scales_b=case.scales_b[blocks],
        c=None if case.c is None else case.c[rows, columns],
        bias=None if case.bias is None else case.bias[columns],
    )
    part.check(out[rows, columns]).raise_if_failed(f"{case}: rows {rows}, columns {columns}")


def check_around_the_limit(case: Case, kind: Kind, out: Tensor) -> None:
    """Multiply into `out`, and check its first and last rows and columns and those around element 2^31."""
    (m, k), n = case.a.shape, case.b.shape[0]
    result = multiply(case, kind, out)
    for rows in parts_around(m, k if m * k > LIMIT else n):
        check_part(case, result, rows, slice(0, n))
    for columns in parts_around(n, k if n * k > LIMIT else m):
        check_part(case, result, slice(0, m), columns)
    assert not any(band.isnan().any() for band in result.split(8192)), case


@pytest.fixture
def much_memory(device: torch.device) -> Iterator[None]:
    """Give back what a test took, up to 30 GB, before the next."""
    yield
    torch.cuda.empty_cache()


# Where an output element's index exceeds 32 bits: each store and element size, C read and overwritten, any strides.
LARGE_OUTPUTS = {
    "TMA store": (Kind(), 32776, lambda m, n: (n, 1)),
    "TMA store, FP32": (Kind(F32, Scaling.ROW), 32776, lambda m, n: (n, 1)),
    "TMA store, C in place": (Kind(F32, c=F32, bias=BF16, in_place=True), 32776, lambda m, n: (n, 1)),
    "predicated store": (Kind(bias=F32), 32777, lambda m, n: (n, 1)),
    "predicated store, C in place": (Kind(c=BF16, in_place=True), 32777, lambda m, n: (n, 1)),
    "predicated store, FP16, C, pitch of an odd length": (Kind(F16, c=BF16), 32776, lambda m, n: (n + 1, 1)),
    "column-major": (Kind(), 32776, lambda m, n: (1, m)),
}


@pytest.mark.parametrize(("kind", "n", "strides"), LARGE_OUTPUTS.values(), ids=LARGE_OUTPUTS)
@pytest.mark.usefixtures("much_memory")
def test_fault_12_m_times_n_past_2_to_the_31(kind, n, strides, device, generator):
    m = LIMIT // n + 300
    assert m * n > LIMIT
    case = large_case(m, n, 144, kind, generator)
    row, column = strides(m, n)
    storage = torch.empty((m - 1) * row + (n - 1) * column + 1, dtype=kind.output, device=device)
    check_around_the_limit(case, kind, storage.as_strided((m, n), (row, column)))


@pytest.mark.parametrize("kind", [Kind(), Kind(F32, Scaling.ROW)], ids=str)
@pytest.mark.parametrize(("operand", "rows"), [("a", 136), ("b", 65), ("b", 8)])
@pytest.mark.usefixtures("much_memory")
def test_fault_12_m_or_n_times_k_past_2_to_the_31(operand, rows, kind, device, generator):
    """The other operand has so many rows."""
    k = 16400
    many = (LIMIT // k + 300) // 8 * 8
    m, n = (many, rows) if operand == "a" else (rows, many)
    case = large_case(m, n, k, kind, generator)
    assert max(case.a.numel(), case.b.numel()) > LIMIT
    check_around_the_limit(case, kind, torch.empty(m, n, dtype=kind.output, device=device))


@pytest.mark.parametrize("n", [136, 129])
@pytest.mark.usefixtures("much_memory")
def test_fault_12_rows_so_far_apart_that_offsets_pass_2_to_the_31(n, device, seed):
    """In an output and a C of ordinary size."""
    kind, m = Kind(F32, c=BF16), 257
    pitch = LIMIT // 250 // 8 * 8
    case = cases.signed(m, n, 272, seed=seed, device=device, **kind.options)
    extent = (m - 1) * pitch + n
    c = torch.empty(extent, dtype=BF16, device=device).as_strided((m, n), (pitch, 1)).copy_(case.c)
    out = torch.empty(extent, dtype=F32, device=device).as_strided((m, n), (pitch, 1))
    assert same_bits(multiply(replace(case, c=c), kind, out), multiply(case, kind))
    case.check(out).raise_if_failed(case)


KINDS_WITH_CLUSTERS = (Kind(), Kind(F32, Scaling.ROW), Kind(F16, c=BF16, bias=F32))


@pytest.mark.parametrize("store", StoreKind)
@pytest.mark.parametrize("kind", KINDS_WITH_CLUSTERS, ids=str)
def test_fault_13_any_number_of_sms(kind, store, device, seed):
    """Clusters of two on one SM, on an odd number, and on all but one: the same bits as on all."""
    case = cases.signed(777, 1032, 1040, seed=seed, device=device, **kind.options)
    problem = kind.problem(777, 1032, 1040, store)
    kernels = kernels_of_every_config(problem, device, num_sms=132)
    assert {kernel.config.cluster_size for kernel in kernels} == {1, 2, 4}
    expected = [launch(kernel, case, nans(problem, device)) for kernel in kernels]
    for out in expected:
        case.check(out).raise_if_failed(case)
    for num_sms in (1, 2, 7, 131):
        for kernel, whole in zip(kernels_of_every_config(problem, device, num_sms=num_sms), expected, strict=True):
            # A cluster that divides K has one tile, and no choice under the setting has more of them than SMs: below.
            config = kernel.config
            tiles = -(-777 // config.block_m) * -(-1032 // config.block_n)
            most = tiles * config.split_k if config.split_k > 1 else max(num_sms, config.cluster_size)
            assert kernel.grid(777) <= most, f"{config}, {num_sms} SMs"
            out = launch(kernel, case, nans(problem, device))
            assert same_bits(out, whole), f"{case}, {kernel.config}, {num_sms} SMs"


@pytest.mark.parametrize("num_sms", [1, 3, 131, 132])
def test_fault_13_the_setting_for_sms(num_sms, device, seed):
    with settings.scope(num_sms=num_sms):
        for m, n, k in ((1, 576, 512), (300, 2112, 1040), (2048, 2112, 272)):
            case = cases.signed(m, n, k, seed=seed, device=device)
            plan = fp8gemm.plan(case.b, case.scales_b, max_m=2048)
            kernel = plan.kernel_for(m)
            assert kernel is not None and kernel.grid(m) <= num_sms
            # One SM has no room for a cluster of two, so one that needs none is chosen.
            assert num_sms > 1 or kernel.config.cluster_size == 1
            out = plan(case.a, case.scales_a)
            case.check(out).raise_if_failed(f"{case}, {num_sms} SMs")
            assert same_bits(fp8gemm.gemm(*case.operands), out)


LAUNCHES = 50


@pytest.mark.parametrize("store", StoreKind)
@pytest.mark.parametrize("kind", KINDS_WITH_CLUSTERS, ids=str)
def test_fault_14_any_number_of_k_blocks_and_many_tiles_per_cta(kind, store, device, seed):
    """From one block to twice the stages and two more, the last one whole or of 16 columns, on three SMs."""
    m, n = 520, 520
    problem = kind.problem(m, n, 16, store)
    wanted = []
    # All configs once; of every other kind some, of every shape of cluster.
    configs = configs_of(problem)[:: 1 if (kind, store) == (Kind(), StoreKind.TMA) else 4]
    for index, config in enumerate(configs):
        for blocks in range(1, 2 * config.stages + 3):
            k = SCALE_BLOCK * blocks - (112 if (blocks + index) % 2 else 0)
            wanted.append((replace(problem, k=k), config))
    made = {k: cases.signed(m, n, k, seed=seed, device=device, **kind.options) for k in {p.k for p, _ in wanted}}
    for kernel in make_kernels(wanted, device, num_sms=3):
        case = made[kernel.problem.k]
        what = f"{case}, {kernel.config}, {store}"
        first = launch(kernel, case, nans(kernel.problem, device))
        case.check(first).raise_if_failed(what)
        outputs = torch.full((LAUNCHES, m, n), math.nan, dtype=kind.output, device=device)
        for out in outputs:
            launch(kernel, case, out)
        assert same_bits(outputs, first.expand_as(outputs)), what
