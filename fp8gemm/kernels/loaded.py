"""From a problem or a quantiser to its kernel, loaded on a GPU: the one place that keeps loaded kernels.

Modules that not every product needs are imported where they are, because a process's first product is to come soon.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from fp8gemm import settings
from fp8gemm.driver.device import hopper_info
from fp8gemm.errors import CacheMissError
from fp8gemm.kernels.catalogue import kind_of, load_kernel, ranked
from fp8gemm.kernels.gemm import GemmKernel, SingleKernel
from fp8gemm.kernels.hints import naming_the_warmup, warmup_of, warmup_of_quantizer
from fp8gemm.tuning.hopper import Chip, chip_of_device, limited_chip
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.table import NO_TABLES, Tables, tables_in_force

if TYPE_CHECKING:
    from fp8gemm.jit.request import KernelRequest
    from fp8gemm.kernels.group_ranges import GroupRangesKernel
    from fp8gemm.kernels.grouped import GroupedKernel
    from fp8gemm.kernels.quantize import QuantizeKernel, Quantizer
    from fp8gemm.kernels.routing import RoutingKernel
    from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem

_Kernel = TypeVar("_Kernel")
_GemmKey = tuple["AnyProblem", Config, int, Chip, bool]

_kernels: dict[Hashable, Any] = {}
"""By all that tells loaded kernels apart."""


@overload
def kernel_for(problem: Problem, chip: Chip, device_index: int) -> SingleKernel: ...
@overload
def kernel_for(problem: GroupedProblem, chip: Chip, device_index: int) -> GroupedKernel: ...
def kernel_for(problem: AnyProblem, chip: Chip, device_index: int) -> GemmKernel:
    """The loaded kernel of the chosen config or, under the policy ``nearest``, the best of those that are ready.

    Raises:
        CacheMissError, CompileError, DriverError: it could not be found, built or loaded.
    """
    in_force = settings.current()
    if in_force.record is not None:
        from fp8gemm.kernels.recording import record_problem

        record_problem(in_force.record, problem)
    tables = tables_in_force() if isinstance(problem, Problem) else NO_TABLES
    key = _best(problem, chip, device_index, in_force.pdl, tables)
    found: GemmKernel | None = _kernels.get(key)
    if found is not None:
        return found
    ready: Config | None = None
    if in_force.jit == "nearest":
        from fp8gemm.kernels.nearest import nearest_config

        ready = nearest_config(problem, chip, device_index)
    if ready is not None:
        key = _key(problem, ready, chip, device_index, in_force.pdl)
    try:
        return _loaded(key, lambda: _load(problem, key, in_force), lambda: warmup_of(problem, chip))
    except CacheMissError:
        if ready is not None:
            from fp8gemm.kernels.nearest import forget

            forget()
        raise


def quantizer_for(quantizer: Quantizer, device_index: int) -> QuantizeKernel:
    """A quantiser's loaded kernel. No other can stand in for it, so that "nearest" means that it must be ready.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
        CacheMissError, CompileError, DriverError: it could not be found, built or loaded.
    """
    return _only(quantizer.request, device_index, _load_quantizer, quantizer)


def routing_kernel_for(request: KernelRequest, device_index: int) -> RoutingKernel:
    """The loaded kernel of a request of `fp8gemm.kernels.routing`; as with quantisers, no other can stand in for it.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
        CacheMissError, CompileError, DriverError: it could not be found, built or loaded.
    """
    return _only(request, device_index, _load_routing, request)


def group_ranges_for(problem: AnyProblem, device_index: int) -> GroupRangesKernel:
    """The loaded kernel that finds the groups of a problem of rows; there is only one.

    Raises:
        CacheMissError, CompileError, DriverError: it could not be found, built or loaded.
    """
    from fp8gemm.kernels.group_ranges import GroupRangesKernel

    in_force = settings.current()
    allowed, programmatic = in_force.jit == "compile", in_force.pdl
    return _loaded(
        ("group ranges", device_index, programmatic),
        lambda: GroupRangesKernel(device_index=device_index, allow_compile=allowed, programmatic=programmatic),
        lambda: warmup_of(problem, device_chip(device_index)),
    )


def device_chip(device_index: int) -> Chip:
    """The chip that tiles are chosen for: the GPU's, less the SMs that the settings keep for others.

    Raises:
        UnsupportedDeviceError: the GPU is not Hopper.
    """
    info = hopper_info(device_index)
    chip = chip_of_device(info.name, info.num_sms)
    limit = settings.current().num_sms
    return chip if limit is None else limited_chip(chip, limit)


def _only(request: KernelRequest, device_index: int, load: Callable[..., _Kernel], of: object) -> _Kernel:
    """The loaded kernel of a request that is no choice among several, made by ``load`` from ``of``."""
    in_force = settings.current()
    key = request.label, device_index, in_force.pdl
    found: _Kernel | None = _kernels.get(key)
    if found is not None:
        return found
    hopper_info(device_index)
    if in_force.record is not None:
        from fp8gemm.kernels.recording import record_quantizer

        record_quantizer(in_force.record, request.family, dict(request.config))
    allowed, programmatic = in_force.jit == "compile", in_force.pdl
    return _loaded(
        key,
        lambda: load(of, device_index=device_index, allow_compile=allowed, programmatic=programmatic),
        lambda: warmup_of_quantizer(request),
    )


def _load_quantizer(quantizer: Quantizer, **options: Any) -> QuantizeKernel:
    from fp8gemm.kernels.quantize import QuantizeKernel

    return QuantizeKernel(quantizer, **options)


def _load_routing(request: KernelRequest, **options: Any) -> RoutingKernel:
    from fp8gemm.kernels.routing import RoutingKernel

    return RoutingKernel(request, **options)


def _loaded(key: Hashable, load: Callable[[], _Kernel], command: Callable[[], str]) -> _Kernel:
    """What ``key`` stands for, loaded if it is not yet; a miss names the command that would have prevented it."""
    found: _Kernel | None = _kernels.get(key)
    if found is None:
        with naming_the_warmup(command):
            kernel = load()
        found = _kernels.setdefault(key, kernel)  # of two threads that load it, the first keeps its own
    return found


def _load(problem: AnyProblem, key: _GemmKey, in_force: settings.Settings) -> GemmKernel:
    _, config, device_index, chip, programmatic = key
    return load_kernel(
        problem,
        config,
        device_index=device_index,
        num_sms=chip.num_sms,
        limited=chip.limited,
        allow_compile=in_force.jit == "compile",
        programmatic=programmatic,
    )


@lru_cache(maxsize=4096)
def _best(problem: AnyProblem, chip: Chip, device_index: int, programmatic: bool, tables: Tables) -> _GemmKey:
    return _key(problem, ranked(problem, chip, tables)[0], chip, device_index, programmatic)


def _key(problem: AnyProblem, config: Config, chip: Chip, device_index: int, programmatic: bool) -> _GemmKey:
    """All that tells loaded kernels apart: not M, nor why the config was chosen."""
    return kind_of(problem), config, device_index, chip, programmatic
