"""Tables, colours and bars: what goes to a terminal, and what to a file or a pipe."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fp8gemm.lab.bench.report import ProductTable, Row, Shape
from fp8gemm.terminal.progress import bar, over
from fp8gemm.terminal.screen import PLAIN, Screen, screen
from fp8gemm.terminal.table import Column, Group, Painted, Table, fitted
from tests.children import environment
from tests.pty_runs import COLOURED, fp8gemm, on_terminal

NAME, TEXT = Column("name", 6, left=True), Column("what", 12, left=True)
FIGURES = tuple(Column(f"figure {number}", 10) for number in range(6))
WORDS = "a text of words that goes on for longer than a narrow terminal has room for"


def test_figures_end_on_the_right_and_words_begin_on_the_left() -> None:
    table = Table(Group((NAME, Column("us", 5))), Group((TEXT,), "more"), on=PLAIN)
    assert table.header().splitlines() == ["             | more", "name      us | what"]
    assert table.line("a", "1.5", "b") == "a        1.5 | b"
    assert table.line("a", "1.5", WORDS) == f"a        1.5 | {WORDS}", "in a file a row is a line"
    assert table.remark("failed") == "             | failed"


@pytest.mark.parametrize("columns", [30, 40, 80, 86, 87, 200])
def test_on_a_terminal_nothing_is_cut_off_and_all_of_it_fits(columns: int) -> None:
    table = Table(Group((NAME, *FIGURES)), Group((TEXT,)), on=Screen(columns))
    cells = ["name", *(f"{number}.25" for number in range(6)), WORDS]
    drawn = table.line(*cells)
    assert all(len(line) <= columns for line in [*drawn.split("\n"), *table.header().split("\n")])
    assert drawn.replace("|", " ").split() == [word for cell in cells for word in cell.split()]
    assert table.folded == (columns < 87)


def test_figures_stand_below_their_titles_where_rows_are_folded() -> None:
    table = Table(Group(FIGURES), on=Screen(40))
    *titles, rule = table.header().split("\n")
    rows = table.line(*"123456").split("\n")
    assert len(titles) == len(rows) == 2 and [*map(len, titles)] == [*map(len, rows)] and set(rule) == {"-"}
    assert rows[0].startswith("         1          2") and rows[1].startswith("             4 ")


def test_a_cell_that_is_wider_than_its_column_moves_down() -> None:
    table = Table(Group((NAME, Column("us", 5), Column("ms", 5))), on=Screen(20))
    assert table.line("a", "1", "2") == "a          1     2"
    assert table.line("a-long-name", "1", "2") == "a-long-name     1\n        2"


def test_a_word_longer_than_the_terminal_stays_whole() -> None:
    path = "/a/path/" + "x" * 40
    assert Table(Group((NAME, TEXT)), on=Screen(30)).line("at", f"see {path}") == f"at     see\n       {path}"


def test_a_table_is_as_wide_as_what_is_in_it() -> None:
    rows = [("a", "1", "b"), ("abcdefghij", "12345678", WORDS)]
    table = Table(fitted([Column("", left=True), Column("us"), Column("why", 16, left=True)], rows), on=PLAIN)
    assert table.header() == "                 us why" and table.line(*rows[0]) == "a                 1 b"
    assert table.width == 10 + 1 + 8 + 1 + 16


def test_a_cell_in_a_colour_keeps_its_place() -> None:
    plain, coloured = (Table(Group((NAME, Column("ok", 4), TEXT)), on=Screen(80, on)) for on in (False, True))
    cells = "a", Painted("yes", "green"), Painted("no", "red")
    assert plain.line(*cells) == "a       yes no"
    assert coloured.line(*cells) == "a       \033[32myes\033[0m \033[31mno\033[0m"
    assert coloured.header() == "\033[1mname     ok what\033[0m"


def test_a_benchmark_with_every_peer_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8gemm.lab.bench.report.Table", lambda *groups: Table(*groups, on=Screen(80)))
    peers = ["bf16", "tensorwise", "rowwise", "cublas_block", "deepgemm", "fp8gemm_pdl", "floor"]
    table = ProductTable("fp8gemm", peers)
    row = Row(Shape(16384, 32768, 16384), us=dict.fromkeys(["fp8gemm", *peers], 98765.25), config="128x256-s4-c2x1")
    text = f"{table.header()}\n{table.line(row)}\n{table.remark('deepgemm skipped: ' + WORDS)}"
    assert max(map(len, text.split("\n"))) <= 80 and text.count("98765.25") == 8 and text.count("1.000") == 7
    assert "microseconds per call" in text and "speed of fp8gemm relative to" in text


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "0"}, True, False),
    ],
    ids=str,
)
def test_colours(variables: dict[str, str], terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert screen().colours is expected and (screen().columns is None) is not terminal


def test_a_bar_is_shown_where_it_is_asked_for_and_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(4, "kernels", "warmup", hidden=False) as progress:
        progress.update()
        progress.write("a result")
    told = capsys.readouterr()
    assert told.out == "a result\n" and "warmup:  25%|" in told.err and "1/4 kernels [" in told.err
    assert "ETA 0" in told.err and not told.err.rpartition("\r")[2].strip(), "it is gone in the end"
    assert list(over([1, 2], "layers")) == [1, 2] and not capsys.readouterr().err


COMMANDS = {
    "explain": ["explain", "64", "7168", "2048"],
    "explain, groups": ["explain", "64", "7168", "2048", "--groups", "8"],
    "demo": ["demo", "--m", "1,16", "--nk", "256x512"],
    "ls": ["cache", "ls"],
    "verify": ["cache", "verify"],
    "warmup": ["warmup", "--nk", "256x512", "--max-m", "8", "--check"],
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a few of them."""
    cache = tmp_path_factory.mktemp("terminal") / "k"
    words = fp8gemm("warmup", "--nk", "256x512", "--max-m", "8", "--chip", "h200", "--cache-dir", str(cache))
    subprocess.run(words, check=True, capture_output=True, env=environment())
    return cache


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_fit_a_terminal_and_are_plain_in_a_pipe(name: str, kernels: Path) -> None:
    words = fp8gemm(*COMMANDS[name])
    shown = on_terminal(words, FP8GEMM_CACHE_DIR=str(kernels))
    fitting = [line for line in shown.lines if len(line) <= 80 or " " not in line.strip()]
    assert fitting == shown.lines and any(fitting)
    uncoloured = on_terminal(words, FP8GEMM_CACHE_DIR=str(kernels), NO_COLOR="1")
    assert not COLOURED.search(uncoloured.terminal)
    piped = subprocess.run(words, capture_output=True, text=True, env=environment(FP8GEMM_CACHE_DIR=str(kernels)))
    assert "\x1b" not in piped.stdout + piped.stderr and "%|" not in piped.stderr


def test_info_and_doctor_wrap_what_they_say_and_doctor_colours_its_words() -> None:
    told = on_terminal(fp8gemm("doctor"), FP8GEMM_CACHE_DIR="/tmp/none-there")
    assert all(len(line) <= 80 or "/" in line for line in told.lines)
    assert "\x1b[32mok\x1b[0m" in told.terminal
    told = on_terminal(fp8gemm("info"))
    assert told.code == 0 and all(len(line) <= 80 or "/" in line for line in told.lines)


def test_a_warmup_shows_its_progress_and_an_eta_on_a_terminal_alone(tmp_path: Path) -> None:
    words = fp8gemm("warmup", "--quantizers", "512", "--json", "--cache-dir")
    shown = on_terminal([*words, str(tmp_path / "a")], errors_alone=True)
    assert shown.code == 0 and "warmup: " in shown.terminal and "kernels [" in shown.terminal
    assert "ETA 0" in shown.terminal and "100%" not in json.dumps(json.loads(shown.piped))
    piped = subprocess.run([*words, str(tmp_path / "b")], capture_output=True, text=True, env=environment())
    assert piped.returncode == 0 and piped.stderr == "" and json.loads(piped.stdout)["compiled"] > 0
