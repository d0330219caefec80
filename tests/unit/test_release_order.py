"""What the tests of `tests/gpu/test_release_order.py` launch, on the CPU: kernels that compute by the reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.tuning import swap_ab
from fp8gemm.tuning.config import TileConfig, violations
from fp8gemm.tuning.grouped_config import grouped_shared_bytes
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import SHARED_BYTES_PER_CTA, named_chip
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import clogged, reused_stages
from tests.launches import Lanes, Prepared, Repeated, Wrong, check_played, launch_rounds, play
from tests.prepared import prepare_columns, prepare_dense, prepare_grouped
from tests.quantizer_launches import Quantising, prepare_quantising, quantisings
from tests.reference_kernels import Dense, Grouped, Quantises
from tests.scripts import load_script

DENSE = [
    *clogged.dense_subjects(clogged.TILES),
    *clogged.dense_subjects(clogged.TILES, Scaling.ROW),
    *clogged.dense_subjects(clogged.SHARED_K),
    *clogged.dense_subjects(clogged.CLUSTERS),
]
SWAPPED = list(clogged.swapped_subjects())
GROUPED = [
    *(pair for grouping in (Grouping.CONTIGUOUS, Grouping.MASKED) for pair in clogged.grouped_subjects(grouping)),
    *clogged.grouped_swapped_subjects(),
]
COLUMNS = list(clogged.column_subjects())


def counted(kernel: Any, prepared: Prepared, rounds: int = 2) -> Wrong:
    wrong = torch.zeros(2, dtype=torch.int64)
    launch_rounds(kernel, prepared, wrong, rounds=rounds, stream=17)
    launches, elements = wrong.tolist()
    return Wrong(launches, elements)


def named(value: Any) -> str:
    """Of a problem or a config, in the name of a test."""
    if isinstance(value, (TileConfig, SwapAbConfig)):
        return value.label
    return f"{value.scaling.value}-n{value.n}-k{value.k}-{value.output.value}"


@pytest.mark.parametrize("family", clogged.FAMILIES)
def test_families_are_of_kernels_that_differ(family: str) -> None:
    requests = [subject.request for subject in clogged.FAMILIES[family]()]
    assert len(set(requests)) == len(requests) >= 12


def test_kernels_are_legal_and_store_element_by_element() -> None:
    for problem, config in DENSE:
        assert not violations(config, problem.store, problem.output, problem.scaling), config
    for dense, swapped in SWAPPED:
        assert not swap_ab.violations(swapped, dense.k), swapped
    for group, each in (*GROUPED, *COLUMNS):
        assert grouped_shared_bytes(group, each) <= SHARED_BYTES_PER_CTA, each
        if isinstance(each, TileConfig):
            assert not violations(each, group.store, group.output, group.scaling), each
        else:
            assert not swap_ab.violations(each, group.k), each
    every = [problem for problem, _ in (*DENSE, *SWAPPED, *GROUPED, *COLUMNS)]
    assert {problem.store for problem in every} == {StoreKind.PREDICATED}
    assert {problem.n for problem in every} == {1, 3, 65, 101, 577}
    assert {problem.k for problem, _ in (*DENSE, *GROUPED)} == {16, 64, 128, 144, 256}


def test_dense_kernels_have_every_addend_and_tiles_enough_to_go_around_the_ring() -> None:
    assert {(problem.c, problem.bias) for problem, _ in DENSE} == set(clogged.ADDENDS)
    assert {problem.output for problem, _ in DENSE} == set(OutputType)
    for problem, config in DENSE:
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        assert tiles // clogged.NUM_SMS >= 2 * config.stages, (problem, config)
    assert sum(config.steps(problem.k) > config.stages for problem, config in SWAPPED) == 2 * len(clogged.SWAPPED)


@pytest.mark.parametrize(("problem", "config"), [*DENSE, *SWAPPED], ids=named)
def test_dense_operands_are_right(problem: Problem, config: TileConfig | SwapAbConfig) -> None:
    small = replace(problem, m=37)
    assert counted(Dense(small), prepare_dense(small, 3, "cpu")) == (0, 0)


@pytest.mark.parametrize(("problem", "config"), GROUPED, ids=named)
def test_grouped_operands_are_right(problem: GroupedProblem, config: TileConfig | SwapAbConfig) -> None:
    sizes, most = clogged.group_sizes(problem, config, 3)
    assert len(sizes) == clogged.GROUPS and max(sizes) == most and 0 in sizes
    small = replace(problem, groups=5)
    prepared = prepare_grouped(small, (20, 0, 1, 9, 20), 20, 3, "cpu")
    assert counted(Grouped(small), prepared) == (0, 0)


@pytest.mark.parametrize(("problem", "config"), COLUMNS, ids=named)
def test_operands_of_groups_of_columns_are_right(problem: GroupedProblem, config: TileConfig) -> None:
    small = replace(problem, groups=4, m=21)
    prepared = prepare_columns(small, (128, 0, 256, 128), 3, "cpu")
    assert counted(Grouped(small), prepared) == (0, 0)
    assert math.isnan(prepared.outputs[0].before[0, 0]) == (problem.c is Addend.NONE)


@pytest.mark.parametrize("each", quantisings(), ids=lambda each: each.quantizer.request.label)
def test_quantisers_get_operands_that_are_right(each: Quantising) -> None:
    small = replace(each, m=131, counts=(131, 0, 7) if each.counts else ())
    prepared = prepare_quantising(small, Quantises(small), 3, torch.device("cpu"), stream=17)
    assert counted(Quantises(small), prepared) == (0, 0)


@pytest.mark.parametrize("each", quantisings(), ids=lambda each: each.quantizer.request.label)
def test_a_quantiser_whose_first_launch_is_wrong_is_refused(each: Quantising) -> None:
    class Faulty(Quantises):
        def bind(self, *args: Any, **options: Any) -> Callable[[], None]:
            return self.spoil(super().bind(*args, **options), args[2])

        def bind_masked(self, *args: Any, **options: Any) -> Callable[[], None]:
            return self.spoil(super().bind_masked(*args, **options), args[2])

        def spoil(self, run: Callable[[], None], scales: Tensor) -> Callable[[], None]:
            def spoilt() -> None:
                run()
                scales[(0,) * scales.dim()] *= 2

            return spoilt

    small = replace(each, m=131, counts=(131, 0, 7) if each.counts else ())
    with pytest.raises(AssertionError, match=each.quantizer.request.label):
        prepare_quantising(small, Faulty(small), 3, torch.device("cpu"), stream=17)


def test_each_wrong_launch_counts_once_and_each_wrong_element() -> None:
    problem, _ = DENSE[0]
    small = replace(problem, m=37)
    prepared, launches = prepare_dense(small, 3, "cpu"), iter(range(5))

    class Faulty(Dense):
        def bind(self, *args: Any, **options: Any) -> Callable[[], None]:
            right, index = super().bind(*args, **options), next(launches)

            def run() -> None:
                if index != 1:  # which leaves what was there before
                    right()
                if index == 3:
                    options["out"][5, :2] += 1

            return run

    assert counted(Faulty(small), prepared, rounds=5) == (2, 37 * small.n + 2)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is captured is done at once, and once."""
    stream = SimpleNamespace(wait_stream=lambda other: None, cuda_stream=17)
    graph = SimpleNamespace(capture_begin=lambda **pool: None, capture_end=lambda: None, replay=lambda: None)
    event = SimpleNamespace(record=lambda: None, query=lambda: True)
    makers = {"Stream": lambda device: stream, "CUDAGraph": lambda: graph, "Event": lambda: event}
    for name, make in {**makers, "graph_pool_handle": lambda: (0, 0)}.items():
        monkeypatch.setattr(torch.cuda, name, make)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    yield


def test_graphs_count_over_all_sets_and_play_stops_where_it_should(no_cuda: None) -> None:
    problem, _ = DENSE[0]
    small = replace(problem, m=37)
    sets = [prepare_dense(small, seed, "cpu") for seed in range(3)]
    lanes = Lanes(torch.device("cpu"), len(sets))
    sound = Repeated("sound", Dense(small), sets, rounds=2, lanes=lanes)
    wrong_sets = [replace(each, bind=sets[0].bind) for each in sets]
    faulty = Repeated("faulty", Dense(small), wrong_sets, rounds=2, lanes=lanes)
    assert sound.launches == 6 and sound.replay() == (0, 0)
    found = faulty.replay()
    assert found is not None and found.launches == 4 and found.elements > 4
    played = play([sound, faulty], 20, limit_s=60.0)
    assert (played.launches, played.wrong, played.worst) == (12, found, "faulty")
    played = play([sound, faulty], 20, limit_s=60.0, to_the_end=True)
    assert (played.launches, played.wrong, played.enough, played.hangs) == (24, found, True, False)
    assert not play([sound], 20, limit_s=0.0).enough
    with pytest.raises(AssertionError, match=r"wrong elements in 4 launches of faulty, of 24 launches, seed 5"):
        check_played(played, 20, 5, pytest.fail)


def test_the_calls_play_the_deepest_rings_of_one_and_of_two_consumer_warpgroups() -> None:
    tiles = {str(variant): variant.tile(named_chip("h200")) for variant in reused_stages.VARIANTS}
    for name, tile in tiles.items():
        assert tile == ("128x64-s8-c1x1" if "batch-invariant" in name else "64x96-s8-c1x1"), name


def test_operands_of_the_call_are_right_in_every_dtype() -> None:
    made = reused_stages.make_operands(3, "cpu", groups=6, max_m=40)
    assert sorted(made.counts.tolist()) == [0, 0, 0, 40, 40, 40]
    assert made.scales[1].stride() == made.scales[0].stride() == made.case.scales_a.stride()
    for dtype in (torch.float16, torch.float32):
        for scales, right in zip(made.scales, made.right_as(dtype), strict=True):
            out = made.case.poison(dtype)
            case = made.case
            fp8gemm.gemm_masked(case.a, scales, case.b, case.scales_b, made.counts, out=out)
            assert torch.equal(out, right)


def test_calls_are_compared_each_on_its_own(no_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_stages, "PAIRS_OF_GRAPH", 3)
    made = reused_stages.make_operands(3, "cpu", groups=4, max_m=24)
    multiply, calls = fp8gemm.gemm_masked, []

    def faulty(*args: Any, out: Tensor, **options: Any) -> None:
        calls.append(out.data_ptr())
        if len(calls) == 5:  # what the other call has left there stays
            return
        multiply(*args, out=out, **options)
        if len(calls) == 1:
            out[made.counts > 0] += 1

    for variant in reused_stages.VARIANTS:
        assert reused_stages.Calls(variant, made).replay() == (0, 0)
    monkeypatch.setattr(fp8gemm, "gemm_masked", faulty)
    found = reused_stages.Calls(reused_stages.VARIANTS[0], made).replay()
    first, *_ = calls
    assert found is not None and found.launches == 2 and len(calls) == 9
    assert calls[3:5] == calls[6:4:-1] == calls[7:9] and first not in calls[3:]


script = load_script("release_order")


@pytest.mark.parametrize("other", [False, True])
def test_the_script_writes_what_it_counts(other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"launches": 100, "wrong": 3, "wrong_elements": 9, "worst": "k", "seconds": 1.0}
    sound = {**row, "wrong": 0, "family": "dense 1D2D", "kernels": 7}
    call = {**row, "wrong": 0, "variant": "v", "tile": "64x64"}
    with_others = {"headers": "old", "calls": [{**call, "wrong": 3}], "problem": ""}
    for name, value in (("count_calls", [call]), ("count_families", [sound]), ("count_calls_with", with_others)):
        monkeypatch.setattr(script, name, lambda *args, value=value: value)
    monkeypatch.setattr(script, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    path = tmp_path / "results" / "report.json"
    options = script.parser().parse_args(["--json", str(path), "--seed", "5", *(["--include", "old"] * other)])
    assert script.count(options, ["dense 1D2D"]) == 0
    written = json.loads(path.read_text())
    assert written["gpu"] == "NVIDIA H200" and written["seed"] == 5 and written["calls"] == [call]
    assert written["families"] == [sound] and written.get("other") == (with_others if other else None)
    monkeypatch.setattr(script, "count_families", lambda *args: [{**sound, "wrong": 1}])
    assert script.count(options, ["dense 1D2D"]) == script.Exit.FAILED


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("raise SystemExit(3)", "the process ended with code 3"),
        ("json.dump({'hangs': 'k does not end'}, file)", "k does not end"),
        ("json.dump({'calls': [1]}, file)", ""),
    ],
)
def test_what_becomes_of_the_process_with_other_headers_is_told(
    lines: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(f"import json, sys\nfile = open(sys.argv[sys.argv.index('--json') + 1], 'w')\n{lines}\n")
    monkeypatch.setattr(script, "__file__", str(child))
    found = script.count_calls_with(tmp_path, "old", 7, 5)
    assert found == {"headers": "old", "calls": [] if problem else [1], "problem": problem}


def test_the_script_refuses_what_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.families_of("") == [] and script.families_of("swapped,quantisers") == ["swapped", "quantisers"]
    for arguments in (["--families", "nonsense"], ["--include", str(tmp_path)], ["--headers", str(tmp_path)]):
        with pytest.raises(SystemExit):
            script.main(arguments)
        assert "expected" in capsys.readouterr().err
