"""``import fp8gemm``: cheap, and nothing but Python. Each test looks from a fresh process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# torch may have loaded any of them itself, so what counts is what comes on top and what modules of fp8gemm ask for.
PROGRAM = """
import builtins, json, sys, time
import torch

asked_for, original_import = set(), builtins.__import__

def noting_import(name, globals=None, locals=None, fromlist=(), level=0):
    if globals and str(globals.get("__name__")).split(".")[0] == "fp8gemm":
        asked_for.add(name)
    return original_import(name, globals, locals, fromlist, level)

def libraries():
    try:
        with open("/proc/self/maps") as maps:
            return {line.split()[-1].rsplit("/", 1)[-1] for line in maps if ".so" in line}
    except FileNotFoundError:
        return set()

modules, mapped = set(sys.modules), libraries()
builtins.__import__ = noting_import
started = time.perf_counter()
import fp8gemm
seconds = time.perf_counter() - started
exec(sys.argv[1])
print(json.dumps({
    "seconds": seconds,
    "modules": sorted(asked_for | set(sys.modules) - modules),
    "libraries": sorted(libraries() - mapped),
    "initialized": torch.cuda.is_initialized(),
}))
"""

HEAVY = ("cuda", "filelock", "tqdm", "numpy", "triton", "hypothesis", "concurrent.futures.process", "multiprocessing")
BUDGET_SECONDS = 0.150
"""For a slow, busy machine; an idle one needs a quarter of it."""


def look(then: str = "", **environment: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, then],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def heavy(modules: list[str]) -> list[str]:
    return [module for module in modules if module.startswith(tuple(f"{name}." for name in HEAVY)) or module in HEAVY]


def assert_light(found: dict[str, Any]) -> None:
    assert "fp8gemm.dense" in found["modules"]
    assert heavy(found["modules"]) == []
    assert [library for library in found["libraries"] if "cuda" in library or "nvrtc" in library] == []
    assert found["initialized"] is False


@pytest.fixture(scope="module")
def imports() -> list[dict[str, Any]]:
    return [look() for _ in range(3)]


def test_import_loads_nothing_heavy_and_touches_no_gpu(imports: list[dict[str, Any]]) -> None:
    assert_light(imports[0])


def test_nor_does_a_question_that_needs_no_gpu() -> None:
    assert_light(
        look("fp8gemm.select(64, 7168, 2048); fp8gemm.enumerate_configs(7168, 2048, 4096); fp8gemm.include_dir()")
    )


def test_the_reference_backend_needs_nothing_heavy_either() -> None:
    found = look(
        "x = torch.randn(3, 128); a = fp8gemm.quantize_activation(x); b = fp8gemm.quantize_weight(x)\n"
        "assert fp8gemm.gemm(*a, *b).shape == (3, 3)"
    )
    assert [module for module in heavy(found["modules"]) if module.split(".")[0] in ("cuda", "filelock", "tqdm")] == []


def test_import_needs_neither_a_home_nor_a_cache() -> None:
    """And a bad setting is an error of the call that needs it, not of the import."""
    found = look(HOME="", XDG_CACHE_HOME="", FP8GEMM_CACHE_DIR="", FP8GEMM_JIT="nonsense", CUDA_VISIBLE_DEVICES="")
    assert "fp8gemm.dense" in found["modules"]


def test_import_is_quick(imports: list[dict[str, Any]]) -> None:
    times = [found["seconds"] for found in imports]
    assert statistics.median(times) < BUDGET_SECONDS, times
