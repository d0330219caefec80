"""Several kernels at once: NVRTC lets go of the interpreter while it compiles, so that threads share the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path

from fp8gemm.errors import InputError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build
from fp8gemm.jit.request import KernelRequest


def build_many(
    requests: Sequence[KernelRequest],
    *,
    jobs: int | None = None,
    progress: Callable[[Artifact], None] | None = None,
    include_dir: Path | None = None,
    make: Callable[..., Artifact] = build,
) -> list[Artifact]:
    """Build several kernels at once; NVRTC compiles in parallel.

    Args:
        requests: which kernels.
        jobs: threads; as many as this process has processors by default.
        progress: called in this thread with each artifact as it becomes ready, in no particular order.
        include_dir: as for ``build``.
        make: `build`, or `recompile`.

    Returns:
        The artifacts in the order of the requests.

    Raises:
        CacheMissError, CompileError, InputError: as ``build``; kernels not yet begun are then given up.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1; found {jobs}")
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        # Each task runs in a copy of this context, so that settings.scope() around the call holds in the threads too.
        futures = [pool.submit(copy_context().run, make, request, include_dir=include_dir) for request in requests]
        try:
            for future in as_completed(futures):
                artifact = future.result()
                if progress is not None:
                    progress(artifact)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
