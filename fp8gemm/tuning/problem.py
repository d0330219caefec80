"""What the user asked for, in the terms that tile choice understands, and in words that a command line can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted
from fp8gemm.sizes import K_STEP, LIMIT, SCALE_BLOCK

NO_EPILOGUE = "none"
_TERMS = ("c", "bias")

FEW_ROWS = (8, 16, 24, 32, 48, 64, 96, 128)
ROW_STEP = 64
_STEPS = 2**7
"""From one power of two to the next, at most."""


def counted_rows(m: int) -> int:
    """M as choices count it: the next of `FEW_ROWS`, or beyond them the next multiple of `ROW_STEP`, and of a 128th of
    the power of two before where that is more, beyond 16384 rows.

    Choices that depend on M only through it change at known places, so a plan can hold them all, and one weight needs
    few kernels; and the places are few, whatever M is.
    """
    if m <= FEW_ROWS[-1]:
        return next(rows for rows in FEW_ROWS if m <= rows)
    step = max(ROW_STEP, (1 << (m - 1).bit_length() - 1) // _STEPS)
    return -(-m // step) * step


def counted_between(first: int, last: int, counted: Callable[[int], int] = counted_rows) -> Iterator[int]:
    """Every M that choices count so, from that of ``first`` to that of ``last``."""
    m, end = counted(first), counted(last)
    while m <= end:
        yield m
        m = counted(m + 1)


class OutputType(Enum):
    """Element type of the output. Members carry the names of ``fp8gemm::OutputType`` on the device."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is OutputType.FLOAT32 else 2


class InputType(Enum):
    """What a quantiser reads."""

    BFLOAT16 = "bf16"
    FLOAT16 = "f16"
    FLOAT32 = "f32"


class Addend(Enum):
    """Element type of a term that the epilogue adds: C, or the bias. Members carry the names of ``fp8gemm::Addend``."""

    NONE = "none"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    IN_PLACE = "in_place"  # C is the output, in float32, to which L2 adds

    @property
    def bytes(self) -> int:
        """Bytes of one element; 0 where there is no such term."""
        return {Addend.NONE: 0, Addend.BFLOAT16: 2, Addend.FLOAT32: 4, Addend.IN_PLACE: 4}[self]

    @property
    def type_name(self) -> str:
        """Name of its elements' type."""
        return "float32" if self is Addend.IN_PLACE else self.value

    @property
    def is_read(self) -> bool:
        """Whether threads read the term's elements."""
        return self in (Addend.BFLOAT16, Addend.FLOAT32)


class Scaling(Enum):
    """How B is scaled; A has one scale per row and 128 columns. Members carry the names of ``fp8gemm::Scaling``."""

    BLOCK = "1d2d"  # one scale per 128x128 block of B: weights
    ROW = "1d1d"  # one per row and 128 columns, as A has: weight gradients


class Grouping(Enum):
    """What a group is. Members carry the names of ``fp8gemm::Grouping`` on the device."""

    NONE = "none"  # one product
    CONTIGUOUS = "contiguous"  # rows of A and of the output, group after group
    MASKED = "masked"  # the first rows of as many as each group has room for
    COLUMNS = "columns"  # columns of A and B, each group with an output of its own


class StoreKind(Enum):
    """How the output reaches global memory. Members carry the names of ``fp8gemm::StoreKind`` on the device."""

    TMA = "tma"
    PREDICATED = "predicated"


@dataclass(frozen=True)
class Problem:
    """``D[M, N] = A[M, K] B[N, K]^T (+ C[M, N]) (+ bias[N])``.

    Attributes:
        m, n, k: the sizes.
        output: element type of D.
        store: how D can be written.
        scaling: how B is scaled.
        c, bias: element types of the terms that are added.
        batch_invariant: whether the bits of a row of D may depend on nothing but that row of A (and of C), B and bias.
        static_weights: whether B and its scales may be read before the kernels ahead in the stream have ended.

    Raises:
        InputError: for an M, N or K that the kernels cannot take.
    """

    m: int
    n: int
    k: int
    output: OutputType = OutputType.BFLOAT16
    store: StoreKind = StoreKind.TMA
    scaling: Scaling = Scaling.BLOCK
    c: Addend = Addend.NONE
    bias: Addend = Addend.NONE
    batch_invariant: bool = False
    static_weights: bool = False

    def __post_init__(self) -> None:
        # NOTE: M itself is less than the limit, but M as choices count it may be as much.
        if not (0 <= self.m <= LIMIT and 1 <= self.n < LIMIT and self.k < LIMIT):
            raise InputError(
                f"expected 0 <= M < 2^31, 1 <= N < 2^31 and K < 2^31, got M = {quoted(self.m)}, N = {quoted(self.n)}, "
                f"K = {quoted(self.k)}"
            )
        if self.bias is Addend.IN_PLACE:
            raise InputError("bias: expected an element type that is read, got in_place, which C alone may be")
        if self.c is Addend.IN_PLACE and not self._adds_in_place:
            raise InputError(
                "c: in_place is for float32 outputs that TMA writes, of products with row scales of B and no bias; got "
                f"{self.output.value}, {self.store.value}, {self.scaling.value}, bias {self.bias.value}"
            )
        if self.k < K_STEP or self.k % K_STEP:
            raise InputError(
                f"expected K to be a multiple of {K_STEP} and at least {K_STEP} (TMA's row pitch), got K = "
                f"{quoted(self.k)}"
            )

    @property
    def _adds_in_place(self) -> bool:
        """Whether L2 can add the product to the output that it is accumulated in."""
        of_gradients = self.scaling is Scaling.ROW and self.output is OutputType.FLOAT32
        return of_gradients and self.store is StoreKind.TMA and self.bias is Addend.NONE

    def accumulating(self) -> Problem:
        """The same, with a float32 C that is the output: added by L2 where it can be."""
        return replace(self, c=Addend.IN_PLACE if self._adds_in_place else Addend.FLOAT32)

    @property
    def counted_m(self) -> int:
        """M as choices count it."""
        return counted_rows(self.m)

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
        return self.weight_bytes + self.m * self.row_bytes

    @property
    def weight_bytes(self) -> int:
        """Those of them that do not depend on M: B, its scales and the bias."""
        rows_of_scales = self.n if self.scaling is Scaling.ROW else -(-self.n // SCALE_BLOCK)
        return self.n * self.k + 4 * self.k_blocks * rows_of_scales + self.n * self.bias.bytes

    @property
    def row_bytes(self) -> int:
        """Those of them that each row has: of A, its scales, C and the output."""
        return self.k + 4 * self.k_blocks + self.n * (self.output.bytes + self.c.bytes)


def packed_problem(
    m: int,
    n: int,
    k: int,
    output: OutputType = OutputType.BFLOAT16,
    scaling: Scaling = Scaling.BLOCK,
    *,
    batch_invariant: bool = False,
) -> Problem:
    """The problem of a new, packed output, which is written by TMA if its rows are whole pieces of 16 bytes.

    Raises:
        InputError: as `Problem`.
    """
    store = StoreKind.PREDICATED if n * output.bytes % 16 else StoreKind.TMA
    return Problem(m, n, k, output, store, scaling, batch_invariant=batch_invariant)


def parse_epilogue(text: str) -> tuple[Addend, Addend]:
    """The types of C and of the bias.

    Args:
        text: ``none``, or ``c``, ``bias`` or ``c+bias``; each term is bfloat16 unless it says otherwise, as in
            ``c:float32+bias``, or ``c:in_place`` for a C that is the output.

    Raises:
        InputError: it is none of these.
    """
    if text == NO_EPILOGUE:
        return Addend.NONE, Addend.NONE
    found: dict[str, Addend] = {}
    for part in text.split("+"):
        term, _, dtype = part.partition(":")
        known = {
            addend.value: addend for addend in Addend if addend.is_read or (addend is Addend.IN_PLACE and term == "c")
        }
        if term not in _TERMS or term in found or (dtype or Addend.BFLOAT16.value) not in known:
            raise InputError(
                f"epilogue: expected {NO_EPILOGUE}, or terms among {', '.join(_TERMS)} joined by +, each alone or as "
                f"term:{' or term:'.join(known)}, got {text!r}"
            )
        found[term] = known[dtype or Addend.BFLOAT16.value]
    return found.get("c", Addend.NONE), found.get("bias", Addend.NONE)


def epilogue_text(c: Addend, bias: Addend) -> str:
    """What `parse_epilogue` reads."""
    terms = [
        name if addend is Addend.BFLOAT16 else f"{name}:{addend.value}"
        for name, addend in zip(_TERMS, (c, bias), strict=True)
        if addend is not Addend.NONE
    ]
    return "+".join(terms) or NO_EPILOGUE


def parse_output(dtype: object) -> OutputType:
    """An output's type, from its name or from torch's dtype.

    Raises:
        InputError: products have no such output.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return OutputType(name)
    except ValueError:
        raise InputError(f"out_dtype: expected {', '.join(each.value for each in OutputType)}, got {name}") from None


def rounded(problem: Problem) -> Problem:
    """The same problem with M as choices count it."""
    counted = problem.counted_m
    return problem if problem.m == counted else replace(problem, m=counted)
