"""Times on a GPU, by the name that DeepGEMM's tests know."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

_WARMUPS = 3
_FLUSHED_BYTES = 256 * 2**20  # several times the L2 of any Hopper GPU


def bench_kineto(
    fn: Callable[[], object],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], object] | None = None,
) -> float | tuple[float, ...]:
    """The median time of a call by CUDA events: of all that it launches, whatever the kernels' names are.

    Args:
        fn: what to call.
        kernel_names: for several, the first has all the time, and the others none.
        num_tests: calls to time.
        flush_l2: whether to write over L2 ahead of each call.
        barrier: called ahead of each call.
        suppress_kineto_output, trace_path, with_multiple_kernels: without meaning here.

    Returns:
        Seconds; as many of them as there are names if those are a tuple.
    """
    for _ in range(_WARMUPS):
        fn()
    cache = torch.empty(_FLUSHED_BYTES if flush_l2 else 0, dtype=torch.int8, device="cuda")
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(num_tests)]
    for begin, end in pairs:
        cache.zero_()  # which also keeps the GPU busy until the call has been queued
        if barrier is not None:
            barrier()
        begin.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    seconds = statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3
    return (seconds, *(0.0 for _ in kernel_names[1:])) if isinstance(kernel_names, tuple) else seconds
