"""A kernel for vLLM's linear layers is put first in vLLM's list, or a warning says what was not found."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fp8gemm
import fp8gemm.integrations.vllm as ours
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.integrations.engines import register_in_vllm
from tests import fake_vllm
from tests.other_deep_gemm import without_any


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with without_any(monkeypatch), fake_vllm.forgotten():
        yield


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return fake_vllm.write(tmp_path)


def listed() -> list[str]:
    return [kernel.__name__ for kernel in ours._kernels()]


def kernel() -> Any:
    return importlib.import_module("fp8gemm.integrations.vllm.linear").Fp8GemmBlockScaledMMKernel


def test_it_is_first_once_however_often_the_plugin_runs(registry: Path) -> None:
    with settings.scope(engines=False):
        register_in_vllm()
        assert ours.linear_kernel() == ours.LinearKernel(None, False, (), "")
    with settings.scope(engines=True):
        for _ in range(2):
            register_in_vllm()
            assert listed() == [ours.KERNEL, "DeepGemmFp8BlockScaledMMKernel"]
    assert ours.linear_kernel() == ours.LinearKernel(None, True, ("DeepGemmFp8BlockScaledMMKernel",), "")
    ours.unregister()
    assert listed() == ["DeepGemmFp8BlockScaledMMKernel"] and not ours.linear_kernel().registered


def test_compiled_graphs_from_before_are_not_taken_for_graphs_with_it(registry: Path) -> None:
    variables = importlib.import_module("vllm.envs").environment_variables
    assert ours.register() and variables["FP8GEMM_ENGINES"]() == f"{ours.KERNEL} {fp8gemm.__version__}"
    ours.unregister()
    assert not variables


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("_POSSIBLE_FP8_BLOCK_KERNELS =", "_OTHERS =", "_POSSIBLE_FP8_BLOCK_KERNELS: expected lists of kernels"),
        ("{PlatformEnum.CUDA: [", "{PlatformEnum.ROCM: [", "_POSSIBLE_FP8_BLOCK_KERNELS: expected lists of kernels"),
        ("class Fp8BlockScaledMMLinearKernel", "class Other", "Fp8BlockScaledMMLinearKernel"),
        ("class FP8ScaledMMLinearLayerConfig", "class Other", "FP8ScaledMMLinearLayerConfig"),
    ],
)
def test_another_vllm_goes_on_with_its_own(registry: Path, was: str, now: str, said: str) -> None:
    text = registry.read_text().replace(was, now)
    registry.write_text(text.replace("Kernel(Fp8BlockScaledMMLinearKernel)", "Kernel"))
    with pytest.warns(UserWarning, match=said):
        assert not ours.register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not ours.register(), "and says so once"
    assert said in ours.linear_kernel().problem and not ours.linear_kernel().registered


def test_what_is_foreseen_without_importing_vllm(registry: Path) -> None:
    assert ours.linear_kernel().problem == ""
    registry.write_text(registry.read_text().replace("_POSSIBLE_FP8_BLOCK_KERNELS", "_OTHERS"))
    assert "expected _POSSIBLE_FP8_BLOCK_KERNELS in it" in ours.linear_kernel().problem
    registry.unlink()
    assert ours.linear_kernel().problem == "vllm.model_executor.kernels.linear: expected a module, found none"


def test_info_says_whether_it_is_there(
    registry: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> tuple[Any, list[str]]:
        assert cli.main(["info", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["vllm"]
        assert cli.main(["info"]) == 0
        return found, [line for line in capsys.readouterr().out.splitlines() if line.startswith("vLLM ")]

    assert told() == (None, [])
    with settings.scope(engines=True):
        assert told() == (None, []), "no vLLM is installed, whatever lies there"
        monkeypatch.setattr(ours, "installed_version", lambda _: "0.33.0")
        found, (line,) = told()
        assert found == {"vllm": "0.33.0", "registered": False, "ahead_of": [], "problem": ""}
        assert line.endswith("0.33.0, linear layers by fp8gemm from when vLLM loads its plugins; here it is not loaded")
        register_in_vllm()
        found, (line,) = told()
        assert found["registered"] and line.endswith("by fp8gemm, ahead of DeepGemmFp8BlockScaledMMKernel")
        ours.unregister()
        registry.write_text("")
        for name in [name for name in sys.modules if name.startswith("vllm")]:
            monkeypatch.delitem(sys.modules, name)
        assert "by kernels of its own. vllm.model_executor.kernels.linear: expected _POSSIBLE" in told()[1][0]


def test_without_vllm_there_is_nothing_to_register_in() -> None:
    assert ours.linear_kernel() == ours.LinearKernel(None, False, (), "vLLM is not installed")


@pytest.mark.parametrize(
    ("capability", "found"), [((9, 0), ""), ((10, 0), "10.0"), ((8, 9), "8.9"), ((12, 1), "12.1"), (None, "none")]
)
def test_it_is_for_hopper_alone(registry: Path, capability: tuple[int, int] | None, found: str) -> None:
    platform = importlib.import_module("vllm.platforms").current_platform
    platform.capability = capability
    asked = None if capability is None else capability[0] * 10 + capability[1]
    reason = f"expected compute capability 9.0 (Hopper), found {found}" if found else None
    assert kernel().is_supported() == kernel().is_supported(asked) == (not found, reason)
    platform.cuda = False
    assert kernel().is_supported(90) == (False, "expected a CUDA GPU")


def config(**changes: Any) -> Any:
    fp8 = torch.float8_e4m3fn
    asked: dict[str, Any] = {"x": fp8, "w": fp8, "static": False, "row": (1, 128), "block": (128, 128)}
    asked |= {"input_dtype": torch.bfloat16, "out_dtype": torch.bfloat16, "weight_shape": (200, 272), **changes}
    return SimpleNamespace(
        activation_quant_key=SimpleNamespace(
            dtype=asked["x"], scale=SimpleNamespace(static=asked["static"], group_shape=asked["row"])
        ),
        weight_quant_key=SimpleNamespace(
            dtype=asked["w"], scale=SimpleNamespace(static=True, group_shape=asked["block"])
        ),
        **{name: asked[name] for name in ("input_dtype", "out_dtype", "weight_shape")},
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"input_dtype": torch.float16, "out_dtype": torch.float16, "weight_shape": (1, 16)}, None),
        ({"w": torch.float8_e4m3fnuz}, "expected e4m3 operands"),
        ({"x": torch.int8}, "expected e4m3 operands"),
        ({"static": True}, "expected activations quantised on the fly"),
        ({"row": (1, 64)}, "expected activation scales of (1, 128), got (1, 64)"),
        ({"block": (32, 32), "row": (1, 32)}, None),
        ({"block": (32, 32), "row": (1, 128)}, None),
        ({"block": (32, 32), "row": (1, 64)}, "expected activation scales of (1, 128), got (1, 64)"),
        ({"block": (48, 48)}, "expected weight scales of (128, 128), or smaller ones as (32, 32), got (48, 48)"),
        ({"block": (1, 128)}, "expected weight scales of (128, 128), or smaller ones as (32, 32), got (1, 128)"),
        ({"block": (-1, -1)}, "expected weight scales of (128, 128), or smaller ones as (32, 32), got (-1, -1)"),
        ({"out_dtype": torch.float32}, "expected output of the input's dtype, got torch.float32"),
        ({"weight_shape": (256, 264)}, "expected a weight (N, K) with K a multiple of 16, got (256, 264)"),
    ],
)
def test_it_says_which_layers_it_takes_and_why_not(registry: Path, changes: dict[str, Any], reason: str | None) -> None:
    assert kernel().can_implement(config(**changes)) == (reason is None, reason)


def test_other_inputs_are_refused_by_their_name(registry: Path) -> None:
    taken, reason = kernel().can_implement(config(input_dtype=torch.float64, out_dtype=torch.float64))
    assert not taken and "expected input of torch.bfloat16 or torch.float16" in reason and "float64" in reason
