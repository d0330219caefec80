"""vLLM's own layers, and vLLM's own tests, on fp8gemm's reference, where `make engines` has fetched them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.children import ROOT, environment
from tests.engines import place, why_not

OF_QUANTIZATION = "tests/kernels/quantization/test_block_fp8.py"


def run(plugin: str, *words: str) -> dict[str, int]:
    """How many tests ended how, in a process of their own."""
    reason = why_not("vllm")
    if reason:
        pytest.skip(reason)
    # A stand-in for Hopper without a GPU: no test may find one.
    variables = environment(FP8GEMM_BACKEND="reference", CUDA_VISIBLE_DEVICES="", VLLM_USE_DEEP_GEMM_E8M0="0")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-p", plugin, *words]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.strip().splitlines()
    return {how: int(count) for count, how in re.findall(r"(\d+) (\w+)", last)}


def test_vllms_linear_layers_take_our_kernel() -> None:
    found = run("tests.engines.vllm_on_cpu", "tests/engines/in_vllm.py")
    assert found["passed"] == 40 and "skipped" not in found


def test_vllms_tests_of_block_fp8_products_pass() -> None:
    """Its products by DeepGEMM of up to 83 rows. The sizes left out are too large for a CPU."""
    chosen = "deep_gemm_matmul and (1- or 7- or 8- or 83-) and 256 and not 4096 and not 13824 and not 7168"
    path = str(place("vllm") / OF_QUANTIZATION)
    found = run("tests.engines.vllms_tests_on_cpu", "--noconftest", path, "-k", chosen)
    assert found["passed"] == 12, found
