"""Small grouped kernels launched very often, as `test_stress.py` has it for those of single products.

Few SMs, so that a CTA computes many tiles; groups that change from launch to launch, so that nothing stale is what the
next one wants; exact data, of which no element may differ. ``--chaos`` and FP8GEMM_TEST_LAUNCHES as there; there are a
quarter as many launches of these kernels in all.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch

from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.grouped import GroupedKernel
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.launches import Lanes, Repeated, check_played, make_in_parts, play_parts
from tests.prepared import prepare_grouped

DEFAULT_LAUNCHES = 100_000
SHARE = 4
GRAPH_LAUNCHES, OPERAND_SETS = 50, 5
NUM_SMS = 4
LIMIT_S = 120.0
GROUPS, MOST_ROWS = 9, 150

ORDINARY = (
    TileConfig(64, 64, 2, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1),
    TileConfig(64, 64, 2, 1, 1, 1, 1, waves_in_flight=2, staging_slots=1),
    TileConfig(64, 128, 3, 1, 1, 1, 1, waves_in_flight=2, staging_slots=1),
    TileConfig(128, 64, 3, cluster_m=2, waves_in_flight=2),
    TileConfig(128, 256, 2, cluster_m=2),
    TileConfig(128, 128, 2, staging_slots=3),
    TileConfig(128, 192, 2),
    TileConfig(128, 128, 2, waves_in_flight=2, staging_slots=1, staging_cols=64),
    TileConfig(64, 64, 2, 1, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1),
)
SWAPPED = (SwapAbConfig(8, 16, 2), SwapAbConfig(16, 32, 3, warpgroups_k=2), SwapAbConfig(64, 64, 4))


def pairs() -> list[tuple[GroupedProblem, Config]]:
    """Each config with fewer K blocks than stages and with more, both layouts and both stores in turn."""
    found: list[tuple[GroupedProblem, Config]] = []
    for i, config in enumerate((*ORDINARY, *SWAPPED)):
        for j, k_blocks in enumerate((1, 4, 10)):
            grouping = (Grouping.CONTIGUOUS, Grouping.MASKED)[(i + j) % 2]
            store, n = ((StoreKind.TMA, 320), (StoreKind.PREDICATED, 137))[j % 2]
            shares_k = config.warpgroups_k > 1 and isinstance(config, TileConfig)
            k = 128 * (k_blocks + k_blocks % 2 if shares_k else k_blocks) - (0 if shares_k else 16 * (j % 2))
            found.append((GroupedProblem(grouping, GROUPS, 1, n, k, store=store), config))
    return found


def repeated(problem: GroupedProblem, config: Config, *, lanes: Lanes, seed: int) -> Repeated:
    """The launches of one kernel."""
    kernel = GroupedKernel(problem, config, device_index=lanes.device.index, num_sms=NUM_SMS, limited=True)
    sets = [prepare_grouped(problem, sizes(seed + i), MOST_ROWS, seed + i, lanes.device) for i in range(OPERAND_SETS)]
    name = kernel_request(problem, config).label
    return Repeated(name, kernel, sets, rounds=GRAPH_LAUNCHES // OPERAND_SETS, lanes=lanes)


def sizes(seed: int) -> list[int]:
    """Rows of each group, of some none."""
    draw = random.Random(seed)
    return [draw.choice((0, 0, 1, draw.randrange(1, 20), draw.randrange(1, MOST_ROWS))) for _ in range(GROUPS)]


def test_launches_of_small_groups_are_right(
    device: torch.device, seed: int, no_progress: Callable[..., NoReturn], say: Callable[[str], None]
) -> None:
    wanted = int(os.environ.get("FP8GEMM_TEST_LAUNCHES") or DEFAULT_LAUNCHES) // SHARE
    lanes = Lanes(device, OPERAND_SETS)
    graphs: list[Repeated] = []
    parts = make_in_parts(pairs(), partial(repeated, lanes=lanes, seed=seed))
    played = play_parts(parts, graphs, wanted, limit_s=LIMIT_S)
    say(f"stress, grouped: {played.launches} launches of {len(graphs)} kernels in {played.seconds:.1f} s, seed {seed}")
    check_played(played, wanted, seed, lambda message: no_progress(message, *graphs))


def test_the_kernels_are_of_both_layouts_and_stores() -> None:
    seen = {(problem.grouping, problem.store, isinstance(config, SwapAbConfig)) for problem, config in pairs()}
    assert len(seen) == 8 and all(math.gcd(problem.k, 16) == 16 for problem, _ in pairs())
