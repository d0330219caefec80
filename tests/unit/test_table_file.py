"""A tuned table as a file: written and read back; one that is malformed or missing is an error that says how."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.tuning.select import enumerate_configs, select
from fp8gemm.tuning.table import Entry, Table, forget_tables, read_table, tile_of, write_table

N, K = 7168, 2048
HEADING = {"gpu": "NVIDIA H200", "chip": "h200", "num_sms": 132, "date": "2026-01-01", "method": "by hand"}
ENTRY = {"m": 777, "n": N, "k": K, "tile": "64x64-c1x1", "us": 12.5}


def document(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, **HEADING, "entries": [ENTRY], **changes}


MALFORMED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "in JSON"),
    "no object": ([ENTRY], '"schema": 1, got schema None'),
    "another schema": (document(schema=2), '"schema": 1, got schema 2'),
    "no entries": ({"schema": 1, **HEADING}, '"entries" to be a list, got None'),
    "entries by name": (document(entries={}), '"entries" to be a list, got {}'),
    "an unknown field": (document(colour="red"), "expected the fields gpu, chip, num_sms, date, method, got"),
    "no chip": ({"schema": 1, "entries": []}, "expected the fields"),
    "a chip that is no name": (document(chip=7), "expected chip to be a string, got 7"),
    "no SMs": (document(num_sms=0), "expected num_sms to be a positive whole number, got 0"),
    "an entry that is a list": (document(entries=[ENTRY, [1, 2]]), "entry 1: expected an object, got [1, 2]"),
    "an entry without tile": (document(entries=[{"m": 1, "n": 1, "k": 16, "us": 1}]), "entry 0: expected the fields"),
    "a negative M": (document(entries=[{**ENTRY, "m": -1}]), "entry 0: expected m to be a positive whole number"),
    "a fraction": (document(entries=[{**ENTRY, "n": 64.5}]), "expected n to be a positive whole number, got 64.5"),
    "a truth": (document(entries=[{**ENTRY, "k": True}]), "expected k to be a positive whole number, got True"),
    "a tile that is no name": (document(entries=[{**ENTRY, "tile": [64, 64]}]), "expected tile to be a string"),
    "no time": (document(entries=[{**ENTRY, "us": float("nan")}]), "expected us to be a positive number, got nan"),
    "a scaling": (document(entries=[{**ENTRY, "scaling": "2d"}]), "scaling to be one of 1d2d, 1d1d, got '2d'"),
    "a weight that is static by number": (document(entries=[{**ENTRY, "static_weights": 1}]), "true or false, got 1"),
    "one step twice": (document(entries=[ENTRY, {**ENTRY, "m": 832}]), "got entries 0 and 1 for M = 832"),
    "a step of few rows twice": (document(entries=[{**ENTRY, "m": m} for m in (8, 9, 16)]), "entries 1 and 2 for M"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_table_is_named_with_what_was_expected_and_what_came(case: str, tmp_path: Path) -> None:
    found, complaint = MALFORMED[case]
    path = tmp_path / "odd.json"
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    with settings.scope(tables=[path]), pytest.raises(InputError) as caught:
        select(64, N, K)
    assert str(caught.value).startswith(f"{path}: ") and complaint in str(caught.value)


def test_a_missing_table_is_no_silence(tmp_path: Path) -> None:
    with settings.scope(tables=[tmp_path / "nowhere.json"]), pytest.raises(InputError, match="nowhere.json: expected"):
        select(64, N, K)


def test_a_tile_that_is_no_candidate_is_passed_over_and_told_once(tmp_path: Path) -> None:
    stale, sound = tmp_path / "stale.json", tmp_path / "sound.json"
    stale.write_text(json.dumps(document(entries=[{**ENTRY, "m": m, "tile": "384x384-c1x1"} for m in (777, 2000)])))
    usual, slow = select(777, N, K), select(4096, N, K)
    assert tile_of(usual) != tile_of(slow)
    sound.write_text(json.dumps(document(entries=[{**ENTRY, "tile": tile_of(slow)}])))
    forget_tables()
    told = rf"stale.json: expected the tile of a candidate for M up to 832, N = {N}, K = {K}, got '384x384-c1x1'"
    with settings.scope(tables=[stale]):
        with pytest.warns(RuntimeWarning, match=told) as caught:
            assert select(777, N, K) == usual
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            select(780, N, K, static_weights=True)
            enumerate_configs(N, K, 4096)
    with settings.scope(tables=[stale, sound]), pytest.warns(RuntimeWarning, match="passed over"):
        assert tile_of(select(777, N, K)) == tile_of(slow)


def test_nothing_is_told_of_the_tables_that_are_shipped() -> None:
    forget_tables()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enumerate_configs(N, K, 4096)


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    entries = (
        Entry(**ENTRY),
        Entry(**{**ENTRY, "m": 1}, model_us=3.0),
        Entry(**ENTRY, scaling="1d1d", output_bytes=4),
        Entry(**ENTRY, static_weights=True),
    )
    written = Table(**HEADING, entries=entries)
    path = tmp_path / "new" / "table.json"
    write_table(path, written)
    found = read_table(path)
    assert set(found.entries) == set(entries) and replace(found, entries=entries) == written
    assert [len(line.split('"tile"')) for line in path.read_text().splitlines()].count(2) == 4, "a line per entry"
    assert [one.name for one in path.parent.iterdir()] == [path.name]
