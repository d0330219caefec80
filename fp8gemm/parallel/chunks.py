"""Products while what they need or give travels: chunks of rows by copies between peers, and sums of few rows.

How they keep the two rules of `fp8gemm.parallel.symmetric` is said at each barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES
from fp8gemm.parallel.symmetric import Memory
from fp8gemm.products.quantize import activation_into
from fp8gemm.scales import block_count, empty_mn_major, quantized_bytes, quantized_in, scales_in, scales_offset


def _ring(memory: Memory) -> list[int]:
    """The other ranks, in an order in which no two ranks come to the same one at a time."""
    return [(memory.rank + step) % memory.ranks for step in range(1, memory.ranks)]


def each_gathered(memory: Memory, x: Tensor, visit: Callable[[int, Tensor, Tensor], None]) -> None:
    """Quantise this rank's rows, and visit each rank's when they are there, this one's first.

    Every second visit is launched beside the one before, so that the next product begins on those SMs that the last one
    has no more tiles for.

    Args:
        memory: of `quantized_bytes` of each rank.
        x: (M, K) of this rank, rows contiguous.
        visit: what is called with a rank, its codes (M, K), contiguous, and MN-major scales. It keeps neither, and
            needs nothing of other visits.
    """
    rows, k = x.shape
    size = quantized_bytes(rows, k)
    # What this rank has here was read by others in calls before this one alone, by rule 2.
    mine = memory.part(memory.rank, 0, size)
    peers = _ring(memory)
    # Memory of this stream's order, which is behind all waits before it is given back. Ahead of what may need others.
    came = [torch.empty_like(mine) for _ in peers]
    activation_into(x, *quantized_in(mine, rows, k))
    memory.barrier()  # rule 1: all have quantised theirs
    rest = deque(
        (peer, here, memory.copied(here, memory.part(peer, 0, size))) for peer, here in zip(peers, came, strict=True)
    )
    lane = memory.lane()
    try:
        visit(memory.rank, *quantized_in(mine, rows, k))
        while rest:
            with lane.on() if (len(peers) - len(rest)) % 2 == 0 else nullcontext():
                peer, here, wait = rest.popleft()
                wait()
                if not rest:
                    # Rule 2: all have copied all they need. Ahead of the last visit, behind which ranks need not meet.
                    memory.barrier()
                visit(peer, *quantized_in(here, rows, k))
    except BaseException:
        # Others have this rank's rows and go on: it stays in step, and what is copied into is given back behind that.
        for _, _, wait in rest:
            wait()
        if rest:
            memory.barrier()
        raise
    finally:
        lane.join()


def unfit_to_divide(name: str, shape: Sequence[int], dim: int) -> str:
    """Why a tensor's parts along a dimension are not chunks of its rows, "" if they are."""
    if dim == len(shape) - 1:
        return f"{name} is sharded along its last dimension"
    if any(size != 1 for size in shape[:dim]):
        return f"{name}, of shape {tuple(shape)}, is sharded along dimension {dim}, behind others than 1"
    return ""


def quantized_of_all(memory: Memory, x: Tensor) -> tuple[Tensor, Tensor]:
    """All ranks' rows, quantised by the rank that has them.

    Args:
        memory, x: as in `each_gathered`.

    Returns:
        Codes (ranks * M, K), contiguous, and MN-major scales, both new, in the order of ranks.
    """
    (rows, k), ranks, peers = x.shape, memory.ranks, _ring(memory)
    size, end, behind = quantized_bytes(rows, k), rows * k, scales_offset(rows, k)
    mine = memory.part(memory.rank, 0, size)
    codes = torch.empty((ranks * rows, k), dtype=CODES, device=x.device)
    scales = empty_mn_major(ranks * rows, block_count(k), device=x.device)
    of_codes, of_scales = codes.view(torch.uint8).flatten().chunk(ranks), scales.chunk(ranks)
    # Columns of scales of all ranks are as far apart as these are many: each rank's come behind each other first.
    came = {peer: torch.empty_like(mine[behind:]) for peer in peers}
    activation_into(x, *quantized_in(mine, rows, k))  # by rule 2 nobody reads here any more
    memory.barrier()  # rule 1: all have quantised theirs
    waits = []
    for peer in peers:
        theirs = memory.part(peer, 0, size)
        waits.append(memory.copied(of_codes[peer], theirs[:end]))
        waits.append(memory.copied(came[peer], theirs[behind:]))
    of_codes[memory.rank].copy_(mine[:end])
    of_scales[memory.rank].copy_(scales_in(mine[behind:], rows, k))
    for wait in waits:
        wait()
    memory.barrier()  # rule 2: all have copied all they need
    for peer, here in came.items():
        of_scales[peer].copy_(scales_in(here, rows, k))
    return codes, scales


def product_of_gathered(
    memory: Memory, x: Tensor, n: int, multiply: Callable[[Tensor, Tensor, Tensor], None]
) -> Tensor:
    """The product of all ranks' rows, each rank's multiplied when they are there.

    Args:
        memory, x: as in `each_gathered`.
        n: columns of the product.
        multiply: what writes the product of codes (M, K) and MN-major scales into a contiguous (M, N).

    Returns:
        (ranks * M, N) of x's dtype, in the order of ranks.
    """
    out = x.new_empty((memory.ranks * x.shape[0], n))
    chunks = out.chunk(memory.ranks)
    each_gathered(memory, x, lambda rank, codes, scales: multiply(codes, scales, chunks[rank]))
    return out


Rows = Callable[[int, int, Tensor], None]
"""What writes rows from the first, to before the second, of this rank's product to a contiguous tensor."""


def product_scattered(
    memory: Memory, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, multiply: Rows
) -> Tensor:
    """This rank's rows of the sum of all ranks' products, each part sent to the rank whose it is when it is computed.

    Parts are rounded to the dtype, and added in float32, always in the same order, whichever comes first.

    Args:
        memory: of as many bytes of each rank as a product has.
        shape: (M, N) of the product; ranks divide M.
        dtype, device: of the product.
        multiply: of this rank.

    Returns:
        (M / ranks, N), new.
    """
    return _sum(_parts(memory, shape, dtype, device, multiply))


def product_summed_by_parts(
    memory: Memory, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, multiply: Rows
) -> Tensor:
    """All of that sum: each rank adds up its rows, and the others copy them.

    Args:
        memory, shape, dtype, device, multiply: as in `product_scattered`.

    Returns:
        (M, N), new, the same bits on each rank.
    """
    out = torch.empty(shape, dtype=dtype, device=device)
    of_ranks = out.chunk(memory.ranks)
    parts = _parts(memory, shape, dtype, device, multiply)
    mine = _sum(parts, out=parts[0])  # of its own memory alone, which nobody else touches by rule 2
    memory.barrier()  # rule 1: all have added up theirs
    waits = [memory.copied(of_ranks[peer], memory.at(peer, tuple(mine.shape), dtype)) for peer in _ring(memory)]
    of_ranks[memory.rank].copy_(mine)
    for wait in waits:
        wait()
    memory.barrier()  # rule 2: all have copied all
    return out


def _parts(memory: Memory, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, multiply: Rows) -> Tensor:
    """All ranks' parts of this rank's rows, (ranks, M / ranks, N), in its memory."""
    rank, ranks, (rows, n) = memory.rank, memory.ranks, shape
    of_rank = rows // ranks
    # Kept until copies have been waited for, and had before ranks meet: one that has not the memory leaves none behind.
    for_others = torch.empty((ranks - 1, of_rank, n), dtype=dtype, device=device)
    # Rule 1: all have summed, in the order of their streams, what calls before this one brought them.
    memory.barrier()
    waits = []
    try:
        for owner, product in zip(_ring(memory), for_others, strict=True):
            multiply(owner * of_rank, (owner + 1) * of_rank, product)
            waits.append(memory.copied(memory.at(owner, (of_rank, n), dtype, rank * product.nbytes), product))
        mine = memory.at(rank, (ranks, of_rank, n), dtype)
        multiply(rank * of_rank, (rank + 1) * of_rank, mine[rank])
    finally:
        for wait in waits:
            wait()
    # Rule 2: all have sent all; and so this rank has what it sums. One that fails above does not come here, and others
    # do not sum without its parts: they wait for it, as in a collective.
    memory.barrier()
    return mine


def _sum(parts: Tensor, out: Tensor | None = None) -> Tensor:
    """Of what ranks have given; ``out`` may be the first part."""
    if len(parts) == 2:  # the same bits in less time than a reduction takes
        return torch.add(*parts, out=out)
    total = parts.sum(0, dtype=parts.dtype)  # NOTE: a dtype, because autocast would choose one
    return total if out is None else out.copy_(total)


def product_summed(
    memory: Memory, shape: tuple[int, ...], dtype: torch.dtype, multiply: Callable[[Tensor], None]
) -> Tensor:
    """The sum of all ranks' products, which are written where the others read them.

    The result is a new tensor: ``memory`` is the next call's.

    Args:
        memory: of as many bytes of each rank as a product has.
        shape, dtype: of the product; the dtype is bfloat16 or float32, the bytes a multiple of 16.
        multiply: what writes this rank's into a contiguous tensor of that shape.
    """
    part = memory.at(memory.rank, shape, dtype)
    multiply(part)  # by rule 2 nobody reads here any more
    return memory.summed(part)
