"""The policy ``nearest``: which kernel serves a product whose own is not ready. Choices are real, kernels are names."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm import settings
from fp8gemm.errors import CacheMissError
from fp8gemm.kernels import catalogue, loaded, nearest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import OutputType, Problem, Scaling
from fp8gemm.tuning.select import Config, ranked_configs, select
from fp8gemm.tuning.swap_ab import SwapAbConfig

H200 = named_chip("h200")
N, K = 2112, 7168
LATER = 1000.0
"""Seconds after which what has changed is seen."""
OF_FEW, OF_MORE, OF_MANY = (select(m, N, K) for m in (3, 20, 4000))


class Machine:
    """One where some kernels are ready, and some of these loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready: list[Config] = []
        self.loaded: list[Config] = []
        self.refused: list[Config] = []
        self.capturing = False
        self.now = 0.0
        self.looks = 0
        self.problem = Problem(1, N, K)
        monkeypatch.setattr(loaded, "_kernels", {})
        monkeypatch.setattr(loaded, "load_kernel", self.load)
        monkeypatch.setattr(nearest, "_looks", {})
        monkeypatch.setattr(nearest, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(nearest, "contents_stamp", lambda: tuple(self.ready))
        monkeypatch.setattr(nearest, "is_ready", self.look)
        monkeypatch.setattr(nearest, "is_loaded", lambda request, index: self.has(request, self.loaded))
        monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    def has(self, request: Any, configs: list[Config]) -> bool:
        return request in [kernel_request(self.problem, config) for config in configs]

    def load(self, problem: Problem, config: Config, **others: Any) -> SimpleNamespace:
        if config in self.refused:
            raise CacheMissError("the driver refuses its cubin")
        return SimpleNamespace(config=config)

    def look(self, request: Any) -> bool:
        self.looks += 1
        return self.has(request, self.ready)

    def taken(self, m: int, **kind: Any) -> Config:
        """The config of the kernel for M rows."""
        self.problem = replace(Problem(m, N, K), **kind)
        with settings.scope(jit="nearest"):
            return loaded.kernel_for(self.problem, H200, 0).config


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_the_configs_of_these_tests_tell_something_apart() -> None:
    assert isinstance(OF_FEW, SwapAbConfig) and isinstance(OF_MORE, SwapAbConfig) and isinstance(OF_MANY, TileConfig)
    assert OF_MORE not in ranked_configs(Problem(3, N, K), H200)
    assert not {OF_FEW, OF_MORE} & set(ranked_configs(Problem(4000, N, K), H200))


@pytest.mark.parametrize("ready", [OF_FEW, OF_MORE, OF_MANY], ids=lambda config: config.label)
@pytest.mark.parametrize("m", [1, 8, 33, 100, 128, 200, 4000])
@pytest.mark.parametrize("static", [False, True])
def test_the_only_kernel_that_is_ready_serves_every_m(machine: Machine, ready: Config, m: int, static: bool) -> None:
    machine.ready = [ready]
    assert machine.taken(m, static_weights=static) == ready


def test_the_own_candidates_of_an_m_come_first(machine: Machine) -> None:
    of_few = ranked_configs(Problem(3, N, K), H200)
    machine.ready = [OF_MORE, OF_MANY, of_few[-1], of_few[5]]
    assert machine.taken(3) == of_few[5]
    machine.now += LATER
    machine.ready = [OF_FEW, OF_MORE, OF_MANY]
    assert machine.taken(4000) == OF_MANY


def test_of_other_m_the_least_comes_first(machine: Machine) -> None:
    machine.ready = [OF_MORE, OF_FEW]
    assert machine.taken(4000) == OF_FEW


def test_in_a_capture_what_is_ready_must_be_loaded(machine: Machine) -> None:
    machine.capturing, machine.ready, machine.loaded = True, [OF_FEW], [OF_MORE]
    assert machine.taken(3) == OF_MORE


@pytest.mark.parametrize(
    "kind",
    [{"batch_invariant": True}, {"scaling": Scaling.ROW, "output": OutputType.FLOAT32}],
    ids=["invariant", "rows"],
)
def test_a_product_that_may_not_swap_does_not(machine: Machine, kind: dict[str, Any]) -> None:
    """Its own best is then missed in the open."""
    machine.ready = [OF_FEW, OF_MORE]
    assert machine.taken(3, **kind) == ranked_configs(replace(Problem(3, N, K), **kind), H200)[0]


def test_with_nothing_ready_the_best_is_missed(machine: Machine) -> None:
    assert machine.taken(3) == OF_FEW


def test_no_kernel_is_looked_for_twice(machine: Machine) -> None:
    machine.ready = [OF_MANY]
    assert machine.taken(3) == OF_MANY
    first = machine.looks
    assert first > 1
    for m in (1, 2, 4, 8):
        assert machine.taken(m) == OF_MANY
    assert machine.looks == first, "each M up to 8 has the same candidates"
    configs = set(catalogue.candidates(Problem(3, N, K), H200))
    for m in (*range(9, 300), 4000, 16000):
        configs |= set(ranked_configs(Problem(m, N, K), H200))
        assert machine.taken(m) == OF_MANY
    assert machine.looks <= len(configs)


def test_what_appears_is_found_later_but_not_looked_for_at_each_call(machine: Machine) -> None:
    machine.ready = [OF_MANY]
    assert machine.taken(3) == OF_MANY
    looks = machine.looks
    machine.ready = [OF_MANY, OF_MORE, OF_FEW]
    assert machine.taken(3) == OF_MANY and machine.looks == looks
    machine.now += LATER
    assert machine.taken(3) == OF_FEW
    looks = machine.looks
    machine.now += LATER
    assert machine.taken(3) == OF_FEW and machine.looks == looks, "nothing has changed since"


def test_with_nothing_ready_what_appears_is_found_at_once(machine: Machine) -> None:
    machine.refused = [ranked_configs(Problem(4000, N, K), H200)[0]]
    for _ in range(2):
        with pytest.raises(CacheMissError):
            machine.taken(4000)
    candidates = set(catalogue.candidates(Problem(4000, N, K), H200))
    assert machine.looks == len(candidates), "what is not there is remembered as well"
    machine.ready = [OF_MORE]
    assert machine.taken(4000) == OF_MORE


def test_the_directories_in_force_are_the_ones_that_count(machine: Machine, tmp_path: Path) -> None:
    ready = {"here": [OF_MANY], "there": [OF_MORE]}
    for place in ("here", "there", "here", "there"):
        with settings.scope(cache_dirs=(tmp_path / place,)):
            machine.ready = ready[place]
            looks = machine.looks
            assert [machine.taken(m) for m in (3, 4)] == 2 * machine.ready
    assert machine.looks == looks, "the other directories' kernels are remembered too"


def test_a_kernel_that_is_there_but_is_refused_is_taken_for_missing_from_then_on(machine: Machine) -> None:
    machine.ready, machine.refused = [OF_FEW, OF_MORE], [OF_FEW]
    with pytest.raises(CacheMissError, match="refuses"):
        machine.taken(4000)
    machine.ready = [OF_MORE]  # whoever met the refusal has set the entry aside
    assert machine.taken(4000) == OF_MORE
