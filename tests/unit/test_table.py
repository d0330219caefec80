"""Tuned tables: what an entry holds for and what not, who wins, and that lists of kernels stay exact under one."""

from __future__ import annotations

import itertools
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8gemm import settings
from fp8gemm.tuning import table
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import CHIPS, Chip, named_chip
from fp8gemm.tuning.problem import (
    FEW_ROWS,
    Addend,
    OutputType,
    Problem,
    Scaling,
    StoreKind,
    counted_rows,
    packed_problem,
)
from fp8gemm.tuning.select import (
    Config,
    config_by_m,
    eligible_configs,
    enumerate_configs,
    ranked_configs,
    select,
    select_config,
)
from fp8gemm.tuning.table import NO_TABLES, Entry, Table, Tables, read_table, tile_of, write_table
from fp8gemm.tuning.tiles import TILES

H200 = named_chip("h200")
N, K = 7168, 2048
PROBLEM = Problem(777, N, K)
CANDIDATES = list(candidate_configs(StoreKind.TMA))
HEADING = {"gpu": "NVIDIA H200", "chip": "h200", "num_sms": 132, "date": "2026-01-01", "method": "by hand"}
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The directory that stands for the shipped tables; it is empty."""
    table._shipped.cache_clear()
    table.forget_tables()
    monkeypatch.setattr(table, "SHIPPED", tmp_path / "shipped")
    yield tmp_path / "shipped"
    table._shipped.cache_clear()
    table.forget_tables()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a table with these entries to a new file."""
    count = itertools.count()

    def new(*entries: Entry, path: Path | None = None, **heading: Any) -> Path:
        path = path or tmp_path / f"table-{next(count)}.json"
        write_table(path, Table(**{**HEADING, **heading}, entries=entries))
        return path

    return new


def slow_config(problem: Problem = PROBLEM) -> Config:
    """One that no model would choose."""
    return eligible_configs(problem, H200, NO_TABLES)[-1]


def entry(problem: Problem = PROBLEM, config: Config | None = None, **changes: Any) -> Entry:
    found = Entry(problem.m, problem.n, problem.k, tile_of(config or slow_config(problem)), 12.5)
    kind = {"scaling": problem.scaling.value, "output_bytes": problem.output.bytes}
    return replace(found, **{**kind, "static_weights": problem.static_weights, **changes})


def test_every_shipped_table_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    paths = sorted(table.SHIPPED.glob("*.json"))
    assert paths
    for path in paths:
        found = read_table(path)
        chip = CHIPS[path.stem]
        assert (found.chip, found.num_sms) == (chip.name, chip.num_sms)
        assert found.as_text() == path.read_text()
        stale = [one for one in found.entries if chosen_by_table(found, one, chip) is None]
        assert stale == [], "nothing that the choice may fall on: tune again"


def chosen_by_table(found: Table, one: Entry, chip: Chip) -> Config | None:
    """What an entry makes of the problem that it is for."""
    output = next(output for output in OutputType if output.bytes == one.output_bytes)
    problem = Problem(counted_rows(one.m), one.n, one.k, output, scaling=Scaling(one.scaling))
    problem = replace(problem, static_weights=one.static_weights)
    return Tables([found]).config(problem, chip, eligible_configs(problem, chip, NO_TABLES))


@pytest.mark.parametrize("store", StoreKind)
@pytest.mark.parametrize("scaling", Scaling)
def test_a_tile_names_one_candidate(store: StoreKind, scaling: Scaling) -> None:
    for output in OutputType:
        tiles = [tile_of(config) for config in candidate_configs(store, output, scaling)]
        assert len(set(tiles)) == len(tiles)
    assert tile_of(TileConfig(256, 128, 4, cluster_m=2)) == "256x128-c2x1"


@pytest.mark.parametrize(("first", "m", "last"), [(769, 777, 832), (1, 3, 8), (17, 20, 24), (97, 97, 128)])
def test_an_entry_holds_for_its_step_of_m_and_no_other(first: int, m: int, last: int, write: Write) -> None:
    problem = replace(PROBLEM, m=m)
    slow = slow_config(problem)
    with settings.scope(tables=[write(entry(problem))]):
        assert {select(same, N, K) for same in (first, m, last)} == {slow}
        others = [(last + 1, N, K), (m, N + 64, K), (m, N, K + 128), (N, m, K)] + [(first - 1, N, K)] * (first > 1)
        for other in others:
            assert select(*other) == select_config(packed_problem(*other), H200, NO_TABLES)


def test_the_rest_of_the_ranking_is_the_models(write: Write) -> None:
    model = list(ranked_configs(PROBLEM, H200, NO_TABLES))
    with settings.scope(tables=[write(entry(config=model[5]))]):
        assert list(ranked_configs(PROBLEM, H200)) == [model[5], *model[:5], *model[6:]]
        assert list(ranked_configs(PROBLEM, H200, NO_TABLES)) == model


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, output=OutputType.FLOAT16),
        replace(PROBLEM, c=Addend.FLOAT32, bias=Addend.BFLOAT16),
        replace(PROBLEM, store=StoreKind.PREDICATED),
        replace(PROBLEM, store=StoreKind.PREDICATED, c=Addend.BFLOAT16),
    ],
)
def test_an_entry_holds_for_every_store_and_term_with_the_stages_that_fit(problem: Problem, write: Write) -> None:
    small = next(config for config in CANDIDATES if tile_of(config) == "128x192-c1x1")
    with settings.scope(tables=[write(entry(config=small))]):
        found = select_config(problem, H200)
    assert tile_of(found) == tile_of(small)
    assert found in candidate_configs(problem.store, problem.output, problem.scaling)
    assert (found.stages > small.stages) == (problem.store is StoreKind.PREDICATED)


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, output=OutputType.FLOAT32),
        replace(PROBLEM, scaling=Scaling.ROW),
        replace(PROBLEM, batch_invariant=True),
    ],
)
def test_an_entry_holds_for_no_other_kind_of_product(problem: Problem, write: Write) -> None:
    with settings.scope(tables=[write(entry())]):
        assert ranked_configs(problem, H200) == ranked_configs(problem, H200, NO_TABLES)


@pytest.mark.parametrize(("m", "holds"), [(FEW_ROWS[-1], False), (FEW_ROWS[-1] + 1, True)])
def test_beyond_few_rows_an_entry_holds_for_a_static_weight_too(m: int, holds: bool, write: Write) -> None:
    slow = slow_config(problem := replace(PROBLEM, m=m))
    with settings.scope(tables=[write(entry(problem, slow))]):
        assert (select_config(replace(problem, static_weights=True), H200) == slow) is holds


@pytest.mark.filterwarnings("ignore:.*the entry is passed over")
def test_an_entry_cannot_bring_a_config_that_the_choice_may_not_fall_on(write: Write) -> None:
    """For so many rows, that is: of the others it may bring any, however many kernels the weight has then."""
    few_rows = next(config for config in CANDIDATES if not TILES[config.tile].many and config.cluster_m == 1)
    for m, chosen in ((64, True), (777, False)):
        with settings.scope(tables=[write(entry(replace(PROBLEM, m=m), few_rows))]):
            assert (tile_of(select(m, N, K)) == tile_of(few_rows)) == chosen


@pytest.mark.parametrize(
    "problem",
    [replace(PROBLEM, scaling=Scaling.ROW, output=OutputType.FLOAT32), replace(PROBLEM, m=256, static_weights=True)],
)
def test_other_kinds_have_entries_of_their_own(problem: Problem, write: Write) -> None:
    slow = slow_config(problem)
    with settings.scope(tables=[write(entry(problem, slow))]):
        assert select_config(problem, H200) == slow
        plain = replace(PROBLEM, m=problem.m)
        assert select_config(plain, H200) == select_config(plain, H200, NO_TABLES)


def test_a_table_holds_for_its_chip(write: Write) -> None:
    slow = slow_config()
    with settings.scope(tables=[write(entry())]):
        for chip in (*(named_chip(name) for name in CHIPS if name != "h200"), replace(H200, num_sms=131)):
            assert select_config(PROBLEM, chip) == select_config(PROBLEM, chip, NO_TABLES)
        assert select_config(PROBLEM, replace(H200, l2_bytes=1)) == slow
    with settings.scope(tables=[write(entry(), num_sms=131)]):
        assert select_config(PROBLEM, replace(H200, num_sms=131)) == slow


def test_the_first_table_that_knows_a_shape_decides_and_the_shipped_ones_are_last(
    write: Write, nothing_shipped: Path
) -> None:
    *_, third, second, first = eligible_configs(PROBLEM, H200, NO_TABLES)
    one, two = write(entry(config=first)), write(entry(config=second))
    other = write(entry(m=1, config=first))
    write(entry(config=third), path=nothing_shipped / "h200.json")
    orders = {(): third, (one, two): first, (two, one): second, (other, two): second, (other,): third}
    for paths, expected in orders.items():
        with settings.scope(tables=paths):
            assert select(777, N, K) == expected


tuned = st.lists(st.tuples(st.integers(1, 200) | st.integers(1, 2000), st.integers(-40, 40)), max_size=12)


@hypothesis.settings(max_examples=60, deadline=None)
@given(
    entries=tuned,
    m=st.integers(1, 2200),
    nk=st.sampled_from([(N, K), (100, 112), (24576, 1536)]),
    chip=st.sampled_from(["h200", "h20"]),
    static=st.booleans(),
)
@hypothesis.example(entries=[(8, 9)], m=1, nk=(N, K), chip="h200", static=False)
@hypothesis.example(entries=[(64, 9)], m=1, nk=(N, K), chip="h200", static=True)
@hypothesis.example(entries=[(129, -1)], m=128, nk=(N, K), chip="h200", static=False)
@hypothesis.example(entries=[(2000, -1)], m=64, nk=(N, K), chip="h200", static=False)
@hypothesis.example(entries=[(64, -1)], m=2000, nk=(N, K), chip="h200", static=True)
def test_lists_of_kernels_are_exact_under_a_table(
    entries: list[tuple[int, int]], m: int, nk: tuple[int, int], chip: str, static: bool
) -> None:
    """``m`` is the largest: entries lie below and above it, and name any of a ranking."""

    def problem(rows: int) -> Problem:
        return replace(packed_problem(counted_rows(rows), *nk), static_weights=static)

    by_step: dict[int, Config] = {}
    for rows, place in entries:
        ranked = ranked_configs(problem(rows), H200, NO_TABLES)
        by_step[counted_rows(rows)] = ranked[place % len(ranked)]
    force = Tables([Table(**HEADING, entries=tuple(entry(problem(rows), config) for rows, config in by_step.items()))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fp8gemm.tuning.select.tables_in_force", lambda: force)
        chosen = [select(each, *nk, chip=chip, static_weights=static) for each in range(1, m + 1)]
        assert list(enumerate_configs(*nk, m, chip=chip, static_weights=static)) == list(dict.fromkeys(chosen))
        steps = config_by_m(replace(packed_problem(m, *nk), static_weights=static), named_chip(chip))
    for each, config in enumerate(chosen, start=1):
        assert config == next(config for largest, config in steps if each <= largest)
        tuned_config = by_step.get(counted_rows(each))
        eligible = eligible_configs(problem(each), H200, NO_TABLES)
        named = [choice for choice in eligible if tuned_config and tile_of(choice) == tile_of(tuned_config)]
        if chip == "h200" and named:
            assert [config] == named  # of a tile with two depths of the ring, the one for so many tiles
        else:
            assert config == select_config(problem(each), named_chip(chip), NO_TABLES)


def test_the_choice_follows_the_settings(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    model, slow, path = select(777, N, K), slow_config(), write(entry())
    for _ in range(2):
        with settings.scope(tables=[path]):
            assert select(777, N, K) == slow != model
        assert select(777, N, K) == model
    monkeypatch.setenv("FP8GEMM_TABLES", str(path))
    try:
        settings.reload()
        assert select(777, N, K) == slow
    finally:
        monkeypatch.undo()
        settings.reload()


def test_a_file_is_read_once_and_again_when_asked_to(write: Write) -> None:
    model, slow, path = select(777, N, K), slow_config(), write(entry())
    with settings.scope(tables=[path]):
        assert select(777, N, K) == slow
        path.unlink()
        assert (select(777, N, K), select(5, N, K)) == (slow, select_config(Problem(5, N, K), H200, NO_TABLES))
        write(path=path)
        table.forget_tables()
        assert select(777, N, K) == model


def test_a_choice_made_before_costs_next_to_nothing(write: Write) -> None:
    """It is part of every launch. A quarter of this was measured."""
    with settings.scope(tables=[write(entry())]):
        select(777, N, K)
        seconds = min(timeit.repeat(lambda: select(777, N, K), number=200, repeat=50)) / 200
    assert seconds < 2e-6
