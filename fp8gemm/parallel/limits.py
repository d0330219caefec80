"""From where on which way of sending was measured to win: what ``overlap=None`` asks.

By two and four H200s, 2026-11-27, scripts/parallel_speed.py (docs/parallel.md#measured). Copies and barriers take the
host two to eight tenths of a millisecond, so that they win where GPUs take longer for a call, or in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed import ProcessGroup

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.parallel import symmetric
from fp8gemm.parallel.symmetric import Memory


@dataclass(frozen=True)
class Limits:
    """Where ``overlap=None`` means yes.

    Attributes:
        gathered_bytes: of a rank's rows, quantised, from which chunks of a gather are multiplied apart.
        scattered_bytes: of a rank's part of the output, from which chunks of a product are sent apart.
        by_parts_bytes: of a product, from which its sum is added up by parts.
        tokens_bytes: of a rank's tokens, quantised, from which those for other ranks' experts are sorted while others
            come, and their sums sent.
        copied_bytes: of a rank's rows, quantised, from which they are copied between peers, in CUDA graphs.
        summed_bytes: of a product, up to which its sum goes through symmetric memory, in CUDA graphs.
        gathered_products: of two numbers, that a rank adds up in a call, from which gathered bytes and tokens count:
            5e11 take a millisecond, and what the host does for a call, by machine, three to eight tenths.
        summed_products: likewise, for scatters and sums by parts: half a millisecond, and two to four tenths.
    """

    gathered_bytes: int
    scattered_bytes: int
    by_parts_bytes: int
    tokens_bytes: int
    copied_bytes: int
    summed_bytes: int
    gathered_products: int
    summed_products: int


LIMITS = Limits(
    gathered_bytes=14 << 20,
    scattered_bytes=28 << 20,
    by_parts_bytes=56 << 20,
    tokens_bytes=28 << 20,
    copied_bytes=8 << 20,
    summed_bytes=16 << 20,
    gathered_products=500_000_000_000,
    summed_products=250_000_000_000,
)
BY_PARTS_BYTES = 32 << 20
"""Of a product, from which a sum that shall be overlapped is added up by parts."""


def memory_if_asked(
    name: str,
    asked: bool | None,
    group: ProcessGroup,
    device: torch.device,
    size: int,
    *,
    wins: bool,
    unfit: Callable[[], str] = str,
    in_graphs: bool = False,
) -> Memory | None:
    """A workspace of so many bytes, entered, if a call is to go through one.

    Args:
        name, asked: an argument and its value: True always, False never, None where that wins.
        group, device, size: as in `fp8gemm.parallel.symmetric.memory_of`.
        wins: whether it was measured to be faster.
        unfit: says why this call cannot, "" if it can.
        in_graphs: whether it was measured to be faster in CUDA graphs alone. Other calls make workspaces for these.

    Raises:
        InputError: ``asked`` is True, and it cannot be.
    """
    if asked is False or (asked is None and not wins):
        return None
    found = unfit() or symmetric.memory_of(group, device, size)
    if isinstance(found, Memory):
        if in_graphs and asked is None and not symmetric.is_capturing(device.index):
            return None
        found.enter()
        return found
    if asked:
        raise refused(name, found)
    return None


def refused(name: str, why: str) -> InputError:
    return InputError(f"{name}: expected None or False, because {why}; got True")
