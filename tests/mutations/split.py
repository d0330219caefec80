"""Faults of K divided by the CTAs of a cluster: whose K blocks, scales and columns, and the sum of all shares."""

from __future__ import annotations

from tests.mutations.mutant import RACE, Edit, Mutant, deadlock

_SPLIT, _TILE, _BLOCK = "mainloop/split_reduction.cuh", "scheduler/tile.cuh", "mainloop/block_scales.cuh"
_SHAPE, _DENSE = "common/tile_shape.cuh", "kernels/dense.cuh"

_TESTS = "tests/gpu/test_split.py"
_K_BLOCKS = tuple(f"{_TESTS}::test_any_number_of_k_blocks[{tile}]" for tile in ("128x128-c1x1-split2",))
_THREE = (f"{_TESTS}::test_any_number_of_k_blocks[128x192-c1x1-split3]",)
_NARROW = (f"{_TESTS}::test_any_number_of_k_blocks[64x128-c1x1-split4]",)
_ORDER = (f"{_TESTS}::test_shares_are_summed_apart_and_added_in_their_order[128x192-c1x1-split3]",)
_PAST = (f"{_TESTS}::test_nothing_comes_from_past_the_last_k_block[128x128-c1x1-split4]",)
_LAUNCHES = (f"{_TESTS}::test_launches_one_after_another_give_the_same_bits[128x128-c1x1-split2]",)
_PARTS = ("tests/unit/test_split_tiles.py::test_each_k_block_and_each_column_of_a_tile_is_one_cta_s",)

_BYTES = "ptx::mbarrier_arrive_expect_tx(&full, sizeof(given));"
_JOINED = "        ptx::cluster_wait();  // until every CTA has initialised its barrier\n"
_AWAITED = "        ptx::mbarrier_wait_cluster(&shared.full, 0);\n"
_SENDER = "const uint32_t sender = share - (share > receiver);"


def _split(name: str, what: str, *edits: Edit, tests: tuple[str, ...] = _K_BLOCKS, sample: str = "split") -> Mutant:
    return Mutant(name, what, edits, tests, sample=sample)


def _race(name: str, what: str, edit: Edit, *, may_survive: str = "") -> Mutant:
    return Mutant(name, what, (edit,), _LAUNCHES, RACE, chaos=True, sample="split", may_survive=may_survive)


MUTANTS = (
    _split(
        "split-shares-of-the-same-blocks",
        "every CTA of a cluster multiplies the first share of K",
        Edit(_TILE, "return share * TileShape<Config>::kNumSteps;", "return 0;"),
    ),
    _split(
        "split-scales-of-a-of-the-first-share",
        "every CTA takes the scales of A of the first share of K",
        Edit(
            _TILE,
            "uint32_t block_of_scales_a() const { return first_k_block(); }",
            "uint32_t block_of_scales_a() const { return 0; }",
        ),
    ),
    _split(
        "split-scales-of-b-of-the-first-share",
        "every CTA takes the scales of B of the first share of K",
        Edit(_BLOCK, "first_of_cta_ + (first_k_block", "(first_k_block"),
    ),
    _split(
        "split-columns-of-the-first-cta",
        "every CTA writes its columns where the first one's are",
        Edit(_TILE, "share * TileShape<SummedConfig<Config>>::kWarpgroupCols", "0 * share"),
    ),
    _split(
        "split-warpgroups-side-by-side",
        "a CTA writes the columns of its second warpgroup right behind the first one's",
        Edit(
            _SHAPE,
            "kWarpgroupPitch<SummedConfig<Config>> = Config::kBlockN / SummedConfig<Config>::kWarpgroupsN;",
            "kWarpgroupPitch<SummedConfig<Config>> = TileShape<SummedConfig<Config>>::kWarpgroupCols;",
        ),
        tests=_NARROW,
        sample="split_narrow",
    ),
    _split(
        "split-sender-mistaken",
        "of three CTAs two write their sums to the same place, and another is read before it is written",
        Edit(_SPLIT, _SENDER, "const uint32_t sender = minimum(share, kSplit - 2);"),
        tests=_THREE,
        sample="split_three",
    ),
    _split(
        "split-own-sums-first",
        "a CTA adds its own share first, wherever that lies in K",
        Edit(_SPLIT, "float total = share == 0 ? own : element(given[0], i);", "float total = own;"),
        Edit(_SPLIT, "total += k == share ? own : k < share ? behind : before;", "total += before + 0.0f * behind;"),
        tests=_ORDER,
        sample="split_three",
    ),
    _split(
        "split-own-sums-of-the-first-part",
        "a CTA keeps the sums of the first columns, whichever are its own",
        Edit(_SPLIT, "own = cta == share ? piece_of(sums, cta, piece)[i] : own;", ";"),
    ),
    _split(
        "split-zeros-scaled-by-what-follows",
        "K blocks of zeros are scaled by what lies behind the last scale of a row of B",
        Edit(_BLOCK, "k_block < Shape::kNumKBlocks ?", "k_block <= Shape::kNumKBlocks ?"),
        tests=_PAST,
    ),
    _race(
        "split-sums-not-awaited",
        "a CTA adds up what it is given before all of it is there",
        Edit(_SPLIT, _AWAITED, ""),
    ),
    _race(
        "split-bytes-expected-too-few",
        "what a CTA is given counts as there although a piece may be missing",
        Edit(_SPLIT, _BYTES, _BYTES.replace("sizeof(given)", "sizeof(given) - sizeof(given[0][0])")),
    ),
    _race(
        "split-sums-sent-too-early",
        "a CTA sends sums to another that may not have initialised its barrier",
        Edit(_SPLIT, _JOINED, ""),
        may_survive="a tile takes longer than the other CTA's start",
    ),
    deadlock(
        "split-bytes-expected-too-many",
        "a CTA waits for more sums than it is given",
        Edit(_SPLIT, _BYTES, _BYTES.replace("sizeof(given)", "sizeof(given) + 16")),
        tests=_K_BLOCKS,
        sample="split",
    ),
    Mutant(
        "split-cluster-never-joined",
        "the CTAs of a cluster wait for an arrival that none of them makes",
        (Edit(_DENSE, "            __syncwarp();\n            ptx::cluster_arrive();\n", ""),),
        _K_BLOCKS,
        RACE,
        sample="split",
        may_survive="where nobody has arrived all may pass, and a tile takes longer than the other CTA's start",
    ),
)
