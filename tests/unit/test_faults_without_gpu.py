"""Of the faults that must not hurt, what needs no GPU; and that every fault's tests are in the table that runs them.

`tests/gpu/test_faults.py` runs the table on a Hopper GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm.scales import block_count
from tests.children import environment
from tests.gpu.faults import runner
from tests.gpu.faults.table import FAULTS, HERE, ROOT, Fault, functions


def test_the_table_has_every_fault_and_every_fault_its_tests() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 29))
    for fault in FAULTS:
        for file in fault.files:
            assert functions(ROOT / HERE / file, fault.number), f"fault {fault.number}: no tests in {file}"
        for node in fault.nodes:
            path, _, name = node.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(), node


def test_every_fault_test_is_in_the_table() -> None:
    """A file of these is not collected by itself, so what the table forgets would never run."""
    nodes = [node for fault in FAULTS for node in fault.nodes]
    found = 0
    for path in sorted((ROOT / HERE).glob("*.py")):
        for number in range(100):
            for name in functions(path, number):
                found += 1
                assert nodes.count(f"{HERE}/{path.name}::{name}") == 1, f"{path.name}::{name}"
        for line in path.read_text().splitlines():
            assert not line.startswith("def test_") or line.startswith("def test_fault_"), f"{path.name}: {line}"
    assert found > 40


@pytest.mark.parametrize("k", [0, 1, 8, 15, 17, 24, 40, 120, 136, 1000, 7160])
def test_fault_01_other_k_are_refused(k: int) -> None:
    codes = torch.ones(8, k).to(torch.float8_e4m3fn)
    scales_a, scales_b = torch.ones(8, block_count(k)), torch.ones(1, block_count(k))
    out = torch.full((8, 8), 7.0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=f"multiple of 16.*K = {k}$"):
        fp8gemm.gemm(codes, scales_a, codes.clone(), scales_b, out=out)
    with pytest.raises(ValueError, match=f"multiple of 16.*K = {k}$"):
        fp8gemm.plan(codes, scales_b, max_m=8)
    assert (out == 7).all()


PROGRAM = """
import torch, fp8gemm
from fp8gemm.cli import main as cli
x, w = torch.randn(5, 272), torch.randn(136, 272)
a, b = fp8gemm.quantize_activation(x), fp8gemm.quantize_weight(w)
y = fp8gemm.gemm(*a, *b, bias=torch.ones(136), out_dtype=torch.float32)
assert y.shape == (5, 136) and ((y - 1 - x @ w.T).norm() / (x @ w.T).norm()) < 0.1
assert torch.equal(fp8gemm.plan(*b, max_m=8, bias=torch.ones(136), out_dtype=torch.float32)(*a), y)
fp8gemm.select(64, 7168, 2048)
assert cli.main(["info", "--json"]) == 0
"""


def on_a_machine_with(**changes: str) -> dict[str, Any]:
    """What `fp8gemm info` finds where the environment has these changes, once the reference has run there."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment(**changes), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert "Traceback" not in done.stderr and "FP8GEMM_BACKEND=reference" in found["message"]
    return found


def test_fault_20_no_gpu() -> None:
    found = on_a_machine_with(CUDA_VISIBLE_DEVICES="")
    assert found["status"] in ("no GPU", "no driver", "CPU-only torch")
    if found["status"] == "no GPU":
        assert "CUDA_VISIBLE_DEVICES is ''" in found["message"]


def test_fault_20_a_driver_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("This is no library.")
    libraries = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    found = on_a_machine_with(LD_LIBRARY_PATH=libraries)
    assert found["status"] in ("no driver", "CPU-only torch")
    assert "cannot be loaded" in found["message"] or "no CUDA driver can be loaded" in found["message"]


def report(*children: str) -> ElementTree.ElementTree:
    """A JUnit report of one test for each of these."""
    cases = "".join(f"<testcase name='x'>{child}</testcase>" for child in children)
    return ElementTree.ElementTree(ElementTree.fromstring(f"<testsuites><testsuite>{cases}</testsuite></testsuites>"))


SKIP, FAILURE, ERROR = "<skipped message='no GPU'/>", "<failure message='m'/>", "<error message='m'/>"


@pytest.mark.parametrize(
    ("code", "tree", "expected"),
    [
        (0, report("", ""), (2, "passed")),
        (0, report("", SKIP, SKIP), (1, "passed, 2 skipped: no GPU")),
        (0, report(SKIP), (0, "skipped: no GPU")),
        (1, report("", FAILURE), (1, "1 of 2 failed, exit code 1")),
        (1, report("", ERROR), (1, "1 of 2 failed, exit code 1")),
        (1, report("", ""), (2, "0 of 2 failed, exit code 1")),
        (-11, None, (0, "pytest died with code -11")),
        (4, None, (0, "pytest died with code 4")),
        (None, None, (0, "no end within 9 s")),
    ],
)
def test_a_fault_passes_only_if_a_test_passed_and_none_failed(
    code: int | None, tree: ElementTree.ElementTree | None, expected: tuple[int, str]
) -> None:
    assert runner.judge(code, tree, limit_s=9) == expected


def test_a_fault_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    test = tmp_path / "test_hang.py"
    test.write_text("import subprocess\n\ndef test_hang():\n    subprocess.run(['sleep', '60'])\n")
    outcome = runner.run(Fault(99, "a hang", more=(str(test),), limit_s=3), seed=1)
    assert outcome.result == "no end within 3 s" and outcome.seconds < 20


def test_the_tests_of_a_fault_get_the_seed(tmp_path: Path) -> None:
    test = tmp_path / "test_seed.py"
    test.write_text("import os\n\ndef test_seed():\n    assert os.environ['FP8GEMM_TEST_SEED'] == '77'\n")
    fault = Fault(99, "a seed", more=(str(test),), limit_s=60)
    outcome = runner.run(fault, seed=77)
    assert (outcome.tests, outcome.result) == (1, "passed"), outcome.detail
    assert not runner.run(replace(fault, more=(str(tmp_path / "test_none.py"),)), seed=77).result.startswith("passed")
    assert "  99  a seed" in " " + runner.table([outcome]) and outcome.row["tests"] == 1
