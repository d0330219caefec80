"""``fp8gemm warmup``: from shapes, models and recordings to kernels in the cache. No GPU, no driver, no tensors."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fp8gemm import settings
from fp8gemm.ahead.architectures import LinearShape, linears_of_config, read_config
from fp8gemm.ahead.experts import GroupedShape, experts_of_config
from fp8gemm.ahead.grouped import SERVED, GroupedVariants
from fp8gemm.ahead.kernels import CHIPS, Demand, Variants, all_quantizers, chips_named, demand, recorded_quantizers
from fp8gemm.ahead.warming import check_ready, make_ready
from fp8gemm.cli.arguments import (
    Words,
    add_chips,
    add_scaling,
    grouped_layers,
    listed,
    norm_depth,
    parse_m,
    parse_nk,
    parse_positive,
)
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, note, tell, tell_json
from fp8gemm.errors import CacheError, InputError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.hints import MAX_M
from fp8gemm.kernels.recording import recorded
from fp8gemm.quoting import quoted, quoted_path
from fp8gemm.sizes import MAX_NORM_K
from fp8gemm.terminal.screen import screen
from fp8gemm.tuning.grouped import GROUPINGS, parse_grouping
from fp8gemm.tuning.grouped_problem import MAX_GROUPS, AnyProblem, GroupedProblem
from fp8gemm.tuning.problem import Grouping, OutputType, Problem, Scaling, parse_epilogue, parse_output

EXAMPLE = "fp8gemm warmup --nk 2112x7168 --max-m 64 --chip h200 --calls layer"

_CALLS = {"layer": True, "gemm": False}
"""Who asks, and whether the weight is then promised to be static."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
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
    add_chips(parser, CHIPS)
    parser.add_argument("--jobs", type=parse_positive, help="threads that compile, default all processors")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="where to put them, default FP8GEMM_CACHE_DIR")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--recompile", action="store_true", help="compile also what is there, with the NVRTC of now")
    instead.add_argument("--list", action="store_true", help="print the kernels' names, and compile nothing")
    instead.add_argument(
        "--check",
        action="store_true",
        help=f"only look: {int(Exit.INCOMPLETE)} if not all is there; compiles, writes nothing",
    )
    add_json(parser)


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


def run(options: argparse.Namespace) -> int:
    """Compile or look, and print what is there. 0; `Exit.INCOMPLETE` if not all of it is.

    Raises:
        InputError: nothing was asked for, or a file is not what the option takes.
        CacheError, CompileError: as `fp8gemm.ahead.warming.warmup`.
    """
    started = time.perf_counter()
    changes: dict[str, Any] = {}
    if options.cache_dir is not None:
        if not options.check:
            _make_parents(options.cache_dir)
        changes["cache_dirs"] = (options.cache_dir,)
    with settings.scope(**changes):
        wanted = _demand(options)
        if options.list:
            labels = sorted(request.label for request in wanted.requests)
            tell(options, "\n".join(labels))
            tell_json(options, labels)
            return Exit.DONE
        if options.check:
            done = check_ready(wanted, started=started)
        else:
            done = make_ready(wanted, jobs=options.jobs, again=options.recompile, started=started)
    tell(options, screen().fill(str(done)))
    tell_json(options, done.as_json())
    if done.missing:
        note(f"fp8gemm: {done.lack()}")
    return Exit.INCOMPLETE if done.missing else Exit.DONE


def _make_parents(directory: Path) -> None:
    """What is above a directory that is named here, as `mkdir -p` makes it, so that those whom it will serve get there.

    NOTE: the cache itself would make it private to its owner.
    """
    try:
        directory.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"{directory}: expected a directory that can be made; {error}") from error


def _demand(options: argparse.Namespace) -> Demand:
    if not (options.nk or options.grouped or options.model or options.recorded or options.quantizers):
        raise InputError("expected what to make ready: --nk, --grouped, --model, --recorded or --quantizers")
    variants = Variants(
        outputs=options.out_dtype,
        epilogues=options.epilogue or ("none",),
        scaling=options.scaling or Scaling.BLOCK,
        static_weights=options.calls,
        batch_invariant=options.batch_invariant,
        any_strides=options.any_strides,
    )
    max_m = MAX_M if options.max_m is None else options.max_m
    problems: list[AnyProblem] = [problem for n, k in options.nk for problem in variants.problems(n, k, max_m)]
    grouped: list[tuple[int, int, int]] = list(options.grouped)
    ks = [k for _, k in options.nk] + [k for _, _, k in grouped] + [*options.quantizers]
    if options.model is not None:
        config = read_config(options.model)
        linears = _linears_of_model(config, options)
        problems += _problems_of_linears(linears, options, variants, max_m)
        grouped += [(each.groups, each.n, each.k) for each in _experts_of_model(config, options)]
        ks += [linear.k for _, linear in linears if linear.reads_norm]
    problems += _problems_of_groups(grouped, options, max_m)
    quantizers = all_quantizers(options.out_dtype, ks, options.norm_weights) if ks else []
    if options.recorded is not None:
        of_record, more = _recorded(options.recorded, options.max_m)
        problems += of_record
        quantizers += more
    return demand(problems, chips_named(options.chip or CHIPS), quantizers)


def _linears_of_model(config: Mapping[str, Any], options: argparse.Namespace) -> list[tuple[int, LinearShape]]:
    """Each layer with the number of ranks that share it."""
    return [
        (ranks, linear) for ranks in options.tp for linear in linears_of_config(config, tp=ranks, merged=options.merged)
    ]


def _experts_of_model(config: Mapping[str, Any], options: argparse.Namespace) -> list[GroupedShape]:
    """The weights of its experts, if anything is wanted of them."""
    if not options.layout:
        return []
    return [each for tp, ep in product(options.tp, options.ep) for each in experts_of_config(config, tp=tp, ep=ep)]


def _problems_of_groups(
    shapes: Sequence[tuple[int, int, int]], options: argparse.Namespace, max_m: int
) -> list[GroupedProblem]:
    variants = GroupedVariants(
        groupings=options.layout,
        outputs=options.out_dtype,
        batch_invariant=options.batch_invariant,
        any_strides=options.any_strides,
    )
    return [problem for shape in shapes for problem in variants.problems(*shape, max_m)]


def _problems_of_linears(
    linears: Sequence[tuple[int, LinearShape]], options: argparse.Namespace, variants: Variants, max_m: int
) -> list[Problem]:
    found = []
    for ranks, linear in linears:
        own = [variants]
        if options.epilogue is None:
            own = [variants.of_layer(output, bias=linear.bias, ranks=ranks) for output in options.out_dtype]
        found += [problem for each in own for problem in each.problems(linear.n, linear.k, max_m)]
    return found


def _recorded(path: Path, max_m: int | None) -> tuple[list[AnyProblem], list[KernelRequest]]:
    problems, quantizers = recorded(path)
    if not problems and not quantizers:
        raise InputError(f"--recorded: {quoted_path(path)} is empty: nothing was asked for while it was recorded")
    if max_m is not None:
        problems = [replace(problem, m=max_m) for problem in problems]
    return problems, [request for family, config in quantizers for request in recorded_quantizers(family, config)]


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
