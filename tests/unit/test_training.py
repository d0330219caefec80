"""`fp8gemm.linear`: its three products, what it keeps and what it does not compute, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.reference import quantize_blocks, quantize_rows
from tests import numerics
from tests.calls import same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SIZES = [(256, 256, 384), (200, 144, 272), (37, 16, 400), (1, 128, 16)]
"""M, N, K: whole blocks; tails of 16 everywhere; M that is no multiple of 16, too."""
MOST_OFF = 4.5e-2
"""Relative RMS that two operands of normal data cost, quantised: 2.6e-2 each, 3.7e-2 together, and some luck."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def operands(m: int, n: int, k: int, dtype: torch.dtype = BF16, of_weight: torch.dtype = FP32) -> tuple[Tensor, ...]:
    """x, weight, bias, and a gradient of the output; the first three require one."""
    x, weight, bias = (
        torch.randn(m, k, dtype=dtype),
        torch.randn(n, k, dtype=of_weight),
        torch.randn(n, dtype=of_weight),
    )
    return *(each.requires_grad_() for each in (x, weight, bias)), torch.randn(m, n, dtype=dtype)


def gradients(function: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor) -> tuple[Tensor | None, ...]:
    """The output, and the gradients of x, weight and bias where they require one."""
    leaves = [each if each is None else each.detach().requires_grad_(each.requires_grad) for each in (x, weight, bias)]
    y = function(*leaves)
    y.backward(dy)
    return y.detach(), *(None if leaf is None else leaf.grad for leaf in leaves)


def off(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right.double()).norm() / right.double().norm())


@pytest.mark.parametrize(("dtype", "of_weight"), [(BF16, BF16), (BF16, FP32), (FP16, FP16), (FP32, FP32)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_each_product_is_right_for_what_was_quantised(
    m: int, n: int, k: int, dtype: torch.dtype, of_weight: torch.dtype
) -> None:
    x, weight, bias, dy = operands(m, n, k, dtype, of_weight)
    y, dx, dw, dbias = gradients(fp8gemm.linear, x, weight, bias, dy)
    assert y is not None and dx is not None and dw is not None and dbias is not None
    added = bias.detach().to(FP32 if of_weight is FP16 else of_weight)
    numerics.check(y, *quantize_rows(x), *quantize_blocks(weight), bias=added).raise_if_failed("y")
    numerics.check(dx, *quantize_rows(dy), *quantize_blocks(weight.t())).raise_if_failed("dx")
    numerics.check(dw, *quantize_rows(dy.t()), *quantize_rows(x.t())).raise_if_failed("dW")
    assert off(dbias, dy.double().sum(0)) < {FP32: 1e-5, BF16: 4e-3, FP16: 1e-3}[of_weight]
    assert [each.dtype for each in (y, dx, dw, dbias)] == [dtype, dtype, of_weight, of_weight]


@pytest.mark.parametrize(("m", "n", "k"), SIZES[:2])
def test_gradients_are_those_of_float32_but_for_what_quantising_costs(m: int, n: int, k: int) -> None:
    x, weight, bias, dy = operands(m, n, k)
    found = gradients(fp8gemm.linear, x, weight, bias, dy)
    right = gradients(functional.linear, x.float(), weight, bias, dy.float())
    for one, other in zip(found[:3], right[:3], strict=True):
        assert one is not None and other is not None
        assert 1e-2 < off(one, other) < MOST_OFF
        assert functional.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0) > 0.999
    assert torch.allclose(found[3], right[3], atol=1e-4)  # type: ignore[arg-type]


def _whole_numbers(rows: int, columns: int) -> Tensor:
    """-7 to 7, and a 7 in each run of 16 of any row or column, so that all scales are 2^-6 and codes exact."""
    numbers = torch.randint(-7, 8, (rows, columns), dtype=FP32)
    places = (torch.arange(rows)[:, None] - torch.arange(columns)) % 16 == 0
    return numbers.masked_fill(places, 7.0)


@pytest.mark.parametrize(("m", "n", "k"), [(256, 128, 384), (200, 144, 272), (37, 16, 400)])
def test_whole_numbers_are_exact(m: int, n: int, k: int) -> None:
    x, weight, dy = _whole_numbers(m, k), _whole_numbers(n, k), _whole_numbers(m, n)
    bias = torch.arange(n, dtype=FP32)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    for found, right in zip(
        gradients(fp8gemm.linear, *leaves, dy), gradients(functional.linear, *leaves, dy), strict=True
    ):
        assert found is not None and right is not None and torch.equal(found, right)


def _by_twos(x: Tensor, dim: int) -> Tensor:
    """Every other row (0) or column (1) is 2^-40 of what it was: less than a scale that it shares with others holds."""
    shape = [1, 1]
    shape[dim] = -1
    return x * torch.tensor([1.0, 2.0**-40]).repeat(x.shape[dim] // 2).view(shape)


@pytest.mark.parametrize("operand", ["x", "dy"])
@pytest.mark.parametrize("dim", [0, 1])
def test_each_operand_is_scaled_along_what_its_product_sums_over(dim: int, operand: str) -> None:
    """Rows of dx are of rows of dy, and rows of dW of its columns: each is as precise as if it were alone."""
    x, weight, _, dy = operands(256, 128, 256, FP32)
    x, dy = (_by_twos(x, dim), dy) if operand == "x" else (x, _by_twos(dy, dim))
    found = gradients(fp8gemm.linear, x.detach().requires_grad_(), weight, None, dy)
    right = gradients(functional.linear, x.detach().requires_grad_(), weight, None, dy)
    product = {("x", 0): 0, ("x", 1): 2, ("dy", 0): 1, ("dy", 1): 2}[operand, dim]  # y, dW, dx, dW
    one, other = found[product], right[product]
    assert one is not None and other is not None
    if (operand, dim) == ("x", 1):  # columns of x are columns of dW
        one, other = one.t(), other.t()
    assert other[0].norm() > 2**30 * other[1].norm()
    for of_found, of_right in zip(one, other, strict=True):
        assert off(of_found, of_right) < 2 * MOST_OFF


@contextmanager
def operators() -> Iterator[list[str]]:
    """Names of our operators that a block of code calls."""
    called: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "fp8gemm":
                called.append(func._opname)
            return func(*args, **(kwargs or {}))

    with Watch():
        yield called


@pytest.mark.parametrize("of_x", [False, True])
@pytest.mark.parametrize("of_weight", [False, True])
def test_a_gradient_that_nobody_asks_for_is_not_computed(of_weight: bool, of_x: bool) -> None:
    x, weight, bias, dy = operands(32, 48, 64)
    whole = gradients(fp8gemm.linear, x, weight, bias, dy)
    x, weight = x.detach().requires_grad_(of_x), weight.detach().requires_grad_(of_weight)
    with operators() as called:
        found = gradients(fp8gemm.linear, x, weight, bias, dy)
    assert called.count("gemm") == 1 + of_x + of_weight
    assert called.count("quantize_weight") == 1 + of_x
    assert called.count("quantize_with_transpose") == 2 * of_weight
    assert called.count("quantize_activation") == (0 if of_weight else 1 + of_x)
    for one, other, wanted in zip(found, whole, (True, of_x, of_weight, True), strict=True):
        assert (one is not None) == wanted and (one is None or same_bits(one, other))


def test_without_gradients_it_is_the_product_alone() -> None:
    x, weight, bias, _ = operands(32, 48, 64)
    right = fp8gemm.linear(x, weight, bias)
    for without in (torch.no_grad(), torch.inference_mode()):
        with without, operators() as called:
            assert same_bits(fp8gemm.linear(x, weight, bias), right.detach())
        assert called == ["quantize_activation", "quantize_weight", "gemm"]


def test_codes_are_kept_and_the_weight_itself() -> None:
    x, weight, bias, dy = operands(256, 48, 64)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = fp8gemm.linear(x, weight, bias)
    assert [each.dtype for each in kept] == [FP32, torch.float8_e4m3fn, FP32]
    assert kept[0].data_ptr() == weight.data_ptr() and kept[1].shape == (64, 256) and kept[2].shape == (64, 2)
    y.backward(dy)
    y = fp8gemm.linear(x, weight, bias)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_have_the_same_gradients(reentrant: bool) -> None:
    x, weight, bias, dy = operands(200, 144, 272)

    def again(*leaves: Tensor) -> Tensor:
        out: Tensor = checkpoint(fp8gemm.linear, *leaves, use_reentrant=reentrant)
        return out

    found, right = (gradients(function, x, weight, bias, dy) for function in (again, fp8gemm.linear))
    for one, other in zip(found, right, strict=True):
        assert one is not None and other is not None and same_bits(one, other)


def test_autocast_casts_the_input_alone() -> None:
    x, weight, bias, dy = operands(32, 48, 64, FP32)
    right = gradients(fp8gemm.linear, x.to(BF16), weight, bias, dy.to(BF16))

    def under_autocast(*leaves: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BF16):
            return fp8gemm.linear(*leaves)

    found = gradients(under_autocast, x, weight, bias, dy.to(BF16))
    assert [each.dtype for each in found if each is not None] == [BF16, FP32, FP32, FP32]
    for one, other in zip(found, right, strict=True):
        assert one is not None and other is not None and torch.equal(one, other.to(one.dtype))


def test_leading_dimensions_strides_and_expanded_gradients() -> None:
    x, weight, bias, _ = operands(60, 48, 64)
    rows = gradients(fp8gemm.linear, x, weight, bias, torch.ones(60, 48, dtype=BF16))
    apart = torch.empty(64, 5, 12, dtype=BF16).permute(1, 2, 0).copy_(x.detach().view(5, 12, 64)).requires_grad_()
    leaves = apart, weight.detach().t().contiguous().t().requires_grad_(), bias.detach().requires_grad_()
    y = fp8gemm.linear(*leaves)
    y.sum().backward()  # which expands one number
    assert y.shape == (5, 12, 48) and y.is_contiguous()
    found = y.detach().view(60, 48), leaves[0].grad.reshape(60, 64), leaves[1].grad, leaves[2].grad  # type: ignore[union-attr]
    for one, other in zip(found, rows, strict=True):
        assert other is not None and torch.equal(one, other)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_no_rows_give_zero_gradients(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape, dtype=BF16), torch.randn(48, 64), torch.randn(48)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    y, dx, dw, dbias = gradients(fp8gemm.linear, *leaves, torch.randn(*shape[:-1], 48, dtype=BF16))
    assert y is not None and y.shape == (*shape[:-1], 48) and dx is not None and dx.shape == shape
    assert dw is not None and dw.shape == (48, 64) and not dw.any()
    assert dbias is not None and not dbias.any()


def _zeros(*shape: int, dtype: torch.dtype = FP32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "weight of bytes": (
        {"weight": _zeros(48, 64, dtype=torch.uint8)},
        r"^weight: expected .* \(N, K\), got torch.uint8",
    ),
    "weight of codes": ({"weight": _zeros(48, 64).to(torch.float8_e4m3fn)}, r"^weight: expected torch.bfloat16"),
    "N": ({"weight": _zeros(50, 64)}, r"^weight: .*gradients sum over N, got shape \(50, 64\); N = 64 works$"),
    "K": ({"weight": _zeros(48, 100), "x": _zeros(3, 100)}, r"\(48, 100\); K = 112 works$"),
    "no N": ({"weight": _zeros(0, 64)}, r"N = 16 works$"),
    "dimensions": ({"weight": _zeros(64)}, r"^weight: expected .* of shape \(N, K\)"),
    "x of another K": ({"x": _zeros(3, 48)}, r"^x: expected .* of shape \(\.\.\., 64\) = \(\.\.\., K\), got"),
    "x in float64": ({"x": _zeros(3, 64, dtype=torch.float64)}, r"^x: expected torch.bfloat16 .*got torch.float64"),
    "x that is none": ({"x": [1.0]}, r"^x: expected a torch.Tensor, got list"),
    "x elsewhere": ({"x": _zeros(3, 64, device="meta")}, r"^x: expected the device of weight, cpu, got meta"),
    "bias": ({"bias": _zeros(64)}, r"^bias: expected .* of shape \(48,\) = \(N,\), got .* of shape \(64,\)"),
    "bias in float64": ({"bias": _zeros(48, dtype=torch.float64)}, r"^bias: expected torch.bfloat16"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_before_anything_is_computed(changes: dict[str, Any], message: str) -> None:
    given = {"x": _zeros(3, 64), "weight": _zeros(48, 64), "bias": None, **changes}
    with operators() as called, pytest.raises(InputError, match=message):
        fp8gemm.linear(**given)
    assert not called


@pytest.mark.parametrize("trained", [True, False])
def test_there_is_no_forward_derivative_and_it_is_said(trained: bool) -> None:
    x, weight, bias, _ = (each.detach() for each in operands(32, 48, 64))
    weight.requires_grad_(trained)
    with pytest.raises((NotImplementedError, RuntimeError), match="jvp|forward"):
        torch.func.jvp(lambda x: fp8gemm.linear(x, weight, bias), (x,), (torch.ones_like(x),))
    with (
        pytest.raises((NotImplementedError, RuntimeError), match="jvp|forward"),
        torch.autograd.forward_ad.dual_level(),
    ):
        fp8gemm.linear(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), weight, bias)
