"""Faults of what the small-M kernels compute: whose K blocks, scales, tokens and columns, which sums, which tiles."""

from __future__ import annotations

from tests.mutations.mutant import REFUSED, Edit, Mutant

_KERNEL, _LOAD, _MULTIPLY = "kernels/swap_ab.cuh", "mainloop/swap_ab_load.cuh", "mainloop/swap_ab_multiply.cuh"
_COPIES = "mainloop/swap_ab_stage.cuh"
_SCALES, _SHARES, _STORE = "mainloop/scale_products.cuh", "epilogue/cluster_reduction.cuh", "epilogue/piece_store.cuh"
_SPLIT = "scheduler/tile_order.cuh"

_TESTS = "tests/gpu/test_swap_ab.py"
_SLICED, _TWO_WARPGROUPS, _CLUSTER = "swap16x16-d5-c3", "swap32x32-k2-d4-c1", "swap24x32-k2-d2-c3"
_SPILLS = ("tests/jit/test_swap_ab.py::test_kernels_do_not_spill_and_lose_no_overlap[shapes]",)
_HOST = ("tests/unit/test_split_schedule.py::test_every_share_of_every_tile_is_some_cta_s",)


def _steps(label: str) -> tuple[str, ...]:
    return (f"{_TESTS}::test_any_number_of_steps[{label}]",)


def _order(label: str) -> tuple[str, ...]:
    return (f"{_TESTS}::test_k_blocks_are_added_in_the_order_that_the_config_says[{label}]",)


def _epilogue(label: str) -> tuple[str, ...]:
    return (f"{_TESTS}::test_every_epilogue[{label}]",)


def _wrong(name: str, what: str, *edits: Edit, tests: tuple[str, ...], sample: str = "swapped") -> Mutant:
    return Mutant(f"swapped-{name}", what, edits, tests, sample=sample)


_SCALE = "scales_[(chunk.first_step + wave) * Shape::kBlocksPerStage + block_]"
_SCALE_ROW = "Shape::row_of_scales_b(split.tile.n) * Shape::kNumKBlocks"
_LATER_BATCHES = "for (uint32_t pass = kBatch; pass < kPasses; pass += kBatch) {"
_OPERANDS = (
    _wrong(
        "slices-share-a-scale",
        "every slice of a stage is promoted with the products of scales of the first",
        Edit(_MULTIPLY, _SCALE, _SCALE.replace(" + block_", "")),
        tests=_order(_SLICED),
    ),
    _wrong(
        "scale-of-the-next-block",
        "products of scales come from one K block later",
        Edit(
            _MULTIPLY,
            _SCALE,
            "scales_[((chunk.first_step + wave) * Shape::kBlocksPerStage + block_ + 1) % Shape::kBlocksOfCta]",
        ),
        tests=_steps("swap64x64-d4-c1"),
    ),
    _wrong(
        "warpgroups-multiply-the-same-weights",
        "both warpgroups multiply the weights of a stage that are the first one's",
        Edit(_MULTIPLY, "weights[0] + warpgroup * Shape::kSlices * Stages::kWeightBlockBytes", "weights[0]"),
        tests=_epilogue(_TWO_WARPGROUPS),
    ),
    _wrong(
        "weight-scales-of-the-next-row",
        "the scales of B come from 128 rows of B further down",
        Edit(
            _KERNEL,
            _SCALE_ROW,
            "(Shape::row_of_scales_b(split.tile.n) + 1) % ceil_div(Config::kN, kScaleBlock) * Shape::kNumKBlocks",
        ),
        tests=_order(_SLICED),
    ),
    _wrong(
        "token-scales-of-the-next-row",
        "the scales of A come from one token later",
        Edit(_SCALES, "scales.a + token_ *", "scales.a + (token_ + 1) % Shape::kTokens *"),
        tests=_order(_SLICED),
    ),
    _wrong(
        "scales-of-the-first-rows-for-all",
        "every row of tiles takes the scales of A of the first",
        Edit(_KERNEL, "params.scales_a + split.tile.m * Shape::kTokens * params.scales_a_stride_m", "params.scales_a"),
        tests=_epilogue(_TWO_WARPGROUPS),
    ),
    _wrong(
        "scales-of-the-first-cta-for-all",
        "every CTA of a cluster takes the scales of the first one's K blocks",
        Edit(_KERNEL, "split.rank * Shape::kBlocksOfCta, tokens);", "0, tokens);"),
        tests=_order(_CLUSTER),
        sample="swapped_cluster",
    ),
    _wrong(
        "zeros-scaled-by-what-follows",
        "K blocks of zeros are scaled by what lies behind the last scale",
        Edit(_SCALES, "minimum(exist, Shape::kBlocksOfCta)", "Shape::kBlocksOfCta"),
        tests=(f"{_TESTS}::test_special_values_stay_in_their_row_or_column[nan-{_SLICED}]",),
    ),
    _wrong(
        "later-products-not-written",
        "a thread writes no more products of scales than it loads at once",
        Edit(_SCALES, _LATER_BATCHES, _LATER_BATCHES.replace("pass < kPasses", "false")),
        tests=(f"{_TESTS}::test_long_sums_of_other_data[swap32x64-d3-c1]",),
        sample="swapped_many_blocks",
    ),
    _wrong(
        "last-partial-block-replaced",
        "instead of a last K block that is not whole the one before it is loaded again",
        Edit(
            _COPIES,
            "(k_block + block) * Config::kBlockK",
            "minimum(k_block + block, Config::kK / Config::kBlockK - 1) * Config::kBlockK",
        ),
        tests=_epilogue(_TWO_WARPGROUPS),
    ),
)

_SLICE = "const uint32_t slice = block % Shape::kSlices;"
_ADDED = "for (uint32_t share = 0; share < Shape::kShares; ++share) {"
_GIVEN = "shared.shares[share][pair][col])"
_PLACE = "const uint32_t col = split.rank * kColsOfCta + piece * kColsOfPiece;"
_SUMS = (
    _wrong(
        "first-slice-for-all",
        "of what a wave computes every warp gives the columns of the first slice",
        Edit(_SHARES, _SLICE, _SLICE.replace("block % Shape::kSlices", "0 * block")),
        tests=_epilogue(_SLICED),
    ),
    _wrong(
        "last-share-not-added",
        "the last of the shares of K is left out of the sum",
        Edit(_SHARES, _ADDED, _ADDED.replace("share < Shape::kShares", "share + 1 < Shape::kShares")),
        tests=_order(_CLUSTER),
        sample="swapped_cluster",
    ),
    _wrong(
        "shares-added-the-other-way-round",
        "the shares of K are added from the last to the first",
        Edit(_SHARES, _GIVEN, _GIVEN.replace("[share]", "[Shape::kShares - 1 - share]")),
        tests=_order(_CLUSTER),
        sample="swapped_cluster",
    ),
    _wrong(
        "every-cta-writes-the-first-columns",
        "a CTA of a cluster writes the columns that it owns where the first one's are",
        Edit(_SHARES, _PLACE, _PLACE.replace("split.rank * kColsOfCta + ", "")),
        tests=_order(_CLUSTER),
        sample="swapped_cluster",
    ),
    _wrong(
        "tokens-past-m-written",
        "the last row of tiles is written as if it were whole",
        Edit(
            _KERNEL,
            "minimum(params.m - split.tile.m * Shape::kTokens, Shape::kTokens)",
            "Shape::kTokens + 0 * params.m",
        ),
        tests=_epilogue(_TWO_WARPGROUPS),
    ),
    _wrong(
        "second-token-takes-the-first-one-s-sums",
        "of two neighbouring tokens both get the sums of the first",
        Edit(_SHARES, "visit(pair * 2 + 1, col, sums[1]);", "visit(pair * 2 + 1, col, sums[0]);"),
        tests=_order(_CLUSTER),
        sample="swapped_cluster",
    ),
    _wrong(
        "second-token-past-m-written",
        "of the last two tokens both are written, though the second may not exist",
        Edit(_SHARES, "if (pair * 2 + 1 < tokens) {", "if (pair * 2 + 1 < Shape::kTokens) {"),
        tests=_epilogue(_TWO_WARPGROUPS),
    ),
    _wrong(
        "columns-past-n-written",
        "pieces that reach past the end of a row are written whole, element by element too",
        Edit(_STORE, "return kAligned || col < Config::kN;", "return kAligned || col < Config::kN + 3;"),
        tests=_epilogue(_TWO_WARPGROUPS),
        sample="swapped_predicated",
    ),
    _wrong(
        "c-not-added",
        "C is not added where pieces are written element by element",
        Edit(_STORE, "sums[i] += exists(col + i) ? C::to_float(c[(col + i) * stride]) : 0.0f;", ""),
        tests=_epilogue(_TWO_WARPGROUPS),
        sample="swapped_predicated",
    ),
    _wrong(
        "bias-not-added",
        "the bias is not added",
        Edit(_STORE, "sums[i] += exists(col + i) ? Bias::to_float(bias[col + i]) : 0.0f;", ""),
        tests=_epilogue(_TWO_WARPGROUPS),
        sample="swapped_predicated",
    ),
    Mutant(
        "swapped-more-sums-than-the-host-counts",
        "the kernel pads rows of sums by more than the host reserves shared memory for",
        (Edit(_SHARES, "ceil_div(kColsOfCta, 4u) * 4 + 4;", "ceil_div(kColsOfCta, 4u) * 4 + 36;"),),
        _SPILLS,
        REFUSED,
        gpu=False,
        sample="swapped",
        message="the host computes another size of shared memory",
    ),
)

_SCHEDULE = tuple(
    Mutant(f"swapped-{name}", what, (edit,), _HOST, gpu=False, sample="swapped_cluster")
    for name, what, edit in (
        (
            "last-row-of-tiles-dropped",
            "the rows of tiles are rounded down where there is more than one",
            Edit(_SPLIT, "ceil_div(m, Config::kBlockM);", "m < Config::kBlockM ? 1 : m / Config::kBlockM;"),
        ),
        (
            "tiles-transposed",
            "rows and columns of tiles are exchanged",
            Edit(_SPLIT, "{cluster % num_m, cluster / num_m}", "{cluster / num_m, cluster % num_m}"),
        ),
        (
            "ranks-of-another-cluster",
            "the share of a CTA is not its rank in its cluster",
            Edit(_SPLIT, "index % Config::kSplitK};", "(index + 1) % Config::kSplitK};"),
        ),
    )
)

MUTANTS = _OPERANDS + _SUMS + _SCHEDULE
