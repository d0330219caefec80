"""Which bytes `fp8gemm.gemm` reads and writes: strided and misaligned outputs, guard bands, poison past the inputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.scales import mn_major_pitch
from tests import cases

SHAPES = [(1, 8, 16), (7, 100, 112), (65, 576, 512), (128, 128, 128), (333, 2112, 1040), (1000, 577, 272)]
E4M3 = torch.float8_e4m3fn
GUARD = 4096
PATTERN = 0x5A5A  # as bfloat16 an ordinary number, about 1.5e16


class GuardedOutput:
    """A (M, N) bfloat16 view of NaNs inside a storage of one known pattern."""

    def __init__(self, m: int, n: int, strides: tuple[int, int], offset: int, device: torch.device) -> None:
        extent = (m - 1) * strides[0] + (n - 1) * strides[1] + 1
        self.storage = torch.full((GUARD + offset + extent + GUARD,), PATTERN, dtype=torch.int16, device=device)
        self.view = self.storage.view(torch.bfloat16).as_strided((m, n), strides, GUARD + offset)
        self.view.fill_(math.nan)
        self.guards = torch.ones_like(self.storage, dtype=torch.bool)
        self.guards.as_strided((m, n), strides, GUARD + offset).fill_(False)

    def is_intact(self) -> bool:
        return bool((self.storage[self.guards] == PATTERN).all())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize(
    ("pitch_extra", "offset"),
    [(0, 0), (8, 0), (64, 8), (3, 0), (0, 1), (1, 3)],
    ids=["packed", "pitch+8", "pitch+64 base+8", "pitch+3", "base+1", "pitch+1 base+3"],
)
def test_row_major_output_anywhere(m, n, k, pitch_extra, offset, device, seed):
    """With and without the 16-byte alignment that a TMA store needs: right, and not a byte beside it."""
    case = cases.signed(m, n, k, seed=seed, device=device)
    output = GuardedOutput(m, n, (n + pitch_extra, 1), offset, device)
    fp8gemm.gemm(*case.operands, out=output.view)
    assert output.is_intact(), str(case)
    case.check(output.view).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("strides", ["column-major", "column-major, padded", "every other column"])
def test_output_with_any_strides(m, n, k, strides, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    stride = {"column-major": (1, m), "column-major, padded": (1, m + 5), "every other column": (2 * n, 2)}[strides]
    output = GuardedOutput(m, n, stride, 0, device)
    fp8gemm.gemm(*case.operands, out=output.view)
    assert output.is_intact(), str(case)
    case.check(output.view).raise_if_failed(case)


def with_poison(codes: Tensor, *, pitch_extra: int) -> Tensor:
    """The same codes in a storage that is NaN after every row's end and after the last row."""
    rows, k = codes.shape
    storage = torch.full((rows + 129, k + pitch_extra), math.nan, device=codes.device).to(E4M3)
    return storage[:rows, :k].copy_(codes)


def with_poisoned_padding(scales: Tensor) -> Tensor:
    """The same scales, MN-major, with NaN in each column's padding and after the last column."""
    rows, columns = scales.shape
    pitch = mn_major_pitch(rows)
    storage = torch.full(((columns + 4) * pitch + 256,), math.nan, device=scales.device)
    return storage.as_strided((rows, columns), (1, pitch)).copy_(scales)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("pitch_extra", [0, 16, 128])
def test_nan_past_the_end_of_every_input_changes_nothing(m, n, k, pitch_extra, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    clean = fp8gemm.gemm(*case.operands)
    scales_b = torch.full((case.scales_b.numel() + 256,), math.nan, device=device)
    scales_b[: case.scales_b.numel()] = case.scales_b.flatten()
    out = fp8gemm.gemm(
        with_poison(case.a, pitch_extra=pitch_extra),
        with_poisoned_padding(case.scales_a),
        with_poison(case.b, pitch_extra=pitch_extra),
        scales_b[: case.scales_b.numel()].view_as(case.scales_b),
    )
    assert torch.equal(out, clean), str(case)


@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (4096, 576, 7168)])
def test_layout_of_scales_changes_no_bit(m, n, k, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    mn_major = fp8gemm.gemm(*case.operands)
    row_major = fp8gemm.gemm(case.a, case.scales_a.contiguous(), case.b, case.scales_b)
    assert torch.equal(mn_major, row_major), str(case)


@pytest.mark.parametrize("offset", [1, 4, 8, 15, 16])
@pytest.mark.parametrize("which", ["a", "b"])
def test_misaligned_codes_are_right_or_refused(which, offset, device, seed):
    """TMA wants a 16-byte aligned base: anything else is copied or refused, never read from the wrong place."""
    case = cases.signed(65, 576, 512, seed=seed, device=device)
    operands = dict(zip(("a", "scales_a", "b", "scales_b"), case.operands, strict=True))
    codes = operands[which]
    storage = torch.zeros(codes.numel() + 16, dtype=torch.uint8, device=device).view(E4M3)
    operands[which] = storage[offset : offset + codes.numel()].view_as(codes).copy_(codes)
    try:
        out = fp8gemm.gemm(**operands)
    except InputError as error:
        assert offset % 16 and "16" in str(error), str(error)
        return
    case.check(out).raise_if_failed(case)


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["mn_major", "row_major"])
def test_scales_from_the_middle_of_a_storage(layout, offset, device, seed):
    """A slice of a larger scale tensor need not begin on 16 bytes; only MN-major ones may be refused for that."""
    case = cases.signed(65, 576, 512, seed=seed, device=device)
    pitch = mn_major_pitch(65)
    strides = (1, pitch) if layout == "mn_major" else (4, 1)
    storage = torch.full((4 * pitch + offset,), math.nan, device=device)
    scales_a = storage.as_strided((65, 4), strides, offset).copy_(case.scales_a)
    scales_b = torch.full((case.scales_b.numel() + offset,), math.nan, device=device)[offset:].view_as(case.scales_b)
    try:
        out = fp8gemm.gemm(case.a, scales_a, case.b, scales_b.copy_(case.scales_b))
    except InputError as error:
        assert layout == "mn_major" and offset % 4 and "16" in str(error), str(error)
        return
    case.check(out).raise_if_failed(case)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor.view(torch.int32)


def test_inputs_are_not_written(device, seed):
    case = cases.signed(333, 2112, 1040, seed=seed, device=device)
    before = [operand.clone() for operand in case.operands]
    fp8gemm.gemm(*case.operands)
    for operand, copy in zip(case.operands, before, strict=True):
        assert torch.equal(bits(operand), bits(copy)), str(case)
