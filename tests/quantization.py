"""What right means for a quantiser that computes what it quantises: bounds in units of float32's rounding.

A fused kernel may differ from the reference by a few units in the last place, so a code may be its neighbour where the
quotient lies on the border between the two. `check_fused` holds codes and scales to the formula in float64: a scale to
a relative bound, and a code to what the quotient rounds to at either end of its own bound. With u = 2^-24:

- silu(gate) * up: the exponent's argument is off by 1.22 u of itself, which e^-gate is off by |gate| times;
  `ex2.approx` by 4 u, `rcp.approx` by 2 u, of a subnormal result 4 u more; the other operations by u each.
- RMS norm: a sum of squares of at most 32 values a thread, 5 exchanges and 32 warps, each off by u at most, of which
  the root halves the sum; and 6 u of the other operations. That is 41 u.
- a code: `rcp.approx` by 2 u and the product by u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.scales import block_count
from fp8gemm.sizes import SCALE_BLOCK
from tests.calls import picked

_U = 2.0**-24
_TINIEST = 2.0**-149
_OF_NORM, _OF_SCALE, _OF_CODE = 2.0**-18, 2 * _U, 4 * _U
_SILU_IS_ZERO = 2.0**-121
"""Above |silu(x)| wherever e^-x is past float32's range, so that a kernel finds 0."""
_SMALLEST_SCALE = 2.0**-126
_PER_LARGEST = torch.tensor(1 / 448).double().item()


@dataclass(frozen=True)
class Exact:
    """What is quantised, in float64, and by how much float32 may miss it; both (M, K)."""

    values: Tensor
    error: Tensor


def exact_silu_mul(x: Tensor) -> Exact:
    """Of (M, 2K), the gate in its first K columns."""
    gate, up = x.double().chunk(2, dim=1)
    values = gate / (1 + torch.exp(-gate)) * up
    relative = (14 + 1.25 * (-gate).clamp(min=0, max=89)) * _U
    return Exact(values, relative * values.abs() + _SILU_IS_ZERO * up.abs() + _TINIEST)


def exact_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Exact:
    """Of (M, K) and (K,); eps as float32 has it."""
    values, weight = x.double(), weight.double()
    mean = values.square().mean(dim=1, keepdim=True)
    values = values / (mean + torch.tensor(eps).double()).sqrt() * weight
    return Exact(values, _OF_NORM * values.abs() + _TINIEST * (1 + weight.abs()))


def round_to_e4m3(x: Tensor) -> Tensor:
    """The values of e4m3 nearest to those of a float64 tensor, ties to even, saturating.

    NOTE: by arithmetic, because torch rounds a float64 to float32 on its way to e4m3.
    """
    exponent = (torch.frexp(x).exponent - 1).clamp(min=-6)
    step = torch.ldexp(torch.ones_like(x), exponent - 3)
    return ((x / step).round() * step).clamp(-448, 448)


def by_block(x: Tensor) -> Tensor:
    """(M, K) as (M, K blocks, 128), zeros behind K."""
    return pad(x, (0, -x.shape[1] % SCALE_BLOCK)).view(x.shape[0], block_count(x.shape[1]), SCALE_BLOCK)


def scale_bounds(exact: Exact) -> tuple[Tensor, Tensor]:
    """The smallest and the largest scale that each block may have, float64 (M, K blocks); 1 is allowed where the
    smallest is 0."""
    size = exact.values.abs()
    low, high = by_block((size - exact.error).clamp(min=0)).amax(2), by_block(size + exact.error).amax(2)
    smallest = (low * _PER_LARGEST * (1 - _OF_SCALE)).clamp(min=_SMALLEST_SCALE)
    return torch.where(low > 0, smallest, 0.0), (high * _PER_LARGEST * (1 + _OF_SCALE)).clamp(min=_SMALLEST_SCALE)


def check_fused(codes: Tensor, scales: Tensor, exact: Exact, context: object = "") -> None:
    """Codes and scales, from a quantiser, are those of ``exact``, which is finite.

    Raises:
        AssertionError: a scale or a code is further off than float32's rounding explains.
    """
    m, k = exact.values.shape
    assert codes.shape == (m, k) and codes.dtype == torch.float8_e4m3fn and codes.is_contiguous(), context
    assert scales.shape == (m, block_count(k)) and scales.dtype == torch.float32, context
    assert exact.values.isfinite().all(), f"{context}: check what is not finite by `check_like_reference`"
    found = scales.double()
    low, high = scale_bounds(exact)
    wrong = ~(((low <= found) & (found <= high) & (found > 0)) | ((low == 0) & (found == 1)))
    assert not wrong.any(), f"{context}: {int(wrong.sum())} scales, first at {_first(wrong)}: {found[wrong][:3]}"
    of_value = found.repeat_interleave(SCALE_BLOCK, 1)[:, :k]
    quotient = exact.values / of_value
    margin = exact.error / of_value + _OF_CODE * quotient.abs()
    value = codes.float().double()
    wrong = ~((round_to_e4m3(quotient - margin) <= value) & (value <= round_to_e4m3(quotient + margin)))
    assert not wrong.any(), (
        f"{context}: {int(wrong.sum())} codes, first at {_first(wrong)}: {value[wrong][:3]} of {quotient[wrong][:3]}"
    )


def check_like_reference(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], exact: Exact, context: object = ""
) -> None:
    """NaN and Inf are where the reference has them, and what is finite is right.

    Args:
        found, expected: codes and scales; the reference's may be on another device.
        exact: values may be NaN or Inf too.
    """
    codes, scales = found
    expected_codes, expected_scales = (each.to(codes.device).float() for each in expected)
    assert torch.equal(codes.float().isnan(), expected_codes.isnan()), f"{context}: NaN codes"
    assert torch.equal(scales.isnan(), expected_scales.isnan()), f"{context}: NaN scales"
    assert torch.equal(scales == math.inf, expected_scales == math.inf), f"{context}: infinite scales"
    at_infinite = (scales == math.inf).repeat_interleave(SCALE_BLOCK, 1)[:, : codes.shape[1]]
    assert (codes.float()[at_infinite].nan_to_num(0.0) == 0).all(), f"{context}: codes of infinite scales"
    rows = scales.isfinite().all(1) & exact.values.isfinite().all(1)
    assert torch.equal(scales.isfinite().all(1), rows), f"{context}: finite scales of what is not finite"
    check_fused(picked(codes, rows), scales[rows], Exact(exact.values[rows], exact.error[rows]), context)


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(wrong.nonzero()[0].tolist())
