"""``fp8gemm tune --grouped``: candidates of grouped products for several sizes of groups, the best beside the choice.

Nothing is written to a table: those hold for one M, and a grouped product knows only about how many rows its groups
have.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fp8gemm.lab.bench.grouped_cases import random_sizes
from fp8gemm.lab.labels import labelled_grouped_config
from fp8gemm.lab.tune import report
from fp8gemm.lab.tune.results import Row, Work
from fp8gemm.quoting import counted
from fp8gemm.terminal.progress import bar
from fp8gemm.terminal.table import Column
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem, grouped_problem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Grouping
from fp8gemm.tuning.swap_ab import SwapAbConfig

if TYPE_CHECKING:
    from fp8gemm.lab.tune.measure import Tuner

DEFAULT_M = "1,4,16,64,256,1024"
LAYOUTS = (Grouping.CONTIGUOUS, Grouping.MASKED)
_OTHER = 2
"""Candidates of the orientation that the choice does not have, at least, where it has so many."""


GroupedWork = Work[GroupedProblem]


def layouts(text: str) -> list[Grouping]:
    """``"contiguous,masked"``, or one of them."""
    known = {each.value: each for each in LAYOUTS}
    for part in text.split(","):
        if part not in known:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(known)}, got {part!r}")
    return [known[part] for part in text.split(",")]


def plan_grouped(
    shapes: Sequence[tuple[int, int, int]],
    rows: Sequence[int],
    layouts: Sequence[Grouping],
    chip: Chip,
    count: int | None,
    also: Sequence[str] = (),
) -> list[GroupedWork]:
    """Every size of groups for every G, N, K and layout; the first ``count`` candidates by the model, all for None, and
    in any case the configs of these labels.

    Raises:
        InputError: sizes that no grouped product has, or a label's config does not fit.
    """
    found = []
    for grouping in layouts:
        for groups, n, k in shapes:
            for m in rows:
                problem = grouped_problem(grouping, groups, m, n, k)
                ranked = tuple(dict.fromkeys(ranked_grouped(problem, chip)))
                swapped = isinstance(ranked[0], SwapAbConfig)
                other = [config for config in ranked if isinstance(config, SwapAbConfig) != swapped]
                more = (labelled_grouped_config(label, problem) for label in also)
                wanted = {config.label: config for config in (*ranked[:count], *other[:_OTHER], *more)}
                found.append(Work(problem, wanted, ranked[0].label, ranked[0].label))
    return found


def run_grouped(
    work: Sequence[GroupedWork],
    tuner: Tuner,
    seed: int,
    *,
    budget_seconds: float | None,
    emit: Callable[[str], None],
) -> tuple[report.Summary, dict[str, Any]]:
    """Measure, and emit a line for each size of groups as soon as it is there; what came of all, and the same as JSON.

    No further one is begun after ``budget_seconds``.
    """
    rows = list(_measure(work, tuner, seed, budget_seconds, emit))
    summary, left_out = report.Summary.of([row for _, row in rows]), len(work) - len(rows)
    emit(f"\n{summary}")
    if left_out:
        emit(f"{counted(left_out, 'size')} of groups left out, the budget was used up")
    as_json = report.as_json([row for _, row in rows], summary)
    for found, (each, row) in zip(as_json["rows"], rows, strict=True):
        found |= {"layout": each.problem.grouping.value, "groups": each.problem.groups, "us": row.us}
    return summary, {**as_json, "left_out": left_out}


def _measure(
    work: Sequence[GroupedWork],
    tuner: Tuner,
    seed: int,
    budget_seconds: float | None,
    emit: Callable[[str], None],
) -> Iterator[tuple[GroupedWork, Row]]:
    """Each size of groups that the budget allows, printed as soon as it is there."""
    from fp8gemm.kernels.catalogue import kernel_request
    from fp8gemm.lab.tune.ahead import Ahead
    from fp8gemm.lab.tune.measure_grouped import measure_grouped

    requests = [[kernel_request(each.problem, config) for config in each.candidates.values()] for each in work]
    start = time.monotonic()
    table = report.RowTable(Column("layout", 10, left=True), Column("groups"))
    emit(table.header())
    with (
        bar(len(work), "sizes of groups") as progress,
        Ahead(request for some in requests for request in some) as ahead,
    ):
        for each, wanted in zip(work, requests, strict=True):
            if budget_seconds is not None and time.monotonic() - start > budget_seconds:
                return
            ahead.wait(wanted)
            problem = each.problem
            sizes = random_sizes(problem.groups, problem.m, seed)
            measured = measure_grouped(tuner, problem, list(each.candidates.values()), sizes)
            row = Row(each.shape, measured.us, {}, measured.failed, each.choice, each.model)
            emit(table.line(row, problem.grouping.value, str(problem.groups)))
            progress.update()
            yield each, row
