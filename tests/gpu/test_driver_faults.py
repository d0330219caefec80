"""Faults 5 and 22 of the cache on a real GPU: cubins that the driver does not take, many threads, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from fp8gemm.errors import DriverError, UnsupportedDeviceError
from fp8gemm.jit import build as build_module
from fp8gemm.jit import kernel
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_program, compile_source
from fp8gemm.nn import Fp8Linear
from tests import cases
from tests.driver_probe import Probe, make_probe
from tests.jit import children
from tests.jit.cases import warned

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    """A probe kernel that no cache, in memory or on disk, has seen before."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), jit="compile"):
        yield make_probe(tmp_path)


def no_elf(probe: Probe) -> bytes:
    return b"These bytes are no cubin."


def for_another_gpu(probe: Probe) -> bytes:
    source = 'extern "C" __global__ void fp8gemm_kernel() {}'
    options = compile_options("sm_80")
    return compile_source(source, label="ampere", options=options, arch="sm_80", include_dir=probe.include_dir).cubin


def another_kernel(probe: Probe) -> bytes:
    source = 'extern "C" __global__ void another_name() {}'
    options = compile_options("sm_90a")
    return compile_source(source, label="other", options=options, arch="sm_90a", include_dir=probe.include_dir).cubin


BAD = [no_elf, for_another_gpu, another_kernel]


def poison(probe: Probe, cubin: bytes) -> bytes:
    """Put bytes into the cache in the place of a kernel, all checksums right; the kernel's own cubin."""
    good = build_module.build(probe.request, include_dir=probe.include_dir)
    assert good.directory is not None
    store = Store.from_settings(settings.current())
    found = store.find(probe.request.label, good.key).entry
    assert found is not None
    store.publish(replace(found, cubin=cubin), (good.directory / "kernel.cu").read_text(), replace=True)
    build_module._builders.clear()
    assert build_module.build(probe.request, include_dir=probe.include_dir).cubin == cubin
    build_module._builders.clear()
    return good.cubin


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[CompileResult]:
    """What is really compiled."""
    results: list[CompileResult] = []

    def noted(*arguments: Any, **options: Any) -> CompileResult:
        results.append(compile_program(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(build_module, "compile_program", noted)
    return results


@pytest.mark.parametrize("bad", BAD)
def test_fault_05_what_the_driver_refuses_is_set_aside_and_compiled_once(
    probe: Probe,
    device: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiles: list[CompileResult],
    bad: Callable[[Probe], bytes],
) -> None:
    cubin = bad(probe)
    good = poison(probe, cubin)
    compiles.clear()
    with warned(CacheEvent.HEALED):
        loaded = probe.load(device)
    assert len(compiles) == 1 and loaded.artifact.cubin == good
    (aside,) = (tmp_path / "cache").glob(".quarantine-*")
    assert (aside / "kernel.cubin").read_bytes() == cubin
    # The next process finds a sound entry.
    build_module._builders.clear()
    monkeypatch.setattr(kernel, "_kernels", {})
    monkeypatch.setattr(kernel, "_libraries", {})
    with warned():
        assert probe.load(device).artifact.source == "disk"
    assert len(compiles) == 1


@pytest.mark.parametrize("bad", BAD)
def test_fault_05_where_compiling_does_not_help_it_is_done_once_and_said(
    probe: Probe, device: torch.device, monkeypatch: pytest.MonkeyPatch, bad: Callable[[Probe], bytes]
) -> None:
    cubin = bad(probe)
    poison(probe, cubin)
    compiled: list[CompileResult] = []

    def worse(*arguments: Any, **options: Any) -> CompileResult:
        compiled.append(replace(compile_program(*arguments, **options), cubin=cubin))
        return compiled[-1]

    monkeypatch.setattr(build_module, "compile_program", worse)
    for calls in (1, 2):
        with pytest.raises(DriverError, match="(?s)refuses kernel driver-probe.*Compiling it again did not help"):
            probe.load(device)
        assert len(compiled) == calls
    assert not kernel.is_loaded(probe.request, device.index, include_dir=probe.include_dir)


def test_fault_22_thirty_two_threads_compile_and_load_once(
    device: torch.device,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiles: list[CompileResult],
) -> None:
    case = cases.signed(77, 1096, 336, seed=seed, device=device)
    compiles.clear()  # of what quantised the operands
    loads: list[bytes] = []
    load_library = kernel.load_library

    def noted(cubin: bytes) -> Any:
        loads.append(cubin)
        time.sleep(0.05)
        return load_library(cubin)

    monkeypatch.setattr(kernel, "load_library", noted)
    start = threading.Barrier(32)

    def ask() -> torch.Tensor:
        start.wait()
        out = fp8gemm.gemm(*case.operands)
        torch.cuda.synchronize(device)
        return out

    with settings.scope(cache_dirs=(tmp_path / "cache",), jit="compile"), ThreadPoolExecutor(32) as pool:
        outputs = [future.result() for future in [pool.submit(copy_context().run, ask) for _ in range(32)]]
    assert (len(compiles), len(loads)) == (1, 1)
    case.check(outputs[0]).raise_if_failed(case)
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_fault_22_a_child_forked_after_cuda_was_started_is_told_so(device: torch.device, seed: int) -> None:
    case = cases.signed(16, 576, 272, seed=seed, device=device)
    x = torch.randn(16, 272, device=device, dtype=torch.bfloat16)
    weight = torch.randn(576, 272, device=device, dtype=torch.bfloat16)
    out = torch.empty(16, 576, device=device, dtype=torch.bfloat16)
    plan = fp8gemm.plan(case.b, case.scales_b, max_m=16)
    layer = Fp8Linear.from_quantized(*fp8gemm.quantize_weight(weight), None, max_m=16)
    calls: dict[str, Callable[[], object]] = {
        "gemm": lambda: fp8gemm.gemm(*case.operands),
        "gemm into": lambda: fp8gemm.gemm(*case.operands, out=out),
        "plan": lambda: plan(case.a, case.scales_a),
        "another plan": lambda: fp8gemm.plan(case.b, case.scales_b, max_m=64),
        "layer": lambda: layer(x),
        "quantiser": lambda: fp8gemm.quantize_activation(x),
        "operator": lambda: torch.ops.fp8gemm.quantize_activation(x),
    }
    with torch.inference_mode():
        expected = fp8gemm.gemm(*case.operands)
        for call in calls.values():
            call()
        torch.cuda.synchronize(device)

        def work() -> dict[str, str]:
            said = {}
            for name, call in calls.items():
                try:
                    call()
                    said[name] = "nothing"
                except Exception as error:
                    said[name] = f"{type(error).__name__}: {error}"
            return said

        started = time.monotonic()
        said = children.run(work)
        assert time.monotonic() - started < 20
        expected_words = UnsupportedDeviceError.__name__ + ": CUDA cannot be used"
        assert all(text.startswith(expected_words) and "forked" in text for text in said.values()), said
        assert set(said) == set(calls)
        assert torch.equal(fp8gemm.gemm(*case.operands), expected), "the parent goes on"


FORK_FIRST = """
import os, sys, torch, fp8gemm
child = os.fork()  # nothing has started CUDA yet
x, w = torch.randn(16, 272).cuda(), torch.randn(576, 272).cuda()
y = fp8gemm.gemm(*fp8gemm.quantize_activation(x), *fp8gemm.quantize_weight(w), out_dtype=torch.float32)
error = ((y - x @ w.T).norm() / (x @ w.T).norm()).item()
assert error < 0.1, error
if not child:
    sys.stdout.flush()
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_fault_22_a_fork_before_cuda_was_started_harms_nobody(device: torch.device, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FP8GEMM_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", FORK_FIRST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.split()) == (0, ["child", "0"]), done.stderr
