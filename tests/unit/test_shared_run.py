"""How a run of tests is divided among commits and processes, and what it keeps from the runs before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import remembered, sharing, thirds
from tests.isolation import run_pytest

NAMES = [f"kernel-{i}" for i in range(100)]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(remembered.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def thirds_of(names: list[str], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found = []
    for choice in thirds.CHOICES:
        monkeypatch.setenv(thirds.VARIABLE, choice)
        found.append(thirds.third_of(names, str))
    return found


def test_three_thirds_are_all_and_none_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    *parts, whole = thirds_of(NAMES, monkeypatch)
    assert whole == NAMES and sorted(name for part in parts for name in part) == sorted(NAMES)
    assert [len(part) for part in parts] == [34, 33, 33] and all(
        part == sorted(part, key=NAMES.index) for part in parts
    )
    assert all(thirds_of(NAMES[:3], monkeypatch)) and thirds_of(NAMES[:2], monkeypatch) == 4 * [NAMES[:2]]


def test_the_third_of_a_commit_is_one_of_them_and_always_the_same() -> None:
    assert thirds.of_commit() == thirds.of_commit() in {"0", "1", "2"}


def test_a_third_that_there_is_not_is_refused_and_the_one_that_is_taken_is_said() -> None:
    def said(choice: str) -> tuple[int | None, str]:
        environment = {**os.environ, thirds.VARIABLE: choice}
        options = ["--collect-only", "tests/unit/test_settings.py"]
        run = run_pytest(options, cwd=remembered.ROOT, environment=environment, limit_s=60)
        return run.code, run.log

    code, log = said("2")
    assert code == 0 and "FP8GEMM_TEST_THIRD=2: " in log
    code, log = said("3")
    assert code != 0 and "expected one of 0, 1, 2, all; got 3" in log


def test_what_was_made_is_known_afterwards_and_what_failed_is_not(kept: Path) -> None:
    calls: list[str] = []

    def make() -> bytes:
        calls.append("")
        if len(calls) == 1:
            raise ValueError
        return b"made" * 1000

    with pytest.raises(ValueError):
        remembered.recall("kind", ("key",), make)
    assert [remembered.recall("kind", ("key",), make) for _ in range(3)] == 3 * [b"made" * 1000]
    assert len(calls) == 2 and len(list(kept.iterdir())) == 1
    for other in (("kind", ("other",)), ("other", ("key",))):
        remembered.recall(*other, make)
    assert len(calls) == 4


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 40])
def test_what_is_damaged_is_made_again(damage: bytes, kept: Path) -> None:
    remembered.recall("kind", ("key",), lambda: 1)
    (path,) = kept.iterdir()
    path.write_bytes(damage)
    assert [remembered.recall("kind", ("key",), lambda: 2), remembered.recall("kind", ("key",), lambda: 3)] == [2, 2]


def test_an_empty_name_of_the_place_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remembered.VARIABLE, "")
    assert [remembered.recall("kind", ("key",), lambda each=each: each) for each in (1, 2)] == [1, 2]
    monkeypatch.delenv(remembered.VARIABLE)
    assert remembered.place() == remembered.ROOT / ".cache" / "test-kernels"


def test_what_was_used_longest_ago_goes_first(kept: Path) -> None:
    for number in range(4):
        remembered.recall("kind", (str(number),), lambda: os.urandom(1000))
        (newest,) = (path for path in kept.iterdir() if path.stat().st_mtime > 1000)
        os.utime(newest, (number, number))
    remembered.recall("kind", ("0",), lambda: b"")
    (kept / "abandoned.part").touch()
    os.utime(kept / "abandoned.part", (0, 0))
    (kept / "fresh.part").touch()
    remembered.evict(kept, 2500)
    left = {path.name: path.stat().st_mtime for path in kept.iterdir()}
    assert sorted(left.values())[0] == 3 and len(left) == 3 and "fresh.part" in left
    assert remembered.recall("kind", ("0",), lambda: b"") != b""
    remembered.evict(kept / "nowhere")


def test_processes_that_make_the_same_at_once_all_get_it(kept: Path) -> None:
    program = "import os, time; from tests import remembered\nfor i in range(200): "
    program += "assert remembered.recall('kind', (str(i),), lambda: bytes(5000)) == bytes(5000)"
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen(command, cwd=remembered.ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[1] for process in running] == 2 * [b""]
    assert len(list(kept.iterdir())) == 200 and not list(kept.glob("*.part"))


def test_tests_of_a_file_keep_together_unless_they_are_long() -> None:
    def of(name: str) -> str:
        return sharing.together(f"tests/{name}")

    assert of("unit/test_a.py::test_b[1]") == of("unit/test_a.py::test_c") != of("jit/test_a.py::test_c")
    assert of("jit/test_kernels.py::test_b[1]") != of("jit/test_kernels.py::test_b[2]")
    order = "jit/test_machine_order.py::test_"
    assert of(f"{order}a[13]") == of(f"{order}b[13]") != of(f"{order}a[12]")
    for name in (*sharing.LONGEST, *sharing.APART, *sharing.BY_PARAMETER):
        assert (sharing.HERE / name).is_file()
