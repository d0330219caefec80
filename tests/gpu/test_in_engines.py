"""vLLM's own tests of DeepGEMM's products, as they are, on a Hopper GPU, with fp8gemm behind ``import deep_gemm``.

They need vLLM itself, with its compiled parts, of the version whose tests `make engines` has fetched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.children import environment
from tests.engines import VERSIONS, place, why_not

FILES = {
    "quantization/test_block_fp8.py": "deep_gemm",
    "moe/test_deepgemm.py": "not fp4",  # FP4 is for SM100
    "moe/test_batched_deepgemm.py": "deepgemm",
    "moe/test_block_fp8.py": "deep_gemm",
}
"""Of vLLM's ``tests/kernels``, and which tests of each."""

PROGRAM = """
import sys
from fp8gemm.integrations.deep_gemm import answers, install
install()
import pytest
code = pytest.main(sys.argv[1:])
assert answers().installed
sys.exit(code)
"""


def why_no_vllm() -> str:
    """Why vLLM's tests cannot be run here; empty if they can."""
    try:
        found = version("vllm")
    except PackageNotFoundError:
        found = "none"
    if found != VERSIONS["vllm"]:
        return f"expected vLLM {VERSIONS['vllm']} in this environment, found {found}"
    return why_not("vllm")


@pytest.mark.parametrize("name", FILES)
def test_vllms_own_tests_pass(name: str, tmp_path: Path, say: Callable[[str], None]) -> None:
    if reason := why_no_vllm():
        pytest.skip(reason)
    # Away from the Python that lies beside them there, which has no compiled parts.
    shutil.copytree(place("vllm") / "tests", tmp_path / "tests")
    command = [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", "-W", "ignore", "-k", FILES[name]]
    command += [str(tmp_path / "tests" / "kernels" / name)]
    variables = environment(VLLM_USE_DEEP_GEMM_E8M0="0")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.strip().splitlines()
    say(f"vLLM's {name}: {last.strip('= ')}")
    assert re.search(r"[1-9]\d* passed", last), last
