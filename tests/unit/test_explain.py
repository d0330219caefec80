"""`fp8gemm explain`: the figures are those of the model and the config, all of them, and readable without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import field as dataclass_field
from dataclasses import fields, make_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.cli import main as cli
from fp8gemm.cli.explain import WIDTH, figure, lines
from fp8gemm.errors import InputError
from fp8gemm.tuning import explain, select, terms
from fp8gemm.tuning.config import TileConfig, shared_bytes
from fp8gemm.tuning.constants import Constants
from fp8gemm.tuning.explain import MODEL, TABLE, Explanation, explain_choice, predict_config
from fp8gemm.tuning.hopper import CHIPS, SHARED_BYTES_PER_CTA, TENSOR_MACS_PER_CYCLE, Chip, named_chip
from fp8gemm.tuning.model import Cost, predict
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind, counted_rows
from fp8gemm.tuning.select import ranked_configs
from fp8gemm.tuning.table import NO_TABLES, Tables

ROOT = Path(__file__).resolve().parents[2]
H200 = named_chip("h200")
PROBLEMS = [  # of the ordinary orientation; test_explain_swap_ab.py has the others
    Problem(4096, 7168, 2048),
    Problem(128, 24576, 1536),
    Problem(1, 100, 16, store=StoreKind.PREDICATED),
    Problem(700, 576, 144, OutputType.FLOAT32, scaling=Scaling.ROW),
    Problem(2**31, 2**31 - 1, 2**31 - 16),
    Problem(64, 7168, 16384, batch_invariant=True),
]


@pytest.fixture(autouse=True)
def model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tables are shipped or set."""
    monkeypatch.setattr(select, "tables_in_force", lambda: NO_TABLES)


def values(explanation: Explanation, name: str) -> tuple[Any, ...]:
    (found,) = [row.values for row in (*explanation.facts, *explanation.rows) if row.name == name]
    return found


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["explain", *arguments, "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"JSON has no {word}")

    found: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return found


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_all_terms_of_the_model_are_there_and_the_same(problem: Problem, chip: Chip) -> None:
    explanation = explain_choice(problem, chip)
    ranked = ranked_configs(problem, chip)
    assert explanation.configs == tuple(each for each in ranked if isinstance(each, TileConfig))[:5]
    assert explanation.configs[0] == ranked[0] and explanation.legal == len(ranked)
    counted = replace(problem, m=counted_rows(problem.m))
    costs = [predict_config(counted, config, chip) for config in explanation.configs]
    for term in fields(Cost):
        assert values(explanation, term.name) == tuple(getattr(cost, term.name) for cost in costs)
    assert explanation.rows[-1].name == "total_us"
    assert all(len(row.values) == len(explanation.configs) for row in explanation.rows)
    assert all(len(row.values) == 1 for row in explanation.facts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_facts_follow_from_problem_chip_and_config(problem: Problem) -> None:
    explanation = explain_choice(problem, H200)
    assert values(explanation, "flops") == (problem.flops,) == (2 * problem.m * problem.n * problem.k,)
    assert values(explanation, "bytes") == (problem.bytes,)
    (rate,), (dram_rate,) = values(explanation, "tensor_rate"), values(explanation, "dram_rate")
    assert rate == pytest.approx(2 * TENSOR_MACS_PER_CYCLE * 132 * H200.max_clock_mhz / 1e6)
    assert values(explanation, "chip_intensity") == (pytest.approx(rate / dram_rate),)
    assert values(explanation, "intensity") == (pytest.approx(problem.flops / problem.bytes),)
    assert values(explanation, "tensor_bound") == (pytest.approx(problem.flops / (1e6 * rate)),)
    assert values(explanation, "dram_bound") == (pytest.approx(problem.bytes / (1e6 * dram_rate)),)
    for index, config in enumerate(explanation.configs):
        shared = shared_bytes(config, problem.store, problem.output, problem.scaling)
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        expected = {
            "tile": f"{config.block_m}x{config.block_n}",
            "threads": config.threads,
            "wave_cols": config.wave_cols,
            "promotion_registers": config.promotion_registers,
            "stage_bytes": config.stage_bytes(problem.scaling),
            "stages": config.stages,
            "ring_bytes": config.stages * config.stage_bytes(problem.scaling),
            "shared_bytes": shared,
            "unused_bytes": SHARED_BYTES_PER_CTA - shared,
            "tiles": tiles,
            "useful_share": 100 * problem.m * problem.n / (tiles * config.block_m * config.block_n),
            "resident_ctas": 132,
        }
        # What the model has a term for is the model's to say.
        own = {term.name for term in fields(Cost)}
        assert {name: values(explanation, name)[index] for name in expected if name not in own} == {
            name: value for name, value in expected.items() if name not in own
        }


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_table_holds_every_figure_and_fits(problem: Problem) -> None:
    explanation = explain_choice(problem, H200)
    text = list(lines(explanation))
    assert max(map(len, text)) <= WIDTH == 140
    for row in (*explanation.facts, *explanation.rows):
        (line,) = [line for line in text if line.startswith(f"  {row.name} ")]
        cells = line.split()[1:]
        assert cells[: len(row.values)] == [figure(value) for value in row.values]
        assert cells[len(row.values) :][: len(row.unit.split())] == row.unit.split()
    for group in {row.group for row in (*explanation.facts, *explanation.rows)}:
        assert text.count(group) == 1
    words = "\n".join(text)
    assert " ".join(explanation.verdict) in " ".join(words.split("\n"))
    (title,) = [index for index, line in enumerate(text) if line.startswith("  winner first ")]
    halves = zip(text[title].split()[2:], text[title + 1].split(), strict=True)
    assert ["-".join(both) for both in halves] == [config.label for config in explanation.configs]


def test_figures() -> None:
    shown = [figure(value) for value in (0, 1234567, 10**16, 0.0, 0.12345, 12.341, 123.44, 123456.7, 2.5e20, "2x1")]
    assert shown == ["0", "1,234,567", "1.000e+16", "0.00", "0.1235", "12.34", "123.4", "123,457", "2.500e+20", "2x1"]


def test_the_number_of_runners_up(capsys: pytest.CaptureFixture[str]) -> None:
    for count, columns in ((0, 1), (1, 2), (8, 9), (10**6, len(ranked_configs(PROBLEMS[0], H200)))):
        found = run_json(capsys, "4096", "7168", "2048", "--runners-up", str(count))
        assert len(found["configs"]) == columns
        assert {len(term["values"]) for term in found["terms"]} == {columns}
    explanation = explain_choice(PROBLEMS[0], H200, 0)
    assert "loses" not in explanation.verdict[-1] and len(list(lines(explanation))) > 20


@pytest.mark.parametrize("sizes", [("4096", "7168", "2048"), ("1", "100", "144"), ("65", "2112", "7168")])
def test_json_has_everything(capsys: pytest.CaptureFixture[str], sizes: tuple[str, str, str]) -> None:
    found = run_json(capsys, *sizes, "--chip", "h20", "--output", "float16", "--scaling", "1d1d")
    m, n, k = map(int, sizes)
    store = StoreKind.PREDICATED if n == 100 else StoreKind.TMA
    problem = Problem(m, n, k, OutputType.FLOAT16, store, Scaling.ROW)
    explanation = explain_choice(problem, named_chip("h20"))
    assert found == json.loads(json.dumps(explanation.as_json()))
    assert found["problem"] == {name: getattr(value, "value", value) for name, value in vars(problem).items()}
    assert found["chip"]["name"] == "h20" and found["source"] == MODEL
    assert {term.name for term in fields(Cost)} <= {term["name"] for term in found["terms"]}
    assert [config["label"] for config in found["configs"]] == [config.label for config in explanation.configs]
    assert found["verdict"] == list(explanation.verdict)


def test_options_reach_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    usual = run_json(capsys, "64", "7168", "16384")
    for options in ("--chip h20", "--output float32", "--scaling 1d1d", "--batch-invariant"):
        other = run_json(capsys, "64", "7168", "16384", *options.split())
        assert (other["problem"], other["chip"]) != (usual["problem"], usual["chip"])
        assert other["terms"] != usual["terms"] or other["legal_configs"] != usual["legal_configs"]
    fixed = run_json(capsys, "64", "7168", "16384", "--batch-invariant", "--runners-up", "99")
    (wave_cols,) = [term["values"] for term in fixed["terms"] if term["name"] == "wave_cols"]
    assert len(set(wave_cols)) == 1
    assert cli.main(["explain", "64", "7168", "16384", "--batch-invariant"]) == 0
    assert "batch-invariant" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("problem", "limit"), [(PROBLEMS[0], "tensor cores are"), (Problem(192, 2112, 7168), "memory is")]
)
def test_the_verdict_says_what_bounds_and_what_the_next_one_loses_to(problem: Problem, limit: str) -> None:
    explanation = explain_choice(problem, H200, 30)
    bound, choice, *others = explanation.verdict
    assert f"{limit} the limit" in bound
    winner, *costs = values(explanation, "total_us")
    assert explanation.configs[0].label in choice and f"{winner:,.2f} us" in choice
    tied = len(list(takewhile(lambda us: us == winner, costs)))
    assert len(others) == (2 if tied else 1)
    loser = explanation.configs[1 + tied]
    assert others[-1].startswith(f"{loser.label} loses by {costs[tied] - winner:,.2f} us")


def test_a_choice_from_a_table_is_called_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[0]
    by_model = ranked_configs(problem, H200)
    named = by_model[7]

    class Named(Tables):
        def config(self, *_: object) -> Any:
            return named

    monkeypatch.setattr(select, "tables_in_force", lambda: Named(()))
    explanation = explain_choice(problem, H200)
    assert explanation.source == TABLE and explanation.configs == (named, *by_model[:4])
    sentence = explanation.verdict[-1]
    assert f"{named.label} was measured, from a table" in sentence and by_model[0].label in sentence
    assert explanation.as_json()["source"] == "table"
    named = by_model[0]  # the table and the model agree
    monkeypatch.setattr(select, "tables_in_force", lambda: Named(()))
    assert explain_choice(problem, H200).source == MODEL


def test_terms_are_grouped_and_named_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def term(group: str, unit: str, formula: str, *, part: bool = False) -> Any:
        return dataclass_field(metadata={"group": group, "unit": unit, "formula": formula, "part": part})

    described = make_dataclass(
        "Described",
        [
            ("tensor_cycles", float, term("tensor work", "cycles", "macs / rate " * 9)),
            ("stages", int, term(terms.SHARED, "", "as the model says")),
            ("dram", float, term("sum", "us", "bytes / rate", part=True)),
            ("overhead", float, term("sum", "us", "launch", part=True)),
            ("total_us", float, term("sum", "us", "dram + overhead")),
        ],
        frozen=True,
    )

    def cost(_: Problem, config: Any, __: Chip, ___: Constants) -> Any:
        us = predict(PROBLEMS[0], config, H200).total_us
        return described(1.5, 77, us - 1, 1.0, us)

    for module in (explain, terms):
        monkeypatch.setattr(module, "Cost", described)
    monkeypatch.setattr(explain, "predict", cost)
    explanation = explain_choice(PROBLEMS[0], H200)
    groups = list(dict.fromkeys(row.group for row in explanation.rows))
    assert groups == [terms.TILE, terms.SHARED, terms.OUTPUT, "tensor work", "sum"]
    assert values(explanation, "stages") == (77,) * 5
    assert "its largest term is dram" in explanation.verdict[1]
    assert re.search(r": dram is [\d.]+ us longer\.$", explanation.verdict[-1])
    text = list(lines(explanation))
    assert max(map(len, text)) <= WIDTH and any("macs / rate" in line for line in text)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "required"),
        (["64", "128"], "K"),
        (["0", "128", "128"], "positive"),
        (["-1", "128", "128"], "positive"),
        (["x", "128", "128"], "'x'"),
        (["64", "128", "100"], "multiple of 16"),
        (["64", "128", "8"], "at least 16"),
        (["64", str(2**31), "128"], "2^31"),
        (["64", "128", "128", "--chip", "b200"], "h100-pcie"),
        (["64", "128", "128", "--output", "int8"], "bfloat16"),
        (["64", "128", "128", "--scaling", "2d"], "1d1d"),
        (["64", "128", "128", "--runners-up", "-1"], "at least 0"),
        (["64", "128", "128", "--runners-up", "few"], "'few'"),
    ],
)
def test_bad_arguments_are_exit_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["explain", *arguments])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_no_rows_have_no_derivation() -> None:
    with pytest.raises(InputError, match=r"expected M >= 1.* got M = 0"):
        explain_choice(Problem(0, 128, 128), H200)


PURE = """
import sys, time, types
sys.modules |= dict.fromkeys(("torch", "cuda", "numpy"))  # importing them is an error
package = types.ModuleType("fp8gemm")
package.__path__ = [sys.argv[1]]
sys.modules["fp8gemm"] = package
started = time.process_time()  # which others on this machine do not stretch
import argparse
from fp8gemm.cli import explain
parser = argparse.ArgumentParser()
explain.add_arguments(parser)
explain.run(parser.parse_args(sys.argv[2:]))
seconds = time.process_time() - started
assert seconds < 1, seconds
"""


def test_it_needs_neither_torch_nor_cuda_and_no_second() -> None:
    """Its own modules, that is: the package's ``__init__`` imports torch."""
    arguments = ["4096", "7168", "2048", "--batch-invariant"]
    done = subprocess.run(
        [sys.executable, "-c", PURE, str(ROOT / "fp8gemm"), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "total_us" in done.stdout and done.stderr == ""
