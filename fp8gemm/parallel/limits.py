"""From where on which way of sending was measured to win: what ``overlap=None`` asks."""

from __future__ import annotations

from fp8gemm.frozen import dataclass


@dataclass(frozen=True)
class Limits:
    """Where ``overlap=None`` means yes.

    Attributes:
        copied_bytes: of a rank's rows, quantised, from which they are copied between peers.
        gathered_rows, gathered_bytes: of those, from which chunks of a gather are multiplied apart.
        scattered_rows, scattered_bytes: of a rank's part of the output, from which chunks of a product are sent apart.
        summed_bytes: of a product, up to which sums of all ranks go through symmetric memory.
        by_parts_bytes: likewise, from which they do.
        tokens: of a rank, from which those for other ranks' experts do, and their sums.
    """

    copied_bytes: int
    gathered_rows: int
    gathered_bytes: int
    scattered_rows: int
    scattered_bytes: int
    summed_bytes: int
    by_parts_bytes: int
    tokens: int


LIMITS = Limits(
    copied_bytes=8 << 20,
    gathered_rows=8192,
    gathered_bytes=32 << 20,
    scattered_rows=2048,
    scattered_bytes=28 << 20,
    summed_bytes=16 << 20,
    by_parts_bytes=56 << 20,
    tokens=4096,
)
BY_PARTS_BYTES = 32 << 20
"""Of a product, from which ranks each add up a part of its rows."""
