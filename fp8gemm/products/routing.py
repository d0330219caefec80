"""Routing of tokens: where they go, quantised or copied there, and weighted sums of what comes back.

`fp8gemm.reference.routing` says what each computes, to the bit; `fp8gemm.routing` is what users call. CPU tensors, any
with ``FP8GEMM_BACKEND=reference``, and sizes that no kernel takes go to the reference, which PyTorch computes where the
tensors are.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

import fp8gemm.products.operators  # noqa: F401  # which are what is traced
from fp8gemm.checks import memory
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.checks.quantizers import check_matrix
from fp8gemm.checks.routing import (
    check_devices,
    check_ids,
    check_offsets_of_routes,
    check_routes,
    check_sums,
    check_tokens,
)
from fp8gemm.driver.current import current_stream, on_device
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.loaded import quantizer_for, routing_kernel_for
from fp8gemm.kernels.quantize import Quantizer, quantizer_to_rows
from fp8gemm.kernels.routing import (
    COPIED,
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    VECTOR,
    are_few,
    chunks_of,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.products.operands import uses_reference
from fp8gemm.products.quantizers import aligned
from fp8gemm.products.watched import goes_to_operator
from fp8gemm.reference import routing as reference
from fp8gemm.scales import block_count, empty_mn_major
from fp8gemm.tuning.grouped_problem import MAX_GROUPS

Routes = tuple[Tensor, Tensor, Tensor]
"""offsets (G + 1,) int32, rows (T, top_k) int64, kept (T, top_k) bool."""


def route(expert_ids: Tensor, num_experts: int, first_expert: int = 0) -> Routes:
    """Where the rows of each token go, sorted by expert; see `fp8gemm.reference.routing.route`.

    Raises:
        InputError: ``expert_ids`` is not int32 or int64 of shape (T, top_k), or there are no experts.
    """
    if goes_to_operator("expert_ids", expert_ids):
        routes: Routes = torch.ops.fp8gemm.route(expert_ids, num_experts, first_expert)
        return routes
    return direct_route(expert_ids, num_experts, first_expert)


def quantize_permuted(
    x: Tensor, expert_ids: Tensor, num_experts: int, first_expert: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The codes and MN-major scales of `fp8gemm.quantize_activation`, of each token in each of its rows.

    Args:
        x: (T, K) as in `fp8gemm.quantize_activation`.
        expert_ids, num_experts, first_expert: as in `fp8gemm.routing.permute`.

    Returns:
        Codes (T * top_k, K) float8_e4m3fn, contiguous; scales (T * top_k, ceil(K/128)) float32, MN-major, in both of
        which rows of no group, ``offsets[-1]`` and behind, hold anything; and offsets, rows and kept, as of `route`.

    Raises:
        InputError: a tensor is not as described.
    """
    if goes_to_operator("x expert_ids", x, expert_ids):
        check_ids(expert_ids, num_experts, first_expert)  # of what is no integer an operator says less
        traced: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = torch.ops.fp8gemm.quantize_permuted(
            x, expert_ids, num_experts, first_expert
        )
        return traced
    return direct_quantize_permuted(x, expert_ids, num_experts, first_expert)


def copy_to_rows(codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and MN-major scales of each token in each of its rows.

    Args:
        codes, scales: as `fp8gemm.routing.permute` describes them.
        rows, offsets: of `route`.

    Returns:
        As the codes and scales of `quantize_permuted`: rows of no group hold anything.

    Raises:
        InputError: a tensor is not as described.
    """
    if goes_to_operator("codes scales rows offsets", codes, scales, rows, offsets):
        traced: tuple[Tensor, Tensor] = torch.ops.fp8gemm.copy_to_rows(codes, scales, rows, offsets)
        return traced
    return direct_copy_to_rows(codes, scales, rows, offsets)


def unpermute(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums of `fp8gemm.reference.routing.unpermute`; where gradients are asked for, by PyTorch's own
    operations, through which they flow.

    Raises:
        InputError: a tensor is not as described there.
    """
    if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in (y, weights)):
        check_sums(y, rows, kept, weights)
        return reference.unpermute(y, rows, kept, weights)
    if goes_to_operator("y rows kept weights", y, rows, kept, weights):
        traced: Tensor = torch.ops.fp8gemm.unpermute(y, rows, kept, weights)
        return traced
    return direct_unpermute(y, rows, kept, weights)


# The same of tensors with memory, traced by nobody: what the functions above and their operators compute.


def direct_route(expert_ids: Tensor, num_experts: int, first_expert: int) -> Routes:
    """`route`."""
    check_ids(expert_ids, num_experts, first_expert)
    memory.check_addresses(expert_ids=expert_ids)
    if uses_reference(expert_ids) or num_experts > MAX_GROUPS:
        return reference.route(expert_ids, num_experts, first_expert)
    device = expert_ids.device
    routes, ids, chunks = _empty_routes(expert_ids, num_experts), expert_ids.contiguous(), chunks_of(expert_ids.numel())
    counts = None if chunks == 1 else torch.empty((chunks, num_experts + 1), dtype=torch.int32, device=device)
    requests = (ROUTE_TOKENS,) if counts is None else (COUNT_ROUTES, ROUTE_TOKENS)
    kernels = [routing_kernel_for(request, device.index) for request in requests]
    with on_device(device.index):
        for kernel in kernels:
            kernel.bind_route(ids, routes, counts, first_expert, stream=current_stream(device.index))()
    return routes


def direct_quantize_permuted(
    x: Tensor, expert_ids: Tensor, num_experts: int, first_expert: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`quantize_permuted`: one launch of few tokens."""
    check_matrix("x", x, shape="(T, K)")
    check_ids(expert_ids, num_experts, first_expert, x.shape[0])
    check_devices(x.device, expert_ids=expert_ids)
    memory.check_addresses(x=x, expert_ids=expert_ids)
    if uses_reference(x):
        routes = reference.route(expert_ids, num_experts, first_expert)
        return *reference.quantize_to_rows(x, routes[1]), *routes
    is_one = are_few(expert_ids, num_experts)
    routes = _empty_routes(expert_ids, num_experts) if is_one else direct_route(expert_ids, num_experts, first_expert)
    codes, scales = empty_rows(expert_ids.numel(), x.shape[1], x.device)
    index = x.device.index
    if is_one:
        one = routing_kernel_for(_routing_too(x.dtype), index)
        given = aligned(x), expert_ids.contiguous(), routes, (codes, scales), first_expert
        with on_device(index):
            one.bind_route_and_quantize(*given, stream=current_stream(index))()
    elif expert_ids.numel():
        kernel, (offsets, rows, _) = quantizer_for(_quantizer(x.dtype), index), routes
        with on_device(index):
            kernel.bind_to_rows(aligned(x), codes, scales, rows, offsets, stream=current_stream(index))()
    return codes, scales, *routes


def direct_copy_to_rows(codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """`copy_to_rows`."""
    check_tokens(codes, scales)
    check_routes(rows, codes.shape[0])
    check_offsets_of_routes(offsets)
    check_devices(codes.device, scales=scales, rows=rows, offsets=offsets)
    memory.check_addresses(scales=scales, rows=rows, offsets=offsets)
    out = empty_rows(rows.numel(), codes.shape[1], codes.device)
    copy_to_rows_into(codes, scales, rows, offsets, out)
    return out


def copy_to_rows_into(codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor, out: tuple[Tensor, Tensor]) -> None:
    """`copy_to_rows` of checked operands to where their rows are in ``out``, which may be those of more tokens.

    Args:
        codes, scales, rows: some of the tokens that were routed.
        offsets: of all of them.
        out: codes (R, K), contiguous, on a 16-byte boundary, and MN-major scales (R, ceil(K/128)), as `empty_rows`
            makes them, R being the rows of all tokens. Other tokens' rows are left as they are.
    """
    if uses_reference(codes) or codes.shape[1] % COPIED:
        reference.copy_to_rows_into(codes, scales, rows, out)
    elif rows.numel():
        index = codes.device.index
        kernel, given = routing_kernel_for(COPY_TO_ROWS, index), (aligned(codes), scales)
        with on_device(index):
            kernel.bind_copy(given, rows.contiguous(), offsets, out, stream=current_stream(index))()


def direct_unpermute(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor) -> Tensor:
    """`unpermute`."""
    check_sums(y, rows, kept, weights)
    memory.check_addresses(y=y, rows=rows, kept=kept, weights=weights)
    out = torch.empty((rows.shape[0], y.shape[1]), dtype=y.dtype, device=y.device)
    unpermute_into(y, rows, kept, weights, out)
    return out


def unpermute_into(y: Tensor, rows: Tensor, kept: Tensor, weights: Tensor, out: Tensor) -> None:
    """`unpermute` of checked operands.

    Args:
        y: (R, N), all rows that any token has.
        rows, kept, weights: (T, top_k), of some of the tokens.
        out: (T, N) of y's dtype, contiguous, on a 16-byte boundary; no other operand is there.
    """
    if uses_reference(y) or y.shape[1] % VECTOR or y.stride(1) != 1:
        out.copy_(reference.unpermute(y, rows, kept, weights))
    elif out.numel():
        index = y.device.index
        kernel = routing_kernel_for(_summing(y.dtype), index)
        weights = weights if weights.dtype in INPUTS else weights.float()
        given = aligned(y), rows.contiguous(), kept.contiguous(), weights.contiguous(), INPUTS[weights.dtype], out
        with on_device(index):
            kernel.bind_unpermute(*given, stream=current_stream(index))()


def _empty_routes(expert_ids: Tensor, num_experts: int) -> Routes:
    device, shape = expert_ids.device, expert_ids.shape
    offsets = torch.empty(num_experts + 1, dtype=torch.int32, device=device)
    rows = torch.empty(shape, dtype=torch.int64, device=device)
    return offsets, rows, torch.empty(shape, dtype=torch.bool, device=device)


def empty_rows(count: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Memory for codes and MN-major scales of so many rows."""
    codes = torch.empty((count, k), dtype=torch.float8_e4m3fn, device=device)
    return codes, empty_mn_major(count, block_count(k), device=device)


@lru_cache(maxsize=8)
def _quantizer(dtype: torch.dtype) -> Quantizer:
    return quantizer_to_rows(INPUTS[dtype])


@lru_cache(maxsize=8)
def _routing_too(dtype: torch.dtype) -> KernelRequest:
    return route_and_quantize_request(INPUTS[dtype])


@lru_cache(maxsize=8)
def _summing(dtype: torch.dtype) -> KernelRequest:
    return unpermute_request(INPUTS[dtype])
