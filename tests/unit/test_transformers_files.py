"""Files of a checkpoint that are none: refused before that library's loader opens them, and would wait or crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.errors import InputError
from fp8gemm.integrations.transformers.checkpoint import Header, check_files, read_headers

WEIGHTS = "model.safetensors"


def with_header(raw: bytes, length: int | None = None) -> Callable[[Path], object]:
    return lambda path: path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


HEADERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (os.mkfifo, "FIFO, no regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "device, no regular file"),
    "a directory": (lambda path: path.mkdir(), "directory, no regular file"),
    "nothing": (lambda path: path.write_bytes(b""), "a header of 0 bytes"),
    "4 GB of nothing": (sparse, "a header of 0 bytes"),
    "a header that is longer than the file": (with_header(b"{}", 1000), "a header of 1000 bytes"),
    "a header of exabytes": (with_header(b"{}", 1 << 62), "2 to 33554432"),
    "a header that is no JSON": (with_header(b"{]"), "a header that is none"),
    "a header of brackets": (with_header(b"[" * 100_000), "deep"),
    "a header that is a list": (with_header(b"[1]"), "a header that is none"),
    "a tensor that is a number": (with_header(b'{"a": 1}'), "a header that is none"),
    "a tensor without a shape": (with_header(b'{"a": {"dtype": "F32"}}'), "a header that is none"),
    "a shape of strings": (with_header(b'{"a": {"dtype": "F32", "shape": ["1"]}}'), "a header that is none"),
    "a size of 400 digits": (with_header(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 400 + b"]}}"), "100 digits"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_weights_that_are_no_such_file_are_refused_at_once(tmp_path: Path, case: str) -> None:
    make, complaint = HEADERS[case]
    make(tmp_path / WEIGHTS)
    started = time.monotonic()
    with pytest.raises(InputError, match=f"{WEIGHTS}: expected a .safetensors file, got: .*{complaint}") as caught:
        read_headers(tmp_path)
    assert time.monotonic() - started < 2 and len(str(caught.value)) < 400


def test_headers_are_read_as_they_were_written(tmp_path: Path) -> None:
    tensors = {"a": {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6]}, "__metadata__": {"format": "pt"}}
    with_header(json.dumps(tensors).encode() + b"  ")(tmp_path / WEIGHTS)
    with_header(b'{"b": {"dtype": "F32", "shape": []}}')(tmp_path / "z.safetensors")
    assert read_headers(tmp_path) == {"a": Header("F8_E4M3", (2, 3)), "b": Header("F32", ())}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", f"{WEIGHTS}.index.json"])
def test_what_the_loader_would_wait_for_is_refused(tmp_path: Path, name: str) -> None:
    check_files(tmp_path)
    (tmp_path / name).write_text("{}")
    check_files(tmp_path)
    for make, complaint in (
        (os.mkfifo, "FIFO, no regular file"),
        (sparse, "of at most [0-9]+ bytes, got one of 4294967296"),
        (lambda path: path.write_text("[" * 100_000), "deep"),
    ):
        (tmp_path / name).unlink()
        make(tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: expected a {name}.*{complaint}"):
            check_files(tmp_path)
