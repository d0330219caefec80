"""scripts/sanitize_routing.py: what of routing it runs, and that a wrong result is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.ahead.kernels import routing_kernels
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.quantize import Quantizer
from fp8gemm.reference import routing as reference
from fp8gemm.tuning.problem import InputType
from tests.scripts import load_script


@pytest.fixture(scope="module")
def listed() -> ModuleType:
    """What runs under the tools."""
    return load_script("sanitize_kernels")


def test_every_kernel_of_routing_is_among_them(listed: ModuleType) -> None:
    wanted = {request for dtype in InputType for request in routing_kernels(dtype)}
    assert {each.request for each in listed.ROUTED} == wanted
    quick = [each for index in listed.QUICK if (each := listed.KERNELS[index]) in listed.ROUTED]
    of_bf16 = "quantize-to-rows-bf16", "route-and-quantize-bf16", "unpermute-bf16"
    assert [each.label for each in quick] == ["route-tokens", "count-routes", *of_bf16]
    for each in listed.ROUTED:
        assert each.k % 128 or not each.k, each.label


@pytest.mark.parametrize("fault", [0, 1])
def test_a_kernel_that_is_not_right_is_told(fault: int, listed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, by the reference in the kernel's place, with one element wrong or none."""

    class Kernel:
        def __init__(self, kernel: KernelRequest | Quantizer, *, device_index: int) -> None:
            self.counts = kernel.family == "CountRoutes" if isinstance(kernel, KernelRequest) else False

        def bind_route(
            self, ids: Tensor, routes: Any, counts: Tensor | None, first: int, *, stream: int
        ) -> Callable[[], None]:
            if not self.counts:
                for out, right in zip(routes, reference.route(ids, routes[0].shape[0] - 1, first), strict=True):
                    out.copy_(right)
                routes[1][-1, -1] += fault
            return lambda: None

        def bind_copy(
            self, tokens: Any, rows: Tensor, offsets: Tensor, copies: Any, *, stream: int
        ) -> Callable[[], None]:
            return self.put(reference.copy_to_rows(*tokens, rows), copies)

        def bind_to_rows(
            self, x: Tensor, codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor, *, stream: int
        ) -> Callable[[], None]:
            return self.put(reference.quantize_to_rows(x, rows), (codes, scales))

        def bind_route_and_quantize(
            self, x: Tensor, ids: Tensor, routes: Any, copies: Any, first: int, *, stream: int
        ) -> Callable[[], None]:
            self.bind_route(ids, routes, None, first, stream=stream)
            return self.put(reference.quantize_to_rows(x, routes[1] % ids.numel()), copies)

        def put(self, made: Any, copies: Any) -> Callable[[], None]:
            for out, right in zip(copies, made, strict=True):
                out.copy_(right)
            copies[1][0, 0] += fault
            return lambda: None

        def bind_unpermute(self, *given: Any, stream: int) -> Callable[[], None]:
            y, rows, kept, weights, _, out = given
            out.copy_(reference.unpermute(y, rows, kept, weights))
            out[0, 0] += fault
            return lambda: None

    for name in ("QuantizeKernel", "RoutingKernel"):
        monkeypatch.setattr(sys.modules["sanitize_routing"], name, Kernel)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for each in listed.ROUTED:
        assert (each.run(lambda tensor: tensor) <= each.limit) is (fault == 0), each.label
