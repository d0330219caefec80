"""Every kernel family by its configs: which of them builds, loads and launches a problem under a config."""

from __future__ import annotations

from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import dense, swap_ab
from fp8gemm.kernels.gemm import GemmKernel
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab import shared_bytes as swap_ab_shared_bytes


def kernel_request(problem: Problem, config: Config) -> KernelRequest:
    """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""
    if isinstance(config, SwapAbConfig):
        return swap_ab.kernel_request(problem, config)
    return dense.kernel_request(problem, config)


def shared_bytes(problem: Problem, config: Config) -> int:
    """Shared memory of a CTA."""
    if isinstance(config, SwapAbConfig):
        return swap_ab_shared_bytes(config, problem.k)
    return dense.cta_shared_bytes(problem, config)


def load_kernel(
    problem: Problem,
    config: Config,
    *,
    device_index: int,
    num_sms: int,
    allow_compile: bool = True,
    programmatic: bool = False,
) -> GemmKernel:
    """Load the kernel on a GPU; see `GemmKernel`. ``num_sms`` bounds the SMs that a persistent one occupies."""
    if isinstance(config, SwapAbConfig):
        return swap_ab.SwapAbKernel(
            problem, config, device_index=device_index, allow_compile=allow_compile, programmatic=programmatic
        )
    return dense.DenseKernel(
        problem,
        config,
        device_index=device_index,
        num_sms=num_sms,
        allow_compile=allow_compile,
        programmatic=programmatic,
    )
