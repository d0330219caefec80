"""`fp8gemm explain --groups`: figures are those of the problem, the configs of both orientations, and their costs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from fp8gemm.cli import main as cli
from fp8gemm.cli.explain import WIDTH, figure, lines
from fp8gemm.errors import InputError
from fp8gemm.tuning.explain import MODEL, Explanation
from fp8gemm.tuning.explain_grouped import explain_grouped
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import grouped_shared_bytes, swapped_resident_ctas
from fp8gemm.tuning.grouped_model import swapped_us, tile_us
from fp8gemm.tuning.grouped_problem import GroupedProblem, counted_rows_of_group, grouped_problem
from fp8gemm.tuning.hopper import CHIPS, Chip, named_chip
from fp8gemm.tuning.problem import Grouping, OutputType, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig

H200 = named_chip("h200")
CONTIGUOUS, MASKED, COLUMNS = Grouping.CONTIGUOUS, Grouping.MASKED, Grouping.COLUMNS
PROBLEMS = [
    grouped_problem(CONTIGUOUS, 4, 8192, 6144, 7168),
    grouped_problem(MASKED, 256, 3, 4096, 7168),
    grouped_problem(MASKED, 6, 20, 100, 144, OutputType.FLOAT32),
    grouped_problem(CONTIGUOUS, 32, 100, 7168, 3072, batch_invariant=True),
    grouped_problem(COLUMNS, 8, 4096, 7168, 4096, OutputType.FLOAT32),
]


def by_name(explanation: Explanation) -> dict[str, tuple[Any, ...]]:
    rows = (*explanation.facts, *explanation.rows)
    found = {row.name: row.values for row in rows}
    assert len(found) == len(rows), "a name twice"
    return found


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["explain", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def cost(problem: GroupedProblem, config: Any, chip: Chip) -> float:
    counted = replace(problem, m=counted_rows_of_group(problem.m))
    return (swapped_us if isinstance(config, SwapAbConfig) else tile_us)(counted, config, chip)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_best_of_all_configs_are_there_with_their_costs(problem: GroupedProblem, chip: Chip) -> None:
    explanation = explain_grouped(problem, chip)
    ranked = tuple(dict.fromkeys(ranked_grouped(problem, chip)))
    assert explanation.configs == ranked[:5] and explanation.legal == len(ranked) and explanation.source == MODEL
    costs = tuple(cost(problem, config, chip) for config in ranked[:5])
    assert by_name(explanation)["total_us"] == costs == tuple(sorted(costs))
    assert {len(row.values) for row in explanation.rows} == {len(costs)} and 2 <= len(costs) <= 5
    assert all(len(row.values) == 1 for row in explanation.facts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_figures_follow_from_problem_chip_and_config(problem: GroupedProblem) -> None:
    explanation = explain_grouped(problem, H200, 10)
    found, one, groups = by_name(explanation), problem.of_group(), problem.groups
    assert found["groups"] == (groups,) and found["rows"] == (groups * problem.m,)
    assert found["flops"] == (2 * groups * problem.m * problem.n * problem.k,)
    assert found["weight_bytes"] == (groups * one.weight_bytes,) and found["bytes"] == (groups * one.bytes,)
    (rate,), (us,) = found["dram_rate"], found["weight_bound"]
    assert us == pytest.approx(groups * one.weight_bytes / (1e6 * rate)) and found["dram_bound"][0] >= us
    assert found["counted_m"] == (counted_rows_of_group(problem.m),)
    assert ("columns" in found) == (problem.grouping is COLUMNS)
    for index, config in enumerate(explanation.configs):
        swapped = isinstance(config, SwapAbConfig)
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        resident = 132 * swapped_resident_ctas(problem, config) if isinstance(config, SwapAbConfig) else 132
        expected = {
            "orientation": "swapped" if swapped else "ordinary",
            "block_m": config.block_m,
            "block_n": config.block_n,
            "stages": config.stages,
            "table_bytes": problem.table_bytes(config.threads),
            "shared_bytes": grouped_shared_bytes(problem, config),
            "tiles_of_group": tiles,
            "tiles": groups * tiles,
            "resident_ctas": resident,
            "tiles_of_cta": -(-groups * tiles // resident),
        }
        assert {name: found[name][index] for name in expected} == expected
        area = tiles * config.block_m * config.block_n
        assert found["useful_share"][index] == pytest.approx(100 * problem.m * problem.n / area)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_table_holds_every_figure_and_fits(problem: GroupedProblem) -> None:
    explanation = explain_grouped(problem, H200)
    text = list(lines(explanation))
    assert max(map(len, text)) <= WIDTH
    assert text[0].startswith(f"{problem.groups} groups, {problem.grouping.value}: M = {problem.m}, ")
    for row in (*explanation.facts, *explanation.rows):
        (line,) = [line for line in text if line.startswith(f"  {row.name} ")]
        assert line.split()[1 : 1 + len(row.values)] == [figure(value) for value in row.values]
    assert " ".join(explanation.verdict) in " ".join("\n".join(text).split("\n"))


def test_the_verdict_says_what_bounds_what_comes_next_and_the_other_orientation() -> None:
    few, many = (explain_grouped(grouped_problem(MASKED, 256, m, 4096, 7168), H200) for m in (3, 100))
    assert isinstance(few.configs[0], SwapAbConfig)
    few_us = by_name(few)["total_us"]
    assert few.verdict[0].startswith("6.0 FLOP per byte") and "memory is the limit" in few.verdict[0]
    assert few.configs[0].label in few.verdict[1] and f"{few_us[0]:,.2f} us" in few.verdict[1]
    behind = few_us[1] - few_us[0]
    assert few.verdict[2].startswith(f"{few.configs[1].label} comes next, {behind:,.2f} us")
    assert few.verdict[3].startswith("The ordinary orientation would take")
    assert many.verdict[3].startswith("The ordinary" if isinstance(many.configs[0], SwapAbConfig) else "The swapped")
    assert explain_grouped(PROBLEMS[0], H200).verdict[3].endswith("not here.")
    assert len(explain_grouped(PROBLEMS[0], H200, 0).configs) == 1


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("20", "4096", "2048", "--groups", "6", "--layout", "masked")
    found = run_json(capsys, *sizes, "--chip", "h20", "--output", "float16")
    problem = grouped_problem(MASKED, 6, 20, 4096, 2048, OutputType.FLOAT16)
    explanation = explain_grouped(problem, named_chip("h20"))
    assert found == json.loads(json.dumps(explanation.as_json()))
    assert found["problem"]["grouping"] == "masked" and found["problem"]["groups"] == 6
    assert found["configs"][0] == {"label": explanation.configs[0].label, **asdict(explanation.configs[0])}


def test_options_say_which_product(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("64", "100", "2048", "--groups", "6")
    usual = run_json(capsys, *sizes)["problem"]
    assert (usual["grouping"], usual["output"], usual["store"]) == ("contiguous", "bfloat16", "predicated")
    columns = run_json(capsys, *sizes, "--layout", "columns")["problem"]
    assert (columns["grouping"], columns["output"], columns["store"]) == ("columns", "float32", StoreKind.TMA.value)
    invariant = run_json(capsys, *sizes, "--batch-invariant")
    assert invariant["problem"]["batch_invariant"] and not [c for c in invariant["configs"] if "swap" in c["label"]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--layout masked", "--layout: expected --groups beside it"),
        ("--groups 4 --static-weights", "--static-weights: expected none beside --groups"),
        ("--groups 4 --scaling 1d1d", "--scaling: expected none beside --groups"),
        ("--groups 4 --layout columns --output bfloat16", "--layout columns: expected neither"),
        ("--groups 4 --layout columns --batch-invariant", "--layout columns: expected neither"),
        ("--groups 1025", "expected 1 to 1024 groups, got 1025"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    capsys: pytest.CaptureFixture[str], options: str, complaint: str
) -> None:
    assert cli.main(["explain", "64", "128", "128", *options.split()]) == 1
    assert complaint in capsys.readouterr().err


def test_groups_without_rows_have_no_derivation() -> None:
    with pytest.raises(InputError, match=r"expected M >= 1.* got M = 0"):
        explain_grouped(grouped_problem(MASKED, 6, 0, 4096, 2048), H200)
