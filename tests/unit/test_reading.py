"""Files that a user names: what is no regular file, too large, too deep or too wide is refused at once, in one line."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.ahead.architectures import read_config
from fp8gemm.cache.archive import import_kernels
from fp8gemm.cache.store import Layer
from fp8gemm.errors import CacheError, InputError
from fp8gemm.kernels.recording import recorded
from fp8gemm.lab.tune.results import Results
from fp8gemm.quoting import quoted, quoted_path
from fp8gemm.reading import MOST_DIGITS, MOST_NESTED, MOST_VALUES, Kind, parse_json, read_bytes, read_json, read_lines
from fp8gemm.tuning.table import read_table
from tests.attacked import attacked

KIND = Kind("a thing", 100)


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(4 << 30)
    return path


def brackets(path: Path) -> Path:
    path.write_text("[" * 100_000)
    return path


def link_to_zero(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def unix_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a FIFO": (fifo, "FIFO, no regular file"),
    "a device": (lambda path: Path("/dev/zero"), "device, no regular file"),
    "a symlink to a device": (link_to_zero, "device, no regular file"),
    "a directory": (directory, "directory"),
    "a socket": (unix_socket, "socket, no regular file"),
    "4 GB of nothing": (sparse, "of at most [0-9]+ bytes"),
    "100,000 brackets": (brackets, "deep|more than 4096 bytes|cache export"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_config,
    "a recording": recorded,
    "a tuned table": read_table,
    "results of tune": lambda path: Results({}, path),
    "an archive": lambda path: import_kernels(path, Layer(path.parent / "there")),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_refused_at_once(tmp_path: Path, reader: str, hostile: str) -> None:
    make, complaint = HOSTILE[hostile]
    path = make(tmp_path / "odd")
    started = time.monotonic()
    with pytest.raises((InputError, CacheError), match=complaint) as caught:
        READERS[reader](path)
    assert time.monotonic() - started < 2
    assert (str(path) in str(caught.value) or hostile == "a directory") and len(str(caught.value)) < 400


COMMANDS: dict[str, Callable[[str], tuple[list[str], dict[str, str]]]] = {
    "config.json": lambda path: (["warmup", "--list", "--model", path], {}),
    "a recording": lambda path: (["warmup", "--list", "--recorded", path], {}),
    "a tuned table": lambda path: (["explain", "64", "512", "512"], {"FP8GEMM_TABLES": path}),
    "an archive": lambda path: (["cache", "import", path], {}),
}


@pytest.mark.parametrize("hostile", ["a FIFO", "a device", "4 GB of nothing", "100,000 brackets"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_it_in_one_line_and_little_memory(tmp_path: Path, command: str, hostile: str) -> None:
    path = HOSTILE[hostile][0](tmp_path / "odd")
    words, variables = COMMANDS[command](str(path))
    done = attacked(*words, FP8GEMM_CACHE_DIR=str(tmp_path / "cache"), **variables)
    assert done.code == 1 and done.line.startswith("fp8gemm: ") and str(path) in done.line
    assert done.megabytes < 100 and len(done.line) < 400


def test_what_grows_while_it_is_read_is_not_read_to_its_end() -> None:
    """A file of /proc says that it is empty."""
    with pytest.raises(InputError, match="of at most 100 bytes, got more"):
        read_bytes(Path("/proc/self/smaps"), KIND)
    with pytest.raises(InputError, match="of at most 100 bytes, got more"):
        list(read_lines(Path("/proc/self/smaps"), KIND, 1000))


def test_a_file_is_read_through_a_symlink_and_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link", KIND) == b"x" * 100
    (tmp_path / "file").write_bytes(b"x" * 101)
    with pytest.raises(InputError, match=r"link: expected a thing, of at most 100 bytes, got one of 101"):
        read_bytes(tmp_path / "link", KIND)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"a\n" + b"b" * 11 + b"\n", ":2: .*a line of more than 10"), (b"a\n\xff\n", ":2: .*no UTF-8")],
)
def test_lines_are_bounded_and_text(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "file").write_bytes(content)
    lines = read_lines(tmp_path / "file", KIND, 10)
    assert next(lines) == "a"
    with pytest.raises(InputError, match=complaint):
        next(lines)


def test_lines_end_in_any_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\n\nb")
    assert list(read_lines(tmp_path / "file", KIND, 10)) == ["a", "", "b"]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ("[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1), f"at most {MOST_NESTED} deep"),
        ('{"a":' * 40 + "1" + "}" * 40, f"at most {MOST_NESTED} deep"),
        ("[" * 900 + "]" * 900, f"at most {MOST_NESTED} deep"),
        ("[" * 100_000, f"at most {MOST_NESTED} deep"),
        (f"[{'[],' * MOST_VALUES}1]", f"at most {MOST_VALUES} values"),
        ("1" * (MOST_DIGITS + 1), f"at most {MOST_DIGITS} digits; found one of {MOST_DIGITS + 1}"),
        ("9" * 5000, f"at most {MOST_DIGITS} digits; found one of 5000"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_json_is_bounded(raw: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_json(raw.encode())
    assert len(str(caught.value)) < 200


def test_json_within_the_bounds_is_taken() -> None:
    deep = "[" * MOST_NESTED + "]" * MOST_NESTED
    assert json.dumps(parse_json(deep.encode())) == deep
    assert float(parse_json(b"9" * MOST_DIGITS)) > 1e99
    assert parse_json('{"é": [1.5, null, true]}'.encode()) == {"é": [1.5, None, True]}


def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for name in ("x" * 100_000, "a\0b"):
        for read in READERS.values():
            if read is READERS["results of tune"]:
                continue  # one that is not there is a new one
            with pytest.raises((InputError, CacheError)) as caught:
                read(tmp_path / name)
            assert len(str(caught.value)) < 400


def test_messages_quote_little_and_stay_in_one_line() -> None:
    assert quoted("short") == "'short'" and quoted([1]) == "[1]"
    for value in ("x" * 10**6, ["x" * 10**6], {"x" * 10**6: 1}, 10**1000):
        assert len(quoted(value)) < 90
    assert quoted_path("/a/b.json") == "/a/b.json"
    assert (
        "\n" not in quoted_path("a\nb")
        and "\udcff" not in quoted_path("a\udcff")
        and "\x1b" not in quoted_path("\x1b[2J")
    )
    assert len(quoted_path("/" + "x" * 100_000 + "/config.json")) < 90
    with pytest.raises(InputError, match=r"no\\nsuch'"):
        read_json(Path("no\nsuch"), KIND)


@pytest.mark.parametrize("field", ["schema", "kind"])
def test_a_table_with_a_megabyte_in_a_field_is_refused_in_few_words(tmp_path: Path, field: str) -> None:
    (tmp_path / "table").write_text(json.dumps({"schema": 1, "entries": [], field: "x" * 10**6, "y" * 10**6: 1}))
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / "table")
    assert len(str(caught.value)) < 400
