"""``fp8gemm explain``: why a product gets the tile config that it gets, as a table or a JSON object. Needs no GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fp8gemm.cli.arguments import add_chip, add_out_dtype, add_scaling, parse_count, parse_k, parse_positive
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, tell, tell_json
from fp8gemm.errors import InputError
from fp8gemm.quoting import counted
from fp8gemm.terminal.screen import PLAIN, screen
from fp8gemm.terminal.table import Column, Table, fitted
from fp8gemm.tuning.explain import Explanation, explain_choice
from fp8gemm.tuning.explain_grouped import explain_grouped
from fp8gemm.tuning.grouped import GROUPINGS, parse_grouping
from fp8gemm.tuning.grouped_problem import MAX_GROUPS, GroupedProblem, grouped_problem
from fp8gemm.tuning.problem import Grouping, OutputType, Problem, Scaling, packed_problem
from fp8gemm.tuning.terms import Row, Value

EXAMPLE = "fp8gemm explain 64 7168 2048 --chip h200"
WIDTH = 140
"""Columns of a file or a pipe, with the default number of runners-up; formulas are wrapped to keep to it."""

_LEAST_FORMULA = 20
_LEAST_UNIT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    parser.add_argument("m", type=parse_positive, metavar="M", help="below 2^31, as N and K")
    parser.add_argument("n", type=parse_positive, metavar="N")
    parser.add_argument("k", type=parse_k, metavar="K", help="a multiple of 16")
    add_chip(parser)
    parser.add_argument("--runners-up", type=parse_count, default=4, metavar="COUNT", help="default 4")
    add_out_dtype(parser, "; of columns float32 alone")
    add_scaling(parser, "; not with --groups")
    parser.add_argument(
        "--groups",
        type=parse_positive,
        metavar="G",
        help=f"a grouped product of at most {MAX_GROUPS} groups, of which a typical one has M rows",
    )
    parser.add_argument(
        "--layout",
        choices=[grouping.value for grouping in GROUPINGS],
        help="of --groups: contiguous (default), masked, or columns, of which K counts for nothing",
    )
    parser.add_argument("--batch-invariant", action="store_true", help="choose as the batch-invariant mode does")
    parser.add_argument("--static-weights", action="store_true", help="choose as for plans with static_weights")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the derivation. 0.

    Raises:
        InputError: options that exclude each other, or sizes that grouped products do not have.
    """
    chip = options.chip
    if options.groups is None:
        explanation = explain_choice(_problem(options), chip, options.runners_up)
    else:
        explanation = explain_grouped(_grouped_problem(options), chip, options.runners_up)
    tell(options, "\n".join(lines(explanation)))
    tell_json(options, explanation.as_json())
    return Exit.DONE


def _problem(options: argparse.Namespace) -> Problem:
    if options.layout is not None:
        raise InputError("--layout: expected --groups beside it")
    output, scaling = OutputType(options.out_dtype or "bfloat16"), options.scaling or Scaling.BLOCK
    problem = packed_problem(options.m, options.n, options.k, output, scaling, batch_invariant=options.batch_invariant)
    return replace(problem, static_weights=options.static_weights)


def _grouped_problem(options: argparse.Namespace) -> GroupedProblem:
    grouping = parse_grouping(options.layout or Grouping.CONTIGUOUS.value)
    if options.scaling is not None:
        raise InputError("--scaling: expected none beside --groups, whose layout says it")
    of_columns = grouping is Grouping.COLUMNS
    usual = OutputType.FLOAT32 if of_columns else OutputType.BFLOAT16
    output = usual if options.out_dtype is None else OutputType(options.out_dtype)
    if of_columns and (output is not usual or options.batch_invariant):
        raise InputError("--layout columns: expected neither another --out-dtype than float32 nor --batch-invariant")
    if options.static_weights:
        raise InputError("--static-weights: expected none beside --groups, whose kernels read no weight ahead")
    sizes = options.groups, options.m, options.n, options.k
    return grouped_problem(grouping, *sizes, output, batch_invariant=options.batch_invariant)


def lines(explanation: Explanation) -> Iterator[str]:
    """The derivation for people: facts, a column per config, and what follows from them."""
    problem = explanation.problem
    mode = ", batch-invariant" * problem.batch_invariant
    if isinstance(problem, GroupedProblem):
        groups = f"{counted(problem.groups, 'group')}, {problem.grouping.value}: "
    else:
        groups, mode = "", mode + ", static weights" * problem.static_weights
    on = screen()
    yield from on.wrap(
        f"{groups}M = {problem.m}, N = {problem.n}, K = {problem.k}: {problem.output.value} output, B scaled "
        f"{problem.scaling.value}{mode}, on {explanation.chip.name}"
    )
    yield from _table(explanation.facts)
    yield from _table(explanation.rows, [config.label.partition("-")[::2] for config in explanation.configs])
    yield ""
    for sentence in explanation.verdict:
        yield from replace(on, columns=on.columns or WIDTH).wrap(sentence)


def figure(value: Value) -> str:
    """A value as the table shows it: whole numbers whole, others to a few digits, huge ones with exponent."""
    if isinstance(value, str):
        return value
    size = abs(value)
    if size >= 1e12:
        return f"{value:.3e}"
    if isinstance(value, int):
        return f"{value:,}"
    digits = 0 if size >= 1e4 else 1 if size >= 100 else 2 if size >= 1 or size == 0 else 4
    return f"{value:,.{digits}f}"


def _table(rows: Sequence[Row], titles: Sequence[tuple[str, ...]] = ()) -> Iterator[str]:
    """Rows under their groups' names. A config's title is the first and the second half of its label, one a line."""
    cells = [[f"  {row.name}", *map(figure, row.values), row.unit, row.formula] for row in rows]
    configs = [Column("\n".join(title)) for title in titles] or [Column()] * len(rows[0].values)
    columns = [Column("  winner first" if titles else "", left=True), *configs]
    columns += [Column(width=_LEAST_UNIT, left=True), Column(width=_LEAST_FORMULA, left=True)]
    group, on = fitted(columns, cells), screen()
    if on.columns is None:
        on = replace(on, columns=max(WIDTH, Table(group, gap="  ", on=PLAIN).width))
    table = Table(group, gap="  ", on=on)
    if titles:
        yield ""
        yield from table.header().split("\n")
    heading = None
    for row, texts in zip(rows, cells, strict=True):
        if row.group != heading:
            heading = row.group
            yield from ("", on.paint(heading, "bold"))
        yield from table.line(*texts).split("\n")
