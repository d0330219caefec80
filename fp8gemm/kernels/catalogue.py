"""Every GEMM family by its problems and configs: what is built, loaded and chosen from for each.

What only groups need is imported when they come, because a process's first product is to come soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.kernels.gemm import GemmKernel, SingleKernel
from fp8gemm.kernels.swap_ab import SwapAbKernel
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import Tables

if TYPE_CHECKING:
    from fp8gemm.kernels.grouped import GroupedKernel
    from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem


def family_of(problem: AnyProblem, config: Config) -> type[GemmKernel]:
    """The kernels of a problem under a config."""
    if not isinstance(problem, Problem):
        from fp8gemm.kernels.grouped import GroupedKernel

        return GroupedKernel
    return SwapAbKernel if isinstance(config, SwapAbConfig) else DenseKernel


def kernel_request(problem: AnyProblem, config: Config) -> KernelRequest:
    """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""
    return family_of(problem, config).request(problem, config)


def shared_bytes(problem: AnyProblem, config: Config) -> int:
    """Shared memory of a CTA."""
    return family_of(problem, config).shared_bytes(problem, config)


def kind_of(problem: AnyProblem) -> AnyProblem:
    """The problem without what no kernel is compiled for: M, and why its config was chosen."""
    if not isinstance(problem, Problem):
        return replace(problem, m=1, batch_invariant=False)
    return replace(problem, m=1, batch_invariant=False, static_weights=False)


def ranked(problem: AnyProblem, chip: Chip, tables: Tables | None = None) -> tuple[Config, ...]:
    """Every legal config, best first. All of them are right for every M. Tables know single products alone."""
    if not isinstance(problem, Problem):
        from fp8gemm.tuning.grouped import ranked_grouped

        return ranked_grouped(problem, chip)
    return ranked_configs(problem, chip, tables)


def candidates(problem: AnyProblem, chip: Chip) -> Iterator[Config]:
    """Configs that serve a problem, best first. Any is right for any M: those that other M choose come last."""
    yield from ranked(problem, chip)
    for m in (*FEW_ROWS, 2 * FEW_ROWS[-1]) if isinstance(problem, Problem) else FEW_ROWS:
        yield from ranked(replace(problem, m=m), chip)


@overload
def load_kernel(
    problem: Problem, config: Config, *, device_index: int, num_sms: int, **options: bool
) -> SingleKernel: ...
@overload
def load_kernel(
    problem: GroupedProblem, config: Config, *, device_index: int, num_sms: int, **options: bool
) -> GroupedKernel: ...
def load_kernel(problem: AnyProblem, config: Config, *, device_index: int, num_sms: int, **options: bool) -> GemmKernel:
    """Load the kernel on a GPU; arguments and errors are those of `GemmKernel`."""
    return family_of(problem, config)(problem, config, device_index=device_index, num_sms=num_sms, **options)
