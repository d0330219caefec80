"""DeepGEMM's kernels compiled before anything is measured.

It compiles a kernel at the first product of a shape, which takes some seconds, one after the other. Here several
processes multiply zeros of these shapes; what they compile lies in DeepGEMM's own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, as_completed
from contextlib import suppress

from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.processes import compiling_processes
from fp8gemm.terminal.progress import bar

MOST_PROCESSES = 12
"""Each has a CUDA context and torch."""


def compile_deep_gemm(shapes: Sequence[Shape], *, gradients: bool = False, device: str = DEVICE) -> None:
    """Until DeepGEMM's kernels of these shapes are ready, or as ready as they get: an error is left to who measures.

    Args:
        shapes: of the products; for a single one nothing is done.
        gradients: whether they are weight gradients.
        device: where the operands are.
    """
    wanted = list(dict.fromkeys(shapes))
    if len(wanted) < 2:
        return
    with (
        suppress(OSError, NotImplementedError, BrokenExecutor),  # a machine that forbids processes can measure still
        compiling_processes(min(len(wanted), MOST_PROCESSES)) as pool,
        bar(len(wanted), "kernels", "DeepGEMM compiles") as progress,
    ):
        try:
            for done in as_completed(pool.submit(_multiply_zeros, shape, gradients, device) for shape in wanted):
                # NOTE: A process may die, too. What it leaves is compiled where it is measured.
                with suppress(Exception):
                    done.result()
                progress.update()
        finally:
            pool.shutdown(cancel_futures=True)  # whoever interrupts does not wait for all


def _multiply_zeros(shape: Shape, gradients: bool, device: str) -> None:
    import torch

    from fp8gemm.lab.bench.gradients import deep_gemm_call as deep_gemm_gradient
    from fp8gemm.lab.bench.peers import deep_gemm_call
    from fp8gemm.scales import empty_mn_major

    m, n, k = shape.m, shape.n, shape.k
    a = torch.zeros(m, k, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    b = torch.zeros(n, k, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    scales_a = empty_mn_major(m, -(-k // 128), device=a.device).zero_()
    if gradients:
        scales_b = empty_mn_major(n, -(-k // 128), device=a.device).zero_()
        deep_gemm_gradient(a, scales_a, b, scales_b, sums=torch.zeros(m, n, device=device))()
        return
    scales_b = torch.zeros(-(-n // 128), -(-k // 128), device=device)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    deep_gemm_call(a, scales_a, b, scales_b, out=out)()
