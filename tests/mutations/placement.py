"""Faults of where things are: which CTA computes which tile, what a loader fetches, and what the host believes."""

from __future__ import annotations

from tests.mutations.mutant import REFUSED, Edit, Mutant, deadlock, under

_PERSISTENT, _RASTER, _COPIES = "scheduler/persistent.cuh", "scheduler/tile_order.cuh", "mainloop/operand_copies.cuh"

_SCHEDULE = ("tests/unit/test_scheduler.py::test_the_device_schedule_is_the_model",)
_EXACT = ("tests/gpu/test_gemm.py::test_other_data[distinct_scales-333-7168-512]",)
_COMPILED = ("tests/jit/test_kernels.py::test_kernels_do_not_spill_and_lose_no_overlap",)

_M = "tile.m = cluster_tile.m * Config::kClusterM + rank / Config::kClusterN;"
_N = "tile.n = cluster_tile.n * Config::kClusterN + rank % Config::kClusterN;"
_PLACE = "TileCoordinate{first_m + in_band % rows, from_right ? num_n - 1 - col : col}"
_SLOTS = "kSlots = Config::kStagingSlots;"
_RING_BLOCKS = "kRingBlocks = Config::kStages * Config::kWarpgroupsK;"


def _schedule(name: str, what: str, *edits: Edit, sample: str = "cluster_m") -> Mutant:
    """The scheduler's headers are compiled for the host too, so their faults need no GPU."""
    return Mutant(name, what, edits, _SCHEDULE, gpu=False, sample=sample)


_SCHEDULES = (
    _schedule(
        "last-tile-dropped",
        "the last cluster tile is never computed",
        Edit(_PERSISTENT, "place >= num_m * kNumN", "place + 1 >= num_m * kNumN"),
    ),
    _schedule(
        "tile-computed-twice",
        "a cluster's second tile is the first tile of all again",
        Edit(_PERSISTENT, "banded_raster(place, num_m", "banded_raster(place == num_clusters ? 0 : place, num_m"),
    ),
    _schedule(
        "raster-transposed",
        "rows and columns of tiles are exchanged",
        Edit(_RASTER, _PLACE, "TileCoordinate{from_right ? num_n - 1 - col : col, first_m + in_band % rows}"),
    ),
    _schedule(
        "short-last-band-ignored",
        "the last two bands of tile rows count as full ones",
        Edit(_RASTER, "if (bands_above == before_last_two)", "if (bands == 1)"),
    ),
    _schedule(
        "ranks-swapped",
        "the CTAs of a cluster divide its tile along the wrong dimension",
        Edit(_PERSISTENT, _M, _M.replace("rank / Config::kClusterN", "rank % Config::kClusterN")),
        Edit(_PERSISTENT, _N, _N.replace("rank % Config::kClusterN", "rank / Config::kClusterN")),
    ),
    _schedule(
        "last-columns-dropped",
        "the number of tile columns is rounded down",
        Edit(_PERSISTENT, "kNumN = ceil_div(Config::kN, kClusterTileN)", "kNumN = Config::kN / kClusterTileN"),
    ),
)


_LAST_ROUND = "scheduler/last_round.cuh"
_HALVES = "tests/gpu/test_halves.py::test_columns_of_a_tile_that_two_ctas_divide[704-bfloat16]"
_COLUMNS = (
    _schedule(
        "half-columns-of-the-left",
        "both CTAs that divide a tile have its left half",
        Edit(_PERSISTENT, "tile.take_half(half % 2 * (Config::kBlockN / 2))", "tile.take_half(0)"),
        sample="half_columns",
    ),
    _schedule(
        "half-columns-of-too-many-tiles",
        "a last round is divided whatever tiles it has",
        Edit(_LAST_ROUND, "left <= num_ctas / 2 ?", "left <= num_ctas ?"),
        sample="half_columns",
    ),
    _schedule(
        "half-columns-of-the-first-tiles",
        "the divided tiles are the first of all",
        Edit(_PERSISTENT, "place = first_divided + half / 2;", "place = half / 2;"),
        sample="half_columns",
    ),
    Mutant(
        "half-columns-of-b-of-the-left",
        "B of a right half is that of the left one",
        (
            Edit(
                "scheduler/tile.cuh",
                "row_of_b() const { return first_col(); }",
                "row_of_b() const { return n * Config::kBlockN; }",
            ),
        ),
        (_HALVES,),
        sample="half_columns",
    ),
    Mutant(
        "half-columns-scaled-as-the-left",
        "the scales of B of a right half are those of the left one",
        (
            Edit(
                "mainloop/block_scales.cuh",
                "tile.first_col() + first_col_;",
                "tile.first_col() / 256 * 256 + first_col_;",
            ),
        ),
        (_HALVES,),
        sample="half_columns",
    ),
    Mutant(
        "half-columns-stored-in-part",
        "of half of a tile's parts only the first half is stored",
        (
            Edit(
                "epilogue/tma_store.cuh",
                "tile.is_half_wide ? kParts / 2 : kParts;",
                "tile.is_half_wide ? kParts / 4 : kParts;",
            ),
        ),
        (_HALVES,),
        sample="half_columns",
    ),
)


def _refused(name: str, what: str, *edits: Edit, message: str) -> Mutant:
    return Mutant(name, what, edits, _COMPILED, REFUSED, gpu=False, message=message)


_BELIEFS = (
    _refused(
        "more-staging-than-the-host-counts",
        "the kernel has one staging slot more than the host reserves shared memory for",
        Edit("epilogue/tma_store.cuh", _SLOTS, _SLOTS.replace(";", " + 1;")),
        message="the host computes another size of shared memory",
    ),
    _refused(
        "one-stage-more-than-the-host-counts",
        "the kernel's ring has one stage more than the host reserves shared memory for",
        Edit("mainloop/stage.cuh", _RING_BLOCKS, _RING_BLOCKS.replace("Config::kStages", "(Config::kStages + 1)")),
        message="the host computes another size of shared memory",
    ),
    _refused(
        "more-registers-than-the-launch-has",
        "the consumers ask for more registers than the load warpgroup gives",
        Edit("kernels/dense.cuh", "kGivesMore ? 240 : 232", "240"),
        message="consumers would wait for registers that the launch has not",
    ),
    _refused(
        "another-argument-block",
        "the kernel expects a tensor map more than the host passes",
        Edit("kernels/params.cuh", "    TensorMap a_map; ", "    TensorMap first_map;\n    TensorMap a_map; "),
        message="the host lays out this struct byte by byte",
    ),
)


def _clustered(tile: str) -> tuple[str, ...]:
    return (f"tests/gpu/test_configs.py::test_any_number_of_sms_gives_the_same_bits[{tile}-7]",)


_LOADS = (
    Mutant(
        "loader-of-the-next-rows",
        "the rows of A come from the tile below",
        (Edit(_COPIES, "row_a = tile.row_of_a();", "row_a = tile.row_of_a() + Shape::kBlockM;"),),
        _EXACT,
    ),
    Mutant(
        "k-block-loaded-is-the-next",
        "operands come from one K block later than their scales",
        (Edit(_COPIES, "k = k_block * Shape::kBlockK;", "k = (k_block + 1) * Shape::kBlockK;"),),
        _EXACT,
    ),
    Mutant(
        "streamed-weights-of-the-next-rows",
        "the rows of a B that leaves L2 first come from the tile beside",
        (Edit(_COPIES, "k, row_b, ptx::evict_first", "k, row_b + Shape::kBlockN, ptx::evict_first"),),
        ("tests/gpu/test_configs.py::test_a_weight_that_leaves_l2_first_is_the_same[64x128]",),
    ),
    Mutant(
        "rest-of-a-not-loaded",
        "the rows of A after the last whole box count as past M",
        (Edit(_COPIES, "row < rows ? minimum(rows - row, most) : 0", "row + most <= rows ? most : 0"),),
        _clustered("256x64-c2x1"),
        sample="cluster_m",
    ),
    deadlock(
        "box-of-the-rest-for-all",
        "tiles that have all their rows are loaded by the box of the last ones",
        Edit(_COPIES, "in_part == kPartRows ? &whole : &tail", "in_part == 0 ? &whole : &tail"),
    ),
    Mutant(
        "shares-land-on-each-other",
        "each CTA of a cluster multicasts its share to the place of the first",
        (Edit(_COPIES, "tile + first * Shape::kBlockK, map", "tile, map"),),
        _clustered("256x64-c2x1"),
        sample="cluster_m",
    ),
    Mutant(
        "shares-are-the-same",
        "each CTA of a cluster fetches the rows of the first share",
        (Edit(_COPIES, "full, k, row + first, kAllOfCluster", "full, k, row, kAllOfCluster"),),
        _clustered("64x64-c1x2"),
        sample="cluster_n",
    ),
    deadlock(
        "multicast-to-one",
        "what should reach both CTAs of a cluster reaches the first alone",
        Edit(_COPIES, "kAllOfCluster = (1u << Shape::kSharers) - 1;", "kAllOfCluster = 1u;"),
        sample="cluster_m",
    ),
    Mutant(
        "warpgroups-multiply-one-place",
        "both warpgroups multiply the rows of A that are the first's",
        (Edit("mainloop/wave_operands.cuh", "stages.a[share] + origin.row * Shape::kBlockK", "stages.a[share]"),),
        under("128x128"),
    ),
)

MUTANTS = _SCHEDULES + _COLUMNS + _BELIEFS + _LOADS
