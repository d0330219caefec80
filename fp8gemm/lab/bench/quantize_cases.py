"""The quantise functions: what each is given, and what its codes and scales must stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fp8gemm.lab.bench.graph import check_result
from fp8gemm.lab.bench.operands import normal
from fp8gemm.products import quantize
from fp8gemm.sizes import SCALE_BLOCK


@dataclass(frozen=True)
class Size:
    """Codes of (M, K)."""

    m: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.k}"


@dataclass(frozen=True)
class Inputs:
    """Random operands of one call.

    Attributes:
        x: (M, K), or (M, 2K) where two halves are multiplied.
        residual: (M, K), and norm: (K,), where the function takes them.
    """

    x: Tensor
    residual: Tensor | None = None
    norm: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [tensor for tensor in (self.x, self.residual, self.norm) if tensor is not None]


@dataclass(frozen=True)
class Case:
    """A function and what it is given.

    Attributes:
        name: a column of the table.
        description: the function and the type of its input.
        call: gives codes and scales, and perhaps more.
        expected: (M, K) float32, what the codes times their scales must be, up to quantisation.
        dtype: of the inputs.
        halves: whether x is twice as wide as the codes.
        arguments: names of what it takes besides x.
        rows_per_scale: rows that share a scale.
        transposes: whether codes and scales of the transpose follow. It has no gate: nobody has measured it yet.
    """

    name: str
    description: str
    call: Callable[[Inputs], tuple[Tensor, ...]]
    expected: Callable[[Inputs], Tensor]
    dtype: torch.dtype = torch.bfloat16
    halves: bool = False
    arguments: tuple[str, ...] = ()
    rows_per_scale: int = 1
    transposes: bool = False

    def inputs(self, size: Size, generator: torch.Generator) -> Inputs:
        """Standard normal ones on the generator's device."""
        draw = partial(normal, generator, dtype=self.dtype)
        shapes = {"residual": (size.m, size.k), "norm": (size.k,)}
        more = {name: draw(*shapes[name]) for name in self.arguments}
        return Inputs(draw(size.m, size.k * (1 + self.halves)), **more)

    def check(self, inputs: Inputs) -> int:
        """Bytes that one call reads and writes.

        Raises:
            WrongResultError: the result is off by more than quantisation explains.
        """
        results = self.call(inputs)
        expected = self.expected(inputs)
        values = dequantized(*results[:2], rows_per_scale=self.rows_per_scale)
        check_result(values, expected, "the unquantised values")
        if self.transposes:
            transpose = dequantized(*results[2:], rows_per_scale=self.rows_per_scale)[:, : len(expected)]
            check_result(transpose, expected.T, "the transpose of the unquantised values")
        return sum(tensor.numel() * tensor.element_size() for tensor in [*inputs.tensors, *results])


def dequantized(codes: Tensor, scales: Tensor, *, rows_per_scale: int) -> Tensor:
    """(M, K) float32: the codes, each times its scale."""
    m, k = codes.shape
    return codes.float() * scales.repeat_interleave(rows_per_scale, 0)[:m].repeat_interleave(SCALE_BLOCK, 1)[:, :k]


def _activation(inputs: Inputs) -> tuple[Tensor, ...]:
    return quantize.quantize_activation(inputs.x)


def _with_transpose(inputs: Inputs) -> tuple[Tensor, ...]:
    return quantize.quantize_with_transpose(inputs.x)


def _rms_norm(inputs: Inputs) -> tuple[Tensor, ...]:
    assert inputs.norm is not None
    return quantize.quantize_rms_norm(inputs.x, inputs.norm)


def _add_rms_norm(inputs: Inputs) -> tuple[Tensor, ...]:
    assert inputs.residual is not None and inputs.norm is not None
    return quantize.quantize_add_rms_norm(inputs.x, inputs.residual, inputs.norm)


def _float(inputs: Inputs) -> Tensor:
    return inputs.x.float()


def _silu_times_up(inputs: Inputs) -> Tensor:
    gate, up = inputs.x.float().chunk(2, dim=1)
    return functional.silu(gate) * up


def _normed(inputs: Inputs) -> Tensor:
    assert inputs.norm is not None
    x = inputs.x if inputs.residual is None else inputs.x + inputs.residual
    return functional.rms_norm(x.float(), (x.shape[1],), inputs.norm.float(), 1e-6)


CASES = (
    Case("activation", "quantize_activation, bfloat16", _activation, _float),
    Case("activation_f16", "quantize_activation, float16", _activation, _float, dtype=torch.float16),
    Case("activation_f32", "quantize_activation, float32", _activation, _float, dtype=torch.float32),
    Case(
        "weight",
        "quantize_weight, bfloat16",
        lambda inputs: quantize.quantize_weight(inputs.x),
        _float,
        rows_per_scale=SCALE_BLOCK,
    ),
    Case("with_transpose", "quantize_with_transpose, bfloat16", _with_transpose, _float, transposes=True),
    Case(
        "silu_mul",
        "quantize_silu_mul, bfloat16 (M, 2K)",
        lambda inputs: quantize.quantize_silu_mul(inputs.x),
        _silu_times_up,
        halves=True,
    ),
    Case("rms_norm", "quantize_rms_norm, bfloat16", _rms_norm, _normed, arguments=("norm",)),
    Case("add_rms_norm", "quantize_add_rms_norm, bfloat16", _add_rms_norm, _normed, arguments=("residual", "norm")),
)
