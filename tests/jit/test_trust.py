"""Files that code is read from: how long they may be, and who else may write to them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fp8gemm.cache.trust import UnsafeError, opened_directory, read_regular_file


def test_a_file_is_read_up_to_its_limit_and_no_longer_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with opened_directory(tmp_path, trusted=True) as inside:
        for limit in (5, 6):
            assert read_regular_file("file", inside=inside, limit=limit) == b"12345"
        with pytest.raises(UnsafeError, match=f"^{re.escape('file has 5 bytes; expected at most 4')}$"):
            read_regular_file("file", inside=inside, limit=4)


def test_a_file_that_others_can_write_to_is_read_only_where_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with opened_directory(tmp_path, trusted=True) as inside:
        for mode in (0o620, 0o602):
            os.chmod(tmp_path / "file", mode)
            with pytest.raises(UnsafeError, match=f"its owner alone can write to it; its mode is {mode:04o}"):
                read_regular_file("file", inside=inside, limit=9)
            assert read_regular_file("file", inside=inside, limit=9, trusted=True) == b"1"
