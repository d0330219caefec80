"""What a report times is what its layers ask for: the same products, of groups as many and as large."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm.cli import report as command
from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.lab.bench.grouped import PARTS, GroupedRow
from fp8gemm.lab.bench.grouped_cases import CONTIGUOUS, DECODE, MASKED, GroupedCase
from fp8gemm.lab.bench.operands import Operands, relative_error
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.report import measure
from fp8gemm.lab.report.layers import Layer, predicted
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import CHIPS
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Scaling, packed_problem
from tests.attacked import NO_TORCH, attacked

H200 = CHIPS["h200"]
M, N, K = 5, 136, 272
PROBLEMS = {
    "plain": packed_problem(M, N, K),
    "static": replace(packed_problem(M, N, K), static_weights=True),
    "bias": replace(packed_problem(M, N, K), bias=Addend.FLOAT32),
    "c and bias, float32": replace(packed_problem(M, N, K, OutputType.FLOAT32), c=Addend.FLOAT32, bias=Addend.BFLOAT16),
    "rows": packed_problem(M, N, K, OutputType.FLOAT16, Scaling.ROW),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_product_is_that_of_the_layer(name: str) -> None:
    problem = PROBLEMS[name]
    operands = Operands.random(M, N, K, torch.Generator().manual_seed(3))
    peer = measure._peer(problem)
    result = peer.prepare(operands)()
    assert str(result.dtype) == f"torch.{problem.output.value}" and peer.expected is not None
    assert relative_error(result, peer.expected(operands)) < 0.05
    a, scales_a, b, scales_b = operands.blocks
    if problem.scaling is Scaling.ROW:
        b, scales_b = fp8gemm.quantize_activation(operands.w)
    c, bias = measure._addends(problem, operands)
    assert ((c is None) is (problem.c is Addend.NONE)) and ((bias is None) is (problem.bias is Addend.NONE))
    assert torch.equal(result, fp8gemm.gemm(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=result.dtype))
    rest = peer.expected(operands) - operands.product()
    added = sum((each for each in (c, bias) if each is not None), torch.zeros(()))
    assert relative_error(rest + 1, added.expand(M, N) + 1) < 0.05


class PlayedBench:
    """Has a time for whatever it is asked for."""

    def __init__(self) -> None:
        self.cases: list[GroupedCase] = []

    def measure(self, case: GroupedCase, only: Collection[str]) -> Iterator[GroupedRow]:
        self.cases.append(case)
        us = {name: 1.0 + number for number, name in enumerate(PARTS[case.part].ours) if name in only}
        assert len(us) == 1, "what the layer does not ask for is not measured either"
        yield GroupedRow(case, us=us, regime=Regime.TURN)


def timed(grouping: Grouping, m: int, **changes: Any) -> tuple[Any, list[GroupedCase]]:
    """The point of M tokens, each of which goes to 2 of 16 experts, 8 of them here."""
    problem = replace(grouped_problem(grouping, 8, 4096, 256, 512), **changes)
    bench = PlayedBench()
    point = predicted(Layer(("experts",), problem, routed=(16, 2)), m, H200)
    return measure._of_groups(point, point.problem, bench), bench.cases


@pytest.mark.parametrize("grouping", [Grouping.CONTIGUOUS, Grouping.MASKED])
@pytest.mark.parametrize("m", [1, 4, 200, 3000])
def test_groups_are_as_many_and_as_large(grouping: Grouping, m: int) -> None:
    point, (case,) = timed(grouping, m)
    few = m < 8
    whole = MASKED if grouping is Grouping.MASKED else CONTIGUOUS
    assert case.part == (DECODE if few else whole) and case.touched == min(m, 8)
    assert point.problem in case.problems(), "the kernel is chosen for this"
    sizes = case.sizes()
    assert len(sizes) == case.touched and max(sizes) <= max(case.max_m, 1)
    assert sum(sizes) == m if few else abs(sum(sizes) - m) < 0.3 * m + 8
    # In masks it is the second of what decoding is timed in, and the first elsewhere.
    assert point.measured == {"turn": 2.0 if few and grouping is Grouping.MASKED else 1.0} and not point.failed


def test_groups_that_are_not_measured_say_why() -> None:
    for m, changes, why in (
        (3, {}, "3 of 8 groups"),
        (64, {"output": OutputType.FLOAT16}, "bfloat16"),
        (64, {"batch_invariant": True}, "batch invariance"),
    ):
        point, cases = timed(Grouping.CONTIGUOUS, m, **changes)
        assert not cases and why in point.failed and point.measured_us is None


def test_the_method_is_that_of_the_rows() -> None:
    assert "turn" not in measure.how_measured([1024]).split(";")[0] and "sustained" in measure.how_measured([1024])
    assert "sustained" not in measure.how_measured([1, 64])


@pytest.mark.parametrize(
    ("words", "backend", "status", "expected"),
    [
        ("", "auto", DeviceStatus.READY, ("h100", "")),
        ("--measure --chip h100", "auto", DeviceStatus.READY, ("h100", "")),
        ("--no-measure", "auto", DeviceStatus.READY, ("h100", "--no-measure: nothing was to be measured.")),
        ("--chip h20", "auto", DeviceStatus.READY, ("h20", "GPU is h100, and kernels are chosen for h20.")),
        ("", "reference", DeviceStatus.READY, ("h200", "FP8GEMM_BACKEND asks for the reference.")),
        ("", "auto", DeviceStatus.NO_GPU, ("h200", "none found")),
        ("--measure --chip h20", "auto", DeviceStatus.READY, "--measure: expected the chip of the GPU; this machine's"),
        ("--measure", "reference", DeviceStatus.READY, "--measure: FP8GEMM_BACKEND"),
    ],
)
def test_what_is_measured_is_on_the_chip_of_the_page(
    words: str, backend: str, status: DeviceStatus, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "conclude", lambda _: Diagnosis(status, "none found"))
    monkeypatch.setattr(command, "device_chip", lambda _: CHIPS["h100"])
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    findings = SimpleNamespace(probed=None, settings=SimpleNamespace(backend=backend))
    options = parser.parse_args(["--nk", "256x512", *words.split()])
    if isinstance(expected, str):
        with pytest.raises(fp8gemm.InputError, match=f"^{expected}"):
            command._target(options, findings)
    else:
        chip, unmeasured = command._target(options, findings)
        assert chip.name == expected[0] and unmeasured.endswith(expected[1]) and bool(unmeasured) == bool(expected[1])


def test_a_page_is_drawn_without_torch(tmp_path: Path) -> None:
    done = attacked(
        *("report", "--nk", "256x512", "--m", "8", "--max-m", "8", "--output", str(tmp_path / "page.html")),
        startup=NO_TORCH,
        FP8GEMM_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert (done.code, done.err) == (0, "") and "predicted" in done.out
    assert "<dt>torch</dt><dd>none</dd>" in (tmp_path / "page.html").read_text()
