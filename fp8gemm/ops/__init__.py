"""The operators ``torch.ops.fp8gemm``: what `torch.compile` and `torch.export` see of this package.

Each is the function of the same name, as a node of a graph. An operator computes on CPU and CUDA tensors, has a fake
kernel that tells shapes and strides and refuses what cannot be, and rules for DTensors (`fp8gemm.ops.sharding`). It is
for inference only: with gradients enabled, an input that requires one is an error. The ``_out`` forms write to memory
of the caller's. What they compute with `fp8gemm.products` hands in, by `register`.

NOTE: `Library.define` and `impl`, because `torch.library.custom_op` cost 10 us a call where these cost 1.4. To register
them is part of ``import fp8gemm``; the fake kernels are imported by their first call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

SCHEMAS = (
    "gemm(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? c, Tensor? bias, ScalarType out_dtype, "
    "bool? batch_invariant, bool static_weights) -> Tensor",
    "gemm_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? c, Tensor? bias, bool? batch_invariant, "
    "bool static_weights, *, Tensor(a!) out) -> ()",
    "quantize_activation(Tensor x, Tensor? counts=None) -> (Tensor, Tensor)",
    "quantize_activation_out(Tensor x, Tensor(a!) codes, Tensor(b!) scales) -> ()",
    "quantize_weight(Tensor w) -> (Tensor, Tensor)",
    "quantize_with_transpose(Tensor x) -> (Tensor, Tensor, Tensor, Tensor)",
    "quantize_silu_mul(Tensor x, Tensor? counts=None) -> (Tensor, Tensor)",
    "quantize_rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    "quantize_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    "gemm_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "ScalarType out_dtype, SymInt? expected_m, bool? batch_invariant) -> Tensor",
    "gemm_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor? indices, Tensor? offsets, "
    "SymInt? expected_m, bool? batch_invariant, *, Tensor(a!) out) -> ()",
    "gemm_masked(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, ScalarType out_dtype, "
    "SymInt? expected_m, bool? batch_invariant) -> Tensor",
    "gemm_masked_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor counts, SymInt? expected_m, "
    "bool? batch_invariant, *, Tensor(a!) out) -> ()",
    "gemm_k_grouped(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c) -> Tensor",
    "gemm_k_grouped_out(Tensor a, Tensor scales_a, Tensor b, Tensor scales_b, Tensor offsets, Tensor? c, *, "
    "Tensor(a!) out) -> ()",
    "route(Tensor expert_ids, SymInt num_experts, SymInt first_expert) -> (Tensor, Tensor, Tensor)",
    "quantize_permuted(Tensor x, Tensor expert_ids, SymInt num_experts, SymInt first_expert) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    "copy_to_rows(Tensor codes, Tensor scales, Tensor rows, Tensor offsets) -> (Tensor, Tensor)",
    "unpermute(Tensor y, Tensor rows, Tensor kept, Tensor weights) -> Tensor",
)
"""``batch_invariant`` None is ``FP8GEMM_BATCH_INVARIANT`` at each call. Scales of rows are MN-major."""

Function = Callable[..., Any]

_LIBRARY = torch.library.Library("fp8gemm", "DEF")
"""Operators live as long as this object."""


def register(implementations: Mapping[str, Function]) -> None:
    """Define every operator.

    Args:
        implementations: by name, what computes on tensors with memory that nobody traces.
    """
    for schema in SCHEMAS:
        name = _LIBRARY.define(schema, tags=_tags())
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, implementations[name], key)
        _LIBRARY.impl(name, _inference_only(getattr(torch.ops.fp8gemm, name).default), "Autograd", with_keyset=True)
        torch.library.register_fake(f"fp8gemm::{name}", _fake(name), lib=_LIBRARY)


def _inference_only(op: Any) -> Function:
    """The autograd kernel of ``op``: an error for what requires a gradient, else on to the kernels below."""
    names = [argument.name for argument in op._schema.arguments]

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        heed_dtensors(args)  # of operators that have rules, tensors are positional
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if isinstance(value, Tensor) and value.requires_grad:
                from fp8gemm.checks.tensors import check_no_gradient  # here, because to register is to be quick

                check_no_gradient(name, value)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)

    return kernel


def heed_dtensors(operands: Iterable[object]) -> None:
    """Make the operators known to DTensor if one of ``operands`` is one. Whoever has one has imported its module."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is not None and any(isinstance(operand, kind) for operand in operands):
        import fp8gemm.ops.sharding  # noqa: F401


def _fake(name: str) -> Function:
    """The fake kernel of an operator."""

    def fake(*args: Any, **options: Any) -> Any:
        from fp8gemm.ops.fake import FAKES  # here, because only tracing needs it

        return FAKES[name](*args, **options)

    return fake


def _tags() -> tuple[torch.Tag, ...]:
    # Kernels read codes by rows and scales by columns, as the fake kernels say: a compiler must not lay them out anew.
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    return torch.Tag.pt2_compliant_tag, strides
