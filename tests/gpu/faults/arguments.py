"""Odd arguments that are right: any alignment and strides that `fp8gemm.gemm` takes. `refused.py` has the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.scales import mn_major_pitch
from fp8gemm.tuning.problem import Scaling
from tests import calls, cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.memory import SHAPES
from tests.gpu.faults.support import (
    BF16,
    F32,
    KINDS,
    Kind,
    amid_nans,
    build_chosen,
    every_kind,
    multiply,
    poisoned_rows,
)

M, N, K = 64, 200, 512
FULL = Kind(F32, c=F32, bias=BF16)
FULL_ROWS = Kind(F32, Scaling.ROW, c=BF16, bias=F32)

Arguments = dict[str, Any]


def arguments_of(case: Case, kind: Kind) -> Arguments:
    """A call's arguments, with an output full of sevens."""
    out = torch.full((case.a.shape[0], case.b.shape[0]), 7.0, dtype=kind.output, device=case.a.device)
    return {**calls.arguments_of(case), "out": out}


@pytest.mark.parametrize("offset", range(1, 17))
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("kind", [FULL, FULL_ROWS], ids=str)
def test_fault_05_misaligned_codes_are_refused(kind, which, offset, device, seed):
    """TMA wants a 16-byte aligned base; the caller, who knows where the slice came from, is told to copy it."""
    case = cases.signed(M, N, K, seed=seed, device=device, **kind.options)
    arguments = arguments_of(case, kind)
    arguments[which] = amid_nans(arguments[which], before=offset)
    if offset == 16:
        case.check(fp8gemm.gemm(**arguments)).raise_if_failed(case)
        return
    with pytest.raises(InputError, match=f"^{which}: expected a base address.* 16 bytes.* {offset} bytes past"):
        fp8gemm.gemm(**arguments)
    assert (arguments["out"] == 7).all()


@pytest.mark.parametrize("offset", [4, 8, 12, 16])
@pytest.mark.parametrize("which", ["scales_a", "scales_b"])
@pytest.mark.parametrize("layout", ["MN-major", "row-major"])
@pytest.mark.parametrize("kind", [FULL, FULL_ROWS], ids=str)
def test_fault_05_scales_from_the_middle_of_a_storage(kind, layout, which, offset, device, seed):
    """A slice of a larger scale tensor need not begin on 16 bytes: it is copied where TMA needs that."""
    case = cases.signed(M + 1, N, K, seed=seed, device=device, **kind.options)
    arguments = arguments_of(case, kind)
    scales = arguments[which]
    if layout == "row-major" or (which == "scales_b" and kind.scaling is Scaling.BLOCK):
        scales = scales.contiguous()
    else:
        pitch = mn_major_pitch(scales.shape[0])
        assert scales.stride() == (1, pitch)
    arguments[which] = amid_nans(scales, before=offset // 4)
    assert arguments[which].data_ptr() % 16 == offset % 16
    case.check(fp8gemm.gemm(**arguments)).raise_if_failed(case)


MOVABLE = [(kind, which) for kind in KINDS for which in ("out", "c", "bias") if which == "out" or getattr(kind, which)]


@pytest.mark.parametrize(("kind", "which"), MOVABLE, ids=str)
def test_fault_05_outputs_c_and_bias_anywhere(kind, which, device, seed):
    """Any element of a storage may be the first."""
    case = cases.signed(M, N, K, seed=seed, device=device, **kind.options)
    expected = multiply(case, kind)
    tensor = expected if which == "out" else getattr(case, which)
    size = tensor.element_size()
    for offset in range(size, 17, size):
        inside = amid_nans(tensor, before=offset // size)
        if which == "out":
            out = multiply(case, kind, inside)
        elif which == "c" and kind.in_place:
            out = fp8gemm.gemm(*case.operands, **{**case.epilogue, "c": inside}, out=inside)
        else:
            out = multiply(replace(case, **{which: inside}), kind)
        # Another address may mean another store and so another config, whose bits need not be the same.
        case.check(out).raise_if_failed(f"{case}, {which} {offset} bytes past")


@every_kind
def test_fault_05_layout_of_scales_changes_no_bit(kind, device, seed):
    shapes = [*SHAPES, (4096, 576, 7168)]
    build_chosen((kind.problem(*shape) for shape in shapes), device)
    for shape in shapes:
        case = cases.signed(*shape, seed=seed, device=device, **kind.options)
        row_major = replace(case, scales_a=case.scales_a.contiguous(), scales_b=case.scales_b.contiguous())
        assert same_bits(multiply(case, kind), multiply(row_major, kind)), case


# Strides that are odd and right.
RIGHT: dict[str, Callable[[Arguments], Arguments]] = {
    "a with a pitch of 16 more": lambda x: {"a": poisoned_rows(x["a"], pitch_extra=16)},
    "b with a pitch of 1024 more": lambda x: {"b": poisoned_rows(x["b"], pitch_extra=1024)},
    "scales_a transposed in memory": lambda x: {"scales_a": x["scales_a"].contiguous()},
    "scales_a every other": lambda x: {"scales_a": x["scales_a"].repeat_interleave(2, 0)[::2]},
    "scales_a one for all": lambda x: {"scales_a": x["scales_a"][:1].clone().expand(M, -1)},
    "c transposed in memory": lambda x: {"c": x["c"].t().contiguous().t()},
    "c one row for all": lambda x: {"c": x["c"][:1].expand(M, -1)},
    "c one column for all": lambda x: {"c": x["c"][:, :1].expand(-1, N)},
    "c one number for all": lambda x: {"c": x["c"][:1, :1].expand(M, N)},
    "c every other column": lambda x: {"c": x["c"].repeat_interleave(2, 1)[:, ::2]},
    "c with an odd pitch": lambda x: {"c": poisoned_rows(x["c"], pitch_extra=1)},
    "c with overlapping rows": lambda x: {"c": x["c"].flatten().as_strided((M, N), (N // 2, 1))},
    "out transposed in memory": lambda x: {"out": x["out"].t().contiguous().t()},
    "out with an odd pitch": lambda x: {"out": poisoned_rows(x["out"], pitch_extra=3)},
    "out is c": lambda x: {"out": x["c"].to(F32), "c": None},
    "out is c, transposed in memory": lambda x: {"out": x["c"].to(F32).t().contiguous().t(), "c": None},
}


@pytest.mark.parametrize("kind", [FULL, FULL_ROWS], ids=str)
@pytest.mark.parametrize("what", RIGHT)
def test_fault_05_odd_strides_that_are_right(what, kind, device, seed):
    case = cases.signed(M, N, K, seed=seed, device=device, **kind.options)
    arguments = arguments_of(case, kind)
    arguments |= RIGHT[what](arguments)
    if arguments["c"] is None:
        arguments["c"] = arguments["out"]
    else:
        arguments["out"].fill_(math.nan)
    changed = {name: arguments[name] for name in ("a", "scales_a", "b", "scales_b", "c", "bias")}
    if what.startswith("out is c"):
        changed["c"] = arguments["c"].clone()
    out = fp8gemm.gemm(**arguments)
    assert out is arguments["out"]
    replace(case, **changed).check(out).raise_if_failed(f"{what}, {case}")
