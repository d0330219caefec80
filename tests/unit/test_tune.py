"""`fp8gemm tune` without a GPU: which shapes, its files, its statistics, and what enters a table."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.cli import tune as command
from fp8gemm.cli.arguments import shapes
from fp8gemm.errors import InputError
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.tune import report
from fp8gemm.lab.tune.results import Results, Row, merged, recorded_seed
from fp8gemm.lab.tune.shapes import random_shapes
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import eligible_configs
from fp8gemm.tuning.table import NO_TABLES, Entry, Table, tile_of, write_table

HEADING = {"gpu": "NVIDIA H200", "chip": "h200", "num_sms": 132, "date": "2026-01-01", "method": "fake", "seed": 5}
EMPTY = Table("NVIDIA H200", "h200", 132, "2026-01-01", "fake")
SHAPE = Shape(200, 512, 256)
A, B, C = "256x128-s4-c2x1", "128x128-s6-c1x1", "64x64-s8-c1x1"


def row(m: int = 200, *, choice: str = A, peer: float | None = None, **us: float) -> Row:
    """``a``, ``b`` and ``c`` are the times of A, B and C."""
    times = {label: us[name] for label, name in ((A, "a"), (B, "b"), (C, "c")) if name in us}
    return Row(Shape(m, 512, 256), times, {} if peer is None else {"tensorwise": peer}, choice=choice, model=A)


def test_random_shapes_are_in_range_spread_and_the_seeds() -> None:
    drawn = random_shapes(400, 3)
    assert drawn == random_shapes(400, 3) != random_shapes(400, 4)
    assert drawn[:50] == random_shapes(50, 3) and len(set(drawn)) == 400
    for shape in drawn:
        assert 256 <= shape.m <= 16384 and 256 <= shape.n <= 32768 and 256 <= shape.k <= 16384
        assert shape.n % 64 == shape.k % 128 == 0
    assert any(shape.m % 64 for shape in drawn)
    for sizes, middle in (((s.m for s in drawn), 2048), ((s.n for s in drawn), 2896), ((s.k for s in drawn), 2048)):
        assert 0.4 < sum(size < middle for size in sizes) / 400 < 0.6, "log-uniform"


def test_shapes_are_those_that_the_options_name_once() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)

    def chosen(*words: str) -> list[str]:
        return [str(shape) for shape in command.chosen_shapes(parser.parse_args(words), seed=1)]

    assert chosen("--m", "1,64", "--nk", "128x256") == ["1x128x256", "64x128x256"]
    assert chosen("--shapes", "3x128x256,3x128x256,5x8x16") == ["3x128x256", "5x8x16"]
    assert chosen("--shapes", "3x128x256", "--random", "2") == ["3x128x256", *map(str, random_shapes(2, 1))]
    assert chosen("--m", "7", "--shapes", "7x2112x7168")[:2] == ["7x2112x7168", "7x24576x1536"]
    assert len(chosen()) == 48
    with pytest.raises(argparse.ArgumentTypeError, match="K = 100"):
        shapes("1x128x100")


def test_work_is_what_the_model_ranks_first_and_the_choice() -> None:
    chip, problem = named_chip("h200"), Problem(777, 7168, 2048)
    ranked = [config.label for config in eligible_configs(problem, chip, NO_TABLES)]
    for count in (1, 3, None):
        work = command.plan_work(problem, chip, count)
        assert list(work.candidates) == ranked[:count] and work.choice == work.model == ranked[0]
        assert all(config.label == label for label, config in work.candidates.items())


def test_the_choice_of_a_table_is_work_too(tmp_path: Path) -> None:
    chip, problem = named_chip("h200"), Problem(777, 7168, 2048)
    *_, slow = eligible_configs(problem, chip, NO_TABLES)
    write_table(tmp_path / "t.json", Table(**_table_heading(), entries=(Entry(777, 7168, 2048, tile_of(slow), 1.0),)))
    with settings.scope(tables=[tmp_path / "t.json"]):
        work = command.plan_work(problem, chip, 2)
    assert len(work.candidates) == 3 and work.choice == slow.label != work.model


def _table_heading() -> dict[str, Any]:
    return {name: value for name, value in HEADING.items() if name != "seed"}


def test_an_unknown_peer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--peers", "deepgemm,cutlass"])
    assert "expected tensorwise or deepgemm, got 'cutlass'" in capsys.readouterr().err


def test_regret_and_speed() -> None:
    assert row(a=3.0, b=2.0).regret == 0.5 and row(a=2.0, b=3.0).regret == 0.0
    assert row(a=2.0, b=1.0).best == B
    assert row(b=2.0).regret is None and row().best is None
    assert row(a=2.0, b=1.0, peer=3.0).speed_relative_to("tensorwise") == 1.5
    assert row(b=1.0, peer=3.0).speed_relative_to("tensorwise") is None
    assert row(a=2.0, b=1.0).only([A]).us == {A: 2.0}


def test_summary() -> None:
    rows = [row(m, a=1.0 + m / 100, b=1.0) for m in range(1, 21)]
    found = report.Summary.of(rows)
    assert found.shapes == 20 and found.peers == {}
    assert found.regret_mean == pytest.approx(0.105)
    assert found.regret_p95 == pytest.approx(0.19) and found.regret_max == pytest.approx(0.20)
    rows = [row(a=2.0, b=1.0, peer=4.0), row(a=2.0, peer=1.0), row(b=1.0, peer=7.0)]
    found = report.Summary.of(rows)
    (beside,) = found.peers.values()
    assert (found.shapes, beside.shapes, beside.at_least_as_fast, beside.slowest) == (2, 2, 1, 0.5)
    assert beside.geomean == pytest.approx(1.0) and beside.best_geomean == pytest.approx(math.sqrt(2))
    assert "1.000" in str(found) and "50.00%" in str(found)
    one = str(report.Summary.of([row(a=2.0, b=1.0, peer=4.0)]))
    assert one.startswith("1 shape: ") and "geometric mean of 1 shape (of" in one
    assert report.Summary.of([]).regret_mean is None and "no shape" in str(report.Summary.of([]))


def test_percentile_is_one_of_the_values() -> None:
    assert report.percentile([3.0], 0.95) == 3.0
    assert report.percentile([1.0, 2.0], 0.5) == 1.0
    assert report.percentile([float(value) for value in range(100)], 0.95) == 94.0


def test_lines_name_what_failed() -> None:
    failed = merged(row(a=2.0, b=1.0, peer=3.0), {}, {}, {C: "RuntimeError: no"})
    first, second = report.RowTable().line(failed).splitlines()
    assert "100.00%" in first and first.split()[-2:] == ["1.500", "-"] and B in first
    assert C in second and "no" in second
    assert report.RowTable().line(row()).count("-") >= 4


def test_a_table_gets_what_beats_the_model_by_the_margin() -> None:
    rows = [row(100, a=1.02, b=1.0), row(200, a=1.01, b=1.0), row(300, a=1.0, b=2.0), row(400, b=1.0)]
    (entry,) = report.updated(EMPTY, rows).entries
    assert entry == Entry(100, 512, 256, "128x128-c1x1", 1.0, 1.02)
    assert len(report.updated(EMPTY, rows, margin=0.0).entries) == 2


def test_a_table_forgets_what_no_longer_holds_and_keeps_the_rest() -> None:
    stale = Entry(129, 512, 256, "64x64-c1x1", 1.0)
    kept = Entry(64, 512, 256, "64x64-c1x1", 1.0), Entry(192, 512, 256, "64x64-c1x1", 1.0, scaling="1d1d")
    table = Table(**_table_heading(), entries=(stale, *kept))
    assert report.updated(table, [row(192, a=1.0, b=1.0)]).entries == kept
    assert report.updated(table, [row(192, b=1.0)]).entries == table.entries, (
        "without the model's time nothing is known"
    )
    replaced = report.updated(table, [row(130, a=2.0, b=1.0)]).entries
    assert [entry.tile for entry in replaced] == ["64x64-c1x1", "64x64-c1x1", "128x128-c1x1"]


def test_several_m_of_a_step_share_the_entry_that_is_best_for_all() -> None:
    rows = [row(97, a=2.0, b=1.0, c=1.9), row(128, a=2.0, b=3.0, c=1.5)]
    (entry,) = report.updated(EMPTY, rows).entries
    assert (entry.tile, entry.key[0], entry.us, entry.model_us) == ("64x64-c1x1", 128, 1.5, 2.0)
    apart = report.updated(EMPTY, [row(96, a=2.0, b=1.0, c=1.9), rows[1]]).entries
    assert [(each.tile, each.key[0]) for each in apart] == [("128x128-c1x1", 96), ("64x64-c1x1", 128)]


def test_static_weights_have_entries_of_their_own_and_swapped_configs_their_label() -> None:
    swapped = "swap8x16-k2-d4-c1"
    times = Row(Shape(5, 512, 256), {A: 2.0, swapped: 1.0}, choice=A, model=A)
    (plain,) = report.updated(EMPTY, [times]).entries
    assert (plain.tile, plain.static_weights, plain.key[0]) == (swapped, False, 8)
    both = report.updated(Table(**_table_heading(), entries=(plain,)), [times], static_weights=True)
    assert both.entries == (plain, replace(plain, static_weights=True))
    slower = Row(times.shape, {A: 1.0, swapped: 2.0}, choice=A, model=A)
    assert report.updated(both, [slower], static_weights=True).entries == (plain,)


def test_work_for_static_weights_is_ranked_for_them() -> None:
    chip, ranked = named_chip("h200"), []
    for static in (False, True):
        problem = Problem(8, 2240, 7168, static_weights=static)
        ranked.append([config.label for config in eligible_configs(problem, chip, NO_TABLES)])
        work = command.plan_work(problem, chip, None)
        assert list(work.candidates) == ranked[-1] and work.model == ranked[-1][0]
    assert ranked[0] != ranked[1]


def test_results_are_found_again_and_what_is_missing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    first = Results(HEADING, path)
    first.add(merged(Row(SHAPE, choice=A, model=A), {A: 1.23456}, {"tensorwise": 2.0}, {C: "broken"}))
    assert recorded_seed(path) == 5 and recorded_seed(tmp_path / "none.json") is None
    document = json.loads(path.read_text())
    assert document | {"rows": []} == {**HEADING, "rows": []}
    assert document["rows"] == [
        {"m": 200, "n": 512, "k": 256, "us": {A: 1.235}, "peers": {"tensorwise": 2.0}, "failed": {C: "broken"}}
        | {"choice": A, "model": A}
    ]
    known = Results(HEADING, path).row(SHAPE, choice=B, model=B)
    assert known.choice == B and known.missing([A, B, C, "tensorwise"]) == [B]
    assert Results(HEADING, path).row(Shape(1, 2, 16), choice=B, model=B).missing([A]) == [A]
    assert merged(known, {C: 3.0}, {}, {}).failed == {}
    assert [one.name for one in path.parent.iterdir()] == ["results.json"]


def test_times_of_another_regime_are_not_mixed(tmp_path: Path) -> None:
    """A heading from before there were others is of turns."""
    Results(HEADING, tmp_path / "r.json").write()
    Results({**HEADING, "regime": "turn"}, tmp_path / "r.json")
    with pytest.raises(InputError, match=r"r\.json: expected times of regime 'sustained', got 'turn'"):
        Results({**HEADING, "regime": "sustained"}, tmp_path / "r.json")


@pytest.mark.parametrize(("own", "files"), [(True, False), (False, True), (True, None), (None, True)])
def test_times_of_another_kind_of_launch_are_not_mixed(own: bool | None, files: bool | None, tmp_path: Path) -> None:
    """None: a heading from before there were static weights, so that there were none."""

    def heading(static: bool | None) -> dict[str, Any]:
        return HEADING if static is None else {**HEADING, "static_weights": static}

    Results(heading(files), tmp_path / "r.json").write()
    with pytest.raises(InputError, match=r"r\.json: expected times of static_weights"):
        Results(heading(own), tmp_path / "r.json")
    Results(heading(files), tmp_path / "r.json")
    Results(heading(files or None), tmp_path / "r.json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "expected results of fp8gemm tune"),
        ("[]", "expected results of fp8gemm tune"),
        (json.dumps(HEADING), '"rows"'),
        (
            json.dumps({**HEADING, "gpu": "NVIDIA H20", "rows": []}),
            "expected times of gpu 'NVIDIA H200', got 'NVIDIA H20'",
        ),
        (json.dumps({**HEADING, "rows": [{"m": 1}]}), "row 0"),
        (json.dumps({**HEADING, "rows": [{"m": 1, "n": 1, "k": 16, "us": {A: -1}}]}), "positive times"),
    ],
)
def test_results_of_another_kind_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Results(HEADING, path)
    assert str(path) in str(caught.value) and complaint in str(caught.value)
