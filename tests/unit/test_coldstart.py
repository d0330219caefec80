"""The cold start script without a GPU: what it asks its processes for, and what it makes of their answers."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.lab.provenance import provenance
from tests.scripts import load_script

SHAPE = (4096, 7168, 2048)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, where each process takes a millisecond longer than the one before; ``calls`` says what they found."""
    module: Any = load_script("coldstart")
    module.calls = []

    def first_call(shape: tuple[int, int, int], cache: Path, *, loads: bool = False) -> dict[str, Any]:
        module.calls.append((cache.name, loads))
        count = len(module.calls)
        return {
            "gpu": "NVIDIA H200",
            "import_ms": 10.0 + count,
            "gemm_import_ms": 20.0 + count,
            "first_result_ms": (40.0 if cache.name == "warm" else 900.0) + count,
            "nvrtc_opened": cache.name != "warm",
            "load_ms": [1.5, 2.0 + count] if loads else [],
            "read_ms": [0.5, 0.75] if loads else [],
        }

    monkeypatch.setattr(module, "first_call", first_call)
    monkeypatch.setattr(module, "warm_up", lambda shape, cache: module.calls.append((f"compiled {cache.name}", None)))
    monkeypatch.setattr(module, "diagnose", lambda index: Diagnosis(DeviceStatus.READY, ""))
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coldstart.py", *arguments])
    return int(script.main())


def test_every_cold_process_has_a_cache_of_its_own_and_warm_ones_share_theirs(script) -> None:
    result = script.measure(SHAPE, 2)
    assert script.calls[:3] == [("compiled warm", None), ("discarded", False), ("warm", False)]
    counted = script.calls[3:]
    assert [name for name, loads in counted if not loads] == ["0", "1"]
    assert [name for name, loads in counted if loads] == ["warm"] * 5
    assert (result["repeats"], result["warm_repeats"]) == (2, 5)
    assert len({name for name, _ in script.calls}) == 5


def test_the_object_that_is_printed(script, monkeypatch, capsys) -> None:
    assert run(script, monkeypatch, "--json", "--repeats", "1") == 0
    result = json.loads(capsys.readouterr().out)
    # The cold process is the fourth call; the warm ones are the fifth to the ninth.
    assert date.fromisoformat(result.pop("date")) <= date.today()
    assert result == {
        "gpu": "NVIDIA H200",
        "m": 4096,
        "n": 7168,
        "k": 2048,
        "repeats": 1,
        "cold_ms": 904.0,
        "warm_ms": 47.0,
        "warm_import_ms": 17.0,
        "warm_gemm_import_ms": 27.0,
        "warm_repeats": 5,
        "import_ms": 17.0,
        "import_ms_max": 19.0,
        "kernels": 2,
        "load_ms": 4.25,
        "load_ms_max": 11.0,
        "read_ms": 0.62,
        "read_ms_max": 0.75,
        "nvrtc_opened_when_warm": False,
        **provenance(),
        **provenance(),
    }


def test_the_table_that_is_printed(script, monkeypatch, capsys) -> None:
    assert run(script, monkeypatch, "--repeats", "6", "--shape", "64x256x512") == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert "64x256x512" in lines[0] and len(lines) == 8
    assert "finding and verifying" in text and lines[-1] == "NVRTC opened with a warm cache: no"
    assert len({line.index(" ms") for line in lines[1:7]}) == 1


def test_a_shape_with_one_kernel_has_none_left_to_load(script) -> None:
    runs = [{**script.first_call(SHAPE, Path("warm")), "load_ms": [], "read_ms": []}]
    result = script.summary(SHAPE, runs, runs)
    assert result["kernels"] == 0 and result["load_ms"] is result["read_ms_max"] is None
    assert not [line for line in script.lines(result) if "another kernel" in line]


def test_without_a_hopper_gpu_it_says_why(script, monkeypatch, capsys) -> None:
    monkeypatch.setattr(script, "diagnose", lambda index: Diagnosis(DeviceStatus.NO_GPU, "there is none"))
    assert run(script, monkeypatch) != 0
    assert capsys.readouterr().err == "coldstart: there is none\n" and script.calls == []


def test_the_measured_program_is_python() -> None:
    """It cannot run here, but its imports and its use of them can be wrong here too."""
    module: Any = load_script("coldstart")
    compile(module.CHILD, "CHILD", "exec")
    imports = [line.strip() for line in module.CHILD.splitlines() if line.strip().startswith("from fp8gemm")]
    assert len(imports) == 5
    exec("\n".join(imports), {})
