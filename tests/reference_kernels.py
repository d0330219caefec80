"""Kernels on the CPU: they take what the real ones are bound to, and compute by the reference."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp8gemm import reference
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.kernels.quantize import QuantizeKernel
from fp8gemm.products.quantize import quantize_activation, quantize_silu_mul
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, Problem
from tests.prepared import torch_dtype
from tests.quantizer_launches import Quantising


class Dense:
    """Stands where `GemmKernel` is."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def bind(self, *args: Any, **options: Any) -> Callable[[], None]:
        given = inspect.signature(SingleKernel.bind).bind(self, *args, **options).arguments
        out = given["out"]
        terms = {name: given[name] for name in ("c", "bias") if name in given}
        assert {name: term.dtype for name, term in terms.items()} == {
            name: torch_dtype(kind)
            for name, kind in (("c", self.problem.c), ("bias", self.problem.bias))
            if kind is not Addend.NONE
        }
        operands = [given[name] for name in ("a", "scales_a", "b", "scales_b")]
        return lambda: out.copy_(reference.gemm_reference(*operands, **terms, out_dtype=out.dtype))


class Grouped:
    """Stands where `GroupedKernel` is; it reads the ranges from their addresses."""

    def __init__(self, problem: GroupedProblem) -> None:
        self.problem = problem

    def bind(self, *args: Any) -> Callable[[], None]:
        given = inspect.signature(GroupedKernel.bind).bind(self, *args).arguments["operands"]
        return lambda: self.multiply(given)

    def multiply(self, given: GroupedOperands) -> None:
        groups, n = self.problem.groups, self.problem.n
        ends = torch.tensor(list((ctypes.c_int32 * groups).from_address(given.ends)))
        begins = torch.tensor(list((ctypes.c_int32 * groups).from_address(given.begins))) if given.begins else None
        if self.problem.grouping is Grouping.COLUMNS:
            assert begins is not None
            out = given.out.view(groups, given.rows, n)
            c = None if self.problem.c is Addend.NONE else out.clone()
            bounds = torch.stack((begins, ends))
            reference.gemm_k_grouped_reference(given.a, given.scales_a, given.b, given.scales_b, bounds, c=c, out=out)
            return
        b = given.b.view(groups, n, -1)
        if begins is None:
            a = given.a.view(groups, given.rows, -1)
            out = given.out.view(groups, given.rows, n)
            reference.gemm_masked_reference(a, given.scales_a, b, given.scales_b, ends, out=out)
        else:
            assert given.rows == given.a.shape[0]
            bounds = torch.stack((begins, ends))
            reference.gemm_grouped_reference(given.a, given.scales_a, b, given.scales_b, offsets=bounds, out=given.out)


class Quantises:
    """Stands where `QuantizeKernel` is."""

    def __init__(self, each: Quantising) -> None:
        self.each = each

    def bind(self, *args: Any, **options: Any) -> Callable[[], None]:
        given = inspect.signature(QuantizeKernel.bind).bind(self, *args, **options).arguments
        x, weight = given["x"], given.get("weight")
        if "residual" in given:
            given["summed"].copy_(reference.add_rms_norm(x, given["residual"], weight, given["eps"])[1])
            x = given["summed"]
        if weight is not None:
            x = reference.rms_norm(x, weight, given["eps"])
        elif self.each.kind == "silu-mul":
            x = reference.silu_mul(x)
        quantize = reference.quantize_blocks if self.each.kind == "blocks" else reference.quantize_rows
        return lambda: put(quantize(x), given)

    def bind_masked(self, *args: Any, **options: Any) -> Callable[[], None]:
        given = inspect.signature(QuantizeKernel.bind_masked).bind(self, *args, **options).arguments
        there = torch.arange(given["x"].shape[1]) < given["counts"][:, None]
        quantize = quantize_silu_mul if self.each.kind == "silu-mul" else quantize_activation

        def run() -> None:
            codes, scales = quantize(given["x"], counts=given["counts"])
            given["codes"].view(torch.uint8)[there] = codes.view(torch.uint8)[there]
            given["scales"][there] = scales[there]

        return run


def put(quantized: tuple[Tensor, Tensor], given: dict[str, Any]) -> None:
    for name, values in zip(("codes", "scales"), quantized, strict=True):
        given[name].copy_(values)
