"""What a warmup is asked for - sizes that are none, a recording of nothing - and how it tells what it did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fp8gemm
from fp8gemm.ahead.warming import Warmup
from fp8gemm.cli import main as cli
from fp8gemm.cli.exits import Exit
from fp8gemm.jit.presence import ABSENT, Missing


@pytest.mark.parametrize("shape", [(7168, 2048.0), ("a", 2048), (4.0, 128, 128), (True, 128), (1, 2, 3, 4), 7168, "ab"])
def test_a_shape_that_is_none_is_quoted_beside_what_was_expected(shape: object) -> None:
    expected = "what: expected (N, K) of a weight or (G, N, K) of groups, whole numbers, got "
    with pytest.raises(fp8gemm.InputError, match=f"^{re.escape(expected + repr(shape))}$"):
        fp8gemm.warmup([(128, 128), shape])  # type: ignore[list-item]


def test_no_shape_at_all_is_an_error() -> None:
    with pytest.raises(fp8gemm.InputError, match="^what: expected at least one .*, got none$"):
        fp8gemm.warmup([])


def test_what_is_neither_a_model_nor_shapes_is_named() -> None:
    with pytest.raises(fp8gemm.InputError, match="^what: expected a model, or a list of .*, got 7168$"):
        fp8gemm.warmup(7168)  # type: ignore[arg-type]


def test_so_it_is_where_a_config_is_chosen() -> None:
    fp8gemm.select(64, 7168, 2048)
    with pytest.raises(fp8gemm.InputError, match=r"n: expected a whole number, got 7168.0"):
        fp8gemm.select(64, 7168.0, 2048)  # type: ignore[arg-type]
    with pytest.raises(fp8gemm.InputError, match=r"k: expected a whole number, got 2048.0"):
        fp8gemm.enumerate_configs(7168, 2048.0, 64)  # type: ignore[arg-type]


def test_an_empty_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record").write_text("")
    assert cli.main(["warmup", "--recorded", str(tmp_path / "record"), "--list"]) == Exit.FAILED
    assert "is empty" in capsys.readouterr().err


def told(kernels: int, chips: dict[str, int], quantizers: int, missing: int = 0) -> Warmup:
    lacking = tuple(Missing(f"k{number}", "", ABSENT) for number in range(missing))
    return Warmup(kernels, 0, kernels - missing, 0.1, 0, chips, quantizers, "/there", lacking)


def test_kernels_of_several_chips_are_told_so_that_the_counts_add_up() -> None:
    both = told(85, {"h200": 60, "h100": 55}, 14)
    counts = "71 that multiply (60 for h200, 55 for h100; some for both), 14 that quantise"
    assert str(both).splitlines()[0] == f"85 kernels are ready in /there: {counts}"
    assert "71 that multiply (60 for h200, 55 for h100, 2 for h20; some for several)," in str(
        told(85, {"h200": 60, "h100": 55, "h20": 2}, 14)
    )
    assert "6 that multiply (6 for h200), 16 that quantise" in str(told(22, {"h200": 6}, 16))
    assert "9 that multiply (4 for h200, 5 for h20), 0 that quantise" in str(told(9, {"h200": 4, "h20": 5}, 0))


def test_one_kernel_is_one() -> None:
    assert str(told(1, {"h200": 1}, 0)).startswith(
        "1 kernel is ready in /there: 1 that multiplies (1 for h200), 0 that"
    )
    assert "0 that multiply (0 for h200), 1 that quantises\n" in str(told(1, {"h200": 0}, 1))
    assert str(told(2, {"h200": 2}, 0, missing=1)).startswith("1 of 2 kernels is ready")
    assert told(2, {"h200": 2}, 0, missing=1).lack() == "1 of 2 kernels is not ready in /there: k0"
    assert told(1, {"h200": 1}, 0, missing=1).lack() == "1 of 1 kernel is not ready in /there: k0"
    assert str(told(3, {"h200": 3}, 0, missing=3)).startswith("0 of 3 kernels are ready")
