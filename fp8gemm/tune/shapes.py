"""Which shapes are tuned: those that are named, and random ones. Nothing here touches a GPU."""

from __future__ import annotations

import argparse
import math
import random

from fp8gemm.benchmark.command import parse_m, parse_mnk, parse_nk, parse_positive
from fp8gemm.benchmark.report import Shape
from fp8gemm.errors import InputError
from fp8gemm.tuning.problem import Problem

RANDOM_M, RANDOM_N, RANDOM_K = (256, 16384, 1), (256, 32768, 64), (256, 16384, 128)
"""Smallest, largest and step of each size of a random shape."""


def rows(text: str) -> list[int]:
    """``"512,777"``, each an M that a problem can have."""
    sizes = parse_m(text)
    for m in sizes:
        require_problem(m, 1, 16)
    return sizes


def layers(text: str) -> list[tuple[int, int]]:
    """``"7168x2048,..."``, each an N and a K that a problem can have."""
    pairs = parse_nk(text)
    for n, k in pairs:
        require_problem(1, n, k)
    return pairs


def grouped_layers(text: str) -> list[tuple[int, int, int]]:
    """``"256x4096x7168,..."``, G x N x K, each what weights of groups can have."""
    found = []
    for part in text.split(","):
        sizes = part.lower().split("x")
        if len(sizes) != 3:
            raise argparse.ArgumentTypeError(f"expected GxNxK, such as 256x4096x7168, got {part!r}")
        groups, n, k = map(parse_positive, sizes)
        found.append((groups, n, k))
    return found


def shapes(text: str) -> list[Shape]:
    """``"512x7168x2048,..."``, M x N x K."""
    found = []
    for part in text.split(","):
        m, n, k = parse_mnk(part)
        require_problem(m, n, k)
        found.append(Shape(m, n, k))
    return found


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


def require_problem(m: int, n: int, k: int) -> None:
    """Raises:
    ArgumentTypeError: no problem has these sizes.
    """
    try:
        Problem(m, n, k)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
