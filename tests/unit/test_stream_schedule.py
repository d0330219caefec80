"""How CTAs divide a weight that they stream: every byte once, evenly, in pieces that a bulk copy can move."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host_compiler import compile_for_host

Piece = tuple[int, int]
"""Offset and bytes."""
Walk = Callable[[int, int, int], list[Piece]]
"""(which config, cta, num_ctas) -> the pieces of that CTA, in order."""

LINE = 128
CONFIGS = [  # N, K, bytes of a stage
    *((n, k, 12288) for n, k in ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (7168, 2048))),
    *((n, k, stage) for n, k in ((1, 16), (7, 144), (100, 112), (1031, 2064)) for stage in (128, 1024, 16384)),
    (262144, 16384, 16384),  # 4 GiB: offsets need more than 32 bits
]
HARNESS = """
#include "fp8gemm/scheduler/stream.cuh"

template <unsigned kN_, unsigned kK_, unsigned kStageBytes_>
struct Config {
    static constexpr fp8gemm::uint32_t kN = kN_, kK = kK_, kStageBytes = kStageBytes_;
};

template <class Config>
unsigned walk(unsigned cta, unsigned num_ctas, unsigned capacity, unsigned long long* pairs) {
    fp8gemm::StreamSchedule<Config> schedule(cta, num_ctas);
    fp8gemm::Piece piece;
    unsigned count = 0;
    for (; count < capacity && schedule.next(piece); ++count) {
        pairs[2 * count] = piece.offset;
        pairs[2 * count + 1] = piece.bytes;
    }
    return count;
}

using Walk = unsigned(unsigned, unsigned, unsigned, unsigned long long*);
extern Walk* const kWalks[];

extern "C" unsigned walk_of(unsigned config, unsigned cta, unsigned num_ctas, unsigned capacity,
                            unsigned long long* pairs) {
    return kWalks[config](cta, num_ctas, capacity, pairs);
}
"""


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    entries = ", ".join(f"walk<Config<{n}u, {k}u, {stage}u>>" for n, k, stage in CONFIGS)
    source = f"{HARNESS}\nWalk* const kWalks[] = {{{entries}}};\n"
    walk_of = compile_for_host(source, tmp_path_factory.mktemp("stream")).walk_of
    walk_of.argtypes = [ctypes.c_uint32] * 4 + [ctypes.c_void_p]

    def pieces(index: int, cta: int, num_ctas: int) -> list[Piece]:
        n, k, stage = CONFIGS[index]
        capacity = n * k // (stage * num_ctas) + 3
        pairs = (ctypes.c_uint64 * (2 * capacity))()
        count = walk_of(index, cta, num_ctas, capacity, pairs)
        assert count < capacity, f"CTA {cta} of {num_ctas} finds no end with {CONFIGS[index]}"
        return list(zip(pairs[0 : 2 * count : 2], pairs[1 : 2 * count : 2], strict=True))

    return pieces


@settings(max_examples=100, deadline=None)
@given(
    index=st.integers(0, len(CONFIGS) - 2),
    num_ctas=st.one_of(st.sampled_from([78, 114, 132, 264]), st.integers(1, 264)),
)
def test_every_byte_is_read_once_and_all_ctas_read_as_much(walk: Walk, index: int, num_ctas: int) -> None:
    n, k, stage = CONFIGS[index]
    shares = [walk(index, cta, num_ctas) for cta in range(num_ctas)]
    check_pieces([piece for share in shares for piece in share], stage)
    runs = sorted(piece for share in shares for piece in share)
    assert runs[0][0] == 0 and sum(runs[-1]) == n * k
    assert all(sum(before) == after for before, (after, _) in pairwise(runs)), "a gap, or bytes that are read twice"
    lengths = [sum(size for _, size in share) for share in shares]
    assert max(lengths) - min(lengths) <= 2 * LINE
    assert all(offset < following for share in shares for (offset, _), (following, _) in pairwise(share))


def check_pieces(pieces: list[Piece], stage: int) -> None:
    for offset, size in pieces:
        assert offset % LINE == 0 and size % 16 == 0 and 0 < size <= stage


def test_offsets_past_four_gigabytes(walk: Walk) -> None:
    index = len(CONFIGS) - 1
    n, k, stage = CONFIGS[index]
    pieces = walk(index, 131, 132)
    check_pieces(pieces, stage)
    assert sum(pieces[-1]) == n * k == 2**32
