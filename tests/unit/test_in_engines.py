"""vLLM's and SGLang's layers, and tests of vLLM's, on fp8gemm's reference, where `make engines` has fetched them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.children import ROOT, environment
from tests.engines import place, why_not
from tests.thirds import third_of

KERNELS = place("vllm") / "tests" / "kernels"
OF_EXPERTS = (
    "test_batched_deepgemm.py::test_batched_deepgemm_vs_triton[2-512-128-256-16]",
    "test_deepgemm.py::test_deepgemm_vs_triton[32-2-1024-768-128]",
    "test_deepgemm.py::test_deepgemm_vs_triton[32-6-1024-768-128]",
)
"""The smallest of vLLM's tests of its experts for DeepGEMM beside those for Triton. Interpreted, half a minute each."""


def run(engine: str, plugin: str, *words: str, **changes: str) -> dict[str, int]:
    """How many tests ended how, in a process of their own."""
    reason = why_not(engine)
    if reason:
        pytest.skip(reason)
    # A stand-in for Hopper without a GPU: no test may find one.
    variables = environment(FP8GEMM_BACKEND="reference", CUDA_VISIBLE_DEVICES="", **changes)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-p", f"tests.engines.{plugin}", *words]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.strip().splitlines()
    return {how: int(count) for count, how in re.findall(r"(\d+) (\w+)", last)}


def run_in_vllm(plugin: str, *words: str) -> dict[str, int]:
    return run("vllm", plugin, *words, VLLM_USE_DEEP_GEMM_E8M0="0")


def test_vllms_linear_layers_take_our_kernel() -> None:
    found = run_in_vllm("vllm_on_cpu", "tests/engines/in_vllm.py")
    assert found["passed"] == 40 and "skipped" not in found


def test_vllms_wrapper_and_experts_are_answered_here() -> None:
    found = run_in_vllm("vllms_tests_on_cpu", "--noconftest", "tests/engines/in_vllm_experts.py")
    assert found["passed"] == 6 and "skipped" not in found


def test_vllms_tests_of_block_fp8_products_pass() -> None:
    """Its products by DeepGEMM of up to 83 rows. The sizes left out are too large for a CPU."""
    chosen = "deep_gemm_matmul and (1- or 7- or 8- or 83-) and 256 and not 4096 and not 13824 and not 7168"
    path = str(KERNELS / "quantization" / "test_block_fp8.py")
    found = run_in_vllm("vllms_tests_on_cpu", "--noconftest", path, "-k", chosen)
    assert found["passed"] == 12, found


def test_vllms_tests_of_experts_pass() -> None:
    of_rows = "test_deepgemm.py::test_deepgemm_moe_permute_initializes_padding_scales"
    chosen = [of_rows, *third_of(OF_EXPERTS, str)]
    found = run_in_vllm("vllms_tests_on_cpu", "--noconftest", *(str(KERNELS / "moe" / each) for each in chosen))
    assert found["passed"] == len(chosen) and "skipped" not in found, found


@pytest.mark.parametrize("first", ["the plugins", "deep_gemm"])
def test_sglangs_wrapper_layers_and_experts_are_answered_here(first: str) -> None:
    """Whichever is imported first: SGLang's main process loads plugins first, its schedulers import all else before."""
    changes = {"FP8GEMM_ENGINES": "1", "FP8GEMM_TEST_PLUGINS_FIRST": "1" if first == "the plugins" else ""}
    found = run("sglang", "sglang_here", "tests/engines/in_sglang.py", **changes)
    assert found["passed"] == 20 and "skipped" not in found
