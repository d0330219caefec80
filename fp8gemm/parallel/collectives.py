"""What ranks tell each other: sums, gathers, and gathers of rows that are quantised before they travel.

The calls are torch.distributed's, which torch.compile makes functional and a CUDA graph captures.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fp8gemm.checks.dtypes import CODES
from fp8gemm.checks.quantizers import check_matrix
from fp8gemm.checks.tensors import check_tensor, check_whole
from fp8gemm.errors import InputError
from fp8gemm.parallel import limits
from fp8gemm.parallel.chunks import quantized_of_all, unfit_to_divide
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.products.watched import goes_to_operator, is_watched
from fp8gemm.quoting import quoted
from fp8gemm.scales import block_count, quantized_bytes

_PITCH_BYTES = 16
"""Rows of codes begin on such a boundary."""

# The names since torch 2.13, which warns of those before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_REDUCE = dist.AllreduceOptions()  # a sum
if hasattr(_ALL_REDUCE, "asyncOp"):
    _ALL_REDUCE.asyncOp = False  # in the stream's order: no other stream, no events


def gather_quantized(
    x: Tensor, group: ProcessGroup, *, dim: int = 0, copies: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Codes and scales of all ranks' rows, quantised by the rank that has them: bits as if gathered before.

    One all-gather of bytes, each row's scales behind its codes: 51.6 % of what bfloat16 rows are, where K is a multiple
    of 512, and as much as a row's end on a boundary of 16 bytes takes elsewhere. Or copies between peers.

    Args:
        x: (..., K) bfloat16, float16 or float32, of any strides, K a multiple of 16; of the same shape on each rank,
            which none can check for the others.
        group: the ranks.
        dim: along which ranks' rows are put behind each other, not the last.
        copies: whether ranks copy what others have quantised, through torch's symmetric memory, alike on all ranks.
            Never while something traces or watches the call; None: where it was measured to win, in CUDA graphs of many
            rows, where ranks' GPUs reach each other, and no dimension ahead of ``dim`` is other than 1.

    Returns:
        Codes (..., K) float8_e4m3fn and scales (..., ceil(K/128)) float32 multipliers, with the ranks' number times as
        much along ``dim``; flattened to two dimensions as `fp8gemm.gemm` takes them. Copied scales are MN-major.

    Raises:
        InputError: ``x`` or ``dim`` is not as described, or ``copies`` is True where None would not copy for other
            reasons than speed.
    """
    check_tensor("x", x)
    if not isinstance(group, ProcessGroup):
        raise InputError(f"group: expected a torch.distributed.ProcessGroup, mesh.get_group() say, got {quoted(group)}")
    if x.dim() < 2:
        raise InputError(f"x: expected shape (..., K) of two dimensions or more, got shape {tuple(x.shape)}")
    check_whole("dim", dim, -x.dim(), x.dim() - 1)
    if dim % x.dim() == x.dim() - 1:
        raise InputError(f"dim: expected a dimension of x but its last, 0 to {x.dim() - 2}, got {dim}")
    k, dim = x.shape[-1], dim % x.dim()
    rows = contiguous_rows(x.reshape(-1, k))
    check_matrix("x", rows, shape="(M, K)")
    memory, size = None, quantized_bytes(len(rows), k)
    if len(rows) and group.size() > 1 and copies is not False and not goes_to_operator("x", x):
        wins, unfit = size >= limits.LIMITS.copied_bytes, partial(unfit_to_divide, "x", x.shape, dim)
        memory = limits.memory_if_asked("copies", copies, group, x.device, size, wins=wins, unfit=unfit, in_graphs=True)
    if memory is None:
        codes, scales = quantize_activation(rows)
        return unpacked(gathered(packed(codes, scales).unflatten(0, x.shape[:-1]), dim, group), k)
    leading = (*x.shape[:dim], memory.ranks * x.shape[dim], *x.shape[dim + 1 : -1])
    codes, scales = quantized_of_all(memory, rows)
    return codes.unflatten(0, leading), scales.unflatten(0, leading)


def packed(codes: Tensor, scales: Tensor) -> Tensor:
    """Rows (M, K) and their scales as rows of bytes: codes, scales, and what is left to the next boundary.

    NOTE: bytes, because not every backend knows FP8, and not every one gathers several dtypes in one call.
    """
    by_rows = scales.clone(memory_format=torch.contiguous_format)
    parts = [codes.view(torch.uint8), by_rows.view(torch.uint8)]
    if left := -sum(part.shape[1] for part in parts) % _PITCH_BYTES:
        parts.append(codes.new_zeros((codes.shape[0], left), dtype=torch.uint8))
    return torch.cat(parts, dim=1)


def unpacked(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Codes (..., K) and scales (..., ceil(K/128)) in what `packed` made, without a copy."""
    return rows[..., :k].view(CODES), rows[..., k : k + 4 * block_count(k)].view(torch.float32)


def gathered(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """All ranks' ``x``, of one shape, behind each other along ``dim``; contiguous."""
    ranks = group.size()
    out = x.new_empty((ranks * x.shape[0], *x.shape[1:]))
    _all_gather(out, x.contiguous(), group=group)
    if dim % x.dim() == 0:
        return out
    return torch.cat(out.chunk(ranks), dim=dim)


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' ``x``, which it takes the place of."""
    if is_watched():  # by whoever makes a graph of it, say
        dist.all_reduce(x, group=group)
    else:
        # NOTE: what that does in the end. What it does before takes as long as the launch, and decode waits for both.
        work = group.allreduce([x], _ALL_REDUCE)
        if work is not None:
            work.wait()
    return x


def summed_part(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's part along ``dim``, which the ranks' number divides, of the sum of all ranks' ``x``."""
    ranks = group.size()
    if dim % x.dim():
        x = torch.cat(x.chunk(ranks, dim=dim))
    out = x.new_empty((x.shape[0] // ranks, *x.shape[1:]))
    _reduce_scatter(out, x.contiguous(), group=group)
    return out
