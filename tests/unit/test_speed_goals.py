"""What is asked of speed is judged by what was measured, and never taken to hold where it was not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fp8gemm.cli import main as commands
from fp8gemm.cli.exits import Exit
from tests.scripts import load_script
from tests.stored import RESULTS, rows_of

goals = load_script("speed_goals")


@pytest.mark.parametrize("name", goals.GOALS)
def test_commands_are_such_as_fp8gemm_takes(name: str) -> None:
    words = list(goals.GOALS[name].command)
    options = commands.command_parser(words[0]).parse_args(words)
    assert "deepgemm" in (options.peers or ["deepgemm"])


def test_random_shapes_are_judged_without_the_twentieth_that_may_be_slower() -> None:
    rows, goal = rows_of("random-burst-h200.json"), goals.GOALS["random-burst"]
    assert goals.holds(goal, rows)
    slower = [row for row in rows if row["peers"]["deepgemm"] < row["us"][row["choice"]]]
    assert len(slower) == 4
    faster = (row for row in rows if row not in slower)
    for holds in (True, False):
        row = next(faster)
        row["peers"]["deepgemm"] = row["us"][row["choice"]] * 0.9
        assert goals.holds(goal, rows) is holds


def test_every_shape_counts_of_those_that_are_named() -> None:
    rows, goal = rows_of("prefill-burst-h200.json"), goals.GOALS["prefill-burst"]
    said = "\n".join(goals.judged(goal, rows))
    assert not goals.holds(goal, rows)
    assert "worst 1.009 of 36, at least 1: met; at 1024x4096x7168" in said
    assert "geometric mean 1.120 of 36, at least 1.12: met; worst 1.009 at 1024x4096x7168" in said
    assert "worst 0.815 of 36, at least 0.85: NOT MET; at 777x4096x7168" in said
    for row in rows:
        row["us"] = {"fp8gemm": 1.0, "deepgemm": 1.2, "tensorwise": 1.0}
    assert goals.holds(goal, rows)
    assert not goals.holds(goal, rows[1:])
    assert "35 of 36 rows were measured" in "\n".join(goals.judged(goal, rows[1:]))


def test_what_has_no_peer_does_not_hold() -> None:
    rows, goal = rows_of("prefill-burst-h200.json"), goals.GOALS["prefill-burst"]
    for row in rows:
        row["us"] = {"fp8gemm": 1.0, "tensorwise": 1.0, "deepgemm": 1.2}
    assert goals.holds(goal, rows)
    del rows[7]["us"]["deepgemm"]
    assert not goals.holds(goal, rows)
    assert "speed relative to DeepGEMM: not measured at 1, the first of them" in "\n".join(goals.judged(goal, rows))


def test_random_shapes_without_a_peer_are_the_slowest() -> None:
    rows, goal = rows_of("random-burst-h200.json"), goals.GOALS["random-burst"]
    slower = [row for row in rows if row["peers"]["deepgemm"] < row["us"][row["choice"]]]
    for row in slower:
        row["peers"] = {}
    assert goals.holds(goal, rows)
    for holds in (True, False):
        next(row for row in rows if row["peers"])["peers"] = {}
        assert goals.holds(goal, rows) is holds


@pytest.mark.parametrize("budget", [[], ["--budget-seconds", "99.5"]])
@pytest.mark.parametrize("measures", [True, False])
def test_a_goal_is_measured_anew(
    budget: list[str], measures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there of an earlier run is not judged."""
    (path := tmp_path / "random-burst.json").write_text((RESULTS / "random-burst-h200.json").read_text())
    asked: list[list[str]] = []

    def run(words: list[str]) -> int:
        asked.append(words)
        assert not path.exists()
        if measures:
            path.write_text((RESULTS / "random-burst-h200.json").read_text())
        return 0

    monkeypatch.setattr(goals, "fp8gemm", run)
    monkeypatch.setattr(goals, "lacks_gpu", lambda command: False)
    monkeypatch.setattr(
        "sys.argv", ["speed_goals", "random-burst", "--directory", str(tmp_path), "--seed", "7", *budget]
    )
    assert goals.main() == (Exit.DONE if measures else Exit.FAILED)
    ((*words, _, seed, _, where),) = asked
    assert (seed, where) == ("7", str(path)) and words[: len(goals.RANDOM)] == list(goals.RANDOM)
    assert ("--budget-seconds" in words) == bool(budget)


def test_the_script_judges_files_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["speed_goals", *words])
        try:
            return int(goals.main())
        except SystemExit as ended:
            return int(ended.code or 0)

    path = tmp_path / "random-burst-h200.json"
    shutil.copy(RESULTS / path.name, path)
    assert ends("--judge", str(path)) == Exit.DONE
    assert "at 95 of 100: worst 1.002 of 95" in capsys.readouterr().out
    assert ends("--judge", str(shutil.copy(path, tmp_path / "speeds.json"))) == Exit.WORDS
    assert "expected a file named for one of" in capsys.readouterr().err
    assert ends("--judge", str(tmp_path / "random-burst.json")) == Exit.FAILED
    assert "0 of 100 rows were measured" in capsys.readouterr().out
    assert ends("prefil") == Exit.WORDS and "got prefil" in capsys.readouterr().err
    assert ends() == Exit.WORDS
    assert ends("--list") == Exit.DONE and "few-rows: fp8gemm bench" in capsys.readouterr().out
