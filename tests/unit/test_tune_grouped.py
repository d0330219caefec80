"""Whole runs of `fp8gemm tune --grouped`, without a GPU and on one that is played."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.cli import main as cli
from fp8gemm.cli import tune as command
from fp8gemm.driver import device
from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.errors import InputError
from fp8gemm.lab.bench.grouped_cases import random_sizes
from fp8gemm.lab.labels import labelled_config, labelled_grouped_config
from fp8gemm.lab.tune import ahead, grouped, measure, measure_grouped
from fp8gemm.lab.tune.grouped import LAYOUTS, plan_grouped
from fp8gemm.reference import gemm_grouped_reference, gemm_masked_reference
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem, grouped_problem
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Grouping
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig

H200 = named_chip("h200")
GROUPS, N, K, M = 3, 256, 256, 20


class Gpu:
    """A GPU that CPU tensors are taken to be on: kernels are the reference, and each takes the time it is said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.us: dict[str, float] = {}
        self.faults: dict[str, Callable[[Tensor], object]] = {}
        self.timed: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.sizes: list[list[int]] = []
        info = SimpleNamespace(index=0, name="NVIDIA H200", num_sms=132, l2_bytes=60 << 10, driver_version="13.0")
        monkeypatch.setattr(device, "diagnose", lambda index: Diagnosis(DeviceStatus.READY, "played"))
        monkeypatch.setattr(device, "device_info", lambda index: info)
        monkeypatch.setattr("fp8gemm.kernels.loaded.device_chip", lambda index: H200)
        monkeypatch.setattr(command, "DEVICE", "cpu")
        monkeypatch.setattr(torch.cuda, "device", lambda name: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda name: SimpleNamespace(cuda_stream=3))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(ahead, "Ahead", self.ahead)
        monkeypatch.setattr(measure_grouped, "GroupedKernel", self.kernel)
        monkeypatch.setattr(grouped, "random_sizes", self.random_sizes)
        monkeypatch.setattr(measure, "GraphTimer", self.timer)

    def random_sizes(self, groups: int, m: int, seed: int) -> list[int]:
        self.sizes.append(random_sizes(groups, m, seed))
        return self.sizes[-1]

    def ahead(self, requests: Any) -> Any:
        self.asked += [request.label for request in requests]
        return nullcontext(SimpleNamespace(wait=lambda requests: None))

    def kernel(self, problem: GroupedProblem, config: Config, **options: Any) -> Any:
        assert options == {"device_index": 0, "num_sms": 132, "limited": False}

        def bind(operands: Any, stream: int) -> Callable[[], None]:
            assert stream == 3 and operands.products == sum(self.sizes[-1]) * problem.n * problem.k

            def launch() -> None:
                _multiply(problem, operands, self.sizes[-1])
                self.faults.get(config.label, lambda out: None)(operands.out)

            return launch

        self.last = problem.grouping.value, config.label
        return SimpleNamespace(bind=bind)

    def timer(self, calls: Any, plan: Any) -> Callable[[], float]:
        assert len(calls) == plan.sets >= 2 and len({call().data_ptr() for call in calls}) == plan.sets
        label = self.last[1]
        self.timed.append(self.last)
        return lambda: self.us.get(label, 10.0)


def _multiply(problem: GroupedProblem, operands: Any, sizes: list[int]) -> None:
    """What a kernel computes of what it is given."""
    b = operands.b.view(problem.groups, problem.n, problem.k)
    if problem.grouping is Grouping.MASKED:
        assert operands.begins == 0 and operands.rows == max(sizes)
        a, out = (x.view(problem.groups, operands.rows, -1) for x in (operands.a, operands.out))
        gemm_masked_reference(a, operands.scales_a, b, operands.scales_b, torch.tensor(sizes), out=out)
    else:
        assert operands.ends == operands.begins + 4 and operands.rows == sum(sizes)
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        terms = operands.a, operands.scales_a, b, operands.scales_b
        gemm_grouped_reference(*terms, offsets=offsets, out=operands.out)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    usual = ["tune", "--grouped", f"{GROUPS}x{N}x{K}", "--m", str(M), "--measure-ms", "0.01", "--json"]
    code = cli.main([*usual, *words])
    return code, json.loads(capsys.readouterr().out)


def candidates(grouping: Grouping, count: int) -> list[str]:
    (work,) = plan_grouped([(GROUPS, N, K)], [M], [grouping], H200, count)
    return list(work.candidates)


def test_a_run_times_both_layouts_and_judges_the_choice(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {grouping.value: candidates(grouping, 3) for grouping in LAYOUTS}
    gpu.us = {wanted["masked"][0]: 12.0, wanted["masked"][1]: 8.0}
    code, found = tune(capsys, "--candidates", "3", "--seed", "9")
    assert code == 0 and found["seed"] == 9 and found["left_out"] == 0 and found["chip"] == "h200"
    assert gpu.timed == [(layout, label) for layout, labels in wanted.items() for label in labels]
    assert len(gpu.asked) == len(gpu.timed)
    assert [(row["layout"], row["groups"], row["m"], row["n"], row["k"]) for row in found["rows"]] == [
        ("contiguous", GROUPS, M, N, K),
        ("masked", GROUPS, M, N, K),
    ]
    row = found["rows"][1]
    assert (row["best"], row["choice"], row["regret"]) == (wanted["masked"][1], wanted["masked"][0], 0.5)
    assert row["us"][row["choice"]] == 12.0 and set(row["us"]) == set(wanted["masked"])
    assert len(gpu.sizes) == 2 and gpu.sizes[0] == gpu.sizes[1] and len(set(gpu.sizes[0])) > 1


def test_a_wrong_group_has_no_time_and_is_told(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = candidates(Grouping.MASKED, 3)[:3]
    sizes = random_sizes(GROUPS, M, 9)
    room = max(sizes)

    def rows_of_last(out: Tensor) -> Tensor:
        return out[(GROUPS - 1) * room : (GROUPS - 1) * room + sizes[-1]]

    gpu.faults = {
        first: lambda out: rows_of_last(out).zero_(),
        third: lambda out: rows_of_last(out)[-1].fill_(math.nan),
    }
    words = ("--candidates", "3", "--seed", "9", "--layout", "masked")
    code, found = tune(capsys, *words)
    (row,) = found["rows"]
    assert code == 1 and set(row["failed"]) == {first, third} and second in row["us"]
    assert f"in group {GROUPS - 1}" in row["failed"][first] and "first config's result" in row["failed"][third]
    assert found["failed"] == 2 and row["regret"] is None


def test_lines_for_people(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"tune --grouped {GROUPS}x{N}x{K} --m 4,{M} --layout contiguous --candidates 1 --measure-ms 0.01"
    assert cli.main(words.split()) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[2].startswith("layout     groups ") and len([line for line in text if line.startswith("contig")]) == 2
    assert text[-1].startswith("2 shapes: the choice costs 0.00%")
    assert cli.main([*words.split(), "--budget-seconds", "0"]) == 0
    assert "2 sizes of groups left out" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_bar_is_on_standard_error_and_results_are_not(
    more: list[str], gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"tune --grouped {GROUPS}x{N}x{K} --m 4,{M} --layout contiguous --candidates 1 --measure-ms 0.01"
    assert cli.main([*words.split(), *more]) == 0
    alone = capsys.readouterr()
    assert "ETA" not in alone.err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    # A bar is drawn again after a tenth of a second: each look at the clock is one later, however fast the machine is.
    monkeypatch.setattr("tqdm.std.time", itertools.count().__next__)
    assert cli.main([*words.split(), *more]) == 0
    told = capsys.readouterr()
    assert "2/2 sizes of groups [" in told.err and "ETA 0" in told.err
    assert "ETA" not in told.out and told.out.count("\n") == alone.out.count("\n")


def test_candidates_are_the_first_and_some_of_the_other_orientation() -> None:
    for m, swapped in ((2, True), (512, False)):
        (work,) = plan_grouped([(32, 4096, 7168)], [m], [Grouping.MASKED], H200, 2)
        ranked = ranked_grouped(work.problem, H200)
        configs = list(work.candidates.values())
        assert configs[:2] == list(ranked[:2]) and work.choice == ranked[0].label
        assert isinstance(configs[0], SwapAbConfig) == swapped
        assert len([config for config in configs if isinstance(config, SwapAbConfig) != swapped]) == 2 * swapped
    problem = grouped_problem(Grouping.CONTIGUOUS, 32, 64, 4096, 7168)
    (every,) = plan_grouped([(32, 4096, 7168)], [64], [Grouping.CONTIGUOUS], H200, None)
    assert set(every.candidates.values()) == set(ranked_grouped(problem, H200))
    with pytest.raises(InputError, match="1 to 1024 groups"):
        plan_grouped([(2000, 128, 128)], [1], LAYOUTS, H200, 1)


def test_configs_are_tried_by_their_labels(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the choice may fall on them or not; their rings are less deep where the table needs the room."""
    words = ("--candidates", "1", "--layout", "masked", "--also", "128x160,256x128-s2")
    code, found = tune(capsys, *words)
    candidates = {config.label for config in ranked_grouped(grouped_problem(Grouping.MASKED, GROUPS, M, N, K), H200)}
    assert code == 0 and set(found["rows"][0]["us"]) - candidates == {"128x160-s5-c1x1", "256x128-s2-c1x1"}
    problem = GroupedProblem(Grouping.CONTIGUOUS, 1024, 64, 4096, 4096)
    assert labelled_config("64x256", problem.of_group()).label == "64x256-s5-c1x1"
    assert labelled_grouped_config("64x256", problem).label == "64x256-s4-c1x1"


@pytest.mark.parametrize(
    ("label", "grouping", "groups"),
    [
        ("128x128-split2", Grouping.MASKED, 4),
        ("256x128-c1x2", Grouping.MASKED, 4),
        ("256x128", Grouping.CONTIGUOUS, 4),
        ("64x64-k2", Grouping.COLUMNS, 4),
        ("64x256-s5", Grouping.CONTIGUOUS, 1024),
    ],
)
def test_labels_that_groups_cannot_have_are_refused(label: str, grouping: Grouping, groups: int) -> None:
    problem = GroupedProblem(grouping, groups, 64, 4096, 4096)
    with pytest.raises(InputError, match=f"{label}: expected a config that {groups} {grouping.value} groups of 64x"):
        labelled_grouped_config(label, problem)


def test_sizes_of_groups_are_about_the_typical_one() -> None:
    sizes = random_sizes(200, 100, 3)
    assert sizes == random_sizes(200, 100, 3) != random_sizes(200, 100, 4)
    assert 70 <= min(sizes) < 80 and 120 < max(sizes) <= 130
    assert random_sizes(5, 1, 3) == [1] * 5


REFUSED = "--nk 8x16", "--shapes 8x8x16", "--random 2", "--peers deepgemm", "--table t", "--results r"


@pytest.mark.parametrize("option", REFUSED)
def test_options_of_other_products_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--grouped", "4x128x128", *option.split()]) == 1
    assert f"expected none of these beside --grouped, got {option.split()[0]}" in capsys.readouterr().err


def test_a_layout_that_is_not_tuned_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tune", "--grouped", "4x128x128", "--layout", "columns"])
    assert "expected contiguous or masked, got 'columns'" in capsys.readouterr().err
