"""CUDA does not survive a fork: who may not use it is told so, before torch is asked for anything."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.driver import api, forking
from fp8gemm.errors import DriverError, UnsupportedDeviceError
from fp8gemm.products import calls, dense, operands, plans, watched
from fp8gemm.products import linear as linear_plan
from tests.fake_driver import FakeDriver
from tests.jit import children


@pytest.fixture(autouse=True)
def torch_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tests before made of a torch for CUDA."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)


def lost_after(*steps: Any) -> list[bool]:
    """Whether CUDA is lost in a process that takes these steps, in its child, and in the child of that."""

    def work() -> list[bool]:
        forking.lost = forking._started = False
        for step in steps:
            step()
        child = children.start(lambda: [forking.lost, children.run(lambda: forking.lost)])
        return [forking.lost, *child.result()]

    found: list[bool] = children.run(work)
    return found


def test_fault_22_a_child_knows_that_its_parent_had_started_cuda() -> None:
    assert lost_after() == [False, False, False]
    with FakeDriver().installed():
        assert lost_after(api.initialise) == [False, True, True]


def test_fault_22_a_child_knows_that_torch_had_started_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost_after() == [False, False, False]
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert lost_after() == [False, True, True]


def test_a_driver_that_does_not_start_is_nothing_to_lose() -> None:
    driver = FakeDriver()
    driver.failing["cuInit"] = 100

    def attempt() -> None:
        with pytest.raises(DriverError):
            api.initialise()

    with driver.installed():
        assert lost_after(attempt) == [False, False, False]


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def get_device(self) -> int:
        return 0


def test_fault_22_every_way_to_the_gpu_is_refused_where_cuda_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "lost", True)
    monkeypatch.setattr(watched, "_PLAIN", {OnGpu})
    x: Any = torch.ones(8, 16).as_subclass(OnGpu)
    plan: Any = object.__new__(plans.Plan)
    plan.b, plan.scales_b, plan.bias, plan._calls = x, x, None, calls.RepeatedCalls(1)
    layer = linear_plan.LinearPlan(max_m=8, batch_invariant=None)
    ways = [
        lambda: dense.gemm(x, x, x, x),
        lambda: plan(x, x),
        lambda: layer(x, x, x, None),
        lambda: fp8gemm.gemm_grouped(x, x, x, x, offsets=x),
        lambda: fp8gemm.gemm_masked(x, x, x, x, x),
        lambda: fp8gemm.gemm_k_grouped(x, x, x, x, x, c=x),
        lambda: operands.uses_reference(x),
        api.initialise,
    ]
    for way, look in [(way, look) for way in ways for look in (False, True)]:
        expected = pytest.raises(UnsupportedDeviceError, match=f"process {os.getpid()}: it was forked.*'spawn'")
        with settings.scope(check_groups=look), expected:
            way()


def test_a_child_can_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "lost", True)
    assert operands.uses_reference(torch.ones(8, 16))
