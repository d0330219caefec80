"""What a warmup is asked for: sizes that are none, and a recording of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import fp8gemm
from fp8gemm.cli import main as cli
from fp8gemm.cli.exits import Exit


@pytest.mark.parametrize(("shape", "named"), [((7168, 2048.0), "K"), (("a", 2048), "N"), ((4.0, 128, 128), "G")])
def test_a_size_that_is_no_whole_number_is_named(shape: tuple[object, ...], named: str) -> None:
    with pytest.raises(fp8gemm.InputError, match=f"{named}: expected a whole number, got"):
        fp8gemm.warmup([shape])  # type: ignore[list-item]


def test_so_it_is_where_a_config_is_chosen() -> None:
    with pytest.raises(fp8gemm.InputError, match=r"n: expected a whole number, got 7168.0"):
        fp8gemm.select(64, 7168.0, 2048)  # type: ignore[arg-type]
    with pytest.raises(fp8gemm.InputError, match=r"k: expected a whole number, got 2048.0"):
        fp8gemm.enumerate_configs(7168, 2048.0, 64)  # type: ignore[arg-type]


def test_an_empty_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record").write_text("")
    assert cli.main(["warmup", "--recorded", str(tmp_path / "record"), "--list"]) == Exit.FAILED
    assert "is empty" in capsys.readouterr().err
