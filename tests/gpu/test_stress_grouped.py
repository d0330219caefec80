"""Small grouped kernels launched very often, as `test_stress.py` has it for those of single products.

Few SMs, so that a CTA computes many tiles; groups that change from launch to launch, so that nothing stale is what the
next one wants; exact data, of which no element may differ. ``--chaos`` and FP8GEMM_TEST_LAUNCHES as there; there are a
quarter as many launches of these kernels in all.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor

from fp8gemm.families.grouped import GroupedKernel, GroupedOperands, kernel_request
from fp8gemm.jit.parallel import build_many
from fp8gemm.reference import gemm_grouped_reference, gemm_masked_reference
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import cases
from tests.grouped import contiguous_case, masked_case

DEFAULT_LAUNCHES = 100_000
SHARE = 4
GRAPH_LAUNCHES, OPERAND_SETS = 50, 5
NUM_SMS = 4
PROGRESS_S, LIMIT_S = 20.0, 120.0
GROUPS, MOST_ROWS = 9, 150

ORDINARY = (
    TileConfig(64, 64, 2, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1),
    TileConfig(128, 64, 3, cluster_m=2, waves_in_flight=2),
    TileConfig(128, 128, 2, staging_slots=3),
    TileConfig(64, 64, 2, 1, 1, 1, 1, 2, waves_in_flight=2, staging_slots=1),
)
SWAPPED = (SwapAbConfig(8, 16, 2), SwapAbConfig(16, 32, 3, warpgroups_k=2), SwapAbConfig(64, 64, 4))


def pairs() -> list[tuple[GroupedProblem, Config]]:
    """Each config with fewer K blocks than stages and with more, both layouts and both stores in turn."""
    found: list[tuple[GroupedProblem, Config]] = []
    for i, config in enumerate((*ORDINARY, *SWAPPED)):
        for j, k_blocks in enumerate((1, 4, 10)):
            grouping = (Grouping.CONTIGUOUS, Grouping.MASKED)[(i + j) % 2]
            store, n = ((StoreKind.TMA, 200), (StoreKind.PREDICATED, 137))[j % 2]
            shares_k = config.warpgroups_k > 1 and isinstance(config, TileConfig)
            k = 128 * (k_blocks + k_blocks % 2 if shares_k else k_blocks) - (0 if shares_k else 16 * (j % 2))
            found.append((GroupedProblem(grouping, GROUPS, 1, n, k, store=store), config))
    return found


@dataclass(frozen=True)
class Prepared:
    """Operands of a launch, its output once right and once poisoned."""

    operands: GroupedOperands
    right: Tensor
    poison: Tensor
    held: tuple[Tensor, ...]


def prepare(problem: GroupedProblem, seed: int, device: torch.device) -> Prepared:
    draw = random.Random(seed)
    sizes = [draw.choice((0, 0, 1, draw.randrange(1, 20), draw.randrange(1, MOST_ROWS))) for _ in range(GROUPS)]
    n, k = problem.n, problem.k
    if problem.grouping is Grouping.CONTIGUOUS:
        runs = [(-1, draw.randrange(1, 9))]
        for group in draw.sample(range(GROUPS), GROUPS):
            runs += [(group, sizes[group]), (-1, draw.choice((0, 3, 70)))]
        case = contiguous_case(runs, n, k, seed=seed, device=device, maker=cases.small_integers, groups=GROUPS)
        poison = case.poison()
        where = torch.tensor(list(zip(*case.ranges, strict=True)), dtype=torch.int32, device=device)
        right = gemm_grouped_reference(*case.operands, offsets=where, out=poison.clone())
        begins, ends, rows = where.data_ptr(), where[1].data_ptr(), case.a.shape[0]
        a, out = case.a, poison.clone()
    else:
        case = masked_case(sizes, MOST_ROWS, n, k, seed=seed, device=device, maker=cases.small_integers)
        poison, where = case.poison(), case.counts()
        right = gemm_masked_reference(*case.operands, where, out=poison.clone()).flatten(0, 1)
        begins, ends, rows = 0, where.data_ptr(), MOST_ROWS
        a, poison = case.a.flatten(0, 1), poison.flatten(0, 1)
        out = poison.clone()
    operands = GroupedOperands(
        a=a,
        scales_a=case.scales_a,
        b=case.b.flatten(0, 1),
        scales_b=case.scales_b,
        out=out,
        begins=begins,
        ends=ends,
        rows=rows,
        products=0,
    )
    return Prepared(operands, right, poison, (where, case.a))


class Repeated:
    """A graph of many launches of one kernel on several streams, and a count of wrong elements."""

    def __init__(self, problem: GroupedProblem, config: Config, *, device: torch.device, seed: int) -> None:
        self.name = kernel_request(problem, config).label
        kernel = GroupedKernel(problem, config, device_index=device.index, num_sms=NUM_SMS, limited=True)
        self.sets = [prepare(problem, seed + i, device) for i in range(OPERAND_SETS)]
        self.wrong = torch.zeros(OPERAND_SETS, dtype=torch.int64, device=device)  # each stream has one
        self.graph, self.done = torch.cuda.CUDAGraph(), torch.cuda.Event()
        streams = [torch.cuda.Stream(device) for _ in range(OPERAND_SETS)]
        main = torch.cuda.Stream(device)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(main):
            self.graph.capture_begin()
            for wrong, stream, each in zip(self.wrong, streams, self.sets, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    for _ in range(GRAPH_LAUNCHES // OPERAND_SETS):
                        each.operands.out.copy_(each.poison)
                        kernel.bind(each.operands, stream.cuda_stream)()
                        # The poison of rows that are right to keep is no NaN: those differ from everything.
                        wrong.add_((each.operands.out != each.right).sum())
                main.wait_stream(stream)
            self.graph.capture_end()

    def replay(self) -> int | None:
        """Wrong elements so far; None if the replay does not end."""
        self.graph.replay()
        self.done.record()
        deadline = time.monotonic() + PROGRESS_S
        while not self.done.query():
            if time.monotonic() > deadline:
                return None
            time.sleep(2e-5)
        return int(self.wrong.sum().item())


def test_launches_of_small_groups_are_right(
    device: torch.device, seed: int, no_progress: Callable[..., NoReturn], say: Callable[[str], None]
) -> None:
    wanted = int(os.environ.get("FP8GEMM_TEST_LAUNCHES") or DEFAULT_LAUNCHES) // SHARE
    kernels = pairs()
    build_many([kernel_request(problem, config) for problem, config in kernels])
    graphs = [Repeated(replace(problem), config, device=device, seed=seed) for problem, config in kernels]
    torch.cuda.synchronize(device)
    launches, started = 0, time.monotonic()
    while launches < wanted:
        for graph in graphs:
            wrong = graph.replay()
            launches += GRAPH_LAUNCHES
            if wrong is None:
                no_progress(f"{graph.name} does not end; {launches} launches, seed {seed}", *graphs)
            assert not wrong, f"{wrong} wrong elements from {graph.name} in {launches} launches, seed {seed}"
        if time.monotonic() - started > LIMIT_S:  # no wrong result: another kind of error
            raise TimeoutError(f"{launches} of {wanted} launches took {LIMIT_S} s")
    seconds = time.monotonic() - started
    say(f"stress, grouped: {launches} launches of {len(graphs)} kernels in {seconds:.1f} s, seed {seed}")


def test_the_kernels_are_of_both_layouts_and_stores() -> None:
    seen = {(problem.grouping, problem.store, isinstance(config, SwapAbConfig)) for problem, config in pairs()}
    assert len(seen) == 8 and all(math.gcd(problem.k, 16) == 16 for problem, _ in pairs())
