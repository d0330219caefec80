"""What is not folded: past the bound, scales that are no powers of two, tensors that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.products.folding import MOST_ERROR, fold_scales
from fp8gemm.scales import E8M0
from tests.folding import E4M3, weight


def near_the_bound(lost: int) -> tuple[Tensor, Tensor]:
    """A block of which ``lost`` codes of 2^-9 become zero, beside one of 448: 784 are sqrt(784) 2^-9 / 448 = 2^-13."""
    codes = torch.zeros(64, 64, dtype=torch.uint8)
    codes[32:, 32:] = (torch.arange(1024) < lost).view(32, 32)
    codes[63, 63] = codes[0, 0] = 0x7E
    return codes.view(E4M3), torch.tensor([[1.0, 1.0], [1.0, 0.5]])


def test_just_within_the_bound() -> None:
    folded = fold_scales(*near_the_bound(784))
    assert folded.error == MOST_ERROR and folded.largest_shift == 1 and not folded.exact


def test_just_past_the_bound() -> None:
    message = (
        r"^scales: expected blocks of 32x32 whose scales can become one for 128x128, .* at most 1.2e-04 .*, got "
        r"1.2e-04 at block \(1, 1\), from row 32 and column 32 on, whose scale is 2\^1 below that one; requantize=True"
    )
    with pytest.raises(fp8gemm.InputError, match=message):
        fold_scales(*near_the_bound(785))
    folded = fold_scales(*near_the_bound(785), requantize=True)
    assert folded.error > MOST_ERROR and not folded.requantized


def test_the_worst_block_of_all_groups_is_named() -> None:
    codes = torch.stack([near_the_bound(0)[0], near_the_bound(0)[0]])
    scales = torch.ones(2, 2, 2)
    codes[1, 32:, :32].view(torch.uint8).fill_(1)
    scales[1, 1, 0] = 2.0**-9
    with pytest.raises(fp8gemm.InputError, match=r"got 1.0e\+00 at group 1, block \(1, 0\), .* is 2\^9 below"):
        fold_scales(codes, scales)


REFUSED = {
    "nan": (torch.nan, r"expected multipliers from 0 to 7.6e\+35, got nan"),
    "inf": (torch.inf, "expected multipliers from 0 to .*, got inf"),
    "negative": (-2.0, "expected multipliers from 0 to .*, got -2.0"),
    "zero": (0.0, "expected positive powers of two, .* got 0.0"),
    "between": (0.3, "expected positive powers of two, 2.-126 to 2.127, .* got 0.3"),
    "subnormal": (2.0**-127, "expected positive powers of two, .* got 5.87"),
}


@pytest.mark.parametrize(("scale", "message"), REFUSED.values(), ids=REFUSED)
def test_scales_that_cannot_be_folded(scale: float, message: str) -> None:
    codes, scales = weight(200, 200, 1, seed=4)
    scales[5, 3] = scale
    with pytest.raises(
        fp8gemm.InputError, match=rf"^scales: {message}.* at block \(5, 3\), from row 160 and column 96"
    ):
        fold_scales(codes, scales)


@pytest.mark.parametrize("requantize", [False, True])
@pytest.mark.parametrize("scale", [torch.nan, torch.inf])
def test_zeros_times_what_is_not_finite(scale: float, requantize: bool) -> None:
    codes, scales = weight(64, 64, 1, seed=4)
    codes[:32, 32:].view(torch.uint8).zero_()
    scales[0, 1] = scale
    with pytest.raises(fp8gemm.InputError, match=r"^scales: expected multipliers from 0 to .* at block \(0, 1\)"):
        fold_scales(codes, scales, requantize=requantize)


@pytest.mark.skipif(E8M0 is None, reason="this torch has no float8_e8m0fnu")
@pytest.mark.parametrize(("byte", "got"), [(0, "5.87"), (255, "nan")])
def test_bytes_of_e8m0_that_cannot_be_folded(byte: int, got: str) -> None:
    codes, scales = weight(64, 64, 1, seed=5)
    of_bytes = scales.to(torch.float8_e8m0fnu)
    of_bytes.view(torch.uint8)[1, 0] = byte
    with pytest.raises(fp8gemm.InputError, match=rf"^scales: .* got {got}.* at block \(1, 0\)"):
        fold_scales(codes, of_bytes)


ARGUMENTS = {
    "no codes": (lambda c, s: fold_scales(None, s), "codes: expected a torch.Tensor"),
    "other codes": (lambda c, s: fold_scales(c.float(), s), "codes: expected torch.float8_e4m3fn"),
    "a row": (lambda c, s: fold_scales(c[0], s), "codes: .* got .* of shape \\(160,\\)"),
    "half scales": (lambda c, s: fold_scales(c, s.half()), "scales: expected torch.float32 or .* got torch.float16"),
    "scales of 128x128": (lambda c, s: fold_scales(c, s[:1, :2]), r"scales: .*\(3, 5\), one for each block of 32x32"),
    "groups": (lambda c, s: fold_scales(c[None], s), r"scales: .* of shape \(1, 3, 5\)"),
    "meta": (lambda c, s: fold_scales(c.to("meta"), s), "codes: .*got one on meta"),
    "48": (lambda c, s: fold_scales(c, s, block_size=(48, 32)), r"block_size: expected two divisors .*got \(48, 32\)"),
    "a number": (lambda c, s: fold_scales(c, s, block_size=32), "block_size: .*got 32"),
    "256": (lambda c, s: fold_scales(c, s, block_size=(256, 32)), "block_size"),
}


@pytest.mark.parametrize(("call", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(call, message) -> None:
    with pytest.raises(fp8gemm.InputError, match=f"^{message}"):
        call(*weight(96, 160, 1, seed=6))
