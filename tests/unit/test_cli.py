"""The command line without a GPU: what `info` finds, what `demo` computes, and what makes it fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.cache.entry import Entry
from fp8gemm.cache.store import Store
from fp8gemm.cli import findings
from fp8gemm.cli import main as cli
from fp8gemm.driver.device import DeviceStatus, Gpu, Probe
from fp8gemm.errors import CompileError
from fp8gemm.lab.demo import target
from fp8gemm.lab.demo.check import check

ROOT = Path(__file__).resolve().parents[2]
HOPPER, AMPERE = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
SMALL = ["demo", "--json", "--m", "1,40", "--nk", "256x144,100x256"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    """The only cache directory in force; it does not exist yet."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="compile", backend="auto"):
        yield tmp_path / "cache"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the commands find a machine of these facts; by default one without GPU."""

    def pretend(**facts: Any) -> None:
        known = {"torch_version": "2.11.0+cu130", "torch_cuda": (13, 0), "driver_version": (13, 0), **facts}
        for module in (findings, target):
            monkeypatch.setattr(module, "probe", lambda: Probe(**known))

    pretend()
    return pretend


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(arguments)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("facts", "status", "expected"),
    [
        ({}, DeviceStatus.NO_GPU, "shows no GPU"),
        ({"driver_version": (12, 4), "gpus": (HOPPER,)}, DeviceStatus.DRIVER_TOO_OLD, "CUDA 12.4"),
        ({"torch_cuda": None, "gpus": (HOPPER,)}, DeviceStatus.CPU_ONLY_TORCH, "without CUDA"),
        ({"gpus": (AMPERE,)}, DeviceStatus.NOT_HOPPER, "A100"),
        ({"driver_version": None, "driver_problem": "no libcuda"}, DeviceStatus.NO_DRIVER, "no libcuda"),
        ({"gpus": (AMPERE, HOPPER)}, DeviceStatus.READY, "GPU 1"),
    ],
)
def test_info_tells_machines_apart(machine, capsys, facts, status, expected) -> None:
    machine(**facts)
    code, found = run_json(capsys, "info", "--json")
    assert code == 0
    assert found["status"] == status.value and expected in found["message"]
    assert [gpu["name"] for gpu in found["gpus"]] == [gpu.name for gpu in facts.get("gpus", ())]

    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"{status.value}. {found['message']}" in text and all(gpu["name"] in text for gpu in found["gpus"])


def test_info_says_what_is_installed_and_in_force(capsys, cache) -> None:
    with settings.scope(jit="nearest", num_sms=96):
        code, found = run_json(capsys, "info", "--json")
    assert code == 0
    assert (found["version"], found["torch"]["version"]) == (fp8gemm.__version__, torch.__version__)
    assert found["include_dir"] == str(fp8gemm.include_dir())
    assert found["settings"] == {
        "cache_dirs": [str(cache)],
        "trusted_dirs": [],
        "jit": "nearest",
        "backend": "auto",
        "num_sms": 96,
        "batch_invariant": False,
        "pdl": True,
        "tables": [],
        "check_groups": False,
        "record": None,
        "engines": False,
    }


def test_info_says_why_there_is_no_compiler(monkeypatch, capsys) -> None:
    def missing() -> str:
        raise CompileError("NVRTC cannot be loaded: it is not there")

    monkeypatch.setattr(findings, "nvrtc_version", missing)
    code, found = run_json(capsys, "info", "--json")
    assert code == 0
    assert found["nvrtc"] == {"version": None, "problem": "NVRTC cannot be loaded: it is not there"}


def test_info_counts_kernels_and_leaves_the_cache_alone(capsys, cache, tmp_path) -> None:
    _, found = run_json(capsys, "info", "--json")
    layer = {"path": str(cache), "state": "absent", "kernels": 0, "bytes": 0, "note": "not there yet"}
    assert found["cache"] == [layer] and not cache.exists()

    store = Store([cache])
    for digit in "ab":
        store.publish(Entry(digit * 64, "kernel", b"\x7fELF" + bytes(1000), {}), "source")
    (cache / f"half.{'c' * 64}").mkdir()
    (cache / f".quarantine-kernel.{'a' * 64}-01234567").mkdir()
    size = sum(path.stat().st_size for path in cache.glob("kernel.*/*"))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    (loose := tmp_path / "loose").mkdir()
    loose.chmod(0o777)
    with settings.scope(cache_dirs=(loose, cache)):
        _, found = run_json(capsys, "info", "--json")
    first, second = found["cache"]
    assert first["state"] == "refused" and first["note"].startswith("refused") and "0777" in first["note"]
    assert second == {"path": str(cache), "state": "writable", "kernels": 2, "bytes": size, "note": ""}
    assert before == sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path != loose)


def test_a_bad_setting_is_one_line_and_exit_code_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fp8gemm", "info"],
        env={**os.environ, "FP8GEMM_JIT": "often"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fp8gemm: ")]
    assert "FP8GEMM_JIT" in line and "'often'" in line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "command"),
        (["dance"], "dance"),
        (["demo", "--m", "0"], "positive"),
        (["demo", "--m", "1,x"], "'x'"),
        (["demo", "--m", str(2**32)], "2^31"),
        (["demo", "--nk", "7168"], "NxK"),
        (["demo", "--nk", "128x100"], "multiple of 16"),
        (["demo", "--seed", "-1"], "whole number"),
        (["tune", "--shapes", "512x7168"], "MxNxK"),
        (["tune", "--shapes", "512x7168x100"], "multiple of 16"),
        (["tune", "--candidates", "some"], "'some'"),
    ],
)
def test_bad_arguments_are_exit_code_two(capsys, arguments, complaint) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def demo_process(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fp8gemm", *arguments],
        # No GPU is visible to it, whatever this machine has.
        env={**os.environ, "FP8GEMM_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_reader_that_leaves_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        command = [sys.executable, "-m", "fp8gemm", "info"]
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "BrokenPipe" not in done.stderr


def test_demo_compiles_once_and_then_finds_everything_in_the_cache(cache) -> None:
    done = demo_process(cache, *SMALL)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["ok"] and first["backend"] == "reference" and first["cache"] == [str(cache)]
    assert [(row["m"], row["n"], row["k"]) for row in first["rows"]] == [
        (1, 256, 144),
        (40, 256, 144),
        (1, 100, 256),
        (40, 100, 256),
    ]
    kernels = {row["key"] for row in first["rows"]}
    assert first["kernels_compiled"] == len(kernels) == len(list(cache.glob("*/kernel.cubin")))
    for row in first["rows"]:
        assert row["rows_checked"] == min(row["m"], 16) and row["us"] is None
        assert row["registers"] > 0 and row["spill_bytes"] == 0 and row["warnings"] == []
        assert 0 < row["reference_error"] < 4e-3 < row["bf16_error"]

    done = demo_process(cache, *(word for word in SMALL if word != "--json"))
    assert done.returncode == 0, done.stderr
    assert "product/s" not in done.stderr  # no progress bar where there is no terminal
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if line.endswith("yes")]
    assert len(rows) == 4 and all(row.count("-") == 3 for row in rows)
    assert [sum(word in row for row in rows) for word in ("cache", "reused")] == [len(kernels), 4 - len(kernels)]
    assert lines[-1] == f"4 checks passed, 0 kernels compiled, {len(kernels)} from the cache; the cache is in {cache}"
    assert first["message"] in done.stdout and first["seed"] != int(lines[0].split()[-1])


def test_demo_gives_the_same_errors_for_the_same_seed(machine, capsys) -> None:
    arguments = ["demo", "--json", "--m", "16", "--nk", "256x144", "--seed"]
    results = [run_json(capsys, *arguments, seed)[1]["rows"][0] for seed in ("7", "7", "8")]
    errors = [(row["reference_error"], row["bf16_error"]) for row in results]
    assert errors[0] == errors[1] != errors[2]
    assert [row["source"] for row in results] == ["compiled", "memory", "memory"]


WRONG = {
    "one element": lambda out: out[0, 5].add_(out.abs().max()),
    "one scale": lambda out: out[:, :128].mul_(1.02),
    "a tile": lambda out: out[:, 128:].zero_(),
    "an element that was not written": lambda out: out[0, 7].fill_(torch.nan),
    "everything a little": lambda out: out.mul_(1.01),
}


@pytest.mark.parametrize("fault", WRONG)
def test_demo_fails_for_a_wrong_product(machine, monkeypatch, capsys, fault) -> None:
    right = fp8gemm.gemm

    def wrong(*operands: Tensor, out: Tensor) -> Tensor:
        right(*operands, out=out)
        WRONG[fault](out)
        return out

    monkeypatch.setattr(fp8gemm, "gemm", wrong)
    code, found = run_json(capsys, "demo", "--json", "--m", "16", "--nk", "256x256")
    (row,) = found["rows"]
    assert code == 1 and not found["ok"] and found["failed"] == 1
    assert not row["ok"] and row["failures"]

    assert cli.main(["demo", "--m", "16", "--nk", "256x256"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("NO") for line in lines) and "0 of 1 check passed" in lines[-1]


def test_quantisation_that_loses_too_much_fails() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(rows, 256, dtype=torch.float64, generator=generator) for rows in (16, 256))
    out = (a @ b.t()).bfloat16()
    assert check(out, a, b, out).passed
    result = check(out, a, b, 1.06 * out)
    assert result.outside == 0 and not result.passed
    assert "bfloat16 product" in next(result.failures())


def test_the_reference_setting_rules_on_a_hopper_gpu_too(machine, capsys) -> None:
    machine(gpus=(HOPPER,))
    with settings.scope(backend="reference"):
        code, found = run_json(capsys, "demo", "--json", "--m", "1", "--nk", "256x144")
    assert code == 0 and found["backend"] == "reference" and found["gpu"] is None
    assert "FP8GEMM_BACKEND=reference" in found["message"]


def test_a_kernel_that_may_not_be_compiled_is_an_error_without_traceback(machine, capsys) -> None:
    with settings.scope(jit="error"):
        assert cli.main(["demo", "--m", "1", "--nk", "256x144"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fp8gemm: kernel dense_1d2d-n256-k144") and "FP8GEMM_JIT=error" in error
    assert "Traceback" not in error


def test_a_cache_that_cannot_be_written_is_one_warning(machine, capsys, monkeypatch) -> None:
    monkeypatch.setattr("fp8gemm.jit.build._builders", {})  # whoever had no cache in this process has been told
    with settings.scope(cache_dirs=()):
        code = cli.main(["demo", "--m", "1", "--nk", "256x144,100x256"])
    out, err = capsys.readouterr()
    assert code == 0 and out.splitlines()[-1].endswith("memory alone")
    assert err.startswith("fp8gemm: warning: ") and "memory-only" in err and err.count("\n") == 1


def test_the_readme_example_runs(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example.group(1), names)
    product = (names["x"] @ names["w"].T).double()
    assert (names["y"].double() - product).norm() < 0.05 * product.norm()
