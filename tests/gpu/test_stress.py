"""Small kernels launched very often: what is out of order by a hair goes wrong once in many thousand launches.

Shapes and configs are chosen so that every wait of the kernel is needed: fewer K blocks than stages and more, chunks of
every kind, one wave in flight and two, several tiles per CTA, clusters along either dimension, both stores, both
scalings, staging in one slot and in more, K shared by the warpgroups and by the CTAs of a cluster; and half as many
again are drawn anew in each run. Under ``--chaos`` the kernels sleep at random. FP8GEMM_TEST_LAUNCHES says how many
launches of each family there are, 100000 by default.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import pytest
import torch

from fp8gemm.kernels.catalogue import kernel_request, load_kernel
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.launches import Lanes, Repeated, check_played, make_in_parts, play_parts
from tests.mutations.report import write_report
from tests.prepared import prepare_dense
from tests.swap_ab import SPREAD, k_of_steps

Pair = tuple[Problem, Config]

DEFAULT_LAUNCHES = 100_000
GRAPH_LAUNCHES = 50
OPERAND_SETS = 5
"""A launch's stale data must not be what the next one wants, so operands change from launch to launch."""

NUM_SMS = 4
"""Few, so that a CTA computes several tiles; launches of one graph run beside each other on the rest."""

LIMIT_S = 180.0
"""Seconds that the launches of a family may take."""


@dataclass(frozen=True)
class Base:
    """A tile config and an output of several tiles with tails."""

    config: TileConfig
    m: int
    n: int
    store: StoreKind = StoreKind.TMA
    scaling: Scaling = Scaling.BLOCK
    output: OutputType = OutputType.BFLOAT16

    def problems(self) -> Iterator[Problem]:
        """One for each of some numbers of K blocks, some with a partial last block."""
        for k_blocks in K_BLOCKS[self.config.waves_in_flight]:
            k = 128 * k_blocks - 16 * (k_blocks % 3)
            yield Problem(self.m, self.n, k, self.output, self.store, self.scaling)


# Up to twice the stages and more, and with one wave in flight so many that the look ahead comes behind the release; two
# go on for chunks of up to 8, some of which are turns of the ring.
K_BLOCKS = {1: (1, 2, 3, 5, 6, 7, 67), 2: (1, 2, 5, 8, 12, 15, 24)}

BASES = (
    Base(TileConfig(64, 64, 2, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1), 200, 320),
    # One warpgroup, alone and in a cluster of two.
    Base(TileConfig(64, 64, 2, 1, 1, 1, 1, waves_in_flight=2, staging_slots=1), 200, 320),
    Base(TileConfig(64, 128, 3, 1, 1, 1, 1, waves_in_flight=2, staging_slots=1, staging_cols=64), 200, 520),
    Base(TileConfig(64, 64, 2, 2, 1, 1, 1, waves_in_flight=2), 200, 137, StoreKind.PREDICATED),
    Base(TileConfig(64, 64, 3, 1, 2, 1, 1, waves_in_flight=2, staging_slots=1), 200, 264),
    Base(TileConfig(128, 64, 3, cluster_m=2, waves_in_flight=2), 520, 200),
    Base(TileConfig(64, 128, 2, 1, 2, 1, 2, waves_in_flight=2, staging_slots=1), 200, 520, scaling=Scaling.ROW),
    Base(TileConfig(256, 128, 2, staging_slots=3), 520, 264),
    Base(TileConfig(128, 64, 8, waves_in_flight=2), 520, 200),  # chunks of one turn of the ring
    Base(TileConfig(128, 128, 2, waves_in_flight=2, staging_slots=1, staging_cols=64), 300, 264),
    Base(TileConfig(128, 256, 2, staging_slots=2, staging_cols=64), 300, 520, output=OutputType.FLOAT16),
    Base(TileConfig(128, 112, 2, waves_in_flight=2, staging_slots=4), 300, 344),
    # Two stores are read while a third part is staged.
    Base(TileConfig(128, 256, 2, staging_slots=4, staging_cols=64), 300, 520),
    Base(TileConfig(128, 256, 2, staging_slots=5), 300, 520, output=OutputType.FLOAT32),
    Base(TileConfig(128, 128, 2, split_k=2, waves_in_flight=2), 300, 200),
    Base(TileConfig(128, 160, 2, staging_slots=3), 300, 344, output=OutputType.FLOAT32),
    Base(TileConfig(256, 64, 2, waves_in_flight=2), 520, 200, output=OutputType.FLOAT16),
    Base(TileConfig(128, 128, 2), 300, 264, scaling=Scaling.ROW, output=OutputType.FLOAT32),
    # Chunks of six K blocks and of two.
    Base(TileConfig(128, 128, 2, waves_in_flight=2), 300, 264, scaling=Scaling.ROW, output=OutputType.FLOAT32),
    Base(TileConfig(128, 64, 2, cluster_n=2), 300, 137, store=StoreKind.PREDICATED),
    Base(
        TileConfig(64, 64, 2, 2, 1, 1, 2, waves_in_flight=2),
        200,
        137,
        StoreKind.PREDICATED,
        Scaling.ROW,
        OutputType.FLOAT16,
    ),
    Base(TileConfig(64, 64, 2, 1, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1), 200, 320),
    Base(TileConfig(64, 96, 2, 1, 2, 1, 1, 2), 200, 344, StoreKind.PREDICATED, Scaling.ROW, OutputType.FLOAT32),
)
DENSE: list[Pair] = [(problem, base.config) for base in BASES for problem in base.problems()]

STEPS = (1, 2, 3, 5, 9, 17)
"""Less than the stages, as many and more; the last step whole, or nearly all past the end of K."""
LONGEST_K = 16384
"""Up to which small integers are exact."""
SWAP_AB: list[Pair] = [
    (Problem(m, n, k_of_steps(config, steps, full=steps % 2 == 0), output, store), config)
    for config, m, n, store, output in (
        (SwapAbConfig(8, 16, 2), 20, 136, StoreKind.TMA, OutputType.BFLOAT16),
        (SwapAbConfig(16, 32, 2, warpgroups_k=2), 23, 72, StoreKind.TMA, OutputType.FLOAT32),
        (SwapAbConfig(64, 64, 3), 100, 137, StoreKind.PREDICATED, OutputType.FLOAT16),
        (SwapAbConfig(8, 16, 2, split_k=8), 13, 40, StoreKind.TMA, OutputType.BFLOAT16),
        (SwapAbConfig(24, 16, 2, split_k=7), 30, 40, StoreKind.TMA, OutputType.BFLOAT16),
        (SwapAbConfig(16, 64, 2, warpgroups_k=2, split_k=2), 41, 101, StoreKind.PREDICATED, OutputType.FLOAT32),
        (SwapAbConfig(32, 32, 2, split_k=3), 33, 72, StoreKind.TMA, OutputType.FLOAT32),
    )
    for steps in STEPS
    if k_of_steps(config, steps, full=True) <= LONGEST_K
]


def drawn_dense(seed: int, count: int = len(DENSE) // 2) -> list[Pair]:
    """Small problems of any sizes, outputs and scalings, each with any of its configs."""
    draw = random.Random(seed)
    pairs: list[Pair] = []
    for _ in range(count):
        output, store, scaling = (draw.choice(list(kind)) for kind in (OutputType, StoreKind, Scaling))
        n = draw.randrange(8, 601, 8) if store is StoreKind.TMA else draw.randrange(1, 600)
        problem = Problem(draw.randrange(1, 600), n, draw.randrange(16, 2049, 16), output, store, scaling)
        pairs.append((problem, draw.choice(list(candidate_configs(store, output, scaling)))))
    return pairs


def drawn_swap_ab(seed: int, count: int = len(SWAP_AB) // 2) -> list[Pair]:
    """Small problems of few rows, each with a config of any kind."""
    draw = random.Random(seed)
    pairs: list[Pair] = []
    for _ in range(count):
        output, store = (draw.choice(list(kind)) for kind in (OutputType, StoreKind))
        n = draw.randrange(8, 401, 8) if store is StoreKind.TMA else draw.randrange(1, 400)
        problem = Problem(draw.randrange(1, 131), n, draw.randrange(16, 4097, 16), output, store)
        pairs.append((problem, draw.choice(SPREAD)))
    return pairs


FAMILIES = {"dense": (DENSE, drawn_dense), "swap_ab": (SWAP_AB, drawn_swap_ab)}


def repeated(problem: Problem, config: Config, *, lanes: Lanes, seed: int) -> Repeated:
    """The launches of one kernel."""
    kernel = load_kernel(problem, config, device_index=lanes.device.index, num_sms=NUM_SMS)
    sets = [prepare_dense(problem, seed + i, lanes.device) for i in range(OPERAND_SETS)]
    name = f"{kernel_request(problem, config).label} at M = {problem.m}"
    return Repeated(name, kernel, sets, rounds=GRAPH_LAUNCHES // OPERAND_SETS, lanes=lanes)


Counts = dict[str, Any]


@pytest.fixture(scope="module")
def counted(device: torch.device) -> Iterator[dict[str, Counts]]:
    """What the launches of each family came to; put down together."""
    found: dict[str, Counts] = {}
    yield found
    if found.keys() == FAMILIES.keys():
        every = found.values()
        totals = {name: sum(each[name] for each in every) for name in ("launches", "hangs", "wrong")}
        lists = {name: [item for each in every for item in each[name]] for name in ("kernels", "shapes")}
        write_report(
            "stress-h200.json", device, **totals, seconds=round(sum(each["seconds"] for each in every), 1), **lists
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_launches_of_small_shapes_are_right(
    family: str,
    device: torch.device,
    seed: int,
    no_progress: Callable[..., NoReturn],
    say: Callable[[str], None],
    counted: dict[str, Counts],
) -> None:
    """Exact data: no element may differ, in any launch."""
    wanted = int(os.environ.get("FP8GEMM_TEST_LAUNCHES") or DEFAULT_LAUNCHES)
    chosen, drawn = FAMILIES[family]
    kernels = chosen + drawn(seed)
    lanes = Lanes(device, OPERAND_SETS)
    graphs: list[Repeated] = []
    parts = make_in_parts(kernels, partial(repeated, lanes=lanes, seed=seed))
    played = play_parts(parts, graphs, wanted, limit_s=LIMIT_S)
    shapes = sorted({f"{problem.m}x{problem.n}x{problem.k}" for problem, _ in kernels})
    said = f"{played.launches} launches of {len(graphs)} kernels, {len(shapes)} shapes, in {played.seconds:.1f} s"
    say(f"stress, {family}: {said}, seed {seed}")
    counted[family] = {
        "launches": played.launches,
        "seconds": played.seconds,
        "hangs": int(played.hangs),
        "wrong": played.wrong.elements,
        "kernels": [kernel_request(problem, config).label for problem, config in kernels],
        "shapes": shapes,
    }
    check_played(played, wanted, seed, lambda message: no_progress(message, *graphs))
