"""What stands between a chunk of K and the next, read in machine code: nothing is in flight there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fp8gemm import settings
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.problem import Problem
from tests.jit import order
from tests.jit.listing import Instruction, Listing
from tests.jit.sass import listings_of

K_OF_ONE_LENGTH = {  # of chunks, of which the last is whole or not
    "128x192": (7168, 7296, 13440),
    "128x160": (4352, 7296, 16384),
    "128x144": (7168, 16512),
    "192x96": (1536, 8320),
    "128x256": (7168, 16512),
    "256x128": (7168, 16512),
    "128x64": (7168,),  # a turn of the ring
}


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Listing]:
    directory = tmp_path_factory.mktemp("back_edges")
    wanted = {(label, k): Problem(1, 7168, k) for label, ks in K_OF_ONE_LENGTH.items() for k in ks}
    requests = [kernel_request(problem, labelled_config(label, problem)) for (label, _), problem in wanted.items()]
    with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
        artifacts = build_many(requests)
    texts = listings_of(artifacts, directory)
    return {each: Listing.parse(str(each), text) for each, text in zip(wanted, texts, strict=True)}


def is_wgmma(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("QGMMA")


def main_loops(listing: Listing) -> Iterator[tuple[int, int]]:
    """First and last instruction of the loops that multiply and have no other such loop in them."""
    jumps = ((listing.places[each.target], i) for i, each in enumerate(listing.instructions) if each.target)
    loops = [(first, last) for first, last in jumps if any(map(is_wgmma, listing.instructions[first : last + 1]))]
    for first, last in loops:
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops):
            yield first, last


def test_nothing_is_awaited_or_decided_between_a_back_edge_and_the_multiplication_behind_it(
    listings: dict[tuple[str, int], Listing],
) -> None:
    for each, listing in listings.items():
        # The waiting for a stage that is not full lies behind the loop, and goes to its head, too.
        heads = {first for first, _ in main_loops(listing)}
        assert heads, each
        for head in heads:
            way = [head, *listing.reached(head, is_wgmma)]
            decides = [
                listing.instructions[i].text for i in way if listing.instructions[i].opcode.startswith(("BRA", "SYNCS"))
            ]
            assert decides == [], each


def test_of_many_k_blocks_the_stage_of_a_chunks_last_wave_is_handed_back_ahead_of_its_promotion(
    listings: dict[tuple[str, int], Listing],
) -> None:
    """Of tiles with one wave to a K block. (In copies of the main loop that are for two borders, in chunks of four K
    blocks, behind 29 and 54 % of it.)"""
    most = {"128x192": 52, "128x160": 23}
    for (label, k), listing in listings.items():
        if label in ("128x256", "256x128") or k <= 8192:
            continue
        for first, last in main_loops(listing):
            inside = range(first, last + 1)
            wait = [i for i in inside if listing.instructions[i].opcode.startswith("WARPGROUP.DEPBAR")][-1]
            release = next(i for i in range(wait, last + 1) if order.is_release(listing.instructions[i]))
            promoted = [i for i in range(wait, release) if listing.instructions[i].opcode.startswith("FFMA")]
            assert len(promoted) <= most.get(label, 15), (label, k)
