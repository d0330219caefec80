"""`fp8gemm.nn.Fp8Experts` between a dispatch and a combine of DeepEP, https://github.com/deepseek-ai/DeepEP.

Codes and scales are read where DeepEP has put them. Nothing here imports it, waits for the GPU or reads a count.

NOTE: written after its signatures as they were in 2026, V1's `Buffer` and V2's `ElasticBuffer`, and tested against a
stand-in that has them; not run against DeepEP itself.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts

Received = Tensor | tuple[Tensor, Tensor]
"""What a dispatch returns first: bfloat16 rows, or float8_e4m3fn codes and float32 scales."""


class ExpandedHandle(Protocol):
    """What is read of the handle that V2's dispatch returns.

    Attributes:
        do_expand: whether each expert has its rows behind each other.
        psum_num_recv_tokens_per_expert: (G,) int32, behind the last row of each of the rank's experts.
        num_unaligned_recv_tokens_per_expert: (G,) int32, rows that it has.
    """

    do_expand: bool
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor


def low_latency_experts(
    block: Fp8Experts, received: Received, counts: Tensor, *, expected_m: int | None = None
) -> Tensor:
    """The experts' outputs for what V1's ``Buffer.low_latency_dispatch`` has brought here, in a masked layout.

    ``received, counts, handle, event, hook = buffer.low_latency_dispatch(x, topk_idx, max_tokens, num_experts)``; call
    this once the rows are there, behind ``hook()`` if ``return_recv_hook`` asked for one. The result is what
    ``buffer.low_latency_combine(y, topk_idx, topk_weights, handle)`` takes, which weights and adds up. The two can be
    captured in one CUDA graph.

    Args:
        block: this rank's experts.
        received: (G, max_tokens * ranks, H) codes and (G, max_tokens * ranks, H/128) scales, whose rows are adjacent
            and which are read so, in place, where there is a multiple of 4 of them; or bfloat16 with ``use_fp8=False``.
        counts: (G,) int32, rows that each expert has received.
        expected_m: as in `fp8gemm.gemm_masked`: tokens of all ranks times top_k by experts of all ranks, say.

    Returns:
        (G, max_tokens * ranks, H) bfloat16; rows past a count hold anything.

    Raises:
        InputError: a tensor is not as described: scales of ``use_ue8m0=True``, which are packed, are none.
    """
    x, scales = _parts(received)
    return block.forward_masked(x, counts, scales=scales, expected_m=expected_m)


def expanded_experts(
    block: Fp8Experts,
    received: Received,
    weights: Tensor | None,
    handle: ExpandedHandle,
    *,
    expected_m: int | None = None,
) -> Tensor:
    """The experts' weighted outputs for what V2's ``ElasticBuffer.dispatch(..., do_expand=True)`` has brought here.

    ``received, _, weights, handle, event = buffer.dispatch(x, topk_idx, topk_weights, ..., do_expand=True)``, with
    ``use_tma_aligned_col_major_sf=True`` so that scales lie as they are read; others are copied. The result is what
    ``buffer.combine(y, handle)`` adds up.

    Args:
        block: this rank's experts.
        received: (M, H) codes and (M, H/128) scales, or bfloat16. Each expert's rows are behind each other, and begin
            where ``expert_alignment`` says.
        weights: (M,) float32, of each row; None if its output is not to be weighted.
        handle: which says where experts begin and end, on the GPU.
        expected_m: as in `fp8gemm.gemm_grouped`. M is room for all that could have come where the host was not told
            what did (``do_cpu_sync=False``), and no measure then.

    Returns:
        (M, H) bfloat16; rows of no expert hold anything.

    Raises:
        InputError: a tensor is not as described, or the handle is of a dispatch that did not expand.
    """
    if not handle.do_expand:
        raise InputError("handle: expected that of a dispatch with do_expand=True, got another")
    x, scales = _parts(received)
    if weights is not None and (weights.dtype != torch.float32 or weights.shape != x.shape[:1]):
        expected = f"torch.float32 of shape ({x.shape[0]},) = (M,)"
        raise InputError(f"weights: expected {expected}, got {weights.dtype} of shape {tuple(weights.shape)}")
    y = block.forward_sorted(x, expanded_offsets(handle), scales=scales, expected_m=expected_m)
    return y if weights is None else y.mul_(weights[:, None])


def expanded_offsets(handle: ExpandedHandle) -> Tensor:
    """Where the rows of each expert begin and end, (2, G), as `fp8gemm.gemm_grouped` takes offsets."""
    ends = handle.psum_num_recv_tokens_per_expert
    return torch.stack((ends - handle.num_unaligned_recv_tokens_per_expert, ends))


def _parts(received: Received) -> tuple[Tensor, Tensor | None]:
    """Rows, and their scales if they are codes."""
    return received if isinstance(received, tuple) else (received, None)
