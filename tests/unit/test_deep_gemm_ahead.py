"""DeepGEMM's kernels are asked for by other processes, each shape once; one that fails there ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8gemm.lab.bench.deep_gemm_ahead import compile_deep_gemm
from fp8gemm.lab.bench.report import Shape

MODULE = """\
import os
def fp8_gemm_nt(a, b, out, c=None, recipe=None):
    (codes_a, scales_a), (codes_b, scales_b) = a, b
    if recipe:
        assert recipe == (1, 1, 128) and c is out and out.element_size() == 4 and len(scales_b) == len(codes_b)
        scales_b = scales_b[::128]
    assert scales_a.shape == (len(codes_a), -(-codes_a.shape[1] // 128)) and not codes_b.float().any()
    assert scales_b.shape == (-(-len(codes_b) // 128), scales_a.shape[1]) and out.shape == (len(codes_a), len(codes_b))
    (place := os.environ["DEEP_GEMM_SAW"])
    open(os.path.join(place, f"{len(codes_a)}x{len(codes_b)}x{codes_a.shape[1]}.{os.getpid()}"), "x").close()
    if len(codes_b) == 96:
        os._exit(3)
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a module in DeepGEMM's place, of processes started from here, notes what it was called with."""
    (tmp_path / "deep_gemm.py").write_text(MODULE)
    (seen := tmp_path / "seen").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DEEP_GEMM_SAW", str(seen))
    return seen


def test_every_shape_is_multiplied_once_by_another_process(seen: Path) -> None:
    compile_deep_gemm([Shape(4, 64, 128), Shape(1, 200, 272), Shape(4, 64, 128)], device="cpu")
    assert sorted(path.stem for path in seen.iterdir()) == ["1x200x272", "4x64x128"]


def test_weight_gradients_are_compiled_as_such(seen: Path) -> None:
    compile_deep_gemm([Shape(4, 64, 128), Shape(1, 200, 272)], gradients=True, device="cpu")
    assert sorted(path.stem for path in seen.iterdir()) == ["1x200x272", "4x64x128"]


def test_one_shape_is_left_to_who_measures_it(seen: Path) -> None:
    compile_deep_gemm([Shape(4, 64, 128)], device="cpu")
    assert not list(seen.iterdir())


def test_a_process_that_dies_ends_nothing(seen: Path) -> None:
    compile_deep_gemm([Shape(4, 96, 128), Shape(4, 64, 128)], device="cpu")
    assert "4x96x128" in {path.stem for path in seen.iterdir()}
