"""`fp8gemm explain` where the orientation is a choice: columns are the winner's, one sentence is about the other."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from fp8gemm.cli import main as cli
from fp8gemm.cli.explain import WIDTH, figure, lines
from fp8gemm.tuning import select
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.explain import MODEL, TABLE, Explanation, explain_choice, predict_config
from fp8gemm.tuning.hopper import CHIPS, Chip, named_chip
from fp8gemm.tuning.model import Cost
from fp8gemm.tuning.problem import OutputType, Problem, StoreKind, counted_rows
from fp8gemm.tuning.select import ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig, shared_bytes
from fp8gemm.tuning.swap_ab_model import SwapAbCost, predict_swap_ab
from fp8gemm.tuning.table import NO_TABLES, Tables

H200 = named_chip("h200")
PROBLEMS = [
    Problem(1, 2112, 7168),
    Problem(1, 2112, 7168, static_weights=True),
    Problem(9, 7168, 2048),
    Problem(16, 4096, 7168, OutputType.FLOAT32),
    Problem(5, 1217, 1040, store=StoreKind.PREDICATED),
]
SERVING = ("5", "2112", "7168")


@pytest.fixture(autouse=True)
def model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tables are shipped or set."""
    monkeypatch.setattr(select, "tables_in_force", lambda: NO_TABLES)


def by_name(explanation: Explanation) -> dict[str, tuple[Any, ...]]:
    rows = (*explanation.facts, *explanation.rows)
    found = {row.name: row.values for row in rows}
    assert len(found) == len(rows), "a name twice"
    return found


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["explain", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_rows_are_those_of_the_swapped_orientation(problem: Problem, chip: Chip) -> None:
    explanation = explain_choice(problem, chip)
    ranked = ranked_configs(problem, chip)
    swapped = [config for config in ranked if isinstance(config, SwapAbConfig)]
    assert ranked[0] == swapped[0] and len(swapped) < len(ranked)
    assert explanation.configs == tuple(swapped[:5])
    assert explanation.legal == len(ranked) and explanation.source == MODEL
    counted = replace(problem, m=counted_rows(problem.m))
    costs = tuple(predict_swap_ab(counted, config, chip) for config in swapped[:5])
    found = by_name(explanation)
    for term in fields(SwapAbCost):
        assert found[term.name] == tuple(getattr(cost, term.name) for cost in costs)
    for name in ("block_m", "block_n", "slices", "wave_cols", "warpgroups_k", "split_k", "threads", "stage_bytes"):
        assert found[name] == tuple(getattr(config, name) for config in swapped[:5])
    assert found["stages"] == tuple(config.stages for config in swapped[:5])
    assert found["shared_bytes"] == tuple(shared_bytes(config, problem.k) for config in swapped[:5])
    assert found["counted_m"] == (counted.m,)
    assert explanation.rows[-1].name == "total_us"


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_table_holds_every_figure_and_fits(problem: Problem) -> None:
    explanation = explain_choice(problem, H200)
    text = list(lines(explanation))
    assert max(map(len, text)) <= WIDTH
    for row in explanation.rows:
        (line,) = [line for line in text if line.startswith(f"  {row.name} ")]
        assert line.split()[1 : 1 + len(row.values)] == [figure(value) for value in row.values]
    assert ("static weights" in text[0]) is problem.static_weights
    assert " ".join(explanation.verdict) in " ".join(text)
    (title,) = [index for index, line in enumerate(text) if line.startswith("  winner first ")]
    halves = zip(text[title].split()[2:], text[title + 1].split(), strict=True)
    assert ["-".join(both) for both in halves] == [config.label for config in explanation.configs]


def test_the_verdict_ends_with_what_the_other_orientation_would_take() -> None:
    problem, counted = Problem(5, 2112, 7168), Problem(8, 2112, 7168)
    explanation = explain_choice(problem, H200)
    us = {
        config: predict_config(counted, config, H200).total_us
        for config in ranked_configs(problem, H200)
        if isinstance(config, TileConfig)
    }
    best = min(us, key=lambda config: us[config])
    bound, choice, *_, loser, other = explanation.verdict
    assert "memory is the limit" in bound and " loses by " in loser
    assert f"{explanation.configs[0].label} has the least predicted cost of {explanation.legal} legal" in choice
    assert other == f"The ordinary orientation would take {us[best]:.2f} us at best, with {best.label}."


def test_a_verdict_for_the_ordinary_orientation_names_the_swapped_one() -> None:
    problem = Problem(100, 7168, 16384)
    counted = replace(problem, m=128)
    ranked, explanation = ranked_configs(problem, H200), explain_choice(problem, H200)
    best = next(config for config in ranked if isinstance(config, SwapAbConfig))
    assert {type(config) for config in explanation.configs} == {TileConfig}
    us = f"{predict_swap_ab(counted, best, H200).total_us:.2f} us"
    name = "The swapped orientation, weights on the 64-row side,"
    assert explanation.verdict[-1] == f"{name} would take {us} at best, with {best.label}."


@pytest.mark.parametrize(
    "problem", [Problem(129, 2112, 7168), Problem(1, 2112, 7168, batch_invariant=True)], ids=["many rows", "invariant"]
)
def test_where_there_is_one_orientation_nothing_is_said_of_another(problem: Problem) -> None:
    explanation = explain_choice(problem, H200, 99)
    assert {type(config) for config in explanation.configs} == {TileConfig}
    assert len(explanation.configs) == explanation.legal
    assert not any("orientation" in sentence for sentence in explanation.verdict)


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *SERVING, "--chip", "h20", "--runners-up", "2")
    explanation = explain_choice(Problem(5, 2112, 7168), named_chip("h20"), 2)
    assert found == json.loads(json.dumps(explanation.as_json()))
    assert found["configs"] == [{"label": config.label, **asdict(config)} for config in explanation.configs]
    assert found["configs"][0]["label"].startswith("swap8x") and len(found["configs"]) == 3
    assert {term.name for term in fields(SwapAbCost)} <= {term["name"] for term in found["terms"]}
    own_of_the_other = {term.name for term in fields(Cost)} - {term.name for term in fields(SwapAbCost)}
    assert own_of_the_other and not own_of_the_other & {term["name"] for term in found["terms"]}
    assert found["verdict"][-1].startswith("The ordinary orientation would take ")


def test_static_weights_are_another_choice(capsys: pytest.CaptureFixture[str]) -> None:
    plain, static = run_json(capsys, *SERVING), run_json(capsys, *SERVING, "--static-weights")
    assert static["problem"] == plain["problem"] | {"static_weights": True}
    problem = Problem(5, 2112, 7168, static_weights=True)
    assert static["configs"][0]["label"] == ranked_configs(problem, H200)[0].label
    assert static["terms"] != plain["terms"]
    assert cli.main(["explain", *SERVING, "--static-weights"]) == 0
    assert ", static weights, on h200" in capsys.readouterr().out.splitlines()[0]


def test_a_table_may_choose_the_other_orientation(monkeypatch: pytest.MonkeyPatch) -> None:
    by_model = ranked_configs(PROBLEMS[0], H200)
    named = next(config for config in by_model if isinstance(config, TileConfig))

    class Named(Tables):
        def config(self, *_: object) -> Any:
            return named

    monkeypatch.setattr(select, "tables_in_force", lambda: Named(()))
    explanation = explain_choice(PROBLEMS[0], H200)
    assert explanation.source == TABLE and explanation.configs[0] == named
    assert {type(config) for config in explanation.configs} == {TileConfig}
    *_, measured, other = explanation.verdict
    assert f"{named.label} was measured, from a table" in measured and by_model[0].label in measured
    assert other.startswith("The swapped orientation, weights on the 64-row side, would take ")
    assert other.endswith(f"with {by_model[0].label}.")
