"""How the cost model is judged and fitted, with a stand-in for the model whose true constants are known."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fp8gemm.errors import InputError
from fp8gemm.tuning.candidates import DEEP_RING_K, candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip, named_chip
from fp8gemm.tuning.problem import Problem, StoreKind
from tests.scripts import load_script

calibrate = load_script("calibrate")
from calibration import figures, fit, judge, timings  # noqa: E402  (loaded with the script)

H200 = named_chip("h200")
CANDIDATES = list(candidate_configs(StoreKind.TMA, k=DEEP_RING_K))
LABELS = [config.label for config in CANDIDATES]
HEADING = {"gpu": "NVIDIA H200", "date": "2026-01-02", "torch": "2.11", "method": "medians", "seed": 3}


@dataclass(frozen=True)
class Constants:
    """Of the stand-in."""

    launch_us: float = field(default=2.0, metadata={"unit": "us", "meaning": "of every kernel"})
    rate: float = field(default=3e6, metadata={"unit": "MAC/us", "meaning": "of one SM"})
    efficiency: float = field(default=0.9, metadata={"unit": "share", "meaning": "of it in small tiles"})
    absent: float = field(default=0.0, metadata={"unit": "us", "meaning": "nothing"})


START = Constants()
TRUE = Constants(launch_us=3.1, rate=4.4e6, efficiency=0.61)


def predict(problem: Problem, config: TileConfig, chip: Chip, constants: Constants = START) -> Any:
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    macs = -(-tiles // chip.num_sms) * config.block_m * config.block_n * problem.k
    rate = constants.rate * (constants.efficiency if config.block_m * config.block_n < 128 * 128 else 1.0)
    return SimpleNamespace(total_us=constants.launch_us + macs / rate)


def predicted_us(problem: Problem, config: TileConfig, constants: Constants) -> float:
    us: float = predict(problem, config, H200, constants).total_us
    return us


def of_row(row: Any, config: TileConfig, constants: Constants) -> float:
    return predicted_us(row.problem, config, constants)


def measured(shapes: list[tuple[int, int, int]], constants: Constants = TRUE) -> dict[str, Any]:
    """A sweep in which every candidate took what the stand-in predicts with these constants."""
    rows = []
    for m, n, k in shapes:
        us = {config.label: predicted_us(Problem(m, n, k), config, constants) for config in CANDIDATES}
        rows.append({"m": m, "n": n, "k": k, "us": us})
    return {**HEADING, "rows": rows}


def written(folder: Path, name: str, sweep: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps(sweep))
    return path


SHAPES = [(m, n, k) for m in (64, 300, 1024, 4096) for n, k in ((576, 7168), (2112, 7168), (7168, 2048), (4096, 512))]


@pytest.fixture
def rows(tmp_path: Path) -> tuple[Any, ...]:
    return tuple(timings.read_sweeps([written(tmp_path, "sweep.json", measured(SHAPES))], H200).rows)


def test_sweeps_are_read_with_their_candidates_and_the_rest_is_counted(tmp_path: Path) -> None:
    one = {"m": 64, "n": 128, "k": 256, "us": {"gone": 1.0, LABELS[3]: 7, LABELS[0]: 5.5}, "peers": {"tensorwise": 2}}
    only_gone = {"m": 65, "n": 128, "k": 256, "us": {"gone": 1.0, "lost": 2.0}}
    first = written(tmp_path, "a.json", {**HEADING, "rows": [one, only_gone]})
    second = written(tmp_path, "b.json", {**HEADING, "date": "2026-01-03", "rows": [{**one, "m": 16, "us": one["us"]}]})
    sweep = timings.read_sweeps([first, second], H200)
    assert [row.problem for row in sweep.rows] == [Problem(64, 128, 256), Problem(16, 128, 256)]
    assert sweep.rows[0].timings == ((CANDIDATES[0], 5.5), (CANDIDATES[3], 7.0)), "in the order of the candidates"
    assert (sweep.timings, sweep.unknown) == (4, {"gone": 3, "lost": 1})
    assert (sweep.heading["date"], sweep.heading["torch"]) == ("2026-01-02; 2026-01-03", "2.11")
    assert len(timings.read_sweeps([first, second], H200, least_m=17).rows) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "expected a sweep in JSON"),
        ("[]", "expected a sweep, with gpu and rows"),
        (json.dumps({**HEADING, "rows": [{"m": 1, "n": 2, "k": 16, "us": {LABELS[0]: 0}}]}), "microseconds, got 0 for"),
        (json.dumps({**HEADING, "rows": [{"m": 1, "n": 2, "k": 16, "us": {"gone": 1}}]}), "expected timings of .*gone"),
        (json.dumps({**HEADING, "gpu": "other", "rows": []}), "of one GPU, got NVIDIA H200 and other"),
        (json.dumps({**HEADING, "regime": "bursts", "rows": []}), "expected turn or burst or sustained, got 'bursts'"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    good = [written(tmp_path, "good.json", {**HEADING, "rows": []})] if "other" in text else []
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    with pytest.raises(InputError, match=complaint):
        timings.read_sweeps([*good, bad], H200)
    with pytest.raises(InputError, match="expected a sweep in JSON, got .*missing.json"):
        timings.read_sweeps([tmp_path / "missing.json"], H200)


def test_layers_are_held_out_whole_and_the_same_with_the_same_seed(rows) -> None:
    seen = set()
    for seed in range(10):
        kept, held_out = timings.split(rows, 0.25, seed)
        assert (kept, held_out) == timings.split(rows, 0.25, seed)
        layers = {row.layer for row in held_out}
        assert len(layers) == 1 and not layers & {row.layer for row in kept}
        assert len(kept) + len(held_out) == len(rows)
        seen |= layers
    assert len(seen) > 1, "every seed holds out the same"
    for share, sizes in ((0.01, (3, 1)), (0.99, (1, 3))):
        assert tuple(len({row.layer for row in part}) for part in timings.split(rows, share, 0)) == sizes
    with pytest.raises(InputError, match="at least two N x K to hold some out, got 1"):
        timings.split([row for row in rows if row.layer == (576, 7168)], 0.5, 0)


def test_figures() -> None:
    assert [figures.quantile([4.0, 1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.75, 1.0)] == [1, 2.5, 3.25, 4]
    assert figures.quantile([7.0], 0.95) == 7
    classes = [figures.m_class(m) for m in (20000, 16384, 4096, 4095, 256, 255, 63, 1)]
    assert classes == ["from 16385", "4096-16384", "4096-16384", "1024-4095", "256-1023", "64-255", "1-63", "1-63"]
    assert figures.in_order(classes) == list(dict.fromkeys(reversed(classes)))
    assert figures.regret_figures([0.0, 0.1]) == {"shapes": 2, "mean": 0.05, "p95": 0.095, "max": 0.1}
    assert figures.error_figures([0.5, -0.5, 0.3]) == {"timings": 3, "bias": 1.1052, "median": 0.5, "p90": 0.5}


def test_the_choice_is_the_fastest_predicted_of_those_that_were_measured() -> None:
    a, b, c, unmeasured = CANDIDATES[:4]
    row = timings.Row(Problem(64, 128, 256), ((a, 12.0), (b, 10.0), (c, 15.0)))
    (choice,) = judge.predicted_choices([row], [[3.0, 4.0, 3.0]])
    assert (choice.chosen, choice.best) == (a, b), "of equal ones the first"
    assert choice.regret == pytest.approx(0.2)
    assert [each.us for each in judge.selected_choices([row, row], lambda problem: c)] == [15, 15]
    assert judge.selected_choices([row], lambda problem: unmeasured) == []


def test_a_model_that_is_right_has_neither_error_nor_regret(rows) -> None:
    part = judge.judged("all", rows, lambda row, config: predicted_us(row.problem, config, TRUE))
    assert part["error"]["all"] == {
        "timings": sum(len(row.timings) for row in rows),
        "bias": 1.0,
        "median": 0.0,
        "p90": 0.0,
    }
    assert part["regret"]["all"] == {"shapes": 16, "mean": 0.0, "p95": 0.0, "max": 0.0} and part["worst"] == []
    assert (part["shapes"], part["layers"]) == (16, 4)


def test_errors_and_regrets_are_sorted_by_m_and_tile(rows) -> None:
    def double_in_large_tiles(row: timings.Row, config: TileConfig) -> float:
        return predicted_us(row.problem, config, TRUE) * (2 if config.block_m * config.block_n >= 128 * 128 else 1)

    always = CANDIDATES[LABELS.index("128x192-s4-c1x1")]  # of which there is one, whatever the product
    part = judge.judged("all", rows, double_in_large_tiles, lambda problem: always)
    assert part["error"]["by_tile"]["64x64"]["bias"] == 1 and part["error"]["by_tile"]["128x192"]["bias"] == 2
    assert list(part["error"]["by_m"]) == ["64-255", "256-1023", "1024-4095", "4096-16384"]
    assert list(part["regret"]["by_m"]) == list(part["error"]["by_m"])
    worst = part["worst"]
    assert worst[0]["regret"] == part["regret"]["all"]["max"] == part["regret"]["each"][-1] > 0.1
    assert worst == sorted(worst, key=lambda each: -each["regret"]) and len(worst) <= 10
    assert part["selected"]["not_measured"] == 0 and part["selected"]["all"]["shapes"] == 16


def test_a_fit_finds_the_constants_that_the_times_were_made_with(rows) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    found = fit.fit(rows, of_row, START, evaluations=400)
    assert found.cost[0] > found.cost[1] >= found.cost[2]
    for name in ("launch_us", "rate", "efficiency"):
        assert getattr(found.constants, name) == pytest.approx(getattr(TRUE, name), rel=0.08), name
    assert found.constants.absent == 0, "a constant at zero is not fitted"
    part = judge.judged("all", rows, lambda row, config: predicted_us(row.problem, config, found.constants))
    assert part["regret"]["all"]["mean"] < 0.005

    lines = list(fit.pasted(found.constants, START))
    assert len(lines) == len(fields(START)), "one for each field, in the form that the module has"
    assert lines[0].startswith(f'    launch_us: float = _constant({found.constants.launch_us!r}, "us", ')
    assert lines[0].endswith("  # was 2.0")
    (absent,) = (line for line in lines if line.startswith('    absent: float = _constant(0.0, "us", '))
    assert absent.endswith("  # as it was")


def test_a_fit_moves_only_what_it_is_asked_to_and_no_share_above_one(rows) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    found = fit.fit(rows, of_row, START, only=["rate"], evaluations=60)
    assert found.constants == replace(START, rate=found.constants.rate) != START
    faster = [
        timings.Row(row.problem, tuple((config, us / 3) for config, us in row.timings)) for row in rows
    ]  # a rate that stays where it is leaves only an efficiency above one
    assert fit.fit(faster, of_row, START, only=["efficiency"], evaluations=60).constants.efficiency <= 1
    with pytest.raises(InputError, match="expected constants among launch_us, .*, got typo"):
        fit.fit(rows, of_row, START, only=["typo"])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(calibrate, "model", SimpleNamespace(predict=predict))
    monkeypatch.setattr(calibrate, "DEFAULT", START)
    yield


def test_the_script_judges_fits_and_writes_what_tables_and_plots_are_drawn_from(stand_in, tmp_path, capsys) -> None:
    for module in ("scipy", "matplotlib"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    sweep, plot, out = written(tmp_path, "sweep.json", measured(SHAPES)), tmp_path / "c.png", tmp_path / "c.json"
    options = ["--fit", "--holdout", "0.25", "--evaluations", "200", "--json", str(out), "--plot", str(plot)]
    assert calibrate.main([str(sweep), *options]) == 0
    printed = capsys.readouterr().out
    fitted, held_out = timings.split(timings.read_sweeps([sweep], H200).rows, 0.25, 0)
    few, most = (sum(len(row.timings) for row in rows) for rows in (held_out, fitted))
    for part in (f"fitted: {most} timings", f"held out: {few} timings"):
        assert printed.count(part) == 2, "before the fit and after"
    assert "\n    launch_us: float = _constant(" in printed

    result = json.loads(out.read_text())
    assert [part["name"] for part in result["parts"]] == ["fitted", "held out"]
    assert (result["seed"], result["holdout"], result["sweeps"]) == (0, 0.25, ["sweep.json"])
    assert result["constants"]["rate"] != START.rate and result["constants"]["absent"] == 0
    assert sum(map(len, result["points"].values())) == most + few
    results = load_script("results")
    assert results.canvas.shows(plot, result)
    text = "\n".join(results.SECTIONS["calibration"].draw(result))
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11, ") and ", 3 N x K fitted, 1 N x K held out.\n" in text
    assert "| N x K | M | timings |" in text and f"| held out | all | {few} | " in text and "`select`" not in text


def test_regimes_are_predicted_and_judged_apart(monkeypatch, tmp_path, capsys) -> None:
    """Bursts take less in the stand-in by a third, and so do the times of the sweep."""

    def with_bursts(problem: Problem, config: TileConfig, chip: Chip, constants: Constants = TRUE) -> Any:
        us = predict(problem, config, chip, TRUE).total_us
        return SimpleNamespace(total_us=us, burst_us=us / 1.5)

    monkeypatch.setattr(calibrate, "model", SimpleNamespace(predict=with_bursts))
    lasting, bursts = ({**measured(SHAPES), "regime": name} for name in ("sustained", "burst"))
    for row in bursts["rows"]:
        row["us"] = {label: us / 1.5 for label, us in row["us"].items()}
    sweeps = [written(tmp_path, f"{sweep['regime']}.json", sweep) for sweep in (lasting, bursts)]
    out = tmp_path / "c.json"
    assert calibrate.main([*map(str, sweeps), "--json", str(out)]) == 0
    capsys.readouterr()
    result = json.loads(out.read_text())
    assert result["regime"] == "sustained; burst"
    assert [part["name"] for part in result["parts"]] == ["all, sustained", "all, burst"]
    assert all(part["error"]["all"]["p90"] == 0 for part in result["parts"])


def test_the_script_judges_the_librarys_choice_on_request(stand_in, tmp_path, capsys) -> None:
    sweep, out = written(tmp_path, "sweep.json", measured(SHAPES[:4])), tmp_path / "folder" / "c.json"
    assert calibrate.main([str(sweep), "--select", "--json", str(out)]) == 0
    assert "regret of select" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["parts"][0]["selected"]["all"]["shapes"] == 4 and "seed" not in result
    text = "\n".join(load_script("results").SECTIONS["calibration"].draw(result))
    assert " timings, 4 N x K.\n" in text and "\n| M | timings |" in text
    assert "The choice of `select` itself, all N x K: regret " in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--select", "--fit"], "expected it without --fit"),
        (["--only", "rate"], "expected --fit with it"),
        (["--holdout", "1"], "expected a share between 0 and 1, got '1'"),
        (["--fit"], "scipy, which is not installed; `pip install scipy` brings it"),
        (["--least-m", "99999"], "expected timings of"),
    ],
)
def test_bad_arguments_are_explained(stand_in, tmp_path, monkeypatch, capsys, arguments, complaint) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    sweep = written(tmp_path, "sweep.json", measured(SHAPES[:4]))
    with pytest.raises(SystemExit) as caught:
        calibrate.main([str(sweep), *arguments])
    assert caught.value.code == 2 and complaint in capsys.readouterr().err
