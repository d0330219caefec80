"""``import fp8gemm``: cheap, and nothing but Python; and commands without tensors, which import no torch."""

from __future__ import annotations

import ast
import importlib
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fp8gemm
from tests.children import environment

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
started = time.process_time()  # which others on this machine do not stretch
import fp8gemm
seconds = time.process_time() - started
exec(sys.argv[1])
print(json.dumps({
    "seconds": seconds,
    "modules": sorted(asked_for | set(sys.modules) - modules),
    "libraries": sorted(libraries() - mapped),
    "initialized": torch.cuda.is_initialized(),
}))
"""

HEAVY = ("cuda", "filelock", "tqdm", "numpy", "triton", "hypothesis", "concurrent.futures.process", "multiprocessing")
BUDGET_SECONDS = 0.080
"""For a slow, busy machine; an idle one needs a tenth of it."""


def look(then: str = "", **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, then], env={**environment(), **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def heavy(modules: list[str]) -> list[str]:
    return [module for module in modules if module.startswith(tuple(f"{name}." for name in HEAVY)) or module in HEAVY]


def assert_light(found: dict[str, Any]) -> None:
    assert "fp8gemm.ops" in found["modules"]
    assert heavy(found["modules"]) == []
    assert [library for library in found["libraries"] if "cuda" in library or "nvrtc" in library] == []
    assert found["initialized"] is False


@pytest.fixture(scope="module")
def imports() -> list[dict[str, Any]]:
    return [look() for _ in range(3)]


def test_import_loads_nothing_heavy_and_touches_no_gpu(imports: list[dict[str, Any]]) -> None:
    """Nor what the first product needs: that is imported by the first product."""
    assert_light(imports[0])
    assert not {"fp8gemm.products.dense", "fp8gemm.jit.build", "fp8gemm.tuning.select"} & set(imports[0]["modules"])


def test_the_first_product_imports_few_modules_of_ours() -> None:
    """Each takes 0.2 to 0.5 ms, and a process's first product is to come within 50 ms."""
    ours = [name for name in look("fp8gemm.gemm")["modules"] if name.split(".")[0] == "fp8gemm"]
    assert "fp8gemm.products.dense" in ours and "fp8gemm.kernels.loaded" in ours
    assert len(ours) <= 68, ours


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
    assert "fp8gemm.ops" in found["modules"]


def test_import_is_quick(imports: list[dict[str, Any]]) -> None:
    times = [found["seconds"] for found in imports]
    assert statistics.median(times) < BUDGET_SECONDS, times


def test_every_public_name_is_found_where_it_is_defined() -> None:
    """Type checkers read one list of imports, ``__getattr__`` reads another, and ``__all__`` is a third."""
    source = ast.parse(Path(fp8gemm.__file__).read_text())
    (typed,) = (node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    places = {
        alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert places == {**fp8gemm._HOME, "nn": "fp8gemm", "ops": "fp8gemm"}
    assert set(places) == set(fp8gemm.__all__) and len(places) == len(fp8gemm.__all__)
    for name, module in places.items():
        assert getattr(fp8gemm, name) is getattr(importlib.import_module(module), name)
    assert set(fp8gemm.__all__) <= set(dir(fp8gemm)) and "__version__" in dir(fp8gemm)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fp8gemm' has no attribute 'gem'"):
        fp8gemm.gem  # noqa: B018
    assert not hasattr(fp8gemm, "plans_")


def test_a_public_name_is_looked_up_once_and_modules_need_no_import() -> None:
    look(
        "fp8gemm.gemm; assert 'gemm' in vars(fp8gemm)\n"
        "assert fp8gemm.nn.Fp8Linear and fp8gemm.ops.SCHEMAS and fp8gemm.settings.current()\n"
        "del fp8gemm.__getattr__; fp8gemm.gemm, fp8gemm.nn, fp8gemm.settings"
    )


def test_operators_are_there_when_torch_comes_second() -> None:
    """And import what they compute with."""
    run_python(
        "import fp8gemm\nimport torch\n"
        "codes, scales = torch.ops.fp8gemm.quantize_activation(torch.randn(3, 128))\n"
        "assert codes.shape == (3, 128)"
    )


@pytest.mark.parametrize(
    ("argv", "orig_argv", "command"),
    [
        (["/usr/bin/fp8gemm", "cache"], ["python", "/usr/bin/fp8gemm", "cache"], True),
        (["C:/fp8gemm.exe", "cache"], ["C:/fp8gemm.exe", "cache"], True),
        (["-m", "cache", "ls"], ["python", "-X", "dev", "-m", "fp8gemm", "cache", "ls"], True),
        (["-m"], ["python", "-mfp8gemm"], True),
        (["-m", "fp8gemm"], ["python", "-m", "pytest", "fp8gemm"], False),
        (["-m", "x"], ["python", "-m", "fp8gemm.lab.profiling.worker", "x"], False),
        (["-c"], ["python", "-c", "import fp8gemm"], False),
        (["serve.py", "-m", "fp8gemm"], ["python", "serve.py", "-m", "fp8gemm"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_which_processes_are_a_command(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], orig_argv: list[str], command: bool
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert fp8gemm._is_command() is command


def test_a_command_leaves_torch_out_and_still_has_the_operators_with_what_is_traced() -> None:
    run_python(
        "import sys; sys.argv[0] = '/usr/bin/fp8gemm'\n"
        "import fp8gemm.settings, fp8gemm.jit.build, fp8gemm.tuning.select, fp8gemm.kernels.catalogue\n"
        "assert 'torch' not in sys.modules\n"
        "import torch, fp8gemm.products.dense; torch.ops.fp8gemm.gemm"
    )


COMMANDS = [["--version"], ["--help"], ["cache", "--help"], ["warmup", "--help"], ["explain", "--help"]]
AT_THE_END = """
import atexit, sys
atexit.register(lambda: print("torch imported:", "torch" in sys.modules, file=sys.stderr))
"""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_without_tensors_imports_no_torch(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_THE_END)
    done = subprocess.run(
        [sys.executable, "-m", "fp8gemm", *words], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    assert done.stderr.splitlines()[-1] == "torch imported: False"


def run_python(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
