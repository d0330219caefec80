"""What a server does with a sealed cache: many products of many sizes, none of which may compile. A program.

    python -m tests.gpu.sealed_server SEED COUNT NxK...

For each weight COUNT random M from 1 to 16384, through `fp8gemm.gemm` and through a linear layer; prints a JSON object.
"""

from __future__ import annotations

import gc
import json
import math
import random
import sys
import time
from typing import Any

import torch
from torch import Tensor

import fp8gemm
from fp8gemm.reference import dequantize_activation, dequantize_weight

MAX_M = 16384
DEVICE = "cuda"
SAMPLES = 32
"""Rows besides the last that are looked at, spread over all sizes."""


def random_rows(generator: random.Random, count: int) -> list[int]:
    """Half of them uniform, half log-uniform, the ends among them."""
    even = [generator.randint(1, MAX_M) for _ in range(count // 2)]
    small = [round(math.exp(generator.uniform(0, math.log(MAX_M)))) for _ in range(count - len(even) - 2)]
    found = [1, MAX_M, *even, *small]
    generator.shuffle(found)
    return found


def relative_error(found: Tensor, expected: Tensor) -> Tensor:
    """The largest relative RMS error of a row."""
    return ((found.float() - expected).norm(dim=1) / expected.norm(dim=1)).max()


def serve(n: int, k: int, ms: list[int], generator: torch.Generator) -> dict[str, Any]:
    """All products of a weight; the worst error of a row and the longest that a call has kept its caller."""
    x = torch.randn(MAX_M, k, generator=generator, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(n, k, generator=generator, device=DEVICE, dtype=torch.bfloat16)
    b, scales_b = fp8gemm.quantize_weight(w)
    a, scales_a = fp8gemm.quantize_activation(x)
    layer = fp8gemm.nn.Fp8Linear.from_quantized(b, scales_b)
    rows = sorted({round(math.exp(i * math.log(MAX_M) / SAMPLES)) - 1 for i in range(SAMPLES + 1)})
    weight = dequantize_weight(b, scales_b)
    codes = a.view(torch.uint8)[rows].view(a.dtype)  # indexing knows no FP8
    known = dequantize_activation(codes, scales_a[rows]) @ weight.t()
    worst = torch.zeros((), device=DEVICE)
    longest_ms = 0.0  # of all but the first, which in a new process starts more than a kernel
    layer(x[:1])
    fp8gemm.gemm(a[:1], scales_a[:1], b, scales_b)
    for m in ms:
        last = dequantize_activation(a[m - 1 : m], scales_a[m - 1 : m]) @ weight.t()
        seen = [row for row in rows if row < m]
        for call in (
            lambda m=m: fp8gemm.gemm(a[:m], scales_a[:m], b, scales_b),
            lambda m=m: layer(x[:m]),
        ):
            torch.cuda.synchronize()  # else a full queue of launches is waited for
            start = time.perf_counter()
            out = call()
            longest_ms = max(longest_ms, 1e3 * (time.perf_counter() - start))
            worst = torch.maximum(worst, relative_error(out[seen], known[: len(seen)]))
            worst = torch.maximum(worst, relative_error(out[m - 1 :], last))
    return {
        "n": n,
        "k": k,
        "calls": 2 * len(ms),
        "worst_error": round(float(worst), 6),
        "longest_ms": round(longest_ms, 2),
    }


def main() -> None:
    """Serve, and print."""
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    shapes = [tuple(map(int, text.split("x"))) for text in sys.argv[3:]]
    torch.backends.cuda.matmul.allow_tf32 = False
    gc.disable()  # as servers have it: to look through all that torch has made takes 0.1 s
    rows = random_rows(random.Random(seed), count)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    results = [serve(n, k, rows, generator) for n, k in shapes]
    print(json.dumps({"shapes": results, "nvrtc_opened": "cuda.bindings.nvrtc" in sys.modules}))


if __name__ == "__main__":
    main()
