"""Which calls of a divided layer are overlapped with what ranks send, and how these go to `fp8gemm.parallel.chunks`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from fp8gemm.parallel import limits, symmetric
from fp8gemm.parallel.chunks import (
    Rows,
    product_of_gathered,
    product_scattered,
    product_summed,
    product_summed_by_parts,
    unfit_to_divide,
)
from fp8gemm.parallel.layouts import Layouts
from fp8gemm.parallel.symmetric import Memory
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.scales import quantized_bytes

SUMMED = (torch.bfloat16, torch.float32)
"""Dtypes that torch's kernels sum."""


def may_overlap(layouts: Layouts) -> bool:
    """Whether a layer's calls can be overlapped at all."""
    return layouts.overlap is not False and layouts.mesh.size() > 1


def check_overlap(layouts: Layouts, device: torch.device) -> None:
    """A layer on this device can be overlapped if that was asked for; ranks are asked, all at once.

    Unasked too, where its weight is on a GPU already: what is found now, no call has to find out.

    Raises:
        InputError: it cannot.
    """
    if not may_overlap(layouts):
        return
    kind = layouts.mesh.device_type
    if device.type != kind or device.index is None:  # on "meta" yet, say
        if not layouts.overlap:
            return
        device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    said = symmetric.refusal(layouts.group, device)
    if said and layouts.overlap:
        raise limits.refused("overlap", said)


def _memory_for(layouts: Layouts, device: torch.device, size: int, **options: Any) -> Memory | None:
    """`limits.memory_if_asked` of a layer."""
    return limits.memory_if_asked("overlap", layouts.overlap, layouts.group, device, size, **options)


def gathered_beside(
    layouts: Layouts, x: Tensor, dim: int, n: int, multiply: Callable[[Tensor, Tensor, Tensor], None]
) -> Tensor | None:
    """The product of all ranks' rows while they are gathered; None where they are to be gathered first.

    Args:
        layouts: of the layer.
        x: (..., K) of this rank, a plain tensor that is checked.
        dim: along which ranks have parts of it, not the last.
        n: columns of this rank's product.
        multiply: as in `product_of_gathered`.

    Raises:
        InputError: ``overlap`` is True, and it cannot be.
    """
    k, dim = x.shape[-1], dim % x.dim()
    if not x.numel():
        return None
    size = quantized_bytes(x.numel() // k, k)
    least = limits.LIMITS
    wins = size >= least.gathered_bytes and layouts.mesh.size() * x.numel() * n >= least.gathered_products
    memory = _memory_for(layouts, x.device, size, wins=wins, unfit=partial(unfit_to_divide, "x", x.shape, dim))
    if memory is None:
        return None
    product = product_of_gathered(memory, contiguous_rows(x.reshape(-1, k)), n, multiply)
    return product.view(*x.shape[:dim], memory.ranks * x.shape[dim], *x.shape[dim + 1 : -1], n)


def memory_for_experts(
    layouts: Layouts, tokens: int, width: int, products: int, dtype: torch.dtype, device: torch.device
) -> Memory | None:
    """A workspace for tokens of this rank, and for a sum of each of all ranks' tokens, if they are overlapped.

    Args:
        layouts: of the block.
        tokens, width: of this rank, and how many columns they have.
        products: of two numbers, about how many a rank adds up.
        dtype, device: of the tokens.

    Raises:
        InputError: ``overlap`` is True, and it cannot be.
    """
    if not tokens:
        return None
    size = max(quantized_bytes(tokens, width), layouts.mesh.size() * tokens * width * dtype.itemsize)
    least = limits.LIMITS
    wins = quantized_bytes(tokens, width) >= least.tokens_bytes and products >= least.gathered_products
    return _memory_for(layouts, device, size, wins=wins)


def summed_beside(
    layouts: Layouts,
    leading: Sequence[int],
    n: int,
    k: int,
    dtype: torch.dtype,
    device: torch.device,
    multiply: Rows,
) -> Tensor | None:
    """All of the sum of ranks' products or this rank's rows, as ``layouts`` asks; None where it is to be summed after.

    Args:
        layouts: of the layer.
        leading: dimensions of the product but its last.
        n: that.
        k: of how many products this rank's part of each is the sum.
        dtype, device: of the product.
        multiply: of this rank.

    Raises:
        InputError: ``overlap`` is True, and it cannot be.
    """
    wanted, ranks, least, shape = layouts.wanted, layouts.mesh.size(), limits.LIMITS, (*leading, n)
    rows = math.prod(leading)
    size, is_long = rows * n * dtype.itemsize, rows * n * k >= least.summed_products
    if isinstance(wanted, Replicate) and rows:
        by_parts = size >= limits.BY_PARTS_BYTES and rows % ranks == 0
        wins = size >= least.by_parts_bytes and is_long if by_parts else size <= least.summed_bytes
        unfit = str if by_parts else partial(_unfit_to_sum, size, dtype)
        memory = _memory_for(layouts, device, size, wins=wins, unfit=unfit, in_graphs=not by_parts)
        if memory is None:
            return None
        if by_parts:
            out = product_summed_by_parts(memory, (rows, n), dtype, device, multiply).view(shape)
        else:
            out = product_summed(memory, (rows, n), dtype, partial(multiply, 0, rows)).view(shape)
    elif isinstance(wanted, Shard) and rows:
        dim = wanted.dim % len(shape)
        wins = size // ranks >= least.scattered_bytes and is_long
        memory = _memory_for(layouts, device, size, wins=wins, unfit=partial(_unfit_to_scatter, shape, dim, ranks))
        if memory is None:
            return None
        out = product_scattered(memory, (rows, n), dtype, device, multiply)
        out = out.view(*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])
    else:
        return None
    return out if layouts.local else DTensor.from_local(out, layouts.mesh, [wanted], run_check=False)


def _unfit_to_scatter(shape: Sequence[int], dim: int, ranks: int) -> str:
    """Why ranks do not have chunks of the output's rows, "" if they have."""
    if said := unfit_to_divide("the output", shape, dim):
        return said
    return f"{ranks} ranks do not divide {shape[dim]} rows of the output" if shape[dim] % ranks else ""


def _unfit_to_sum(size: int, dtype: torch.dtype) -> str:
    """Why so many bytes cannot be summed by `product_summed`, "" if they can."""
    if dtype not in SUMMED:
        return f"symmetric memory sums bfloat16 and float32, not {dtype}"
    return f"symmetric memory sums multiples of 16 bytes, not {size}" if size % 16 else ""
