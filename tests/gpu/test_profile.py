"""An instrumented kernel computes what the normal one does, and records every tile and K block once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from fp8gemm.lab.profiling.trace import TILE, Recording, Span, summarise
from fp8gemm.lab.profiling.traced import TracedKernel
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind
from tests import cases
from tests.cases import Case
from tests.first_steps import first_steps
from tests.gpu.faults.support import launch, make_kernels, nans

NUM_SMS = 4
"""Few, so that a CTA computes several tiles."""

PREDICATED, ROW, FLOAT32 = StoreKind.PREDICATED, Scaling.ROW, OutputType.FLOAT32


@dataclass(frozen=True)
class Traced:
    """A problem, and which of its configs: the place among the candidates whose consumers share K, or do not.

    Those whose clusters divide K are left out, since each of their CTAs marks its own part of a tile.
    """

    problem: Problem
    place: int
    shared_k: bool = False

    @property
    def config(self) -> TileConfig:
        problem = self.problem
        candidates = candidate_configs(problem.store, problem.output, problem.scaling)
        whole = [config for config in candidates if config.split_k == 1]
        configs = [config for config in whole if (config.warpgroups_k > 1) == self.shared_k]
        return configs[self.place % len(configs)]

    def __str__(self) -> str:
        problem = self.problem
        return f"{problem.scaling.value}-{problem.output.value}-{problem.store.value}-{self.config.label}"


TRACED = [
    Traced(Problem(1000, 776, 1168), 0),
    Traced(Problem(1000, 776, 1168), 1),
    Traced(Problem(1000, 776, 1168), 2),
    Traced(Problem(1000, 776, 1168), -1),
    Traced(Problem(300, 264, 4240), 9),
    Traced(Problem(777, 577, 400, store=PREDICATED), 7),
    Traced(Problem(520, 520, 640, FLOAT32, scaling=ROW), 4),
    Traced(Problem(64, 64, 128), -3),
    # With K shared: an even and an odd number of K blocks, one, and many.
    Traced(Problem(500, 776, 1168), 0, shared_k=True),
    Traced(Problem(300, 520, 1040), -1, shared_k=True),
    Traced(Problem(64, 64, 128), 0, shared_k=True),
    Traced(Problem(300, 264, 4240), 0, shared_k=True),
    Traced(Problem(333, 577, 400, store=PREDICATED), -1, shared_k=True),
    Traced(Problem(520, 520, 640, FLOAT32, scaling=ROW), 0, shared_k=True),
]


def record(traced: Traced, case: Case, cta: int) -> tuple[torch.Tensor, Recording]:
    """The output and what one CTA's roles did."""
    index = case.a.device.index
    kernel = TracedKernel(traced.problem, traced.config, device_index=index, num_sms=NUM_SMS, cta=cta)
    kernel.clear()
    out = launch(kernel, case, nans(traced.problem, case.a.device))
    return out, kernel.recording()


def blocks(spans: Sequence[Span], role: str, activity: str) -> list[tuple[tuple[int, int] | None, int | None]]:
    """Tile and K block of each span, a K block's waves taken together."""
    found = [(span.tile, span.k_block) for span in spans if span.role == role and span.activity == activity]
    return [block for index, block in enumerate(found) if index == 0 or block != found[index - 1]]


@pytest.mark.parametrize("traced", TRACED, ids=str)
def test_results_are_the_same_and_events_complete(traced: Traced, device: torch.device, seed: int) -> None:
    problem, config = traced.problem, traced.config
    case = cases.signed(problem.m, problem.n, problem.k, seed=seed, device=device, scaling=problem.scaling)
    (normal,) = make_kernels([(problem, config)], device, num_sms=NUM_SMS)
    wanted = launch(normal, case, nans(problem, device))
    case.check(wanted).raise_if_failed(case)

    seen: list[tuple[int, int] | None] = []
    for cta in range(normal.grid(problem.m)):
        out, recording = record(traced, case, cta)
        assert torch.equal(out.view(torch.uint8), wanted.view(torch.uint8)), case
        spans = recording.spans()
        assert recording.dropped == {}
        consumers, stores = ([f"{role} {i}" for i in range(config.warpgroups)] for role in ("consumer", "store"))
        if problem.store is not StoreKind.TMA:
            stores = []
        assert sorted(recording.marks) == [*consumers, "load", *stores]

        tiles = [span.tile for span in spans if span.role == "load" and span.activity == TILE]
        shares = config.warpgroups_k
        loaded = range(-(-problem.k_blocks // shares) * shares)  # as many for each share
        assert blocks(spans, "load", "load") == [(tile, k_block) for tile in tiles for k_block in loaded]
        waited = [(tile, k_block) for tile in tiles for k_block in loaded[::shares]]
        assert blocks(spans, "load", "wait empty") == waited[first_steps(config, problem.k_blocks) :]
        for index, consumer in enumerate(consumers):
            of_share = [(tile, k_block) for tile in tiles for k_block in loaded[index % shares :: shares]]
            for activity in ("wait full", "multiply", "promote"):
                assert blocks(spans, consumer, activity) == of_share, (consumer, activity)
            for activity in ("stage", *(["add shares"] if shares > 1 else [])):
                assert blocks(spans, consumer, activity) == [(tile, None) for tile in tiles], (consumer, activity)
        for store in stores:
            assert blocks(spans, store, "store") == [(tile, None) for tile in tiles]
        seen += tiles
        check_order(recording, spans, shares * first_steps(config, problem.k_blocks))
    rows, cols = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    count = -(-problem.m // rows) * config.cluster_m * -(-problem.n // cols) * config.cluster_n
    assert len(seen) == len(set(seen)) == count


def check_order(recording: Recording, spans: Sequence[Span], ahead: int) -> None:
    """Time goes forward in each role, and a K block is loaded before it is multiplied.

    A CTA asks for so many of its first ones before there are roles, and marks them when its load role comes to them.
    """
    assert all(span.cycles >= 0 for span in spans)
    if recording.clock_mhz is not None:
        assert 200 < recording.clock_mhz < 2500
    for role in recording.marks:
        of_role = [span for span in spans if span.role == role]
        assert all(a.end == b.start for a, b in zip(of_role, of_role[1:], strict=False))
    loads = [span for span in spans if span.activity == "load"]
    marked_late = {(span.tile, span.k_block) for span in loads[:ahead]}
    loaded = {(span.tile, span.k_block): span.start for span in loads}
    for span in spans:
        if span.activity == "multiply" and (span.tile, span.k_block) not in marked_late:
            assert span.start >= loaded[span.tile, span.k_block], span
    for summary in summarise(spans):
        assert sum(summary.shares.values()) == pytest.approx(1.0)


def test_a_recording_is_of_the_last_launch(device: torch.device, seed: int) -> None:
    traced = TRACED[0]
    problem = traced.problem
    case = cases.signed(problem.m, problem.n, problem.k, seed=seed, device=device)
    kernel = TracedKernel(problem, traced.config, device_index=device.index, num_sms=NUM_SMS, cta=0)
    assert kernel.recording().marks == {}
    counts = []
    for _ in range(3):
        launch(kernel, case, nans(problem, device))
        counts.append({role: len(marks) for role, marks in kernel.recording().marks.items()})
    assert counts[0] == counts[1] == counts[2] and counts[0]["load"] > 2 * problem.k_blocks
    kernel.clear()
    assert kernel.recording().marks == {}
