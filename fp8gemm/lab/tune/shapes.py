"""Random shapes to tune. Nothing here touches a GPU."""

from __future__ import annotations

import math
import random

from fp8gemm.lab.bench.report import Shape

RANDOM_M, RANDOM_N, RANDOM_K = (256, 16384, 1), (256, 32768, 64), (256, 16384, 128)
"""Smallest, largest and step of each size of a random shape."""
MOST_RANDOM = 2**16
"""Random shapes of a run."""


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
