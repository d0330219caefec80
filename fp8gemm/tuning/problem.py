"""What the user asked for, in the terms that tile choice understands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fp8gemm.errors import InputError

SCALE_BLOCK = 128
"""Columns of K, and rows of the weight, that share one scale."""


class OutputType(Enum):
    """Element type of the output. Members carry the names of ``fp8gemm::OutputType`` on the device."""

    BFLOAT16 = "bfloat16"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 2


class StoreKind(Enum):
    """How the output reaches global memory. Members carry the names of ``fp8gemm::StoreKind`` on the device."""

    TMA = "tma"
    PREDICATED = "predicated"


@dataclass(frozen=True)
class Problem:
    """``D[M, N] = A[M, K] B[N, K]^T`` with A scaled 1x128 and B scaled 128x128.

    Raises:
        InputError: for an M, N or K that the kernels cannot take.
    """

    m: int
    n: int
    k: int
    output: OutputType = OutputType.BFLOAT16
    store: StoreKind = StoreKind.TMA

    def __post_init__(self) -> None:
        if self.m < 0 or self.n < 1 or self.m > 2**31 or self.n >= 2**31 or self.k >= 2**31:
            raise InputError(
                f"expected 0 <= M <= 2^31, 1 <= N < 2^31 and K < 2^31, got M = {self.m}, N = {self.n}, K = {self.k}"
            )
        if self.k < 16 or self.k % 16 != 0:
            raise InputError(f"expected K to be a multiple of 16 and at least 16 (TMA's row pitch), got K = {self.k}")

    @property
    def k_blocks(self) -> int:
        """K blocks, the last one possibly partial."""
        return -(-self.k // SCALE_BLOCK)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply and an add counted as two."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The fewest bytes that must move through device memory: each input read once, the output written once."""
        scales = 4 * self.k_blocks * (self.m + -(-self.n // SCALE_BLOCK))
        return (self.m + self.n) * self.k + scales + self.m * self.n * self.output.bytes
