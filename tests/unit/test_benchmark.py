"""The benchmark's logic with a fake clock and fake peers, and its quantised operands on the CPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from fp8gemm.cli import arguments
from fp8gemm.cli import bench as command
from fp8gemm.cli import main as cli
from fp8gemm.cli.exits import Exit
from fp8gemm.driver import device
from fp8gemm.lab.bench import graph, peers, timing
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Call, Operands, quantize_whole, relative_error
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.report import ProductTable, Row, Shape
from fp8gemm.lab.bench.summary import Summary
from fp8gemm.lab.bench.sweep import Mode, Sweep

L2_BYTES = 60 << 20


def row(m: int, n: int, ours: float | None, **others: float) -> Row:
    us = others if ours is None else {"ours": ours, **others}
    return Row(Shape(m, n, 128), us=us, config="128x128-s5")


def test_table_lines_up_and_shows_what_is_missing() -> None:
    table = ProductTable("ours", ["fast", "slow"])
    groups, names = table.header().splitlines()
    line = table.line(row(1, 8, 2, fast=1))
    bars = [[at for at, char in enumerate(text) if char == "|"] for text in (groups, names, line)]
    assert bars[1] == bars[2] and bars[0] == bars[1][:2]
    cells = [cell.split() for cell in line.split("|")]
    assert cells == [["1", "8", "128", "turn"], ["2.00", "1.00", "-", "0"], ["0.500", "-"], ["128x128-s5"]]
    twice = ProductTable("ours", ["fast"], products=2).line(Row(Shape(512, 1024, 4096), us={"ours": 4.0}))
    assert twice.split("|")[1].split()[-1] == "2147", "TFLOPS of two products"
    alone = ProductTable("ours", [])
    assert alone.line(row(1, 8, 2)).count("|") == alone.header().splitlines()[1].count("|") == 2


def sweep(tmp_path: Path, budget: float | None) -> tuple[Sweep, list[str]]:
    lines: list[str] = []
    now = 0.0

    def measure(shape: Shape) -> Iterator[Row]:
        nonlocal now
        now += 10
        yield Row(shape, us={"ours": 2.0, "peer": 4.0}, failed={"odd": "RuntimeError: no"}, sets=13)

    mode = Mode(
        [Shape(m, n, 256) for m in (1, 4) for n in (8, 16)],
        ProductTable("ours", ["peer", "odd"]),
        measure,
        [
            Summary("geomean_relative_speed", "speed", "speed", {"peer": ("peer", "ours"), "odd": ("odd", "ours")}),
            Summary("geomean_time_over_floor", "time", "time", {"floor": ("ours", "floor")}),
        ],
        lacks=lambda row: "ours" not in row.us,
        heading={"gpu": "fake"},
    )
    path = tmp_path / "new" / "out.json"
    done = Sweep(mode, json_path=path, budget_seconds=budget, emit=lines.append, clock=lambda: now)
    done.run()
    return done, lines


def test_sweep_prints_and_writes_every_row(tmp_path: Path) -> None:
    done, lines = sweep(tmp_path, None)
    assert len(done.rows) == 4 and done.left_out == [] and not done.lacks_ours()
    assert sum("odd skipped: RuntimeError: no" in line for line in lines) == 4
    assert lines[-3:] == [
        "\nspeed, geometric mean (number of shapes)",
        *(f"M = {m}: 2.000 of peer (2)" for m in (1, 4)),
    ]
    written = json.loads((tmp_path / "new" / "out.json").read_text())
    assert written["gpu"] == "fake" and "left_out" not in written
    assert written["geomean_relative_speed"]["1"] == {"peer": {"speed": 2.0, "shapes": 2}}
    assert written["geomean_time_over_floor"] == {}, "no floor was timed"
    first = written["rows"][0]
    assert {key: first[key] for key in "mnk"} == {"m": 1, "n": 8, "k": 256}
    assert first["us"] == {"ours": 2.0, "peer": 4.0} and first["failed"] == {"odd": "RuntimeError: no"}


def test_sweep_stops_at_its_budget_and_says_what_it_left_out(tmp_path: Path) -> None:
    done, lines = sweep(tmp_path, 15)
    assert len(done.rows) == 2
    assert lines[-1] == "left out, the budget of 15 s was used up: 4x8x256, 4x16x256 (M x N x K)"
    assert json.loads((tmp_path / "new" / "out.json").read_text())["left_out"] == ["4x8x256", "4x16x256"]


def test_arguments() -> None:
    assert arguments.parse_m("1,64") == [1, 64]
    assert arguments.parse_nk("7168x2048,8X16") == [(7168, 2048), (8, 16)]
    assert arguments.parse_mnk("64x7168X2048") == (64, 7168, 2048)
    for parse, text in (
        (arguments.parse_m, "0"),
        (arguments.parse_m, "1,,2"),
        (arguments.parse_nk, "8"),
        (arguments.parse_mnk, "8x16"),
        (arguments.parse_mnk, "8x16x0"),
        (arguments.parse_nk, "x8"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="expected .* got"):
            parse(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so the benchmark would run")
def test_without_a_gpu_it_says_why_and_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--m", "1", "--nk", "128x128"]) == Exit.NO_GPU == 3
    told = capsys.readouterr()
    assert "compute capability 9.0" in told.err and not told.out


def random_operands(m: int, n: int, k: int) -> Operands:
    seed = torch.seed() % 2**31
    print(f"seed {seed}")
    return Operands.random(m, n, k, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("per_row", [False, True])
def test_whole_tensor_and_row_quantisation(per_row: bool) -> None:
    x = random_operands(48, 8, 256).x
    x[3] = 0
    codes, scale = quantize_whole(x, per_row=per_row)
    assert codes.dtype == torch.float8_e4m3fn and scale.shape == ((48, 1) if per_row else ())
    assert relative_error(codes.float() * scale, x) < 0.05


def test_cublas_scale_layouts_keep_every_scale() -> None:
    scales_a, scales_b = torch.randn(5, 3), torch.randn(2, 3)
    a, b = peers.cublas_block_scales(scales_a, scales_b)
    assert a.stride() == (1, 5) and torch.equal(a, scales_a)
    assert b.shape == (4, 2) and b.stride() == (1, 4) and torch.equal(b[:3], scales_b.t()) and not b[3].any()


def test_the_error_limit_tells_quantisation_from_a_wrong_result() -> None:
    from fp8gemm.reference import gemm_reference

    operands = random_operands(40, 256, 384)
    result = gemm_reference(*operands.blocks)
    assert relative_error(result, operands.product()) < MAX_RELATIVE_ERROR / 2
    result[:, :128] = 0
    assert relative_error(result, operands.product()) > MAX_RELATIVE_ERROR


def test_missing_peers_are_named_with_the_reason() -> None:
    def absent(module: str, attribute: str = "") -> str:
        return peers.Peer("p", "", lambda operands: operands.product, module, attribute).why_missing()

    assert absent("") == absent("torch.nn.functional", "linear") == ""
    assert absent("no_such_module").startswith("no_such_module cannot be imported (")
    assert "has no no_such_function" in absent("torch.nn.functional", "no_such_function")


def test_alone_leaves_only_ours() -> None:
    chosen, skipped = peers.choose_peers(alone=True)
    assert [peer.name for peer in chosen] == [peers.OURS] and skipped == {}
    chosen, skipped = peers.choose_peers(alone=False)
    assert chosen[0].name == peers.OURS and not {peer.name for peer in chosen} & skipped.keys()
    assert {peer.name for peer in chosen} | skipped.keys() == {peer.name for peer in peers.PEERS} | {"triton"}


class FakeTimer:
    """In place of a CUDA graph: runs each call once, on the CPU, and takes as long as there are different results."""

    def __init__(self, calls: list[Call], schedule: timing.Schedule) -> None:
        assert len(calls) == schedule.sets
        self.us = float(len({tuple(call().flatten()[:64].tolist()) for call in calls}))

    def __call__(self) -> float:
        return self.us

    def alone(self, regime: Regime, meanwhile: Callable[[], None]) -> float:
        return self.us + (100.0 if regime is Regime.BURST else 200.0)


def failing(operands: Operands) -> Call:
    raise RuntimeError("no kernel for this shape")


@pytest.mark.parametrize("ours_works", [True, False])
def test_a_whole_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], ours_works: bool
) -> None:
    ready = device.Diagnosis(device.DeviceStatus.READY, "")
    info = device.DeviceInfo(0, "NVIDIA H200", (9, 0), 132, 1 << 18, 232448, "13.0")
    right = peers.Peer("right", "bf16", lambda operands: operands.product)
    wrong = peers.Peer("wrong", "misses a block", lambda operands: lambda: operands.product() * 0.5)
    monkeypatch.setattr(device, "diagnose", lambda index: ready)
    monkeypatch.setattr(device, "device_info", lambda index: info)
    monkeypatch.setattr(graph, "GraphTimer", FakeTimer)
    monkeypatch.setattr(command, "DEVICE", "cpu")
    ours = peers.Peer(peers.OURS, "ours", right.prepare if ours_works else failing)
    missing = peers.Peer("absent", "", failing, module="no_such_module")
    writing = peers.Peer("writing", "", lambda each: partial(torch.mm, each.x, each.w.t(), out=each.output))
    idle = peers.Peer("idle", "leaves what another wrote", lambda each: lambda: each.output)
    monkeypatch.setattr(peers, "PEERS", (ours, right, wrong, missing, writing, idle))
    path = tmp_path / "bench.json"
    arguments = ["--m", "16,512", "--nk", "128x256", "--warm-seconds", "0", "--json", str(path)]

    assert cli.main(["bench", *arguments]) == (0 if ours_works else Exit.FAILED)

    output, reasons = capsys.readouterr()
    assert "absent skipped: no_such_module cannot be imported" in reasons and "triton skipped" in output + reasons
    written = json.loads(path.read_text())
    assert written["gpu"] == "NVIDIA H200"
    assert set(written["peers"]) == {peers.OURS, "right", "wrong", "writing", "idle"}
    regimes = [(16, "turn"), (512, "burst"), (512, "sustained")]
    assert [(row["m"], row["regime"]) for row in written["rows"]] == regimes
    assert all(f"{name}: " in written["method"] for name in ("turn", "burst", "sustained"))
    for row, more in zip(written["rows"], (0, 100, 200), strict=True):
        # As many results as operand sets: the calls rotate.
        assert row["us"]["right"] - more == row["sets"] >= 2
        assert "wrong" not in row["us"] and "differs from the bfloat16 product by 0.5" in row["failed"]["wrong"]
        assert "writing" in row["us"] and "differs from the bfloat16 product by nan" in row["failed"]["idle"]
        assert (peers.OURS in row["us"]) == ours_works == bool(row["config"])


def test_peers_write_to_the_same_memory() -> None:
    operands = Operands.random(4, 128, 256, torch.Generator().manual_seed(1))
    ours = [peers._ours(operands, pdl=pdl)() for pdl in (False, True)]
    assert ours[0] is ours[1] is operands.output and relative_error(ours[0], operands.product()) < MAX_RELATIVE_ERROR
