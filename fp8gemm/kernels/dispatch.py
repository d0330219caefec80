"""From a problem to its loaded kernel, and from checked operands to the launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache

import torch

from fp8gemm import settings
from fp8gemm.driver.device import hopper_info
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.errors import CacheMissError, UnsupportedDeviceError
from fp8gemm.kernels.catalogue import kernel_request, load_kernel
from fp8gemm.kernels.gemm import GemmKernel
from fp8gemm.kernels.hints import naming_the_warmup, warmup_of_problem
from fp8gemm.tuning.hopper import Chip, chip_of_device, limited_chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.table import Tables, tables_in_force

_KernelKey = tuple[Problem, Config, int, int, bool]
_kernels: dict[_KernelKey, GemmKernel] = {}


def kernel_for(problem: Problem, chip: Chip, device_index: int) -> GemmKernel:
    """The loaded kernel of the chosen config or, under the policy ``nearest``, the best of those that are ready."""
    in_force = settings.current()
    if in_force.record is not None:
        from fp8gemm.kernels.recording import record_problem  # here, because a process's first product is to come soon

        record_problem(in_force.record, problem)
    key = _best(problem, chip, device_index, in_force.pdl, tables_in_force())
    found = _kernels.get(key)
    if found is not None:
        return found
    ready = _nearest_config(problem, chip, device_index) if in_force.jit == "nearest" else None
    if ready is not None:
        key = _key(problem, ready, chip, device_index, in_force.pdl)
        found = _kernels.get(key)
    if found is None:
        try:
            with naming_the_warmup(lambda: warmup_of_problem(problem, chip)):
                kernel = load_kernel(
                    problem,
                    key[1],
                    device_index=device_index,
                    num_sms=chip.num_sms,
                    allow_compile=in_force.jit == "compile",
                    programmatic=in_force.pdl,
                )
        except CacheMissError:
            if ready is not None:
                from fp8gemm.kernels import nearest

                nearest.forget()
            raise
        found = _kernels.setdefault(key, kernel)
    return found


def device_chip(device_index: int) -> Chip:
    """The chip that tiles are chosen for: the GPU's, less the SMs that the settings keep for others.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
    """
    info = hopper_info(device_index)
    chip = chip_of_device(info.name, info.num_sms)
    limit = settings.current().num_sms
    return chip if limit is None else limited_chip(chip, limit)


def _needs_cuda(*_: object) -> int:
    raise UnsupportedDeviceError("expected a torch built for CUDA, got one without")


# NOTE: torch.cuda's own functions make objects and look whether CUDA is initialised, which takes longer than a launch.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _needs_cuda)
"""The CUstream that torch launches on now on a GPU."""

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _needs_cuda)
"""The GPU that is current in this thread."""


def launch_on(device_index: int, bound: BoundLaunch) -> None:
    """Launch with its GPU as the current one."""
    if current_device() == device_index:
        bound()
    else:
        with torch.cuda.device(device_index):
            bound()


def on_device(device_index: int) -> AbstractContextManager[object]:
    """Makes a GPU the current one for a block."""
    return nullcontext() if current_device() == device_index else torch.cuda.device(device_index)


@lru_cache(maxsize=4096)
def _best(problem: Problem, chip: Chip, device_index: int, programmatic: bool, tables: Tables) -> _KernelKey:
    return _key(problem, ranked_configs(problem, chip, tables)[0], chip, device_index, programmatic)


def _key(problem: Problem, config: Config, chip: Chip, device_index: int, programmatic: bool) -> _KernelKey:
    """All that tells loaded kernels apart: not M, nor why the config was chosen."""
    of_kernel = replace(problem, m=0, batch_invariant=False, static_weights=False)
    return of_kernel, config, device_index, chip.num_sms, programmatic


def _nearest_config(problem: Problem, chip: Chip, device_index: int) -> Config | None:
    from fp8gemm.kernels import nearest  # here, because only this policy needs it

    return nearest.nearest_config(
        problem,
        chip,
        device_index,
        candidates=lambda: _candidates(problem, chip),
        request_of=lambda config: kernel_request(problem, config),
    )


def _candidates(problem: Problem, chip: Chip) -> Iterator[Config]:
    """Configs that serve a problem, best first. Any is right for any M: those that other M choose come last."""
    yield from ranked_configs(problem, chip)
    for m in (*FEW_ROWS, 2 * FEW_ROWS[-1]):
        yield from ranked_configs(replace(problem, m=m), chip)
