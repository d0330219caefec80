"""Every GEMM family by its problems and configs: what is built, loaded and chosen from for each.

What only groups need is imported when they come, because a process's first product is to come soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import dense, swap_ab
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab import shared_bytes as swap_ab_shared_bytes
from fp8gemm.tuning.table import Tables

if TYPE_CHECKING:
    from fp8gemm.kernels.grouped import GroupedKernel

    AnyKernel = SingleKernel | GroupedKernel


def kernel_request(problem: AnyProblem, config: Config) -> KernelRequest:
    """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""
    if isinstance(problem, GroupedProblem):
        from fp8gemm.kernels import grouped

        return grouped.kernel_request(problem, config)
    if isinstance(config, SwapAbConfig):
        return swap_ab.kernel_request(problem, config)
    return dense.kernel_request(problem, config)


def shared_bytes(problem: AnyProblem, config: Config) -> int:
    """Shared memory of a CTA."""
    if isinstance(problem, GroupedProblem):
        from fp8gemm.tuning.grouped_config import grouped_shared_bytes

        return grouped_shared_bytes(problem, config)
    if isinstance(config, SwapAbConfig):
        return swap_ab_shared_bytes(config, problem.k)
    return dense.cta_shared_bytes(problem, config)


def kind_of(problem: AnyProblem) -> AnyProblem:
    """The problem without what no kernel is compiled for: M, and why its config was chosen."""
    if isinstance(problem, GroupedProblem):
        return replace(problem, m=1, batch_invariant=False)
    return replace(problem, m=1, batch_invariant=False, static_weights=False)


def ranked(problem: AnyProblem, chip: Chip, tables: Tables | None = None) -> tuple[Config, ...]:
    """Every legal config, best first. All of them are right for every M. Tables know single products alone."""
    if isinstance(problem, GroupedProblem):
        from fp8gemm.tuning.grouped import ranked_grouped

        return ranked_grouped(problem, chip)
    return ranked_configs(problem, chip, tables)


def candidates(problem: AnyProblem, chip: Chip) -> Iterator[Config]:
    """Configs that serve a problem, best first. Any is right for any M: those that other M choose come last."""
    yield from ranked(problem, chip)
    for m in FEW_ROWS if isinstance(problem, GroupedProblem) else (*FEW_ROWS, 2 * FEW_ROWS[-1]):
        yield from ranked(replace(problem, m=m), chip)


@overload
def load_kernel(
    problem: Problem,
    config: Config,
    *,
    device_index: int,
    num_sms: int,
    limited: bool = ...,
    allow_compile: bool = ...,
    programmatic: bool = ...,
) -> SingleKernel: ...
@overload
def load_kernel(
    problem: GroupedProblem,
    config: Config,
    *,
    device_index: int,
    num_sms: int,
    limited: bool = ...,
    allow_compile: bool = ...,
    programmatic: bool = ...,
) -> GroupedKernel: ...
def load_kernel(
    problem: AnyProblem,
    config: Config,
    *,
    device_index: int,
    num_sms: int,
    limited: bool = False,
    allow_compile: bool = True,
    programmatic: bool = False,
) -> AnyKernel:
    """Load the kernel on a GPU; see `GemmKernel`.

    Args:
        num_sms: SMs that a persistent kernel occupies at the most.
        limited: whether these are fewer than the GPU has.
    """
    options: dict[str, Any] = {
        "device_index": device_index,
        "allow_compile": allow_compile,
        "programmatic": programmatic,
    }
    if isinstance(problem, GroupedProblem):
        from fp8gemm.kernels.grouped import GroupedKernel

        return GroupedKernel(problem, config, num_sms=num_sms, limited=limited, **options)
    if isinstance(config, SwapAbConfig):
        return swap_ab.SwapAbKernel(problem, config, **options)
    return dense.DenseKernel(problem, config, num_sms=num_sms, **options)
