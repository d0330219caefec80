"""The programs in examples/ that need no more than one GPU, or none: each runs, and what it computes is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT, environment

MOST_PERCENT = {"product.py": 4.5, "linear_layers.py": 4.0, "experts.py": 8.0}
"""Off what bfloat16 or float32 weights give: quantisation alone is 3.7 % on normal data."""
RUN_ELSEWHERE = {"serve_tp.py"}
"""In tests/distributed."""


def said(name: str, cache: Path, *options: str) -> str:
    words = [sys.executable, str(ROOT / "examples" / name), *options]
    # One thread, because small products on a machine that is busy wait for each other's threads.
    variables = environment(FP8GEMM_CACHE_DIR=str(cache), OMP_NUM_THREADS="1")
    ran = subprocess.run(words, capture_output=True, text=True, env=variables, cwd=cache, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", MOST_PERCENT)
def test_a_program_says_how_far_off_it_is(name: str, tmp_path: Path) -> None:
    last = said(name, tmp_path).splitlines()[-1]
    off = re.search(r"([\d.]+) % off", last)
    assert off is not None and 0.1 < float(off[1]) < MOST_PERCENT[name], last


def test_a_server_answers_every_request_without_compiling(tmp_path: Path) -> None:
    lines = said("cuda_graph_server.py", tmp_path).splitlines()
    assert "kernels are ready" in lines[0]
    assert [line.partition(":")[0] for line in lines[-4:]] == [
        "1 requests in a batch of 1",
        "5 requests in a batch of 8",
        "30 requests in a batch of 32",
        "8 requests in a batch of 8",
    ]


def test_a_model_learns_as_much_with_fp8_products_as_in_bfloat16(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    written, drawn = tmp_path / "loss.json", tmp_path / "loss.png"
    last = said(
        "training_step.py", tmp_path, "--steps", "8", "--json", str(written), "--plot", str(drawn)
    ).splitlines()[-1]
    result = json.loads(written.read_text())
    for losses in result["losses"].values():
        assert len(losses) == 8 and losses[-1] < 0.8 * losses[0]
    exact, bf16, fp8 = (result["unseen"][form] for form in ("float32", "bfloat16", "fp8"))
    assert f"fp8 {fp8:.4f}" in last and abs(fp8 / exact - 1) < 0.02 and abs(bf16 / exact - 1) < 0.01
    assert result["losses"]["fp8"] != result["losses"]["bfloat16"], "nothing was FP8"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_every_program_is_run_by_a_test() -> None:
    programs = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    assert programs == {*MOST_PERCENT, *RUN_ELSEWHERE, "cuda_graph_server.py", "training_step.py"}
