"""The host's side of ``include/fp8gemm/kernels/route_tokens.cuh``, ``route_and_quantize.cuh``, ``copy_to_rows.cuh`` and
``unpermute.cuh``.

Operands reach this module checked (see `fp8gemm.products.routing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fp8gemm.driver.arguments import Arguments, CopyParams, RouteAndQuantizeParams, RouteParams, UnpermuteParams
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig
from fp8gemm.jit.kernel import load
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.quantize import ctas_to_rows, fill_to_rows
from fp8gemm.tuning.grouped_problem import MAX_GROUPS
from fp8gemm.tuning.problem import InputType

if TYPE_CHECKING:
    from torch import Tensor

_WARP, _WARPS = 32, 4
VECTOR = 8
"""Neighbouring columns that a thread sums: N is a multiple of it."""
_ROUTE_THREADS, _ITEMS = 256, 16
CHUNK = _ROUTE_THREADS * _ITEMS
"""Flat indices of a CTA that finds their rows. Up to so many one launch does it: a thread has at most 16 of them, of
about a hundred cycles each, so that more CTAs would save less than the launch ahead that they need (reckoned, not
measured)."""
_AHEAD = {InputType.BFLOAT16: 8, InputType.FLOAT16: 8, InputType.FLOAT32: 4}
"""Rows that a thread of a weighted sum asks for at once, 128 bytes."""

_CONFIG = (("threads", _ROUTE_THREADS), ("items", _ITEMS), ("max_groups", MAX_GROUPS))
_HEADER = "fp8gemm/kernels/route_tokens.cuh"
ROUTE_TOKENS = KernelRequest(label="route-tokens", header=_HEADER, family="RouteTokens", config=_CONFIG)
"""What finds the row of each index."""
COUNT_ROUTES = KernelRequest(label="count-routes", header=_HEADER, family="CountRoutes", config=_CONFIG)
"""What counts the indices of several chunks, ahead of that."""

COPY_TO_ROWS = KernelRequest(
    label="copy-to-rows",
    header="fp8gemm/kernels/copy_to_rows.cuh",
    family="CopyToRows",
    config=(("warps", _WARPS),),
)
"""What copies codes and scales of tokens to their rows."""
COPIED = 16
"""Neighbouring codes that a thread copies: K is a multiple of it."""


def unpermute_request(dtype: InputType) -> KernelRequest:
    """What adds up rows of a type by weights of any."""
    return KernelRequest(
        label=f"unpermute-{dtype.value}",
        header="fp8gemm/kernels/unpermute.cuh",
        family="Unpermute",
        config=(("input", dtype), ("warps", _WARPS), ("ahead", _AHEAD[dtype])),
    )


def chunks_of(count: int) -> int:
    """CTAs that find the rows of so many indices; one where there are none, which writes the offsets."""
    return max(-(-count // CHUNK), 1)


def route_and_quantize_request(dtype: InputType) -> KernelRequest:
    """What finds the rows of few tokens of a type, and quantises these there."""
    return KernelRequest(
        label=f"route-and-quantize-{dtype.value}",
        header="fp8gemm/kernels/route_and_quantize.cuh",
        family="RouteAndQuantize",
        config=(
            ("input", dtype),
            ("threads", _ROUTE_THREADS),
            ("warps", _ROUTE_THREADS // _WARP),
            ("items", 1),
            ("max_groups", MAX_GROUPS),
        ),
    )


def are_few(expert_ids: Tensor, num_experts: int) -> bool:
    """Whether one launch may route tokens and quantise them: each warp looks at all indices for each of its token's."""
    count, top_k = expert_ids.numel(), expert_ids.shape[1]
    return 0 < count <= _ROUTE_THREADS and top_k <= _WARP and num_experts <= MAX_GROUPS


class RoutingKernel:
    """A kernel of routing, loaded on one GPU and ready to launch; threads may share it.

    Args:
        request: which: `ROUTE_TOKENS`, `COUNT_ROUTES`, `COPY_TO_ROWS`, or an `unpermute_request`.
        device_index: the GPU.
        allow_compile: whether it may be compiled if it is in no cache.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream.

    Raises:
        CacheMissError, CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
    """

    def __init__(
        self, request: KernelRequest, *, device_index: int, allow_compile: bool = True, programmatic: bool = False
    ) -> None:
        loaded = load(request, device_index, 0, allow_compile=allow_compile)
        self._launch = LaunchConfig(
            function=loaded.function,
            device_index=device_index,
            grid_x=1,
            threads=threads_of(request),
            programmatic=programmatic,
        )

    def bind_route(
        self,
        ids: Tensor,
        routes: tuple[Tensor, Tensor, Tensor],
        counts: Tensor | None,
        first_expert: int,
        *,
        stream: int,
    ) -> BoundLaunch:
        """The launch of `ROUTE_TOKENS` or `COUNT_ROUTES`; it holds addresses of checked operands, and none of them.

        Args:
            ids: (T, top_k) int32 or int64, contiguous.
            routes: offsets (G + 1,) int32, rows (T, top_k) int64 and kept (T, top_k) bool, contiguous.
            counts: (chunks, G + 1) int32, contiguous, of several chunks; both launches have it.
            first_expert: the id of group 0.
            stream: the CUstream.
        """
        arguments = Arguments(RouteParams)
        _fill_route(arguments.params, ids, routes, counts, first_expert)
        return BoundLaunch(self._launch, arguments, stream, arguments.params.chunks)

    def bind_route_and_quantize(
        self,
        x: Tensor,
        ids: Tensor,
        routes: tuple[Tensor, Tensor, Tensor],
        copies: tuple[Tensor, Tensor],
        first_expert: int,
        *,
        stream: int,
    ) -> BoundLaunch:
        """The launch of a `route_and_quantize_request`, likewise.

        Args:
            x: (T, K), its rows on 16-byte boundaries.
            ids, routes, first_expert: as in `bind_route`, of indices that `are_few`.
            copies: codes (T * top_k, K) e4m3, contiguous, and scales (T * top_k, ceil(K/128)) float32, MN-major.
            stream: the CUstream.
        """
        arguments = Arguments(RouteAndQuantizeParams)
        params = arguments.params
        fill_to_rows(params.quantize, x, *copies, ids.shape[1])
        _fill_route(params.route, ids, routes, None, first_expert)
        return BoundLaunch(self._launch, arguments, stream, 1 + ctas_to_rows(*x.shape, warps=_ROUTE_THREADS // _WARP))

    def bind_copy(
        self,
        tokens: tuple[Tensor, Tensor],
        rows: Tensor,
        offsets: Tensor,
        copies: tuple[Tensor, Tensor],
        *,
        stream: int,
    ) -> BoundLaunch:
        """The launch of `COPY_TO_ROWS`, likewise.

        Args:
            tokens: codes (T, K) e4m3, K a multiple of 16, rows on 16-byte boundaries; and scales (T, ceil(K/128))
                float32, of any strides.
            rows: (T, top_k) int64, contiguous, not empty.
            offsets: int32, contiguous: rows from the last of them on are not written.
            copies: codes (R, K), contiguous, and scales (R, ceil(K/128)), MN-major, of all rows, R, which may be more
                than these tokens have.
            stream: the CUstream.
        """
        arguments = Arguments(CopyParams)
        params = arguments.params
        (codes, scales), (of_rows, their_scales) = tokens, copies
        params.codes, params.scales, params.rows = codes.data_ptr(), scales.data_ptr(), rows.data_ptr()
        params.codes_of_rows, params.scales_of_rows = of_rows.data_ptr(), their_scales.data_ptr()
        params.kept_rows = offsets.data_ptr() + (offsets.shape[0] - 1) * offsets.element_size()
        params.codes_stride, params.scales_pitch = codes.stride(0), their_scales.stride(1)
        params.scales_stride, params.scales_stride_k = scales.stride()
        (params.tokens, params.top_k), params.k = rows.shape, codes.shape[1]
        warps = params.tokens * -(-params.k // (_WARP * COPIED))
        return BoundLaunch(self._launch, arguments, stream, -(-warps // _WARPS))

    def bind_unpermute(
        self,
        y: Tensor,
        rows: Tensor,
        kept: Tensor,
        weights: Tensor,
        weights_type: InputType,
        out: Tensor,
        *,
        stream: int,
    ) -> BoundLaunch:
        """The launch of an `unpermute_request`, likewise.

        Args:
            y: (rows, N), N a multiple of 8, its rows on 16-byte boundaries.
            rows, kept, weights: (T, top_k) int64, bool and of ``weights_type``, contiguous.
            out: (T, N) of y's dtype, contiguous, not empty.
            stream: the CUstream.
        """
        arguments = Arguments(UnpermuteParams)
        params = arguments.params
        params.y, params.weights, params.rows, params.kept = (each.data_ptr() for each in (y, weights, rows, kept))
        params.out, params.y_stride, params.weights_type = out.data_ptr(), y.stride(0), _place(weights_type)
        (params.tokens, params.n), params.top_k = out.shape, rows.shape[1]
        warps = params.tokens * -(-params.n // (_WARP * VECTOR))
        return BoundLaunch(self._launch, arguments, stream, -(-warps // _WARPS))


def _fill_route(
    params: RouteParams,
    ids: Tensor,
    routes: tuple[Tensor, Tensor, Tensor],
    counts: Tensor | None,
    first_expert: int,
) -> None:
    offsets, rows, kept = routes
    params.ids, params.counts = ids.data_ptr(), 0 if counts is None else counts.data_ptr()
    params.offsets, params.rows, params.kept = offsets.data_ptr(), rows.data_ptr(), kept.data_ptr()
    params.first_expert, params.count, params.groups = first_expert, ids.numel(), offsets.shape[0] - 1
    params.wide, params.chunks = ids.element_size() == 8, chunks_of(ids.numel())


def threads_of(request: KernelRequest) -> int:
    """Of a CTA."""
    config: dict[str, Any] = dict(request.config)
    return int(config["threads"] if "threads" in config else config["warps"] * _WARP)


def _place(kind: InputType) -> int:
    """Of a type among those that the device declares in this order."""
    return list(InputType).index(kind)
