"""The policy ``nearest``: which ready kernel serves a product whose own is not ready.

To look whether a kernel is ready takes its key, and so its source and headers, and asks every cache directory: 18 to
36 ms for the candidates of one product where most are missing. So each kernel is looked for once, and what was found is
remembered, as is what was not there. A kernel that appears later is found once `_LOOK_AGAIN_S` are over, or before that
by a product that would have none.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import torch

from fp8gemm import settings
from fp8gemm.jit.build import contents_stamp, is_ready
from fp8gemm.jit.kernel import is_loaded
from fp8gemm.kernels.catalogue import candidates, kernel_request, kind_of
from fp8gemm.tuning.grouped_problem import AnyProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.table import tables_in_force

_LOOK_AGAIN_S = 30.0
_MOST_CHOICES = 4096


class _Look:
    """What was found in a cache since it had some contents.

    Attributes:
        stamp: of the contents.
        until: when they must be compared again, by `time.monotonic`.
        ready: by kind of product and config, whether its kernel is there.
        choices: by product and chip, the best config that is ready.
    """

    def __init__(self) -> None:
        # Before anything is looked for: what appears meanwhile makes another stamp.
        self.stamp = contents_stamp()
        self.until = time.monotonic() + _LOOK_AGAIN_S
        self.ready: dict[Hashable, bool] = {}
        self.choices: dict[Hashable, Config] = {}


_looks: dict[tuple[tuple[Path, ...], tuple[Path, ...]], _Look] = {}
"""By the directories in force. A look is replaced as a whole: no thread adds what it saw before to the next one."""


def nearest_config(problem: AnyProblem, chip: Chip, device_index: int) -> Config | None:
    """The best config whose kernel is in a cache or, while a CUDA graph is captured, loaded on the GPU.

    Args:
        problem: what is asked for.
        chip: what its configs are chosen for.
        device_index: the GPU.

    Returns:
        None if there is none.
    """
    with torch.cuda.device(device_index):
        capturing = torch.cuda.is_current_stream_capturing()
    if capturing:
        configs = candidates(problem, chip)
        return next((each for each in configs if is_loaded(kernel_request(problem, each), device_index)), None)
    look = _current_look()
    product = replace(problem, m=problem.counted_m), chip, tables_in_force()
    known = look.choices.get(product)
    if known is not None:
        return known
    found = _first_ready(look, problem, chip)
    if found is None and look.stamp != contents_stamp():
        look = _new_look()
        found = _first_ready(look, problem, chip)
    if found is not None:
        if len(look.choices) >= _MOST_CHOICES:
            look.choices.clear()
        look.choices[product] = found
    return found


def forget() -> None:
    """Look for kernels in the directories in force anew: one that was ready could not be loaded."""
    _looks.pop(_place(), None)


def _first_ready(look: _Look, problem: AnyProblem, chip: Chip) -> Config | None:
    kind = kind_of(problem)
    for config in candidates(problem, chip):
        ready = look.ready.get((kind, config))
        if ready is None:
            ready = look.ready[kind, config] = is_ready(kernel_request(problem, config))
        if ready:
            return config
    return None


def _current_look() -> _Look:
    look = _looks.get(_place())
    if look is None:
        return _new_look()
    if time.monotonic() >= look.until:
        if look.stamp != contents_stamp():
            return _new_look()
        look.until = time.monotonic() + _LOOK_AGAIN_S
    return look


def _new_look() -> _Look:
    look = _looks[_place()] = _Look()
    return look


def _place() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    in_force = settings.current()
    return in_force.cache_dirs, in_force.trusted_dirs
