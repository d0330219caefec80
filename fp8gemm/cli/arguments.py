"""Words of the command line and what they stand for: sizes, shapes, counts. An error quotes what came."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fp8gemm.cli.deprecated import Renamed, deprecate
from fp8gemm.errors import InputError
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.tune.shapes import MOST_RANDOM
from fp8gemm.quoting import quoted
from fp8gemm.sizes import LIMIT, check_norm_depth
from fp8gemm.tuning.hopper import CHIPS, chip_names, named_chip
from fp8gemm.tuning.problem import OutputType, Problem, Scaling

_T = TypeVar("_T")
_OLD_SCALINGS = {"blocks": Scaling.BLOCK, "rows": Scaling.ROW}


def parse_m(text: str) -> list[int]:
    """``"1,64"`` to ``[1, 64]``, each an M that a problem can have."""
    return [parse_positive(part) for part in text.split(",")]


def parse_nk(text: str) -> list[tuple[int, int]]:
    """``"2112x7168,576x7168"`` to (N, K) pairs that a problem can have."""
    pairs = []
    for part in text.split(","):
        n, separator, k = part.lower().partition("x")
        if not separator:
            raise argparse.ArgumentTypeError(f"expected NxK, such as 7168x2048, got {quoted(part)}")
        pairs.append((parse_positive(n), parse_positive(k)))
        _require_problem(1, *pairs[-1])
    return pairs


def parse_mnk(text: str) -> tuple[int, int, int]:
    """``"65x100x144"`` to the (M, N, K) of a problem."""
    sizes = _three_sizes(text, "MxNxK, such as 64x7168x2048")
    _require_problem(*sizes)
    return sizes


def parse_k(text: str) -> int:
    """A K that a problem can have."""
    k = parse_positive(text)
    _require_problem(1, 1, k)
    return k


def parse_positive(text: str) -> int:
    """A whole number of at least 1, and below 2^31 as all sizes and counts are."""
    return _parse_whole(text, 1, "a positive whole number")


def parse_count(text: str) -> int:
    """The same, or 0."""
    return _parse_whole(text, 0, "a whole number of at least 0")


def _parse_whole(text: str, least: int, expected: str) -> int:
    # The digits are counted first, for int() refuses thousands with an error of its own.
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > len(str(LIMIT)) or not least <= int(digits) < LIMIT:
        raise argparse.ArgumentTypeError(f"expected {expected}, below 2^31, got {quoted(text)}")
    return int(digits)


def _require_problem(m: int, n: int, k: int) -> None:
    try:
        Problem(m, n, k)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def grouped_layers(text: str) -> list[tuple[int, int, int]]:
    """``"256x4096x7168,..."``, G x N x K, each what weights of groups can have."""
    return [_three_sizes(part, "GxNxK, such as 256x4096x7168") for part in text.split(",")]


def _three_sizes(text: str, expected: str) -> tuple[int, int, int]:
    sizes = text.lower().split("x")
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {quoted(text)}")
    first, second, third = map(parse_positive, sizes)
    return first, second, third


def shapes(text: str) -> list[Shape]:
    """``"512x7168x2048,..."``, M x N x K."""
    return [Shape(*parse_mnk(part)) for part in text.split(",")]


def random_count(text: str) -> int:
    """How many random shapes, 1 to `MOST_RANDOM`."""
    count = parse_positive(text)
    if count > MOST_RANDOM:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_RANDOM} shapes, got {count}")
    return count


def norm_depth(text: str) -> int:
    """A K whose rows can be normed."""
    check_norm_depth("a norm", k := parse_positive(text))
    return k


@dataclass(frozen=True)
class Words(Generic[_T]):
    """The type of an option, whose InputError is told as argparse tells it.

    Attributes:
        read: what makes a value of the text.
        known: words that the text may be, which shells complete; it may be others.
        several: whether several may stand there, with commas between them.
    """

    read: Callable[[str], _T]
    known: tuple[str, ...] = ()
    several: bool = False

    def __call__(self, text: str) -> _T:
        try:
            return self.read(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


def listed(read: Callable[[str], _T], known: Iterable[str] = ()) -> Words[tuple[_T, ...]]:
    """The type of an option of words with commas between them."""
    return Words(lambda text: tuple(map(read, text.split(","))), tuple(known), several=True)


def parse_count_or_all(text: str) -> int | None:
    """A positive number, or None for ``all``."""
    return None if text == "all" else parse_positive(text)


def several_of(names: Sequence[str]) -> Words[tuple[str, ...]]:
    """The type of an option of names with commas between them, which are among these."""

    def read(text: str) -> str:
        if text not in names:
            raise InputError(f"expected {', '.join(names[:-1])} or {names[-1]}, got {quoted(text)}")
        return text

    return listed(read, names)


def add_chip(parser: argparse.ArgumentParser) -> None:
    """Declare ``--chip`` of a command that is about one."""
    words = Words(named_chip, tuple(CHIPS))
    parser.add_argument("--chip", type=words, default="h200", metavar="NAME", help=f"{CHIP_HELP}; default h200")


def add_chips(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """Declare ``--chip`` of a command that is about several; nothing given is None."""
    known = f"{CHIP_HELP}, or all; may be repeated; default {','.join(default)}"
    words = Words(chip_names, (*CHIPS, "all"), several=True)
    parser.add_argument("--chip", type=words, action="extend", metavar="NAME,...", help=known)


CHIP_HELP = f"{', '.join(CHIPS)}, one with its SMs, as h200:60"
"""What `--chip` may name, for its help."""


def add_scaling(parser: argparse._ActionsContainer, more: str = "") -> None:
    """Declare ``--scaling``; nothing given is None."""
    known = tuple(each.value for each in Scaling)
    parser.add_argument(
        "--scaling",
        type=Words(_scaling, known),
        metavar="NAME",
        help=f"of the weights: {', '.join(known)}; 1d2d (default) is a scale for 128x128, 1d1d one for 1x128{more}",
    )


def _scaling(text: str) -> Scaling:
    if text in _OLD_SCALINGS:
        new = _OLD_SCALINGS[text]
        deprecate(f"--scaling {text}: write --scaling {new.value}; the next release does without the old word")
        return new
    try:
        return Scaling(text)
    except ValueError:
        known = " or ".join(each.value for each in Scaling)
        raise argparse.ArgumentTypeError(f"expected {known}, got {quoted(text)}") from None


def add_out_dtype(parser: argparse.ArgumentParser, more: str) -> None:
    """Declare ``--out-dtype`` of a command that is about one output; nothing given is None."""
    known = [kind.value for kind in OutputType]
    parser.add_argument("--out-dtype", choices=known, help=f"default bfloat16{more}")
    parser.add_argument("--output", choices=known, dest="out_dtype", action=Renamed, new="--out-dtype")
