"""The kernels of docs/learn-hopper.md on a GPU: right results, at shapes that end inside tiles, and from the runner."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from examples.learn_hopper.run import STEPS, Step, compile_step, make_launch, run_all
from examples.learn_hopper.tasks import TASKS

SHAPES = ((1, 16, 16), (64, 128, 128), (200, 272, 784), (1025, 1040, 1168), (4096, 2048, 512))


@cache
def cubin(step: Step) -> bytes:
    return compile_step(step).cubin


@pytest.mark.parametrize("exact", [True, False], ids=["integers", "normal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.entry)
def test_results_are_right(device: torch.device, step: Step, shape: tuple[int, int, int], exact: bool) -> None:
    m, n, k = shape
    task = TASKS[step.entry](m, n, min(k, 128) if step.entry == "wgmma" else k, device=device, exact=exact)
    launch = make_launch(step, cubin(step), task, device.index)
    launch()
    launch()  # the second finds what the first left
    torch.cuda.synchronize(device)
    error, limit = task.error()
    assert error <= limit, f"{task.what}: error {error:.1e}, limit {limit:.1e}"


def test_the_runner_finds_all_of_them_right(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(device.index)
    said = capsys.readouterr().out
    assert all(step.file in said for step in STEPS) and "WRONG" not in said
