"""The words of a command line that say what a server will be asked for: read, and written again."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fp8gemm.ahead.grouped import SERVED
from fp8gemm.cli.arguments import (
    Words,
    add_scaling,
    grouped_layers,
    listed,
    norm_depth,
    parse_m,
    parse_nk,
    parse_positive,
)
from fp8gemm.errors import InputError
from fp8gemm.kernels.hints import MAX_M
from fp8gemm.quoting import quoted
from fp8gemm.sizes import MAX_NORM_K
from fp8gemm.tuning.grouped import GROUPINGS, parse_grouping
from fp8gemm.tuning.grouped_problem import MAX_GROUPS
from fp8gemm.tuning.problem import Grouping, OutputType, parse_epilogue, parse_output

_CALLS = {"layer": True, "gemm": False}
"""Who asks, and whether the weight is then promised to be static."""


def add_asked(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say what will be asked for, and how."""
    what = parser.add_argument_group("what will be asked for (at least one)")
    what.add_argument(
        "--nk", type=parse_nk, default=[], metavar="NxK,...", help="weights of these shapes, N and K below 2^31"
    )
    what.add_argument(
        "--grouped",
        type=grouped_layers,
        default=[],
        metavar="GxNxK,...",
        help=f"weights of groups, such as experts, at most {MAX_GROUPS} and G x N below 2^31",
    )
    what.add_argument("--model", type=Path, metavar="PATH", help="a model's config.json, or the directory that has it")
    what.add_argument("--recorded", type=Path, metavar="FILE", help="what FP8GEMM_RECORD=FILE wrote while a server ran")
    what.add_argument(
        "--quantizers",
        type=listed(norm_depth),
        default=(),
        metavar="K,...",
        help=f"quantise kernels alone, norms of K columns, multiples of 16 up to {MAX_NORM_K}",
    )
    _add_variants(parser)


def _add_variants(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how (of --nk, --grouped and --model; a recording says it itself)")
    how.add_argument(
        "--max-m",
        type=parse_positive,
        metavar="M",
        help=f"the most rows, of groups of a typical one, below 2^31, default {MAX_M}",
    )
    how.add_argument("--tp", type=parse_m, default=[1], metavar="R,...", help="ranks that share --model's layers")
    how.add_argument(
        "--ep",
        type=parse_m,
        default=[1],
        metavar="R,...",
        help="ranks over which --model's experts are divided; tp / ep of them share an expert, or none does",
    )
    how.add_argument(
        "--layout",
        type=Words(_layouts, (*(each.value for each in GROUPINGS), "all", "none"), several=True),
        default=SERVED,
        metavar="NAME,...",
        help="of groups: contiguous, masked, columns (gradients of the weights), all, or none; default the first two",
    )
    how.add_argument("--merged", action="store_true", help="q, k, v and gate, up of --model as one layer each")
    how.add_argument(
        "--out-dtype",
        type=listed(parse_output, (each.value for each in OutputType)),
        default=(OutputType.BFLOAT16,),
        metavar="TYPE,...",
        help="default bfloat16",
    )
    how.add_argument(
        "--norm-weights",
        type=listed(parse_output, (each.value for each in OutputType)),
        default=(),
        metavar="TYPE,...",
        help="of norms, default that of what is normed",
    )
    how.add_argument(
        "--epilogue",
        type=listed(_epilogue, ("none", "c", "bias", "c+bias")),
        metavar="TERMS,...",
        help="none, c, bias, c+bias, or with types, as c:float32+bias; by default none, and of --model what it has",
    )
    how.add_argument(
        "--calls",
        type=listed(_call, _CALLS),
        default=tuple(_CALLS.values()),
        metavar="WHO,...",
        help="layer (nn.Fp8Linear, plans with static weights), gemm (everything else); default both",
    )
    add_scaling(how)
    how.add_argument("--batch-invariant", action="store_true", default=None, help="batch-invariant kernels instead")
    how.add_argument("--any-strides", action="store_true", help="also for outputs that TMA cannot write")


def _epilogue(text: str) -> str:
    parse_epilogue(text)
    return text


def _call(text: str) -> bool:
    if text not in _CALLS:
        raise InputError(f"expected {' or '.join(_CALLS)}, got {quoted(text)}")
    return _CALLS[text]


def _layouts(text: str) -> tuple[Grouping, ...]:
    known: dict[str, tuple[Grouping, ...]] = {"all": GROUPINGS, "none": ()}
    return known[text] if text in known else listed(parse_grouping)(text)


def words_of(options: argparse.Namespace) -> list[str]:
    """The options of `add_asked` as words again, those that say nothing new left out, paths as they are from
    everywhere."""
    parser = argparse.ArgumentParser()
    add_asked(parser)
    usual, words = parser.parse_args([]), []
    for name, text in _TEXTS.items():
        value = getattr(options, name)
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", *([] if text is None else [text(value)])]
    return words


def _joined(values: Iterable[object]) -> str:
    return ",".join(str(getattr(value, "value", value)) for value in values)


def _sizes(shapes: Iterable[tuple[int, ...]]) -> str:
    return _joined("x".join(map(str, shape)) for shape in shapes)


_TEXTS: dict[str, Callable[[Any], str] | None] = {
    "nk": _sizes,
    "grouped": _sizes,
    "model": os.path.abspath,
    "recorded": os.path.abspath,
    "quantizers": _joined,
    "max_m": str,
    "tp": _joined,
    "ep": _joined,
    "layout": lambda layouts: _joined(layouts) or "none",
    "merged": None,
    "out_dtype": _joined,
    "norm_weights": _joined,
    "epilogue": _joined,
    "calls": lambda calls: _joined(name for name, static in _CALLS.items() if static in calls),
    "scaling": lambda scaling: str(scaling.value),
    "batch_invariant": None,
    "any_strides": None,
}
"""How each option that `add_asked` declares is written; None for one that is a word alone."""
