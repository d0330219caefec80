"""Faults of K shared by the warpgroups: whose K blocks and scales, the last odd block, and the sum of both shares."""

from __future__ import annotations

from tests.mutations.mutant import Edit, Mutant, race, under

_OPERANDS = "mainloop/wave_operands.cuh"
_MULTIPLY, _BLOCK, _COPIES = "mainloop/multiply.cuh", "mainloop/block_scales.cuh", "mainloop/operand_copies.cuh"
_SHARES, _SHAPE = "mainloop/warpgroup_reduction.cuh", "common/tile_shape.cuh"

_CONFIGS = "tests/gpu/test_configs.py"
_ROWS = (f"{_CONFIGS}::test_any_number_of_k_blocks_scaled_by_rows[64x64-k2]",)
_SPECIAL = (f"{_CONFIGS}::test_nothing_comes_from_past_the_last_k_block[1d2d-64x64-k2]",)

_K_BLOCK = "(first_k_block + ptx::lane_index()) * Config::kWarpgroupsK + share_;"
_GIVEN = "const float4 given = shared.sums[i / 4][thread];"
_FIRST = "Shape::share_of(warpgroup) == 0;"


def _share(name: str, what: str, *edits: Edit) -> Mutant:
    return Mutant(name, what, edits, under("64x64-k2"), sample="shared_k")


def _not_awaited(barrier: str, *, by: str) -> Edit:
    """One of the two warpgroups says that it has come, and goes on."""
    sync = f"ptx::named_barrier_sync({barrier}, kThreads);"
    arrive = f'asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(uint32_t({barrier})), "r"(kThreads) : "memory");'
    return Edit(_SHARES, sync, f"if ({by}) {{ {arrive} }} else {{ {sync} }}")


_BLOCKS = (
    _share(
        "shares-multiply-the-same",
        "both warpgroups multiply the K block of a stage that is the first one's",
        Edit(_OPERANDS, "stages.a[share]", "stages.a[0]"),
        Edit(_OPERANDS, "stages.b[share]", "stages.b[0]"),
    ),
    _share(
        "shares-scaled-by-the-same-of-a",
        "both warpgroups take the scales of A that are the first one's",
        Edit(_MULTIPLY, "flight.stage * Stages::kBlocksPerStage + share()", "flight.stage * Stages::kBlocksPerStage"),
    ),
    _share(
        "shares-scaled-by-the-same-of-b",
        "both warpgroups take the scales of B that are the first one's",
        Edit(_BLOCK, _K_BLOCK, _K_BLOCK.replace(" + share_", "")),
    ),
    _share(
        "odd-last-k-block-dropped",
        "the last K block is not multiplied where the other warpgroup has none for that step",
        Edit(_SHAPE, "ceil_div(kNumKBlocks, kSharesOfK)", "kNumKBlocks / kSharesOfK"),
    ),
    Mutant(
        "odd-last-k-block-twice",
        "instead of zeros the second warpgroup gets the last K block again",
        (Edit(_COPIES, "first + share, stage", "minimum(first + share, Shape::kNumKBlocks - 1), stage"),),
        _ROWS,
        sample="shared_k_row",
    ),
    Mutant(
        "zeros-scaled-by-what-follows",
        "the K block of zeros is scaled by what lies behind the last scale of a row of B",
        (Edit(_BLOCK, "k_block < Shape::kNumKBlocks ?", "k_block <= Shape::kNumKBlocks ?"),),
        _SPECIAL,
        sample="shared_k",
    ),
    Mutant(
        "late-zeros-scaled-by-what-follows",
        "from the 65th step on the K block of zeros is scaled by what lies behind the last scale of a row of B",
        (Edit(_BLOCK, "next < Shape::kNumKBlocks,", "next <= Shape::kNumKBlocks,"),),
        _SPECIAL,
        sample="shared_long_k",
    ),
    Mutant(
        "late-zeros-scaled-by-what-was",
        "from the 65th step on the K block of zeros is scaled as the one 32 steps before",
        (
            Edit(
                _BLOCK,
                "ptx::load_global_in_place(next <",
                "if (next < Shape::kNumKBlocks) ptx::load_global_in_place(next <",
            ),
        ),
        _SPECIAL,
        sample="shared_long_k",
    ),
)

_SUM = (
    _share(
        "first-share-not-added",
        "the second warpgroup keeps its own sums alone",
        Edit(_SHARES, _GIVEN, "const float4 given = make_float4(0.0f, 0.0f, 0.0f, 0.0f);"),
    ),
    _share(
        "second-share-not-added",
        "the first warpgroup keeps its own sums alone",
        Edit(_SHARES, "add_four(&sums[i], &sums[i], shared.sums[i / 4][thread]);", ""),
    ),
    _share(
        "totals-swapped",
        "each warpgroup is left with the totals of the half of the columns that the other one stores",
        Edit(_SHARES, _FIRST, _FIRST.replace("==", "!=")),
    ),
    _share(
        "wrong-half-given",
        "the second warpgroup hands over its sums of the columns that it keeps",
        Edit(_SHARES, "four_of(&sums[i]);", "four_of(&sums[kHalf + i]);"),
    ),
    race(
        "first-share-not-awaited",
        "the second warpgroup does not wait for the sums of the first",
        _not_awaited("kFirstShareGiven", by="!is_first"),
        sample="shared_k",
    ),
    race(
        "second-share-not-awaited",
        "the first warpgroup does not wait for the sums of the second",
        _not_awaited("kSecondShareGiven", by="is_first"),
        sample="shared_k",
    ),
)

MUTANTS = _BLOCKS + _SUM
