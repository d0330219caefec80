"""Which CTA of the small-M kernels has which share of which tile: every share of every tile once, clusters whole."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.host_compiler import compile_for_host

Place = tuple[int, int, int]
"""Row and column of a tile, and the share."""
Of = Callable[[int, int, int], list[Place]]
"""(which config, M, CTAs) -> the places of all CTAs, in order."""

CONFIGS = list(product((8, 16, 24, 64), (1, 2, 3, 7, 8)))
"""Rows of a tile, CTAs of a cluster."""
HARNESS = """
#include "fp8gemm/scheduler/tile_order.cuh"

template <unsigned kBlockM_, unsigned kSplitK_>
struct Config {
    static constexpr fp8gemm::uint32_t kBlockM = kBlockM_, kSplitK = kSplitK_;
};

template <class Config>
void places(unsigned m, unsigned count, unsigned* triples) {
    for (unsigned i = 0; i < count; ++i) {
        const fp8gemm::SplitTile split = fp8gemm::split_tile<Config>(i, m);
        triples[3 * i] = split.tile.m;
        triples[3 * i + 1] = split.tile.n;
        triples[3 * i + 2] = split.rank;
    }
}

using Places = void(unsigned, unsigned, unsigned*);
extern Places* const kPlaces[];

extern "C" void places_of(unsigned config, unsigned m, unsigned count, unsigned* triples) {
    kPlaces[config](m, count, triples);
}
"""


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Of:
    entries = ", ".join(f"places<Config<{block_m}u, {split}u>>" for block_m, split in CONFIGS)
    source = f"{HARNESS}\nPlaces* const kPlaces[] = {{{entries}}};\n"
    places_of = compile_for_host(source, tmp_path_factory.mktemp("split")).places_of
    places_of.argtypes = [ctypes.c_uint32] * 3 + [ctypes.c_void_p]

    def of(config: int, m: int, count: int) -> list[Place]:
        triples = (ctypes.c_uint32 * (3 * count))()
        places_of(config, m, count, triples)
        return list(zip(triples[0::3], triples[1::3], triples[2::3], strict=True))

    return of


@settings(max_examples=300, deadline=None)
@example(config=len(CONFIGS) - 1, m=1, num_n=1)
@example(config=7, m=16, num_n=3)
@example(config=7, m=17, num_n=3)
@given(config=st.integers(0, len(CONFIGS) - 1), m=st.integers(1, 300), num_n=st.integers(1, 132))
def test_every_share_of_every_tile_is_some_cta_s(places: Of, config: int, m: int, num_n: int) -> None:
    block_m, split = CONFIGS[config]
    num_m = -(-m // block_m)
    found = places(config, m, num_m * num_n * split)
    assert sorted(found) == sorted(product(range(num_m), range(num_n), range(split)))
    # A cluster is so many neighbours, one tile is theirs, and each one's share is its rank.
    assert [rank for *_, rank in found] == list(range(split)) * (num_m * num_n)
    assert all(found[i][:2] == found[i - i % split][:2] for i in range(len(found)))
    # Tiles of the same rows of B follow each other.
    assert [n for _, n, _ in found] == sorted(n for _, n, _ in found)
