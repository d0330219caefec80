"""A serving mix: rows by step, and a model's linear layers, as a serving engine and ours compute them. Touches no GPU.

The mix is drawn, not recorded: of `STEPS` steps of a server `DECODE` in ten are decode steps, whose batch has as many
rows as a power of two from 1 to 256, each as likely as the others; the rest are chunks of prompts, of 512 to 8192 rows,
powers of two too. Every layer of the model has one call in each step. Each (M, N, K) is measured once, and counts as
often as the mix has it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8gemm.lab.bench.report import Row, Shape

OURS = "fp8_linear"
NAMES = ("vllm", "sglang", "deep_gemm")
"""Of engines, as `fp8gemm.lab.bench.engine` has them."""

STEPS, DECODE = 512, 9
BATCHES = tuple(2**power for power in range(9))
CHUNKS = (512, 1024, 2048, 4096, 8192)


def drawn(seed: int) -> Counter[int]:
    """How many of the mix's steps have how many rows, fewest first."""
    chance = random.Random(seed)
    steps = [chance.choice(BATCHES if chance.random() < DECODE / 10 else CHUNKS) for _ in range(STEPS)]
    return Counter(sorted(steps))


@dataclass(frozen=True)
class Mix:
    """What a server computes: rows by step, and layers.

    Attributes:
        rows: how many steps have so many rows.
        layers: how many layers of one block of the model have this (N, K).
        engine: the peer that ours is compared with.
    """

    rows: Mapping[int, int]
    layers: Mapping[tuple[int, int], int]
    engine: str

    key = "mix"

    def shapes(self) -> list[Shape]:
        """What is measured, each once."""
        return [Shape(m, n, k) for m in self.rows for n, k in self.layers]

    def times(self, rows: Sequence[Row]) -> tuple[dict[str, float], int]:
        """Microseconds of the whole mix by peer, over the shapes that both have a time for, and how many those are."""
        peers = OURS, self.engine
        both = [row for row in rows if row.us.keys() >= set(peers)]
        weights = [self.rows[row.shape.m] * self.layers[row.shape.n, row.shape.k] for row in both]
        return {
            peer: sum(weight * row.us[peer] for weight, row in zip(weights, both, strict=True)) for peer in peers
        }, len(both)

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """What the mix costs by each; nothing where no shape has both."""
        us, count = self.times(rows)
        if not count:
            return []
        told = ", ".join(f"{name} {value / 1e3:.2f} ms" for name, value in us.items())
        speed = us[self.engine] / us[OURS]
        steps = f"{STEPS} steps of one block of layers, {count} of {len(self.shapes())} shapes"
        return [f"\nserving mix, {steps}", f"{told}: {speed:.3f} of {self.engine}"]

    def as_json(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The mix and what it costs."""
        us, count = self.times(rows)
        layers = [{"n": n, "k": k, "layers": layers} for (n, k), layers in self.layers.items()]
        found: dict[str, Any] = {"steps": STEPS, "rows": {str(m): steps for m, steps in self.rows.items()}}
        found |= {"layers": layers, "shapes": count}
        if count:
            found["us"] = {name: round(value, 1) for name, value in us.items()}
            found["relative_speed"] = round(us[self.engine] / us[OURS], 4)
        return found
