"""Grouped products in the benchmark: their sizes, that wrong results are told, what is judged; and whole runs, on the
CPU with fake clocks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fp8gemm.cli import bench as command
from fp8gemm.cli import main as cli
from fp8gemm.cli.exits import Exit
from fp8gemm.driver import device
from fp8gemm.errors import InputError
from fp8gemm.integrations import deep_gemm
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.bench import graph, grouped, grouped_operands, modes, timing
from fp8gemm.lab.bench import grouped_cases as cases
from fp8gemm.lab.bench import grouped_layer as layers
from fp8gemm.lab.bench import grouped_peers as peers
from fp8gemm.lab.bench import grouped_products as products
from fp8gemm.lab.bench import peers as single_peers
from fp8gemm.lab.bench.grouped_operands import FLOOR, Work
from fp8gemm.products import grouped_products, operands
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import named_chip

INFO = device.DeviceInfo(0, "NVIDIA H200", (9, 0), 132, 1 << 16, 232448, "13.0")
BOTH = (peers.DEEP_GEMM, peers.BF16)
SMALL = {
    cases.CONTIGUOUS: cases.GroupedCase(cases.CONTIGUOUS, 3, 40, 128, 256, touched=3),
    cases.MASKED: cases.GroupedCase(cases.MASKED, 3, 20, 128, 256, 64, 3),
    cases.DECODE: cases.GroupedCase(cases.DECODE, 8, 3, 128, 256, 8, 8),
    cases.K_GROUPED: cases.GroupedCase(cases.K_GROUPED, 3, 24, 128, 256, touched=3),
    cases.LAYER: cases.GroupedCase(cases.LAYER, 16, 5, 128, 256),
}
ONE_TOKEN = cases.GroupedCase(cases.DECODE, 8, 1, 128, 256, 8, 2)


class FakeTimer:
    """In place of a CUDA graph: runs each call once, on the CPU, and takes as long as there are calls."""

    def __init__(self, calls: Sequence[Callable[[], object]], schedule: timing.Schedule) -> None:
        assert len(calls) == schedule.sets and schedule.calls % schedule.sets == 0
        for call in calls:
            call()
        self.us = float(len(calls))

    def __call__(self) -> float:
        return self.us


class FakeStream:
    """In place of the kernel that reads a weight: it keeps where it was told to read."""

    read: list[int] = []

    def __init__(self, n: int, k: int, *, device_index: int | None) -> None:
        self.shape = n, k

    def __call__(self, b: Tensor, stream: int) -> None:
        assert b.shape == self.shape and b.is_contiguous()
        FakeStream.read.append(b.data_ptr())


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the kernels that would have been compiled ahead."""
    compiled: list[str] = []
    ready = device.Diagnosis(device.DeviceStatus.READY, "")
    monkeypatch.setattr(device, "diagnose", lambda index: ready)
    monkeypatch.setattr(device, "device_info", lambda index: INFO)
    monkeypatch.setattr(command, "DEVICE", "cpu")
    monkeypatch.setattr(grouped, "GraphTimer", FakeTimer)
    monkeypatch.setattr(modes, "GROUPED_CASES", (*SMALL.values(), ONE_TOKEN))
    monkeypatch.setattr(modes, "build_many", lambda requests: compiled.extend(each.label for each in requests))
    monkeypatch.setattr(grouped_operands, "StreamKernel", FakeStream)
    monkeypatch.setattr(single_peers, "current_stream", lambda index: 17)
    monkeypatch.setattr(FakeStream, "read", [])
    return compiled


def work(case: cases.GroupedCase, *others: str) -> Work:
    return grouped.PARTS[case.part].prepare(case, torch.Generator().manual_seed(7), INFO.l2_bytes, others)


def test_sizes_are_those_of_the_issue_and_the_same_in_every_run() -> None:
    by_part = {part: [case for case in cases.CASES if case.part == part] for part in cases.PARTS}
    assert {(case.groups, case.m) for case in by_part[cases.CONTIGUOUS]} == {(4, 8192), (8, 4096)}
    assert {(case.groups, case.m) for case in by_part[cases.MASKED]} == {(32, 192), (6, 1024), (32, 20), (6, 20)}
    for case in by_part[cases.CONTIGUOUS] + by_part[cases.MASKED]:
        sizes = case.sizes()
        assert sizes == case.sizes() and len(sizes) == case.groups and len(set(sizes)) > 1
        assert all(0.69 * case.m <= size <= 1.31 * case.m for size in sizes)
        assert case.part == cases.CONTIGUOUS or max(sizes) <= case.max_m
    full, one = (case for case in by_part[cases.DECODE] if case.n == 4096)
    assert set(full.sizes()) == {1, 2, 3, 4} and len(full.sizes()) == 256
    assert one.sizes() == [1] * 8 and str(one) == "8 of 256x1x4096x7168" and str(full) == "256x3x4096x7168"
    for case in by_part[cases.K_GROUPED]:
        assert all(size > 0 and size % 128 == 0 for size in case.sizes())
    assert {case.m for case in by_part[cases.LAYER]} == {1, 16, 64, 256, 4096}


class ChosenError(Exception):
    """A product has come as far as its problem."""


@pytest.mark.parametrize("case", [*SMALL.values(), ONE_TOKEN], ids=str)
def test_what_is_compiled_ahead_is_what_products_ask_for(
    case: cases.GroupedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first product of each contender; a layer does not come to its second one."""
    chip = named_chip("h200")
    expected = [kernel_request(problem, select_grouped(problem, chip)) for problem in case.problems()]
    monkeypatch.setattr(grouped_products, "_find_ranges", lambda indices, b: torch.zeros(2, b.shape[0]).int())
    monkeypatch.setattr(grouped_products, "device_chip", lambda index: chip)
    asked: list[GroupedProblem] = []

    def choose(problem: GroupedProblem, *more: object) -> None:
        asked.append(problem)
        raise ChosenError

    monkeypatch.setattr(grouped_products, "kernel_for", choose)
    ours = {name: each for name, each in work(case).contenders.items() if name in grouped.PARTS[case.part].ours}
    for contender in ours.values():
        call = contender.prepare()[0]
        with monkeypatch.context() as context, pytest.raises(ChosenError):
            context.setattr(operands, "uses_reference", lambda tensor: False)
            call()
    assert len(asked) == len(ours)
    assert {kernel_request(problem, select_grouped(problem, chip)) for problem in asked} <= set(expected)


class PlayedRounds:
    """Has a time for whatever it is asked for, without preparing it."""

    def measure_each(self, prepare: Mapping[str, object], m: int) -> Iterator[timing.Timings]:
        yield timing.Timings(us=dict.fromkeys(prepare, 1.0))


def test_contenders_that_are_not_named_are_left_out() -> None:
    chip, generator = named_chip("h200"), torch.Generator()
    bench = grouped.GroupedBench(generator, PlayedRounds(), chip, l2_bytes=1 << 12, measure_us=1.0)  # type: ignore[arg-type]
    case = SMALL[cases.DECODE]
    (every,), (one,) = bench.measure(case), bench.measure(case, only=(products.IN_MASK,))
    assert set(every.us) == {products.OFFSETS, products.IN_MASK, FLOOR} and set(one.us) == {products.IN_MASK}


needs_grouped_mm = pytest.mark.skipif(
    not hasattr(torch, "_grouped_mm"), reason="torch has no grouped product in bfloat16 before 2.8"
)


@needs_grouped_mm
@pytest.mark.parametrize("part", cases.PARTS)
def test_a_wrong_group_is_told(part: str) -> None:
    for name, contender in work(SMALL[part], peers.BF16).contenders.items():
        if contender.check is None:
            continue
        result = contender.prepare()[0]().clone()
        contender.check(result)
        last = result[-1] if result.dim() == 3 else result[-1:]  # of a group, or a row of the last one
        last.copy_(-last)
        if part in (cases.LAYER,) or name == products.DENSE:
            result.neg_()
        with pytest.raises(graph.WrongResultError, match="differs from the"):
            contender.check(result)


def test_rows_for_deep_gemm_begin_at_multiples_of_its_alignment() -> None:
    rows = peers.PaddedRows.of([3, 0, 130], torch.device("cpu"))
    assert rows.places.tolist() == [0, 1, 2, *range(128, 258)]
    assert rows.indices.shape == (384,) and set(rows.indices[:128].tolist()) == {0, -1}
    assert rows.indices[128:258].eq(2).all() and rows.indices[258:].eq(-1).all()


@pytest.mark.parametrize("part", [cases.CONTIGUOUS, cases.MASKED, cases.K_GROUPED])
def test_deep_gemm_is_called_as_it_wants_to_be(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    assert peers.missing()[peers.DEEP_GEMM] == "deep_gemm is fp8gemm.integrations.deep_gemm here"
    named = SimpleNamespace(__name__="deep_gemm", m_grouped_fp8_gemm_nt_masked=None)
    monkeypatch.setitem(sys.modules, "deep_gemm", named)
    assert peers.missing()[peers.DEEP_GEMM] == "deep_gemm has no m_grouped_fp8_gemm_nt_contiguous"
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    contender = work(SMALL[part], peers.DEEP_GEMM).contenders[peers.DEEP_GEMM]
    assert contender.check is not None
    contender.check(contender.prepare()[0]())


@needs_grouped_mm
def test_a_layer_in_bfloat16_is_the_sum_over_its_experts() -> None:
    generator = torch.Generator().manual_seed(7)
    case = SMALL[cases.LAYER]
    gate_up, down = (torch.randn(16, n, k, generator=generator) / 16 for n, k in ((512, 128), (128, 256)))
    tokens = layers.Tokens.random(case, generator)
    assert tokens.expert_ids.shape == (5, 8) and all(len(set(ids)) == 8 for ids in tokens.expert_ids.tolist())
    expected = torch.zeros(5, 128)
    for t in range(5):
        for expert, weight in zip(tokens.expert_ids[t].tolist(), tokens.weights[t], strict=True):
            gate, up = (gate_up[expert] @ tokens.hidden[t].float()).chunk(2)
            expected[t] += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    for layer in (layers.bf16_experts, layers.one_by_one):
        torch.testing.assert_close(
            layer(tokens, gate_up.bfloat16(), down.bfloat16()).float(), expected, atol=0.02, rtol=0.05
        )


def row(case: cases.GroupedCase, **us: float) -> grouped.GroupedRow:
    return grouped.GroupedRow(case, us=us, flops=2 * 10**9, weight_bytes=10**6)


def test_what_is_judged() -> None:
    contiguous, decode = SMALL[cases.CONTIGUOUS], SMALL[cases.DECODE]
    rows = [
        row(contiguous, offsets=10.0, indices=12.0, dense=9.5, deepgemm=11.0),
        row(replace(contiguous, m=50), offsets=10.0, dense=8.0),
        row(decode, offsets=1.3, masked=1.2, floor=1.0),
        row(ONE_TOKEN, offsets=9.0, masked=9.0, floor=1.0),
    ]
    dense, other, streamed = grouped.GATES.as_json(rows).values()
    assert (dense["figure"], dense["met"], dense["count"]) == (0.8, False, 2)
    assert (other["figure"], other["at"]) == (0.9167, "3x40x128x256 deepgemm over indices")
    assert (streamed["figure"], streamed["met"], streamed["count"]) == (1.3, True, 2), "not where few are touched"
    assert [each.lacks for each in rows] == [False, True, False, False]


def test_lines_of_the_table() -> None:
    line = grouped.GroupedTable().line
    text = line(row(SMALL[cases.CONTIGUOUS], offsets=10.0, indices=12.0, dense=9.0))
    assert text.endswith("|    200    100 | offsets 10.00, indices 12.00, dense 9.00 (0.900)")
    assert line(row(ONE_TOKEN, offsets=2.0, floor=1.0)).endswith("offsets 2.00 (2.000), floor 1.00")
    assert line(row(SMALL[cases.MASKED], floor=1.0)).endswith("|      -      - | floor 1.00")
    layer = line(row(SMALL[cases.LAYER], fp8_experts=2.0, floor=1.6, bf16_experts=3.0))
    assert layer.endswith("fp8_experts 2.00 (1.250), floor 1.60, bf16_experts 3.00 (1.500)")


def run(path: Path, *arguments: str) -> int:
    return cli.main(["bench", "--grouped", "--warm-seconds", "0", "--rounds", "2", "--json", str(path), *arguments])


@needs_grouped_mm
def test_a_run_over_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str], on_the_cpu: list[str]) -> None:
    path = tmp_path / "grouped.json"
    assert run(path) == 0
    written = json.loads(path.read_text())
    rows = {row["part"]: row for row in reversed(written["rows"])}
    assert set(rows) == set(cases.PARTS) and written["sizes_seed"] == cases.SIZES_SEED
    for part, found in rows.items():
        assert set(grouped.PARTS[part].ours) <= found["us"].keys() and "failed" not in found
    assert all(FLOOR in rows[part]["us"] for part in (cases.MASKED, cases.DECODE, cases.LAYER))
    assert rows[cases.CONTIGUOUS]["sizes"] == SMALL[cases.CONTIGUOUS].sizes()
    assert rows[cases.CONTIGUOUS]["flops"] == 2 * sum(SMALL[cases.CONTIGUOUS].sizes()) * 128 * 256
    assert rows[cases.DECODE]["weight_bytes"] == 8 * 128 * 256 and rows[cases.DECODE]["max_m"] == 8
    assert set(written["skipped"]) == {peers.DEEP_GEMM} and peers.BF16 in rows[cases.CONTIGUOUS]["us"]
    few = written["rows"][-1]
    assert few["touched"] == 2 and few["weight_bytes"] == 2 * 128 * 256
    assert few["sets"] == 4 and len(set(FakeStream.read[-4:])) == 4, "other groups in each call"
    assert any(label.startswith("grouped-columns-g3") for label in on_the_cpu)
    text, reasons = capsys.readouterr()
    assert "deepgemm skipped: deep_gemm cannot be imported" in reasons
    assert "contiguous, speed relative to one product: worst 1.000 of 1, at least 0.9: met" in text


def test_a_run_over_one_part_alone(tmp_path: Path, on_the_cpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grouped.json"
    assert run(path, "--only", cases.LAYER, "--no-peers") == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert found["part"] == cases.LAYER and list(found["us"]) == [layers.OURS, FLOOR]
    assert len(on_the_cpu) == 2

    monkeypatch.setattr(layers, "normal", lambda *arguments: 1 // 0)
    assert run(path, "--only", cases.LAYER) == Exit.FAILED
    (found,) = json.loads(path.read_text())["rows"]
    assert found["us"] == {} and found["failed"][layers.OURS].startswith("ZeroDivisionError")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--grouped", "--m", "4"], "neither --m nor --nk beside --grouped"),
        (["--grouped", "--nk", "4x16"], "neither --m nor --nk beside --grouped"),
        (["--grouped", "--floor"], "neither --pdl nor --floor beside --grouped"),
        (["--only", "layer"], "--grouped beside --only layer"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], complaint: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(InputError, match=f"expected {complaint}"):
        command.check_options(parser.parse_args(arguments))
