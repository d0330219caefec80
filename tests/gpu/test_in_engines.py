"""vLLM's own tests of DeepGEMM's products, as they are, and SGLang's layers, on a Hopper GPU, with fp8gemm behind
``import deep_gemm``.

They need the engines' Python and vLLM's compiled parts, which ``make engines ARGS=--compiled`` fetches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.children import ROOT, environment
from tests.engines import compiled, place, why_not

KERNELS = place("vllm") / "tests" / "kernels"
FILES = {
    "quantization/test_block_fp8.py": "deep_gemm",
    "moe/test_deepgemm.py": "not fp4",  # FP4 is for SM100
    "moe/test_batched_deepgemm.py": "deepgemm",
}
"""Of these, and which tests of each. Those of ``moe/test_block_fp8.py`` vLLM skips unless scales stay as they are, and
then they end ahead of any product, in vLLM: they hand it False where ``expert_map`` is a tensor or None."""


def why_no_vllm() -> str:
    """Why vLLM's tests cannot be run here; empty if they can."""
    if reason := why_not("vllm"):
        return reason
    return "" if compiled().is_dir() else f"no {compiled()}: make engines ARGS=--compiled fetches it"


@pytest.mark.parametrize("scales", ["as they are", "powers of two"])
@pytest.mark.parametrize("name", FILES)
def test_vllms_own_tests_pass(name: str, scales: str, tmp_path: Path, say: Callable[[str], None]) -> None:
    if reason := why_no_vllm():
        pytest.skip(reason)
    # Each of them is seconds of one core, and there are two hundred; they share nothing.
    words = ["-n", "4", "--noconftest", "-p", "tests.engines.vllm_on_gpu", "-k", FILES[name], str(KERNELS / name)]
    said = last_line(words, tmp_path, VLLM_USE_DEEP_GEMM_E8M0=str(int(scales == "powers of two")))
    say(f"vLLM's {name}, scales {scales}: {said}")
    assert re.search(r"[1-9]\d* passed", said), said


@pytest.mark.parametrize("first", ["the plugins", "deep_gemm"])
def test_sglangs_wrapper_layers_and_experts_are_answered_here(
    first: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Those of `tests.unit.test_in_engines`, with kernels."""
    if reason := why_not("sglang"):
        pytest.skip(reason)
    changes = {"FP8GEMM_ENGINES": "1", "FP8GEMM_TEST_PLUGINS_FIRST": "1" if first == "the plugins" else ""}
    words = ["-n", "0", "-p", "tests.engines.sglang_here", str(ROOT / "tests" / "engines" / "in_sglang.py")]
    said = last_line(words, tmp_path, FP8GEMM_TEST_ON_GPU="1", **changes)
    say(f"in SGLang, {first} first: {said}")
    assert re.match("20 passed", said) and "skipped" not in said, said


def last_line(words: list[str], directory: Path, **changes: str) -> str:
    """The end of what a run of pytest said, in which nothing failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *words]
    variables = environment(**changes)
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.strip().splitlines()
    return last.strip("= ")
