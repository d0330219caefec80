"""The kernels of routing that run under compute-sanitizer: each on tokens with tails. See sanitize.py."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm.checks.dtypes import INPUTS  # noqa: E402
from fp8gemm.jit.request import KernelRequest  # noqa: E402
from fp8gemm.kernels.quantize import QuantizeKernel, Quantizer, quantizer_to_rows  # noqa: E402
from fp8gemm.kernels.routing import (  # noqa: E402
    CHUNK,
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    RoutingKernel,
    chunks_of,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.reference import quantize_rows  # noqa: E402
from fp8gemm.reference import routing as reference  # noqa: E402
from fp8gemm.scales import block_count, mn_major_pitch  # noqa: E402

Upload = Callable[[Tensor], Tensor]

TOP_K, GROUPS, FIRST = 3, 37, 2


@dataclass(frozen=True)
class Routed:
    """A kernel, or the two that sort ids of several chunks, and the tokens that it gets.

    Attributes:
        kernel: the first of them.
        tokens, k: of what is routed; K is the N of what is summed.
        dtype: of what is quantised or summed.
    """

    kernel: KernelRequest | Quantizer
    tokens: int
    k: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def request(self) -> KernelRequest:
        """What must be built for it."""
        return self.kernel.request if isinstance(self.kernel, Quantizer) else self.kernel

    @property
    def label(self) -> str:
        """As in the cache."""
        return self.request.label

    @property
    def shape(self) -> str:
        return f"{self.tokens}x{TOP_K}x{self.k}"

    @property
    def limit(self) -> float:
        """Every bit is the reference's."""
        return 0.0

    def run(self, upload: Upload) -> float:
        """One launch, of several chunks two, and how many elements are wrong."""
        generator = torch.Generator().manual_seed(self.tokens)
        ids = torch.randint(-1, GROUPS + 4, (self.tokens, TOP_K), generator=generator)
        stream = torch.cuda.current_stream().cuda_stream
        if self.kernel in (ROUTE_TOKENS, COUNT_ROUTES):
            return self._run_route(ids, upload, stream)
        routes_too = self.label.startswith("route-and-quantize")
        routes = reference.route(ids, GROUPS, FIRST)
        offsets, rows, kept = (upload(each) for each in routes)
        if self.label.startswith("unpermute"):
            y = torch.randn(ids.numel(), self.k, generator=generator).to(self.dtype)
            weights = torch.randn(ids.shape, generator=generator)
            out = upload(torch.full((self.tokens, self.k), math.nan, dtype=self.dtype))
            given, factors = upload(y), upload(weights)  # which must outlive the launch
            kernel = RoutingKernel(self.request, device_index=0)
            kernel.bind_unpermute(given, rows, kept, factors, INPUTS[torch.float32], out, stream=stream)()
            torch.cuda.synchronize()
            return _wrong(out.cpu(), reference.unpermute(y, *routes[1:], weights))
        x = torch.randn(self.tokens, self.k, generator=generator).to(self.dtype)
        count, blocks = ids.numel(), block_count(self.k)
        codes = upload(torch.full((count, self.k), 0x7F, dtype=torch.uint8)).view(torch.float8_e4m3fn)
        memory = upload(torch.full((blocks, mn_major_pitch(count)), math.nan))
        scales = memory.t()[:count]
        written = int(routes[0][-1])
        if routes_too:
            given, own_ids = upload(x), upload(ids)
            found = upload(torch.full((GROUPS + 1,), -1, dtype=torch.int32)), torch.full_like(rows, -1), ~kept
            kernel = RoutingKernel(self.request, device_index=0)
            kernel.bind_route_and_quantize(given, own_ids, found, (codes, scales), FIRST, stream=stream)()
            offsets, rows, kept = found
        elif isinstance(self.kernel, Quantizer):
            given = upload(x)
            kernel_to_rows = QuantizeKernel(self.kernel, device_index=0)
            kernel_to_rows.bind_to_rows(given, codes, scales, rows, offsets, stream=stream)()
        else:
            quantized = tuple(upload(each) for each in quantize_rows(x))
            kernel = RoutingKernel(self.request, device_index=0)
            kernel.bind_copy((quantized[0], quantized[1]), rows, offsets, (codes, scales), stream=stream)()
        torch.cuda.synchronize()
        right_codes, right_scales = reference.quantize_to_rows(x, routes[1])
        # NOTE: whole, because torch would first make a packed copy of a part, and to initcheck a kernel writes nothing.
        found_codes, found_scales = codes.cpu().view(torch.uint8)[:written], memory.cpu().t()[:written]
        pairs = (found_codes, right_codes.view(torch.uint8)[:written]), (found_scales, right_scales[:written])
        of_routes = zip((offsets.cpu(), rows.cpu(), kept.cpu()), routes, strict=True)
        return sum(_wrong(found, right) for found, right in (*pairs, *of_routes))

    def _run_route(self, ids: Tensor, upload: Upload, stream: int) -> float:
        offsets = upload(torch.full((GROUPS + 1,), -1, dtype=torch.int32))
        rows, kept = upload(torch.full(ids.shape, -1)), upload(torch.zeros(ids.shape, dtype=torch.bool))
        given, chunks = upload(ids), chunks_of(ids.numel())
        counts = upload(torch.full((chunks, GROUPS + 1), -1, dtype=torch.int32)) if chunks > 1 else None
        for request in (ROUTE_TOKENS,) if counts is None else (COUNT_ROUTES, ROUTE_TOKENS):
            kernel = RoutingKernel(request, device_index=0)
            kernel.bind_route(given, (offsets, rows, kept), counts, FIRST, stream=stream)()
        torch.cuda.synchronize()
        pairs = zip((offsets, rows, kept), reference.route(ids, GROUPS, FIRST), strict=True)
        return sum(_wrong(found.cpu(), right) for found, right in pairs)


def _wrong(found: Tensor, right: Tensor) -> float:
    return float((found != right).sum())


def routed() -> Iterator[Routed]:
    """Ids of one chunk and of several, copies, and each type that is quantised or summed."""
    yield Routed(ROUTE_TOKENS, 101, 0)
    yield Routed(COUNT_ROUTES, CHUNK, 0)
    yield Routed(COPY_TO_ROWS, 101, 144)
    for dtype, kind in INPUTS.items():
        yield Routed(quantizer_to_rows(kind), 33, 400, dtype)
        yield Routed(route_and_quantize_request(kind), 31, 400, dtype)
        yield Routed(unpermute_request(kind), 33, 264, dtype)
