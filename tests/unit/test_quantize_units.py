"""Which warp of a masked quantiser has which rows of which group: each row that there is once, and no other.

The device's own code, compiled for the host, where the 32 lanes of a warp are fibers (warp_host.hpp).
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fp8gemm.jit.headers import include_dir
from tests.host_compiler import compile_for_host

Place = tuple[int, int, int]
"""A group, how many rows it has, and which of its units."""
Walk = Callable[..., list[Place]]
"""(rows of a unit, units side by side, counts, most rows of a group, warps) -> the places of all warps' units."""

ROWS_OF_UNIT = (1, 4)
HARNESS = """
template <unsigned kRows>
unsigned walk(const fp8gemm::QuantizeParams& params, unsigned side_by_side, unsigned warp, unsigned warps,
              unsigned capacity, unsigned* places) {
    unsigned counts[warp::kLanes] = {};
    bool same = true;
    const bool together = warp::run([&](unsigned lane) {
        const fp8gemm::GroupUnits<kRows> units(params, side_by_side, lane);
        for (unsigned unit = warp; unit < units.total(); unit += warps) {
            const fp8gemm::UnitPlace place = units.find(unit);
            unsigned* at = places + 3 * counts[lane]++;
            if (counts[lane] > capacity) {
                return;
            }
            if (lane == 0) {
                at[0] = place.group, at[1] = place.rows_of_group, at[2] = place.unit_of_group;
            } else {
                same = same && at[0] == place.group && at[1] == place.rows_of_group && at[2] == place.unit_of_group;
            }
        }
    });
    return together && same ? counts[0] : ~0u;
}

extern "C" unsigned walk_of(unsigned rows_of_unit, unsigned side_by_side, const int* counts, unsigned groups,
                            unsigned rows, unsigned warp, unsigned warps, unsigned capacity, unsigned* places) {
    fp8gemm::QuantizeParams params{};
    params.counts = counts, params.groups = groups, params.rows = rows;
    return (rows_of_unit == 1 ? walk<1> : walk<4>)(params, side_by_side, warp, warps, capacity, places);
}
"""


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    warp = Path(__file__).with_name("warp_host.hpp").read_text()
    units = (include_dir() / "fp8gemm/quantize/group_units.cuh").read_text()
    source = warp + re.sub("#pragma.*", "", units) + HARNESS  # of which a compiler for the host may know none
    walk_of = compile_for_host(source, tmp_path_factory.mktemp("units")).walk_of

    def of(rows_of_unit: int, side_by_side: int, counts: Sequence[int], rows: int, warps: int) -> list[Place]:
        capacity = side_by_side * sum(-(-min(max(count, 0), rows) // rows_of_unit) for count in counts)
        of_counts, found = (ctypes.c_int * len(counts))(*counts), []
        for warp in range(warps):
            places = (ctypes.c_uint32 * (3 * capacity + 3))()
            arguments = (rows_of_unit, side_by_side, of_counts, len(counts), rows, warp, warps, capacity, places)
            number = walk_of(*arguments)
            assert -(-(capacity - warp) // warps) == number, "dealt out evenly"
            found += list(zip(places[0::3], places[1::3], places[2::3], strict=True))[:number]
        return found

    return of


def wanted(rows_of_unit: int, side_by_side: int, counts: Sequence[int], rows: int) -> list[Place]:
    valid = [min(max(count, 0), rows) for count in counts]
    units = (range(-(-count // rows_of_unit) * side_by_side) for count in valid)
    return [(group, valid[group], unit) for group, of_group in enumerate(units) for unit in of_group]


counts_of_groups = st.lists(st.integers(-2, 12), min_size=1, max_size=100)


@settings(max_examples=60, deadline=None)
@given(counts=counts_of_groups, rows=st.integers(1, 10), side_by_side=st.integers(1, 3), warps=st.integers(1, 40))
@example(counts=[0] * 256, rows=128, side_by_side=8, warps=7)
@example(counts=[0] * 255 + [9], rows=128, side_by_side=8, warps=7)
@example(counts=[2**31 - 1, -(2**31)], rows=3, side_by_side=1, warps=4)
@example(counts=[1] * 33, rows=1, side_by_side=1, warps=100)
def test_every_row_that_there_is_has_one_unit(
    walk: Walk, counts: list[int], rows: int, side_by_side: int, warps: int
) -> None:
    for rows_of_unit in ROWS_OF_UNIT:
        found = walk(rows_of_unit, side_by_side, counts, rows, warps)
        assert Counter(found) == Counter(wanted(rows_of_unit, side_by_side, counts, rows))


@pytest.mark.parametrize(("groups", "warps"), list(product((1, 31, 32, 33, 64, 65, 256), (1, 5))))
def test_one_group_may_have_all_rows(walk: Walk, groups: int, warps: int) -> None:
    for chosen in {0, groups // 2, groups - 1}:
        counts = [20 * (group == chosen) for group in range(groups)]
        for rows_of_unit in ROWS_OF_UNIT:
            assert sorted(walk(rows_of_unit, 2, counts, 20, warps)) == wanted(rows_of_unit, 2, counts, 20)
