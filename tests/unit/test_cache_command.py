"""``fp8gemm cache`` as people and scripts meet it: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import __version__, settings
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.manifest import MANIFEST
from fp8gemm.cache.store import Store
from fp8gemm.cli import cache as command
from fp8gemm.cli import cache_report as report
from fp8gemm.cli import main as cli
from tests.jit.caches import fill, finds, kernel, name_of
from tests.jit.cases import snapshot

ROOT = Path(__file__).resolve().parents[2]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Path]:
    """The directory that receives new kernels, with two of them; before it comes one that does not exist."""
    place = fill(tmp_path / "cache", 1, 2).path
    with settings.scope(cache_dirs=(tmp_path / "image", place), trusted_dirs=()):
        yield place


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command; its exit code and what it printed on standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["cache", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def call_json(call: Call) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        code, out, err = call(*arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return run


CallJson = Callable[..., tuple[int, dict[str, Any]]]


def size_text(place: Path) -> str:
    """How much lies there, as it is printed."""
    return report.size_text(sum(path.stat().st_size for path in place.rglob("kernel.*")))


def test_ls_lists_every_directory_and_what_lies_there(call: Call, call_json: CallJson, place: Path) -> None:
    (place / "notes \udcff").write_text("")
    (place / f".quarantine-{name_of(1)}-01234567").mkdir()
    (place / name_of(2) / CUBIN).write_bytes(b"junk")
    os.utime(place / name_of(1), (1e9, 1e9))
    code, out, err = call("ls")
    lines = out.splitlines()
    assert (code, err) == (0, "") and lines[0] == f"{place}: writable, 2 kernels, {size_text(place)}, 1 damaged"
    first, second = (line for line in lines if " tiny-" in line)
    assert first.startswith(f"{size_text(place / name_of(1)):>10}") and first.split()[2:5] == ["168", "8", "12.9"]
    assert first.endswith(" d  ok       tiny-1.00000000")
    assert "damaged  tiny-2.00000000: kernel.cubin does not have the SHA-256" in second
    assert [line for line in lines if "leftover" in line or "ours" in line] == [
        f"leftover, 0 B, 0 s: .quarantine-{name_of(1)}-01234567",
        "not ours: 'notes \\udcff'",
    ]
    assert lines[-1] == f"{place.parent / 'image'}: not there yet"

    code, found = call_json("ls")
    (directory,) = found["directories"]
    assert (code, found["count"], found["absent"]) == (0, 2, [str(place.parent / "image")])
    assert (directory["path"], directory["state"], directory["damaged"]) == (str(place), "writable", 1)
    intact, damaged = directory["kernels"]
    assert (intact["label"], intact["n"], intact["k"], intact["registers"]) == ("tiny-1", 7168, 2048, 168)
    assert (intact["arch"], intact["family"], intact["nvrtc_version"]) == ("sm_90a", "Tiny", "12.9")
    assert intact["problem"] is None and damaged["problem"] and intact["age_s"] > 1e8
    assert found["bytes"] == directory["bytes"] == intact["bytes"] + damaged["bytes"]


def test_several_directories_have_a_total(call: Call, place: Path) -> None:
    fill(place.parent / "image", 1, 3, 4)
    assert call("ls")[1].splitlines()[-1].startswith("total: 5 kernels, ")
    assert call("ls", place)[1].count("tiny-") == 2


def test_verify_fails_for_damage_and_for_a_broken_seal(call: Call, call_json: CallJson, place: Path) -> None:
    assert call("verify")[:2] == (
        0,
        f"{place}: writable, 2 kernels; 0 problems\n{place.parent / 'image'}: not there yet\n",
    )
    (place / name_of(1) / CUBIN).write_bytes(b"junk")
    code, out, _ = call("verify", place)
    assert code == 1 and f"  {name_of(1)} is damaged: {CUBIN} does not" in out
    code, found = call_json("verify")
    assert code == 1 and not found["ok"] and len(found["directories"][0]["problems"]) == 1

    image = fill(place.parent / "image", 1).path
    assert call("seal", image)[0] == 0
    assert call("verify", image)[:2] == (0, f"{image}: sealed, 1 kernel; 0 problems\n")
    image.chmod(0o755)
    (image / MANIFEST).unlink()
    image.chmod(0o555)
    code, found = call_json("verify", image)
    assert code == 1 and found["directories"][0]["problems"] == [f"{MANIFEST} is missing"]


def test_seal_tells_what_it_did(call: Call, call_json: CallJson, place: Path) -> None:
    size = size_text(place)
    code, out, err = call("seal", place)
    assert (code, out, err) == (0, f"{place}: sealed: 2 kernels, {size}, compiled by NVRTC 12.9\n", "")
    code, found = call_json("seal", place)
    assert code == 0 and found["already_sealed"] and found["version"] == __version__
    assert (found["count"], found["nvrtc_versions"]) == (2, ["12.9"])
    assert "was sealed already" in call("seal", place)[1]
    place.chmod(0o755)
    (place / name_of(2)).chmod(0o755)
    shutil.rmtree(place / name_of(2))
    lacking = f"{name_of(2)} is missing: {MANIFEST} lists it"
    assert call("verify", place)[:2] == (1, f"{place}: writable, 1 kernel; 1 problem\n  {lacking}\n")
    code, out, err = call("seal", place)
    assert (code, out) == (1, "") and f"{lacking}; --anew" in err
    assert call("seal", place, "--anew")[0] == 0
    for action in (("prune", "--older-than", "0s", "--dry-run"), ("clear", "--yes"), ("import", "nowhere")):
        before = snapshot(place)
        code, out, err = call(*action)
        assert (code, out) == (1, "") and err.startswith("fp8gemm: ") and snapshot(place) == before
    assert "sealed" in call("clear", "--yes")[2] and finds(place, 1)


def test_export_and_import_carry_everything_that_is_intact(
    call: Call, call_json: CallJson, place: Path, tmp_path: Path
) -> None:
    first = replace(kernel(1), cubin=kernel(3).cubin)
    Store([tmp_path / "image"]).publish(first, "// tiny 1\n")
    fill(tmp_path / "image", 3)
    size = size_text(tmp_path / "image")  # as much as the two that are intact
    (place / name_of(2) / CUBIN).write_bytes(b"junk")
    code, out, err = call("export", tmp_path / "file")
    assert code == 0 and out.startswith(f"{tmp_path / 'file'}: 2 kernels, {size}, packed ")
    assert f"left out, damaged: {place / name_of(2)}" in err
    assert call("import", tmp_path / "file", "--into", tmp_path / "there")[0] == 0
    assert finds(tmp_path / "there", 3)
    found_first = Store([tmp_path / "there"]).find(first.label, first.key).entry
    assert found_first is not None and found_first.cubin == first.cubin, "that of the first directory, which is loaded"
    code, found = call_json("import", tmp_path / "file")
    assert (code, found["directory"]) == (0, str(place)), "where new kernels go"
    assert (found["written"], found["present"], found["replaced"]) == (1, 1, 0)
    code, found = call_json("export", tmp_path / "one", "--from", tmp_path / "image")
    assert (code, found["count"], found["left_out"]) == (0, 2, [])
    assert found["file_bytes"] == (tmp_path / "one").stat().st_size
    (tmp_path / "one").write_bytes(b"junk")
    code, _, err = call("import", tmp_path / "one")
    assert code == 1 and "Not a gzipped file" in err and "Traceback" not in err


def test_prune_removes_the_oldest(call: Call, call_json: CallJson, place: Path) -> None:
    os.utime(place / name_of(2), (1e9, 1e9))
    (place / "notes").write_text("keep")
    size = call_json("ls", place)[1]["bytes"]
    code, out, _ = call("prune", "--older-than", "30d", "--dry-run")
    assert code == 0 and "would remove 1 kernel and 0 leftovers" in out and name_of(2) in out and finds(place, 2)
    code, found = call_json("prune", "--max-bytes", size - 1)
    assert (code, [each["name"] for each in found["removed"]]) == (0, [name_of(2)])
    assert found["bytes"] + found["bytes_left"] == size and found["foreign"] == ["notes"]
    assert finds(place, 1) and not finds(place, 2) and (place / "notes").exists()
    assert "removed 0 kernels" in call("prune", place, "--older-than", "1h", "--max-bytes", "1G")[1]
    code, _, err = call("prune")
    assert code == 1 and "--older-than, --max-bytes or both" in err


@pytest.mark.parametrize("answer, code", [("y\n", 0), ("n\n", 1), ("", 1), (None, 1)])
def test_clear_asks_first(
    call: Call, place: Path, answer: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO(answer or "")
    monkeypatch.setattr(terminal, "isatty", lambda: answer is not None)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert call("clear")[0] == code
    assert finds(place, 1) == finds(place, 2) == bool(code)


def test_clear_removes_what_is_ours(call: Call, call_json: CallJson, place: Path) -> None:
    (place / name_of(2) / "notes").write_text("keep")
    code, found = call_json("clear", "--yes")
    assert (code, found["count"], found["left"], found["foreign"]) == (0, 1, {}, [f"{name_of(2)}/notes"])
    assert [path.name for path in place.iterdir()] == [name_of(2)] and finds(place, 2)
    code, out, _ = call("clear", "--yes")
    assert code == 0 and "removed 0 kernels" in out
    assert out.splitlines()[1] == f"  left alone: {name_of(2)}: not ours in it: {name_of(2)}/notes"
    (place / name_of(2) / "notes").unlink()
    assert call("clear", "--yes")[0] == 0 and list(place.iterdir()) == []
    assert call("clear")[0] == 0, "there is nothing to ask about"


def test_what_cannot_be_removed_is_a_failure(call: Call, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", failing)
    code, out, _ = call("clear", "--yes")
    assert code == 1 and "removed 0 kernels" in out
    assert f"still there: {name_of(1)}: [Errno {errno.EROFS}]" in out and finds(place, 1)


def test_a_default_directory_that_is_not_there_yet_is_empty(call: Call, tmp_path: Path) -> None:
    with settings.scope(cache_dirs=(tmp_path / "nowhere",)):
        for action in (("ls",), ("verify",), ("prune", "--max-bytes", "0"), ("clear", "--yes")):
            assert call(*action)[0] == 0
        assert "found none" in call("export", tmp_path / "file")[2]
        assert not (tmp_path / "nowhere").exists() and not (tmp_path / "file").exists()
    with settings.scope(cache_dirs=()):
        for action in (("ls",), ("clear", "--yes"), ("export", tmp_path / "file")):
            code, _, err = call(*action)
            assert code == 1 and "FP8GEMM_CACHE_DIR" in err


def test_a_directory_that_is_named_must_be_one(call: Call, tmp_path: Path, place: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(place)
    for name, reason in (("nowhere", "there is none"), ("file", "found a file"), ("link", "found a symlink")):
        for action in (("ls",), ("verify",), ("seal",), ("prune", "--max-bytes", "0"), ("clear", "--yes")):
            code, out, err = call(action[0], tmp_path / name, *action[1:])
            assert (code, out) == (1, "") and reason in err and err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists() and finds(place, 1)
    with settings.scope(trusted_dirs=(tmp_path / "link",)):
        assert call("ls", tmp_path / "link")[0] == 0


@pytest.mark.parametrize(
    "text, seconds", [("90s", 90), ("1.5m", 90), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert command.parse_age(text) == seconds


@pytest.mark.parametrize("text, size", [("0", 0), ("500M", 500 << 20), ("1.5GiB", 3 << 29), ("2kB", 2048), ("7 b", 7)])
def test_a_size_is_a_number_and_perhaps_a_unit(text: str, size: int) -> None:
    assert command.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "d", "30", "30 days", "-1d", "1e3s", "٣d", "30D"])
def test_another_age_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="30d"):
        command.parse_age(text)


@pytest.mark.parametrize("text", ["", "M", "-1", "5X", "1e3", "0x10", "1,5G", "٣"])
def test_another_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="500M"):
        command.parse_size(text)


def test_sizes_and_ages_are_told_in_their_units() -> None:
    assert [report.size_text(size) for size in (0, 999, 1000, 1024, 10**6, 10**9, 10**16)] == [
        *("0 B", "999 B", "1.0 KiB", "1.0 KiB", "976.6 KiB", "953.7 MiB", "9094.9 TiB")
    ]
    assert [report.age_text(age) for age in (0, 59, 60, 3599, 7200, 86400, 1e9)] == [
        *("0 s", "59 s", "1 min", "59 min", "2 h", "1 d", "11574 d")
    ]


def test_it_runs_without_torch_and_shows_no_bar_to_a_file(place: Path) -> None:
    program = [sys.executable, "-X", "importtime", "-m", "fp8gemm", "cache", "verify", str(place)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=120)
    imported = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert done.returncode == 0 and done.stdout == f"{place}: writable, 2 kernels; 0 problems\n"
    assert "fp8gemm.cli.cache_report" in imported and "torch" not in imported
    assert [line for line in done.stderr.splitlines() if not line.startswith("import time:")] == []


def test_export_writes_no_file_of_the_name_of_a_stream(
    call: Call, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("export", "-")
    assert code == 1 and not out and "expected the name of a file" in err and not (tmp_path / "-").exists()
