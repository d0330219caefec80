"""Whole runs of `fp8gemm tune`, without a GPU and on one that is played."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.cli import tune as command
from fp8gemm.cli.exits import Exit
from fp8gemm.driver import device
from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.lab.bench import load
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.tune import ahead, measure
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config, eligible_configs, select
from fp8gemm.tuning.table import NO_TABLES, Table, read_table, write_table

SHAPE = Shape(200, 512, 256)


def test_without_a_hopper_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(device, "diagnose", lambda index: Diagnosis(DeviceStatus.NO_GPU, "there is none"))
    assert cli.main(["tune", "--random", "2", "--json"]) == Exit.NO_GPU
    out, err = capsys.readouterr()
    assert out == "" and err == "tune: there is none\n"


class Gpu:
    """A GPU that CPU tensors are taken to be on: kernels are the reference, and each takes the time it is said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.us: dict[str, float] = {}
        self.faults: dict[str, Callable[[Tensor], object]] = {}
        self.timed: list[str] = []
        self.alone: list[Regime] = []
        self.asked: list[str] = []
        self.static: list[bool] = []
        self.lost = False
        info = SimpleNamespace(index=0, name="NVIDIA H200", num_sms=132, l2_bytes=60 << 10, driver_version="13.0")
        monkeypatch.setattr(device, "diagnose", lambda index: Diagnosis(DeviceStatus.READY, "played"))
        monkeypatch.setattr(device, "device_info", lambda index: info)
        monkeypatch.setattr("fp8gemm.kernels.loaded.device_chip", lambda index: named_chip("h200"))
        monkeypatch.setattr(command, "DEVICE", "cpu")
        monkeypatch.setattr(torch.cuda, "device", lambda name: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda name: SimpleNamespace(cuda_stream=3))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(ahead, "Ahead", self.ahead)
        monkeypatch.setattr(measure, "load_kernel", self.kernel)
        monkeypatch.setattr(measure, "GraphTimer", self.timer)
        monkeypatch.setattr(load, "Load", lambda: nullcontext(SimpleNamespace(take=lambda: 0.0, keep=int, end=int)))

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("an illegal memory access was encountered")

    def ahead(self, requests: Any) -> Any:
        self.asked += [request.label for request in requests]
        return nullcontext(SimpleNamespace(wait=lambda requests: None))

    def kernel(self, problem: Problem, config: Config, *, device_index: int, num_sms: int, programmatic: bool) -> Any:
        def launch(*operands: Tensor, out: Tensor, stream: int, static_weights: bool) -> None:
            assert stream == 3 and num_sms == 132
            assert static_weights is programmatic is problem.static_weights
            launch.label = config.label  # type: ignore[attr-defined]
            out.copy_(gemm_reference(*operands))
            if config.label in self.faults:
                self.faults[config.label](out)

        launch.label = config.label  # type: ignore[attr-defined]
        self.last = config.label
        self.static.append(problem.static_weights)
        return launch

    def timer(self, calls: Any, plan: Any) -> Callable[[], float]:
        assert len(calls) == plan.sets and all(isinstance(call(), Tensor) for call in calls)
        label = self.last if "scaled_mm" not in repr(calls[0]) else "tensorwise"
        self.timed.append(label)

        def timer() -> float:
            return self.us.get(label, 10.0)

        def alone(regime: Regime) -> float:
            self.alone.append(regime)
            return 2 * timer()

        timer.alone = alone  # type: ignore[attr-defined]
        return timer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """A run for SHAPE, or for the shapes that the words name."""
    code = cli.main(["tune", "--shapes", str(SHAPE), "--json", "--measure-ms", "0.01", *words])
    return code, json.loads(capsys.readouterr().out)


RANKED = [config.label for config in eligible_configs(Problem(200, 512, 256), named_chip("h200"), NO_TABLES)]


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch multiplies FP8 on the CPU, which plays the GPU, since 2.7")
def test_a_run_times_judges_resumes_and_fills_a_table(gpu: Gpu, tmp_path: Path, capsys) -> None:
    files = ["--results", str(tmp_path / "r.json"), "--table", str(tmp_path / "t.json")]
    gpu.us = {RANKED[0]: 12.0, RANKED[1]: 8.0, "tensorwise": 6.0}
    code, found = tune(capsys, *files, "--candidates", "3", "--peers", "tensorwise", "--seed", "9")
    (row,) = found["rows"]
    assert code == 0 and gpu.timed == [*RANKED[:3], "tensorwise"] and len(gpu.asked) == 3
    assert (row["best"], row["choice"], row["regret"], row["speed"]) == (RANKED[1], RANKED[0], 0.5, {"tensorwise": 0.5})
    assert found["seed"] == 9 and found["regret_mean"] == 0.5 and found["left_out"] == 0
    with settings.scope(tables=[tmp_path / "t.json"]):
        assert select(200, 512, 256).label == RANKED[1]
    (entry,) = read_table(tmp_path / "t.json").entries
    assert (entry.us, entry.model_us) == (8.0, 12.0)

    gpu.timed.clear(), gpu.asked.clear()
    gpu.us[RANKED[4]] = 7.0
    code, found = tune(capsys, *files, "--candidates", "5", "--peers", "tensorwise")
    assert code == 0 and gpu.timed == RANKED[3:5] and len(gpu.asked) == 2
    assert found["seed"] == 9 and found["rows"][0]["best"] == RANKED[4]
    (entry,) = read_table(tmp_path / "t.json").entries
    assert entry.us == 7.0

    gpu.timed.clear()
    assert tune(capsys, *files, "--candidates", "5")[0] == 0 and gpu.timed == []


def test_deep_gemm_is_timed_beside_them_and_held_to_the_same_product(
    gpu: Gpu, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = "--candidates", "1", "--peers", "deepgemm"
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    code, found = tune(capsys, *wanted)
    assert code == 0 and found["rows"][0]["speed"] == {} and "deep_gemm" in found["rows"][0]["failed"]["deepgemm"]

    def fp8_gemm_nt(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], out: Tensor) -> None:
        out.copy_(factor * gemm_reference(*a, *b))

    monkeypatch.setitem(sys.modules, "deep_gemm", SimpleNamespace(fp8_gemm_nt=fp8_gemm_nt))
    factor = 1.0
    code, found = tune(capsys, *wanted)
    assert code == 0 and found["rows"][0]["speed"] == {"deepgemm": 1.0} and found["peers"]["deepgemm"]["shapes"] == 1
    factor = 1.1
    assert "differs" in tune(capsys, *wanted)[1]["rows"][0]["failed"]["deepgemm"]


def test_candidates_are_measured_alone_where_that_is_asked(gpu: Gpu, tmp_path: Path, capsys) -> None:
    results = str(tmp_path / "r.json")
    code, found = tune(capsys, "--candidates", "2", "--regime", "sustained", "--results", results)
    assert code == 0 and gpu.alone == [Regime.SUSTAINED] * 6, "three rounds of two"
    assert found["regime"] == "sustained" and "without a gap, median of 3" in found["method"]
    assert set(json.loads(Path(results).read_text())["rows"][0]["us"].values()) == {20.0}
    assert cli.main(["tune", "--shapes", str(SHAPE), "--results", results]) == Exit.FAILED
    assert "expected times of regime 'turn', got 'sustained'" in capsys.readouterr().err


def test_static_weights_are_timed_as_such_and_kept_apart(gpu: Gpu, tmp_path: Path, capsys) -> None:
    few = Problem(8, 2240, 7168)
    plain, static = (
        [config.label for config in eligible_configs(replace(few, static_weights=each), named_chip("h200"), NO_TABLES)]
        for each in (False, True)
    )
    shape, table = ["--shapes", "8x2240x7168", "--candidates", "2"], ["--table", str(tmp_path / "t.json")]
    gpu.us = {plain[0]: 12.0, plain[1]: 8.0}
    assert tune(capsys, *shape, *table, "--results", str(tmp_path / "r.json"))[0] == 0
    gpu.us = {static[0]: 12.0, static[1]: 7.0}
    words = [*shape, *table, "--static-weights", "--results", str(tmp_path / "s.json")]
    code, found = tune(capsys, *words)
    assert code == 0 and found["static_weights"] is True and found["rows"][0]["best"] == static[1]
    assert gpu.timed == [*plain[:2], *static[:2]] and gpu.static == [False, False, True, True]
    with settings.scope(tables=[tmp_path / "t.json"]):
        assert select(8, 2240, 7168).label == plain[1]
        assert select(8, 2240, 7168, static_weights=True).label == static[1]
    entries = {entry.static_weights: entry.us for entry in read_table(tmp_path / "t.json").entries}
    assert entries == {False: 8.0, True: 7.0}

    assert json.loads((tmp_path / "s.json").read_text())["static_weights"] is True
    for given, other in (([], "s.json"), (["--static-weights"], "r.json")):
        assert cli.main(["tune", *shape, *given, "--results", str(tmp_path / other)]) == 1
        assert "expected times of static_weights" in capsys.readouterr().err
    gpu.timed.clear()
    assert tune(capsys, *words)[0] == 0 and gpu.timed == []


@pytest.mark.parametrize(
    "fault",
    [
        lambda out: out[:64, :64].zero_(),
        lambda out: out[-1, -1].fill_(math.nan),
        lambda out: out.mul_(1.01),
        lambda out: out.fill_(0),
    ],
)
def test_a_wrong_kernel_is_never_called_fast(gpu: Gpu, capsys, fault: Callable[[Tensor], object]) -> None:
    gpu.us = {RANKED[2]: 1.0}
    gpu.faults = {RANKED[2]: fault}
    code, found = tune(capsys, "--candidates", "4")
    assert code == 1 and gpu.timed == [*RANKED[:2], RANKED[3]]
    assert "WrongResultError" in found["rows"][0]["failed"][RANKED[2]] and found["failed"] == 1
    assert found["rows"][0]["best"] != RANKED[2]


def test_a_wrong_first_kernel_does_not_condemn_the_others(gpu: Gpu, capsys) -> None:
    gpu.faults = {RANKED[0]: lambda out: out.fill_(1)}
    code, found = tune(capsys, "--candidates", "3")
    assert code == 1 and list(found["rows"][0]["failed"]) == RANKED[:1] and gpu.timed == RANKED[1:3]
    assert found["rows"][0]["regret"] is None


def test_what_a_kernel_leaves_unwritten_is_noticed(gpu: Gpu, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu.kernel

    def kernel(problem: Problem, config: Config, **options: Any) -> Any:
        made = right(problem, config, **options)
        return (lambda *operands, **others: None) if config.label == RANKED[1] else made

    monkeypatch.setattr(measure, "load_kernel", kernel)
    code, found = tune(capsys, "--candidates", "3")
    assert code == 1 and list(found["rows"][0]["failed"]) == [RANKED[1]]


def test_a_kernel_that_raises_is_recorded_and_the_run_goes_on(gpu: Gpu, capsys, tmp_path: Path) -> None:
    def fail(out: Tensor) -> None:
        raise RuntimeError("no such luck")

    gpu.faults = {RANKED[1]: fail}
    code, found = tune(capsys, "--candidates", "3", "--results", str(tmp_path / "r.json"))
    assert code == 1 and found["rows"][0]["failed"] == {RANKED[1]: "RuntimeError: no such luck"}
    gpu.timed.clear()
    tune(capsys, "--candidates", "3", "--results", str(tmp_path / "r.json"))
    assert gpu.timed == [], "what failed is known"


def test_a_lost_context_ends_the_run_and_the_next_goes_on_without_its_cause(gpu: Gpu, capsys, tmp_path: Path) -> None:
    def crash(out: Tensor) -> None:
        gpu.lost = True
        raise RuntimeError("an illegal memory access was encountered")

    gpu.faults = {RANKED[1]: crash}
    words = ["--candidates", "3", "--results", str(tmp_path / "r.json")]
    assert cli.main(["tune", "--shapes", str(SHAPE), *words]) == 1
    assert f"{RANKED[1]} has broken the CUDA context" in capsys.readouterr().err
    gpu.lost = False
    code, found = tune(capsys, *words)
    assert code == 1 and list(found["rows"][0]["failed"]) == [RANKED[1]] and found["rows"][0]["best"] in RANKED[:3:2]


def test_a_budget_leaves_shapes_out(gpu: Gpu, capsys) -> None:
    code, found = tune(capsys, "--candidates", "1", "--shapes", f"{SHAPE},1x64x16", "--budget-seconds", "-1")
    assert code == 0 and found["rows"] == [] and found["left_out"] == 2


def test_lines_for_people(gpu: Gpu, capsys) -> None:
    assert cli.main(["tune", "--shapes", str(SHAPE), "--candidates", "2", "--measure-ms", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200" in out and "seed" in out and RANKED[0] in out and "1 shape: the choice costs 0.00%" in out


def test_a_table_of_another_chip_is_refused(gpu: Gpu, capsys, tmp_path: Path) -> None:
    write_table(tmp_path / "t.json", Table("NVIDIA H20", "h20", 78, "2026-01-01", "fake"))
    assert cli.main(["tune", "--shapes", str(SHAPE), "--table", str(tmp_path / "t.json")]) == 1
    assert "expected a table of the chip h200 with 132 SMs, got one of h20 with 78" in capsys.readouterr().err
