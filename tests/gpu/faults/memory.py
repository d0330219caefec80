"""Which bytes are read and written: canaries around outputs and between rows, NaN before and past the end of inputs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.tuning.problem import StoreKind
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.support import (
    E4M3,
    KINDS,
    PLAIN_KINDS,
    Guarded,
    amid_nans,
    build_chosen,
    every_kind,
    kernels_of_every_config,
    launch,
    multiply,
    nans,
    poisoned,
    problem_of,
)

SHAPES = [(1, 8, 16), (7, 100, 112), (65, 576, 512), (128, 128, 128), (333, 2112, 1040), (1000, 577, 272)]

# (strides of an (M, N) output, its offset from a 256-byte boundary), in elements.
LAYOUTS = {
    "packed": lambda m, n: ((n, 1), 0),
    "pitch + 8": lambda m, n: ((n + 8, 1), 0),
    "pitch + 64, base + 8": lambda m, n: ((n + 64, 1), 8),
    "pitch + 3": lambda m, n: ((n + 3, 1), 0),
    "base + 1": lambda m, n: ((n, 1), 1),
    "pitch + 1, base + 3": lambda m, n: ((n + 1, 1), 3),
    "column-major": lambda m, n: ((1, m), 0),
    "column-major, pitch + 5": lambda m, n: ((1, m + 5), 0),
    "every other column": lambda m, n: ((2 * n, 2), 0),
}


@every_kind
def test_fault_02_canaries_around_the_output(kind, device, seed):
    """With and without the 16-byte alignment that a TMA store needs. All elements are NaN before, unless they are C."""
    products = []
    for shape, layout in itertools.product(SHAPES, LAYOUTS):
        m, n, _ = shape
        strides, offset = LAYOUTS[layout](m, n)
        output = Guarded(m, n, kind.output, device=device, strides=strides, offset=offset)
        products.append((cases.signed(*shape, seed=seed, device=device, **kind.options), layout, output))
    outputs = ((case, output.view) for case, _, output in products)
    build_chosen((problem_of(case, view, c=view if kind.in_place else None) for case, view in outputs), device)
    for case, layout, output in products:
        multiply(case, kind, output.view)
        assert output.is_intact(), f"{case}, {layout}"
        case.check(output.view).raise_if_failed(f"{case}, {layout}")


@pytest.mark.parametrize("store", StoreKind)
@pytest.mark.parametrize("m", [270, 77])
@every_kind
def test_fault_02_under_every_config(kind, m, store, device, seed):
    """Tiles that reach past the end of the output in both directions, whatever their size."""
    n, k = 264, 144
    case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
    problem = kind.problem(m, n, k, store)
    for kernel in kernels_of_every_config(problem, device):
        output = Guarded(m, n, kind.output, device=device, strides=(n + 8, 1), offset=8)
        launch(kernel, case, output.view)
        assert output.is_intact(), f"{case}, {kernel.config}"
        case.check(output.view).raise_if_failed(f"{case}, {kernel.config}")


@every_kind
@pytest.mark.parametrize(("m", "n", "k"), [(333, 2112, 1040), (65, 577, 272)])
def test_fault_02_inputs_are_not_written(kind, m, n, k, device, seed):
    case = poisoned(cases.signed(m, n, k, seed=seed, device=device, **kind.options))
    # Whole storages: what lies between and past the rows must not change either.
    storages = [bytes_of(tensor) for tensor in (*case.operands, *case.epilogue.values())]
    before = [storage.clone() for storage in storages]
    multiply(case, kind)
    for storage, copy in zip(storages, before, strict=True):
        assert torch.equal(storage, copy), case


def bytes_of(tensor: Tensor) -> Tensor:
    """The whole storage that a tensor lies in."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


@every_kind
@pytest.mark.parametrize("num_sms", [None, 1])
def test_fault_03_every_element_is_written(kind, num_sms, device, seed):
    """No NaN stays, whether the caller brings the output or it comes out of memory that was full of NaN."""
    with settings.scope(num_sms=num_sms):
        build_chosen((kind.problem(*shape) for shape in SHAPES), device)
        for shape in SHAPES:
            case = cases.signed(*shape, seed=seed, device=device, **kind.options)
            out = torch.empty(shape[:2], dtype=kind.output, device=device)
            case.check(multiply(case, kind, out)).raise_if_failed(case)
            # The allocator hands these bytes out again, as the next new output or as somebody else's.
            out.fill_(math.nan)
            del out
            case.check(multiply(case, kind)).raise_if_failed(case)


@every_kind
def test_fault_03_every_element_is_written_by_a_plan(kind, device, seed):
    for shape in SHAPES:
        case = cases.signed(*shape, seed=seed, device=device, **kind.options)
        options = {"max_m": shape[0], "bias": case.bias, "out_dtype": kind.output, "c_dtype": kind.c}
        plan = fp8gemm.plan(case.b, case.scales_b, **options)
        out = torch.full(shape[:2], math.nan, dtype=kind.output, device=device)
        case.check(plan(case.a, case.scales_a, c=case.c, out=out)).raise_if_failed(case)


@every_kind
@pytest.mark.parametrize("pitch_extra", [0, 16, 128])
def test_fault_04_nan_past_the_end_of_every_input_changes_nothing(kind, pitch_extra, device, seed):
    build_chosen((kind.problem(*shape) for shape in SHAPES), device)
    for shape in SHAPES:
        case = cases.signed(*shape, seed=seed, device=device, **kind.options)
        clean = multiply(case, kind)
        case.check(clean).raise_if_failed(case)
        assert same_bits(multiply(poisoned(case, pitch_extra=pitch_extra), kind), clean), case


ONE_POISONED = [
    (kind, operand)
    for kind in KINDS
    for operand in ("a", "scales_a", "b", "scales_b", "c", "bias")
    if operand not in ("c", "bias") or (getattr(kind, operand) and not (operand == "c" and kind.in_place))
]


@pytest.mark.parametrize(("kind", "operand"), ONE_POISONED, ids=str)
def test_fault_04_rows_of_nan_around_each_input_change_nothing(kind, operand, device, seed):
    """One operand at a time is a part of a larger tensor of NaN, with some before it too."""
    for m, n, k in ((65, 576, 512), (333, 1032, 144)):
        case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
        clean = multiply(case, kind)
        tensor = getattr(case, operand)
        size = tensor.element_size()
        inside = amid_nans(tensor, before=16 // size, after=65536 // size)
        assert same_bits(multiply(replace(case, **{operand: inside}), kind), clean), case


@pytest.mark.parametrize("m", [200, 77])
@pytest.mark.parametrize("kind", PLAIN_KINDS, ids=str)
def test_fault_04_under_every_config(kind, m, device, seed):
    """On two SMs, so that a stage is filled for many tiles: what lies outside must not linger in it either. Of five
    K blocks, configs whose warpgroups share K multiply a sixth, all of which lies outside."""
    n, k = 264, 528
    case = cases.signed(m, n, k, seed=seed, device=device, **kind.options)
    around = poisoned(case, pitch_extra=112)
    assert around.a.dtype == E4M3 and around.a.stride(0) == k + 112
    problem = kind.problem(m, n, k)
    for kernel in kernels_of_every_config(problem, device, num_sms=2):
        out, clean = (launch(kernel, each, nans(problem, device)) for each in (around, case))
        assert same_bits(out, clean), kernel.config
        case.check(out).raise_if_failed(f"{case}, {kernel.config}")
