"""Faults of grouped products: which operands, scales and rows of the output are a group's own."""

from __future__ import annotations

from tests.mutations.mutant import HANG, WRONG, Edit, Mutant, deadlock, race

_TABLE, _SCHEDULE, _TILE = "scheduler/group_table.cuh", "scheduler/grouped.cuh", "scheduler/tile.cuh"
_COPIES, _LOAD, _MULTIPLY = "mainloop/operand_copies.cuh", "mainloop/load.cuh", "mainloop/multiply.cuh"
_SWAPPED = "kernels/grouped_swap_ab.cuh"
_CLIPPED, _PREDICATED = "epilogue/clipped_store.cuh", "epilogue/predicated_store.cuh"
_SHARES, _LOOPS = "epilogue/cluster_reduction.cuh", "mainloop/chunk_loops.cuh"

CONTIGUOUS, _MASKED, _COLUMNS = "tests/gpu/test_grouped.py", "tests/gpu/test_masked.py", "tests/gpu/test_k_grouped.py"
ANY, _ANY_PREDICATED, ANY_FEW = (
    f"{CONTIGUOUS}::test_groups_of_any_size_anywhere[{case}]" for case in ("576-256-512", "100-128-512", "2112-7168-4")
)
GROUPS_256, GROUPS_256_FEW = (f"{CONTIGUOUS}::test_256_groups[small_integers-{case}]" for case in ("70-512", "4-4"))
REPEATED, REPEATED_FEW = (
    f"{CONTIGUOUS}::test_repeated_runs_are_bitwise_equal[{case}]" for case in ("576-256-512", "2112-7168-4")
)
_ANY_COUNTS, _FEW_COUNTS = (
    f"{_MASKED}::test_any_counts[{case}]" for case in ("576-272-77-counts1-all", "2112-7168-77-counts1-few")
)
STRESS_GROUPED = ("tests/gpu/test_stress_grouped.py::test_launches_of_small_groups_are_right",)
_WITHOUT_C = f"{_COLUMNS}::test_groups_of_any_size[200-136-without C]"
_IN_PLACE = "tests/gpu/test_in_place.py::test_groups_whose_rows_end_inside_a_part[136-200]"


def wrong_group(name: str, what: str, *edits: Edit, test: str, sample: str = "grouped") -> Mutant:
    """A fault that the test's data shows."""
    return Mutant(f"grouped-{name}", what, edits, (test,), sample=sample)


def race_of_groups(name: str, what: str, *edits: Edit, tests: tuple[str, ...], may_survive: str = "") -> Mutant:
    """A fault that a launch loses now and then; it shows in kernels of few rows, whose CTAs are many and short."""
    return race(f"grouped-{name}", what, *edits, tests=tests, sample="grouped_swapped", may_survive=may_survive)


_PLACES = (
    wrong_group(
        "weights-of-the-first",
        "every group's rows are multiplied by the weight of the first",
        Edit(_TILE, "(kOfColumns ? 0 : group * Config::kN)", "(kOfColumns ? 0 : 0 * group)"),
        test=ANY,
    ),
    wrong_group(
        "weight-scales-of-the-first",
        "every group's weight is scaled as the first one's is",
        Edit(_TILE, "kOfColumns ? 0 : group * ceil_div(Config::kN, kScaleBlock);", "0;"),
        test=ANY,
    ),
    wrong_group(
        "scales-ahead-not-skipped",
        "scales that a box begins with before a group's first are taken for the group's",
        Edit(_MULTIPLY, "first_scale_ = first_row_ + tile.skipped_scales_a();", "first_scale_ = first_row_;"),
        test=ANY,
    ),
    wrong_group(
        "scales-of-the-box-before",
        "the box of scales begins four rows before the group's first",
        Edit(_TILE, "row_of_a() - skipped_scales_a();", "row_of_a() - skipped_scales_a() - kScalesOfPiece;"),
        test=ANY,
    ),
    wrong_group(
        "masked-scales-of-the-first",
        "the rows of every masked group take the scales of the first one's",
        Edit(_TILE, "? group * ceil_div(Config::kK, kScaleBlock) : first_k_block();", "? 0 : first_k_block();"),
        test=_ANY_COUNTS,
        sample="grouped_masked",
    ),
    wrong_group(
        "masked-one-behind-the-other",
        "a masked group is taken to begin where the others would end if all had as many rows",
        Edit(_TABLE, "entry.begin = group * ranges.limit;", "entry.begin = group * last;"),
        test=_ANY_COUNTS,
        sample="grouped_masked",
    ),
    wrong_group(
        "columns-of-the-first",
        "every group of columns multiplies those of the first",
        Edit(_COPIES, "k_block = tile.first_k_block() + block_of_tile;", "k_block = block_of_tile;"),
        test=_WITHOUT_C,
        sample="grouped_columns",
    ),
    wrong_group(
        "column-after-the-last",
        "a group of columns multiplies one K block more, which is the next group's",
        Edit(_TILE, "return kOfColumns ? end - begin : TileShape", "return kOfColumns ? end - begin + 1 : TileShape"),
        test=_WITHOUT_C,
        sample="grouped_columns",
    ),
    Mutant(
        "grouped-rest-of-columns-dropped",
        "the last K block of a group is not multiplied where no chunk takes it, and its stage never given back",
        (Edit(_LOOPS, "for (; k_block < steps; ++k_block) {", "for (; k_block + 1 < steps; ++k_block) {"),),
        (_WITHOUT_C,),
        HANG | WRONG,
        sample="grouped_columns",
    ),
    deadlock(
        "grouped-first-chunk-of-columns-twice",
        "a warpgroup that begins with a short chunk multiplies as many K blocks more than there are",
        Edit(_LOOPS, "k_block = Chunks::kShort;", "k_block = 0;"),
        tests=(f"{_COLUMNS}::test_clusters_that_share_b[200-without C]",),
        sample="grouped_columns",
    ),
    wrong_group(
        "outputs-in-one-place",
        "the outputs of all groups of columns are written to the first one's",
        Edit(_SCHEDULE, "Tile::kOfColumns ? entry.group * rows_ :", "Tile::kOfColumns ? 0 :"),
        test=_WITHOUT_C,
        sample="grouped_columns",
    ),
    wrong_group(
        "empty-columns-computed",
        "a group without columns adds zeros to its C, which changes the bits of some",
        Edit(_TABLE, "kSkipsEmpty && is_empty ? 0 :", "kSkipsEmpty && !kOfColumns && is_empty ? 0 :"),
        test=f"{_COLUMNS}::test_empty_groups_keep_the_bits_of_c[136-with C]",
        sample="grouped_columns",
    ),
)

_ROOM = f"{_MASKED}::test_any_counts[2112-7168-1024-counts3-all]"
_PIECES = (
    wrong_group(
        "pieces-of-the-first-rows",
        "all pieces of a tile where a group's weight ends have the tile's first rows",
        Edit(_COPIES, "                             row + first);", "                             row);"),
        test=STRESS_GROUPED[0],
    ),
    wrong_group(
        "last-piece-not-asked-for",
        "of a tile where a group ends the rows behind the last whole piece are those of the tile before",
        Edit(_COPIES, "ceil_div(rows, kPiece) * kPiece", "rows / kPiece * kPiece"),
        test=ANY,
    ),
    wrong_group(
        "last-piece-zeroed",
        "with the zeros in the place of missing rows come some in the place of a group's last",
        Edit(_COPIES, "first < rows.present ? k", "first + kPiece < rows.present ? k"),
        test=_ROOM,
        sample="grouped_masked",
    ),
)

_COPIED = "i < Base::kPartRows && row + i < end;"
_OUTPUTS = (
    wrong_group(
        "last-tile-stored-whole",
        "the box of a group's last rows reaches into the rows behind them",
        Edit(_CLIPPED, "if (row + Base::kPartRows <= end) {", "if (row < end) {"),
        test=ANY,
    ),
    wrong_group(
        "last-row-not-copied",
        "of a part that ends inside its rows the last one is not written",
        Edit(_CLIPPED, _COPIED, _COPIED.replace("row + i", "row + i + 1")),
        test=ANY,
    ),
    wrong_group(
        "row-behind-the-last-copied",
        "of a part that ends inside its rows one too many is written",
        Edit(_CLIPPED, _COPIED, _COPIED.replace("row + i < end", "row + i <= end")),
        test=ANY,
    ),
    wrong_group(
        "last-rows-not-copied",
        "a part that ends inside its rows is not written at all",
        Edit(_CLIPPED, "copy_rows(params, slot, row, end, col);", ""),
        test=_ANY_COUNTS,
        sample="grouped_masked",
    ),
    wrong_group(
        "copied-without-the-swizzle",
        "rows are copied as if a part lay in its slot row by row",
        Edit(_CLIPPED, "Base::swizzled(i, lane_col)", "i * Base::kRowBytes + lane_col * Base::kElementBytes"),
        test=ANY,
    ),
    wrong_group(
        "columns-past-n-copied",
        "rows that are copied reach past the last column",
        Edit(_CLIPPED, "if (col + lane_col >= Config::kN) {", "if (col + lane_col >= Config::kN + 64) {"),
        test=f"{CONTIGUOUS}::test_groups_of_any_size_anywhere[1000-256-512]",
    ),
    wrong_group(
        "neighbours-written",
        "the predicated store writes the rows behind a group's last",
        Edit(_PREDICATED, "end = tile.end_of_d(m_);", "end = m_;"),
        test=_ANY_PREDICATED,
        sample="grouped_predicated",
    ),
    wrong_group(
        "outputs-of-columns-run-over",
        "the last rows of tiles of a group of columns are written into the next group's output",
        Edit(_TILE, "return kOfColumns ? first_row_of_d + rows : end;", "return kOfColumns ? ~0u : end + 0 * rows;"),
        test=_IN_PLACE,
        sample="grouped_columns",
    ),
)

_HALF = "tests/gpu/test_halves.py::test_the_bits_are_those_of_a_single_round[masked-192-576]"
_AWAITED = "        ring_.wait_empty(state_);\n"
_RELEASED = "        if (tile.is_half) {\n            release_for_second_warpgroup();\n        }\n"
_HALVES = (
    wrong_group(
        "halves-of-the-first-rows",
        "both halves of a tile that two CTAs divide are its first rows",
        Edit(_SCHEDULE, "tile.rows_above = half * (Config::kBlockM / 2);", "tile.rows_above = 0;"),
        test=_HALF,
    ),
    race(
        "grouped-halves-of-both-warpgroups",
        "the second warpgroup multiplies halves of tiles, too, whose stages the load thread hands back for it",
        Edit(_SCHEDULE, "takes_halves_(warpgroup == 0)", "takes_halves_(warpgroup != ~0u)"),
        tests=(*STRESS_GROUPED, _HALF),
        sample="grouped_masked",
    ),
    deadlock(
        "grouped-half-not-released",
        "nobody hands back the stages of half a tile for the warpgroup that has no part in it",
        Edit(_LOAD, f"{_RELEASED}        state_", "        state_"),
        tests=(*STRESS_GROUPED, _HALF),
        sample="grouped_masked",
    ),
    race(
        "grouped-half-released-before-it-is-empty",
        "the stages of half a tile are handed back for the second warpgroup while it may be reading the tile before",
        Edit(_LOAD, f"{_RELEASED}        state_", "        state_"),
        Edit(_LOAD, f"{_AWAITED}        copies_", f"{_RELEASED}{_AWAITED}        copies_"),
        tests=(*STRESS_GROUPED, _HALF),
        sample="grouped_masked",
    ),
)

_SECOND_PRODUCT = "tests/gpu/test_experts_again.py::test_each_call_multiplies_what_was_written_just_before_it[4]"
_TOKENS = "minimum(tile.end_of_d(params.m) - first_row, Shape::kTokens)"
_FEW_ROWS = (
    wrong_group(
        "swapped-tokens-of-the-next-written",
        "the last rows of tiles of a group are written into the next group's",
        Edit(_SWAPPED, _TOKENS, _TOKENS.replace("tile.end_of_d(params.m)", "params.m")),
        test=ANY_FEW,
        sample="grouped_swapped",
    ),
    wrong_group(
        "swapped-weight-scales-of-the-first",
        "every group's weight is scaled as the first one's is",
        Edit(_SWAPPED, "tile.first_block_of_b() + Shape::row_of_scales_b(", "Shape::row_of_scales_b("),
        test=ANY_FEW,
        sample="grouped_swapped",
    ),
    wrong_group(
        "swapped-scales-of-the-box",
        "the scales of a group's rows are those from the last multiple of four on",
        Edit(_SWAPPED, "tile.row_of_scales_a() + tile.skipped_scales_a();", "tile.row_of_scales_a();"),
        test=ANY_FEW,
        sample="grouped_swapped",
    ),
    wrong_group(
        "swapped-masked-scales-of-the-first",
        "the rows of every masked group take the scales of the first one's",
        Edit(_SWAPPED, "of_group += tile.group * params.scales_a_stride_group;", ""),
        test=_FEW_COUNTS,
        sample="grouped_swapped_masked",
    ),
    race_of_groups(
        "swapped-products-not-awaited",
        "a warp does not wait for the products of scales that other warps write, nor until they have read the sums",
        Edit(_SWAPPED, "            ptx::named_barrier_sync(kProductsWritten, Shape::kConsumers);\n", ""),
        tests=STRESS_GROUPED,
    ),
    race_of_groups(
        "swapped-shares-not-awaited",
        "a warp does not wait for the sums of the other warps, nor until they have read the products of scales",
        Edit(_SHARES, "            ptx::named_barrier_sync(kSharesStored, Shape::kConsumers);\n", ""),
        tests=(REPEATED_FEW,),
    ),
    race_of_groups(
        "swapped-tokens-read-before-they-are-written",
        "with static weights, the loader does not wait for the grid that may be writing the tokens",
        Edit(_SWAPPED, "        ptx::wait_for_previous_grids();\n        if (has_tile) {", "        if (has_tile) {"),
        tests=(_SECOND_PRODUCT,),
    ),
    race_of_groups(
        "swapped-scales-read-before-they-are-written",
        "with static weights, the consumers do not wait for the grid that may be writing the scales of the tokens",
        Edit(_SWAPPED, "            ptx::wait_for_previous_grids();\n            multiply(", "            multiply("),
        tests=(_SECOND_PRODUCT,),
    ),
    race_of_groups(
        "swapped-empty-not-awaited",
        "the loader overwrites stages that are still in use",
        Edit(_SWAPPED, "                stages.ring.wait_empty(state);\n", ""),
        tests=(REPEATED_FEW,),
    ),
)

MUTANTS = _PLACES + _PIECES + _HALVES + _OUTPUTS + _FEW_ROWS
