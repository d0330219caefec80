"""Linear layers, quantise functions and host time: what is measured and judged, with fake clocks, and on the CPU."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from fp8gemm import nn
from fp8gemm.cli import bench as command
from fp8gemm.cli import main as cli
from fp8gemm.cli.exits import Exit
from fp8gemm.driver import device
from fp8gemm.errors import InputError
from fp8gemm.lab.bench import graph, host, linear, modes, peers, quantize, quantize_cases, suite, timing
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Operands, relative_error
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.report import Row, Shape

INFO = device.DeviceInfo(0, "NVIDIA H200", (9, 0), 132, 1 << 18, 232448, "13.0")


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


class FakeTimer:
    """In place of a CUDA graph: runs each call once, on the CPU, and takes as long as there are calls."""

    def __init__(self, calls: Sequence[Callable[[], object]], schedule: timing.Schedule) -> None:
        assert len(calls) == schedule.sets
        for call in calls[:2]:
            call()
        self.us = float(len(calls))

    def __call__(self) -> float:
        return self.us

    def alone(self, regime: Regime, meanwhile: Callable[[], None]) -> float:
        return self.us


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = device.Diagnosis(device.DeviceStatus.READY, "")
    monkeypatch.setattr(device, "diagnose", lambda index: ready)
    monkeypatch.setattr(device, "device_info", lambda index: INFO)
    monkeypatch.setattr(command, "DEVICE", "cpu")
    for module in (graph, quantize):
        monkeypatch.setattr(module, "GraphTimer", FakeTimer)


def rows_of(speeds: dict[int, float]) -> list[Row]:
    return [Row(Shape(m, 64, 128), us={linear.OURS: 1.0, linear.BF16: speed}) for m, speed in speeds.items()]


def test_a_gate_judges_the_mean_or_the_worst_and_says_where_that_is() -> None:
    def figures(rows: Sequence[float]) -> dict[str, float]:
        return {f"at {value:g}": value for value in rows}

    mean = Gate("mean", 2.0, figures, mean=True)
    assert mean.verdict([]) is None
    verdict = mean.verdict([1.0, 4.0, 8.0])
    assert verdict is not None and verdict["met"] and (verdict["figure"], verdict["worst"]) == (3.1748, 1.0)
    assert verdict["at"] == "at 1" and verdict["count"] == 3
    highest = Gate("highest", 3.0, figures, at_least=False)
    gates = Gates((mean, highest))
    assert gates.lines([3.0]) == [
        "\ngates",
        "mean: geometric mean 3.000 of 1, at least 2: met; worst 3.000 at at 3",
        "highest: worst 3.000 of 1, at most 3: met; at at 3",
    ]
    assert "at most 3: NOT MET; at at 4" in gates.lines([4.0, 2.0])[2] and gates.lines([]) == []
    assert list(gates.as_json([4.0])) == ["mean", "highest"] and gates.as_json([]) == {}


def test_linear_layers_are_judged_over_many_rows_and_over_few() -> None:
    judged = linear.GATES.as_json(rows_of({1: 1.0, 64: 2.0, 128: 0.1, 512: 1.5, 8192: 1.6}))
    few, many = judged["speed at M <= 64"], judged["speed at M >= 512"]
    assert (few["figure"], few["count"], few["met"]) == (1.4142, 2, True)
    assert (many["count"], many["at"], many["met"]) == (2, "512x64x128", True)
    assert not linear.GATES.as_json(rows_of({1: 1.2}))["speed at M <= 64"]["met"]


@pytest.mark.parametrize("peer", linear.PEERS, ids=lambda peer: str(peer.name))
def test_every_layer_gives_the_product(peer: peers.Peer) -> None:
    operands = Operands.random(12, 192, 320, torch.Generator().manual_seed(7))
    result = peer.prepare(operands)()
    assert result.dtype == torch.bfloat16 and peer.expected is not None
    assert relative_error(result, peer.expected(operands)) < MAX_RELATIVE_ERROR
    assert suite.linear_suite().label(operands) == "reference"


def test_presets_and_what_they_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert {shape.m for shape in command.shapes_of(options("--linear"))} == set(command.parse_m(command.LINEAR_M))
    assert Shape(4096, 4096, 4096) in command.shapes_of(options("--host"))
    found = command.suite_of(options("--linear"), [])
    assert [peer.name for peer in found.peers] == [
        "fp8_linear",
        "bf16_linear",
        "fp8_linear_32x32",
    ] and found.skipped == {}
    for mode in ("--linear", "--quantize", "--host"):
        for option in ("--pdl", "--floor"):
            with pytest.raises(InputError, match=f"expected neither --pdl nor --floor beside {mode}"):
                command.check_options(options(mode, option))
    with pytest.raises(SystemExit):
        options("--linear", "--host")
    assert "not allowed with" in capsys.readouterr().err


def test_sizes_by_default_and_as_asked() -> None:
    by_default = quantize.sizes()
    assert quantize.Size(64, 7168) in by_default and quantize.Size(8192, 16384) in by_default
    assert quantize.sizes([3], [128, 64, 128]) == [quantize.Size(3, 128), quantize.Size(3, 64)]
    assert {size.k for size in quantize.sizes([3])} == set(quantize.MANY_K)


@pytest.mark.parametrize("case", quantize_cases.CASES, ids=lambda case: str(case.name))
def test_every_quantise_function_is_checked_and_its_bytes_are_counted(case: quantize_cases.Case) -> None:
    m, k = 40, 272
    inputs = case.inputs(quantize.Size(m, k), torch.Generator().manual_seed(7))
    scales = (m if case.rows_per_scale == 1 else 1) * 3 * 4
    element = inputs.x.element_size()
    expected = {"silu_mul": 2 * m * k, "rms_norm": m * k + k, "add_rms_norm": 3 * m * k + k}.get(case.name, m * k)
    of_transpose = (k * 128 + k * 4) * case.transposes  # of as many rows as a whole block
    assert case.check(inputs) == expected * element + m * k + scales + of_transpose
    wrong = replace(case, expected=lambda inputs: -case.expected(inputs))
    with pytest.raises(graph.WrongResultError, match="differs from the unquantised values by 2"):
        wrong.check(inputs)
    if case.transposes:
        turned = replace(case, call=lambda inputs: (*(found := case.call(inputs))[:2], -found[2].float(), found[3]))
        with pytest.raises(graph.WrongResultError, match="differs from the transpose of the unquantised values by 2"):
            turned.check(inputs)


def test_quantise_functions_are_judged_beside_a_copy_or_by_their_time() -> None:
    def row(m: int, us: float, copy_us: float) -> quantize.QuantizeRow:
        return quantize.QuantizeRow(quantize.Size(m, 128), {"weight": copy_us}, {"weight": 1}, us={"weight": us})

    judged = quantize.GATES.as_json([row(1, 2.5, 9.0), row(64, 3.5, 9.0), row(128, 99.0, 1.0), row(2048, 10.0, 8.5)])
    share, time = judged.values()
    assert (share["figure"], share["count"], share["met"], share["at"]) == (0.85, 1, True, "weight 2048x128")
    assert (time["figure"], time["count"], time["met"], time["at"]) == (3.5, 2, False, "weight 64x128")


@pytest.mark.usefixtures("on_the_cpu")
def test_a_run_over_quantise_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "quantize.json"
    arguments = ["--quantize", "--m", "16", "--nk", "8x256", "--warm-seconds", "0", "--rounds", "2"]
    assert cli.main(["bench", *arguments, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    (row,) = written["rows"]
    names = [case.name for case in quantize_cases.CASES]
    assert list(row["us"]) == list(row["copy_us"]) == list(row["bytes"]) == names == list(written["cases"])
    assert row["us"]["activation"] == row["copy_us"]["activation"], "as many sets for the copy"
    assert "median of 2" in written["method"] and "microseconds at M <= 64" in written["gates"]
    lines = capsys.readouterr().out.splitlines()
    assert any("100.0%" in line for line in lines)

    broken = quantize_cases.Case("weight", "", lambda inputs: 1 // 0, lambda inputs: inputs.x)
    monkeypatch.setattr(quantize, "CASES", (*quantize_cases.CASES[:1], broken))
    assert cli.main(["bench", *arguments, "--json", str(path)]) == Exit.FAILED
    (row,) = json.loads(path.read_text())["rows"]
    assert list(row["us"]) == ["activation"]
    assert row["failed"]["weight"].startswith("ZeroDivisionError")


@pytest.mark.usefixtures("on_the_cpu")
def test_a_run_over_linear_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "linear.json"
    arguments = ["--linear", "--m", "16,512", "--nk", "128x256", "--warm-seconds", "0", "--json", str(path)]
    assert cli.main(["bench", *arguments]) == 0
    written = json.loads(path.read_text())
    judged = {
        f"speed{of}" for part in ("M >= 512", "M <= 64") for of in (f" at {part}", f" of blocks of 32x32 at {part}")
    }
    assert written["pdl"] is True and set(written["gates"]) == judged
    assert written["geomean_relative_speed"]["16"] == {"bf16_linear": {"speed": 1.0, "shapes": 1}}
    assert "speed at M >= 512: geometric mean 1.000 of 2, at least 1.5: NOT MET" in capsys.readouterr().out


@dataclass
class FakeGpu:
    """Busy for so many of its kernel's milliseconds, each of them as long as a number of calls."""

    calls_per_ms: float = 1000.0
    lengths: list[float] = field(default_factory=list)
    calls: int = 0

    def occupy(self, milliseconds: float) -> Callable[[], bool]:
        self.lengths.append(milliseconds)
        end = self.calls + milliseconds * self.calls_per_ms
        return lambda: self.calls < end

    def wait(self) -> None:
        pass


def host_timer(gpu: FakeGpu) -> host.HostTimer:
    """Calls take 3 us each, but those of every third chunk 1 ms; each looks whether garbage would be collected."""
    now = 0

    def call() -> None:
        nonlocal now
        assert gpu.calls < host.CALLS_PER_CHUNK or not gc.isenabled()
        chunk = gpu.calls // host.CALLS_PER_CHUNK
        gpu.calls += 1
        now += 1_000_000 if chunk % 3 == 0 else 3_000

    return host.HostTimer(call, gpu, lambda: now)


def test_host_time_is_a_median_that_outliers_do_not_move() -> None:
    gpu = FakeGpu()
    assert host_timer(gpu)() == 3.0 and gc.isenabled()
    assert gpu.calls == (host.CHUNKS + 1) * host.CALLS_PER_CHUNK and gpu.lengths == [host.BUSY_MS]


def test_the_gpu_is_kept_busy_for_longer_until_it_outlasts_the_calls() -> None:
    gpu = FakeGpu(calls_per_ms=8.0)
    assert host_timer(gpu)() == 3.0
    assert gpu.lengths == [host.BUSY_MS, 2 * host.BUSY_MS, 4 * host.BUSY_MS]
    with pytest.raises(host.IdleGpuError, match="idle after 320 ms"):
        host_timer(FakeGpu(calls_per_ms=0.1))()


@pytest.mark.usefixtures("on_the_cpu")
def test_a_run_over_host_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(FakeGpu):
        def occupy(self, milliseconds: float) -> Callable[[], bool]:
            return lambda: True

    monkeypatch.setattr(host, "CurrentGpu", Busy)
    monkeypatch.setattr(host, "CALLS_PER_CHUNK", 1)
    path = tmp_path / "host.json"
    arguments = ["--host", "--m", "2", "--nk", "128x256", "--warm-seconds", "0", "--rounds", "1", "--json", str(path)]
    assert cli.main(["bench", *arguments]) == 0
    written = json.loads(path.read_text())
    (row,) = written["rows"]
    assert row["us"].keys() == host.PREPARE.keys() == written["calls"].keys() and "failed" not in row
    assert len(written["gates"]) == 3 and written["cpu"]
    assert "2    128    256 |" in capsys.readouterr().out


def test_host_time_is_judged() -> None:
    us = {host.PLAN: 5.0, host.GEMM: 10.5, host.FORWARD: 12.0, host.LINEAR: 10.0}
    judged = host.GATES.as_json([Row(Shape(1, 64, 128), us=us)])
    assert [verdict["met"] for verdict in judged.values()] == [True, False, True]
    line = host.HostTable().line(Row(Shape(1, 64, 128), us=us))
    assert line.endswith(f"| {1.2:16.3f} {'-':>16}") and line.count("|") == host.HostTable().header().count("|")


def test_fresh_inputs_are_the_same_at_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(nn.Fp8Linear, "forward", lambda self, x: seen.append(x))
    operands = Operands.random(2, 128, 256, torch.Generator().manual_seed(7))
    call = host.PREPARE[host.FRESH][1](operands)
    for _ in range(host.FRESH_INPUTS + 1):
        call()
    assert all(torch.equal(x, operands.x) for x in seen)
    assert len({x.data_ptr() for x in seen}) == host.FRESH_INPUTS and seen[0] is seen[-1]


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert modes.processor_name(file) == "Some CPU @ 2 GHz"
    assert modes.processor_name(tmp_path / "absent")
