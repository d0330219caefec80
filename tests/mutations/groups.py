"""Faults in whose a row or a column is: the ranges of groups, the table of them, and the schedule of their tiles."""

from __future__ import annotations

from tests.mutations.grouped import (
    ANY,
    ANY_FEW,
    CONTIGUOUS,
    GROUPS_256,
    GROUPS_256_FEW,
    REPEATED,
    REPEATED_FEW,
    race_of_groups,
    wrong_group,
)
from tests.mutations.mutant import REFUSED, Edit, Mutant

_TABLE, _FILL, _SCHEDULE = "scheduler/group_table.cuh", "mainloop/fill_table.cuh", "scheduler/grouped.cuh"
_RANGES = "kernels/group_ranges.cuh"

_HOST = ("tests/unit/test_grouped_schedule.py::test_the_device_schedule_is_the_model",)
_REFUSED = ("tests/jit/test_grouped.py::test_kernels_do_not_spill_and_lose_no_overlap",)

_BEGIN, _END = "clamped(first, ranges.limit) / kUnit;", "maximum(last / kUnit, entry.begin);"
_LAST = "last = clamped(ranges.ends[group], ranges.limit);"
_NUM_M = "return ceil_div(kOfColumns ? rows : entry.end - entry.begin, kClusterTileM);"
_ON_HOST = tuple(
    Mutant(f"grouped-{name}", what, (edit,), _HOST, gpu=False, sample="grouped")
    for name, what, edit in (
        (
            "begins-ignored",
            "every group begins at the first row",
            Edit(_TABLE, _BEGIN, _BEGIN.replace("kUnit", "kUnit * 0")),
        ),
        ("end-one-late", "a group ends one row late", Edit(_TABLE, _END, _END.replace("kUnit", "kUnit + 1"))),
        (
            "ends-not-clamped",
            "an end past the last row is taken as it is",
            Edit(_TABLE, _LAST, "last = static_cast<uint32_t>(ranges.ends[group]);"),
        ),
        (
            "end-before-its-begin",
            "a group that ends before it begins has rows without end",
            Edit(_TABLE, _END, "last / kUnit;"),
        ),
        (
            "last-tile-dropped",
            "the rows of a group's tiles are rounded down",
            Edit(_TABLE, _NUM_M, "return (kOfColumns ? rows : entry.end - entry.begin) / kClusterTileM;"),
        ),
        (
            "tiles-counted-from-the-first-group",
            "the tiles of a group are counted from the first group's",
            Edit(
                _SCHEDULE,
                "banded_raster(index - tiles_before_,",
                "banded_raster(minimum(index, entry.tiles_up_to - tiles_before_ - 1),",  # a tile that there is
            ),
        ),
        (
            "groups-counted-without-empty-ones",
            "a tile's group is its place among those that have rows",
            Edit(_SCHEDULE, "tile.group = entry.group;", "tile.group = entry_;"),
        ),
    )
)

_WARPS_BEFORE = "            sums.tiles += other < warp ? of_warp.tiles : 0;\n"
_THREADS_BEFORE = "        sums.tiles += before.tiles;\n"
_NEXT_GROUPS = "first < Config::kGroups; first += kThreads"
_FILLED = "            }\n        }\n        __syncthreads();\n    }\n"
_LEFT = "shared.of_warps[warp] = sums;\n        }\n        __syncthreads();\n"
_FILLING = (
    wrong_group(
        "last-tile-not-counted",
        "up to each group there is a tile less",
        Edit(_FILL, "entry.tiles_up_to = sums.tiles;", "entry.tiles_up_to = sums.tiles - 1;"),
        test=ANY,
    ),
    wrong_group(
        "tiles-of-warps-before-forgotten",
        "a thread's sum of tiles leaves out those that the warps before its own have counted",
        Edit(_FILL, _WARPS_BEFORE, ""),
        test=GROUPS_256,
    ),
    wrong_group(
        "tiles-of-the-turn-before-forgotten",
        "where there are more groups than threads, sums of tiles begin anew",
        Edit(_FILL, _THREADS_BEFORE, ""),
        test=GROUPS_256_FEW,
        sample="grouped_swapped_many",
    ),
    wrong_group(
        "groups-past-the-threads-dropped",
        "where there are more groups than threads, the rest has no tiles",
        Edit(_FILL, _NEXT_GROUPS, "first < 1; first += kThreads"),
        test=GROUPS_256_FEW,
        sample="grouped_swapped_many",
    ),
    race_of_groups(
        "table-not-awaited",
        "roles read the table of groups before all threads have filled it",
        Edit(_FILL, _FILLED, _FILLED.replace("        __syncthreads();\n", "")),
        tests=(REPEATED_FEW, REPEATED, GROUPS_256_FEW),
    ),
    race_of_groups(
        "sums-of-warps-not-awaited",
        "a thread adds up what the warps have counted before all have written it",
        Edit(_FILL, _LEFT, _LEFT.replace("        __syncthreads();\n", "")),
        tests=(GROUPS_256_FEW, GROUPS_256, REPEATED_FEW),
    ),
    Mutant(
        "grouped-more-table-than-the-host-counts",
        "the table takes more shared memory than the host reserves for it",
        (Edit(_FILL, "Sums of_warps[kWarps];", "Sums of_warps[kWarps + 128];"),),
        _REFUSED,
        REFUSED,
        gpu=False,
        sample="grouped",
        message="the host computes another size of shared memory",
    ),
)

_INDICES = (
    wrong_group(
        "ranges-last-row-missed",
        "a group that the last row belongs to has no end",
        Edit(_RANGES, "if (row + 1 == params.rows ||", "if (row + 1 != params.rows &&"),
        test=f"{CONTIGUOUS}::test_one_group_gets_all_and_none_gets_any[4]",
        sample="group_ranges",
    ),
    wrong_group(
        "ranges-end-one-early",
        "a group's end is its last row",
        Edit(_RANGES, "static_cast<int32_t>(row + 1);", "static_cast<int32_t>(row);"),
        test=ANY_FEW,
        sample="group_ranges",
    ),
    wrong_group(
        "ranges-begin-one-late",
        "a group begins behind its first row",
        Edit(
            _RANGES,
            "params.begins[group] = static_cast<int32_t>(row);",
            "params.begins[group] = static_cast<int32_t>(row) + 1;",
        ),
        test=ANY_FEW,
        sample="group_ranges",
    ),
)

MUTANTS = _ON_HOST + _FILLING + _INDICES
