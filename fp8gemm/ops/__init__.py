"""The operators ``torch.ops.fp8gemm``: what `torch.compile` and `torch.export` see of this package.

Each is the function of the same name, as a node of a graph. An operator computes on CPU and CUDA tensors, has a fake
kernel that tells shapes and strides and refuses what cannot be, and is for inference only: with gradients enabled, an
input that requires one is an error. The ``_out`` forms write to memory of the caller's. Schemas: `SCHEMAS`.

NOTE: `Library.define` and `impl`, because `torch.library.custom_op` cost 10 us a call where these cost 1.4. To register
them is part of ``import fp8gemm``; what they compute with, and the fake kernels, are imported by their first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fp8gemm.ops import grouped

SCHEMAS = (
    "gemm(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? c, Tensor? bias, ScalarType out_dtype, "
    "bool? batch_invariant, bool static_weights) -> Tensor",
    "gemm_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? c, Tensor? bias, bool? batch_invariant, "
    "bool static_weights, *, Tensor(a!) out) -> ()",
    "quantize_activation(Tensor x, Tensor? counts=None) -> (Tensor, Tensor)",
    "quantize_activation_out(Tensor x, Tensor(a!) codes, Tensor(b!) scales) -> ()",
    "quantize_weight(Tensor w) -> (Tensor, Tensor)",
    "quantize_silu_mul(Tensor x, Tensor? counts=None) -> (Tensor, Tensor)",
    "quantize_rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    "quantize_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
)
"""``batch_invariant`` None is ``FP8GEMM_BATCH_INVARIANT`` at each call. Scales of rows are MN-major."""

Function = Callable[..., Any]


@cache
def _module(name: str) -> Any:
    return import_module(f"fp8gemm.{name}")


def _gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    batch_invariant: bool | None,
    static_weights: bool,
) -> Any:
    # NOTE: not `gemm`, which sends tensors of some types here.
    multiply = _module("products.dense").multiply
    return multiply(a, scales_a, b, scales_b, c, bias, None, out_dtype, batch_invariant, static_weights)


def _gemm_out(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    batch_invariant: bool | None,
    static_weights: bool,
    *,
    out: Tensor,
) -> None:
    _module("products.dense").multiply(
        a, scales_a, b, scales_b, c, bias, out, out.dtype, batch_invariant, static_weights
    )


_IMPLEMENTATIONS: dict[str, Function] = {
    "gemm": _gemm,
    "gemm_out": _gemm_out,
    "quantize_activation": lambda x, counts=None: _module("products.quantize").direct_activation(x, counts),
    "quantize_activation_out": lambda x, codes, scales: _module("products.quantize").direct_activation_out(
        x, codes, scales
    ),
    "quantize_weight": lambda w: _module("products.quantize").direct_weight(w),
    "quantize_silu_mul": lambda x, counts=None: _module("products.quantize").direct_silu_mul(x, counts),
    "quantize_rms_norm": lambda x, weight, eps: _module("products.quantize").direct_rms_norm(x, weight, eps),
    "quantize_add_rms_norm": lambda x, residual, weight, eps: _module("products.quantize").direct_add_rms_norm(
        x, residual, weight, eps
    ),
}


def _inference_only(op: Any) -> Function:
    """The autograd kernel of ``op``: an error for what requires a gradient, else on to the kernels below."""
    names = [argument.name for argument in op._schema.arguments]

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if isinstance(value, Tensor):
                _module("checks.tensors").check_no_gradient(name, value)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)

    return kernel


def _fake(name: str) -> Function:
    """The fake kernel of an operator."""
    return lambda *args, **options: _module("ops.fake").FAKES[name](*args, **options)


def _tags() -> tuple[torch.Tag, ...]:
    # Kernels read codes by rows and scales by columns, as the fake kernels say: a compiler must not lay them out anew.
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    return torch.Tag.pt2_compliant_tag, strides


def _register() -> torch.library.Library:
    library = torch.library.Library("fp8gemm", "DEF")
    implementations = {**_IMPLEMENTATIONS, **grouped.IMPLEMENTATIONS}
    for schema in (*SCHEMAS, *grouped.SCHEMAS):
        name = library.define(schema, tags=_tags())
        for key in ("CPU", "CUDA"):
            library.impl(name, implementations[name], key)
        library.impl(name, _inference_only(getattr(torch.ops.fp8gemm, name).default), "Autograd", with_keyset=True)
        torch.library.register_fake(f"fp8gemm::{name}", _fake(name), lib=library)
    return library


_LIBRARY = _register()
"""Operators live as long as this object."""
