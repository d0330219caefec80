"""Which shapes are tuned: those that are named, and random ones. Nothing here touches a GPU."""

from __future__ import annotations

import argparse
import math
import random

from fp8gemm.benchmark.command import parse_mnk, parse_positive
from fp8gemm.benchmark.report import Shape
from fp8gemm.quoting import quoted

RANDOM_M, RANDOM_N, RANDOM_K = (256, 16384, 1), (256, 32768, 64), (256, 16384, 128)
"""Smallest, largest and step of each size of a random shape."""
MOST_RANDOM = 2**16
"""Random shapes of a run."""


def grouped_layers(text: str) -> list[tuple[int, int, int]]:
    """``"256x4096x7168,..."``, G x N x K, each what weights of groups can have."""
    found = []
    for part in text.split(","):
        sizes = part.lower().split("x")
        if len(sizes) != 3:
            raise argparse.ArgumentTypeError(f"expected GxNxK, such as 256x4096x7168, got {quoted(part)}")
        groups, n, k = map(parse_positive, sizes)
        found.append((groups, n, k))
    return found


def shapes(text: str) -> list[Shape]:
    """``"512x7168x2048,..."``, M x N x K."""
    return [Shape(*parse_mnk(part)) for part in text.split(",")]


def random_count(text: str) -> int:
    """How many random shapes, 1 to `MOST_RANDOM`."""
    count = parse_positive(text)
    if count > MOST_RANDOM:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_RANDOM} shapes, got {count}")
    return count


def random_shapes(count: int, seed: int) -> list[Shape]:
    """So many different shapes, each size log-uniform in its range; the same for the same seed."""
    generator = random.Random(seed)

    def draw(smallest: int, largest: int, step: int) -> int:
        size = math.exp(generator.uniform(math.log(smallest), math.log(largest)))
        return min(max(round(size / step) * step, smallest), largest)

    found: dict[Shape, None] = {}
    while len(found) < count:
        found[Shape(draw(*RANDOM_M), draw(*RANDOM_N), draw(*RANDOM_K))] = None
    return list(found)
