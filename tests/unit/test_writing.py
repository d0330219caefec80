"""Files that take their names when they are whole, or leave no trace."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8gemm.writing import appearing, obstacle, write_text


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with appearing(file) as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new" and os.listdir(tmp_path) == ["file"]


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_a_block_that_fails_leaves_no_trace(tmp_path: Path, inside: int) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt), appearing(tmp_path / "file"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), appearing("file", inside=inside):
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_where_the_name_cannot_be_taken(tmp_path: Path) -> None:
    (tmp_path / "place" / "full").mkdir(parents=True)
    with pytest.raises(IsADirectoryError), appearing(tmp_path / "place"):
        pass
    assert os.listdir(tmp_path) == ["place"]


def test_a_mode_holds_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with appearing(tmp_path / "given", mode=0o444), appearing(tmp_path / "usual"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"given": 0o444, "usual": 0o600}


def test_a_symlink_is_followed_by_its_path_alone(tmp_path: Path, inside: int) -> None:
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "through"
    with appearing("link", inside=inside) as stream:
        stream.write(b"instead")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "through"


def test_text_is_utf_8_and_its_directories_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "file", "µs\n")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"\xc2\xb5s\n"


def test_what_is_no_file_keeps_its_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    read = list[str]()
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_text()), daemon=True)
    reader.start()
    write_text(tmp_path / "fifo", "text")
    reader.join(10)
    assert read == ["text"] and stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_an_obstacle_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("new/file")
    os.mkfifo(tmp_path / "fifo")
    for free in ("file", "new", "a/b/c", "link", "fifo", "/dev/null", str(tmp_path / "new")):
        assert obstacle(Path(free)) == "", free
    assert obstacle(Path(".")) == f"the directory {tmp_path}"
    assert obstacle(Path("file/below/it")) == f"{tmp_path}/file above it, which is no directory"
    monkeypatch.setattr(os, "access", lambda place, mode: str(place) != str(tmp_path))
    for closed in ("file", "a/b"):
        assert obstacle(Path(closed)) == f"{tmp_path}, which may not be written to"
    assert sorted(os.listdir()) == ["fifo", "file", "link"]
