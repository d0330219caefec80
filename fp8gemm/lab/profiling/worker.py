"""What runs under ncu, a few launches of one kernel: ``-m fp8gemm.lab.profiling.worker MxNxK CONFIG LAUNCHES``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.peers import kernel_call
from fp8gemm.lab.profiling.kernel import find_kernel
from fp8gemm.lab.profiling.sustained import operands_of


def main(argv: Sequence[str]) -> int:
    """Launch, and wait."""
    shape, label, launches = argv
    m, n, k = map(int, shape.split("x"))
    kernel, _ = find_kernel(m, n, k, label=label)
    call = kernel_call(kernel, operands_of(kernel, torch.Generator(DEVICE).manual_seed(0)))
    for _ in range(int(launches)):
        call()
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
