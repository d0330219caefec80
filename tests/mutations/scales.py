"""Faults of scales: whose they are, and from which K block."""

from __future__ import annotations

from tests.mutations.mutant import PROMOTE, Edit, Mutant, under

_MULTIPLY, _BLOCK, _ROW = "mainloop/multiply.cuh", "mainloop/block_scales.cuh", "mainloop/row_scales.cuh"
_COPIES, _DENSE, _AHEAD = "mainloop/operand_copies.cuh", "kernels/dense.cuh", "mainloop/scales_ahead.cuh"

_EXACT = ("tests/gpu/test_gemm.py::test_other_data[distinct_scales-333-7168-512]",)
_ROWS = ("tests/gpu/faults/values.py::test_fault_10_a_power_of_two_of_its_own_in_every_scale_block[1d1d-bfloat16]",)

_RUN = "            multiplier.run(walk.tile, params.m, accumulators);\n"
_AT_A_STEP = "if (kInFlight > 1 && wave_of_chunk % (Chunks::kShort * kPerStep) == 0) {"
_ADVANCE = """\
        if (kInFlight == 1 && wave_of_chunk + 1 == kWaves) {
            scales_.advance(chunk.first_step + kWaves / kPerStep);
        }
"""
_FETCH = "scales_.fetch(chunk.first_step + wave_of_chunk / kPerStep + 1);"
_K_BLOCK = "k_block = chunk.first_step + wave_of_chunk / kPerStep;"
_OF_THE_NEXT = "scales_.keep(flights[(wave_of_chunk + 1) % kInFlight].products.slot);"
_FINISHED = "            const typename Schedule::Tile finished = walk.tile;\n"
_NEXT = "            walk.advance();\n"
_BEGIN = "            if (walk.more) {\n                multiplier.begin(walk.tile);\n            }\n"

_SCALES_OF_A = (
    Mutant(
        "scale-of-a-of-the-next-block",
        "the scales of A come from one K block later",
        (Edit(_COPIES, "block_of_scales_a() + block_of_tile);", "block_of_scales_a() + block_of_tile + 1);"),),
        _EXACT,
    ),
    Mutant(
        "rows-share-a-scale",
        "the lower of a thread's two rows takes the scale of the upper, 8 rows above",
        (Edit(_MULTIPLY, "source[Scales::kAhead ? 1 : 8]}", "source[0]}"),),
        _EXACT,
    ),
    Mutant(
        "rows-ahead-share-a-scale",
        "so it is where scales are loaded ahead",
        (Edit(_AHEAD, "kOffset + 8 * sizeof(float)", "kOffset"),),
        under("256x128"),
        sample="ahead",
    ),
    Mutant(
        "waves-share-scales",
        "the second wave of 64 rows takes the scales of the first",
        (Edit(_MULTIPLY, "[slot][first_scale_ + m * Shape::kWaveM]", "[slot][first_scale_]"),),
        under("256x64", "256x128"),
        sample="tall",
    ),
    Mutant(
        "waves-ahead-share-scales",
        "so it is where scales are loaded ahead",
        (Edit(_AHEAD, "kWave * Shape::kWaveM * sizeof(float)", "0"),),
        under("256x128"),
        sample="ahead",
    ),
    Mutant(
        "scales-ahead-of-the-next-tile",
        "behind the last K block of a tile scales are loaded ahead, from where this tile has them in its stages",
        (Edit(_MULTIPLY, "next_.forget_unless(k_block + 1 < Shape::kNumSteps);", ""),),
        # Of a single product these are the right ones: only rows of groups begin anywhere in a box of scales.
        ("tests/gpu/test_grouped.py::test_any_number_of_sms[3-192]",),
        sample="ahead",
    ),
)

_SCALES_OF_B = (
    Mutant(
        "scale-of-b-ignored",
        "block sums are multiplied by the scale of A alone",
        (
            Edit(_BLOCK, "scales_a[0] * scale_b;", "scales_a[0];"),
            Edit(_BLOCK, "scales_a[1] * scale_b;", "scales_a[1];"),
        ),
        _EXACT,
    ),
    Mutant(
        "scale-of-b-of-the-next-block-in-k",
        "the scales of B come from one K block later",
        (Edit(_BLOCK, "rows_[block][k_block]", "rows_[block][(k_block + 1) % Shape::kNumKBlocks]"),),
        _EXACT,
    ),
    Mutant(
        "scale-of-b-of-the-next-block-in-n",
        "the scales of B come from 128 rows of B further down",
        (
            Edit(
                _BLOCK,
                "minimum(col / kScaleBlock + block, kNumNBlocks - 1)",
                "((col / kScaleBlock + block + 1) % kNumNBlocks)",
            ),
        ),
        _EXACT,
    ),
    Mutant(
        "scales-of-b-transposed",
        "the matrix of B's scales is read as if it lay transposed",
        (
            Edit(_BLOCK, "scales_ + row * Shape::kNumKBlocks;", "scales_ + row;"),
            Edit(_BLOCK, "rows_[block][k_block]", "rows_[block][k_block * kNumNBlocks]"),
        ),
        _EXACT,
    ),
    Mutant(
        "scales-of-b-not-fetched-anew",
        "from the 64th K block on the scales of B are those of 32 blocks before",
        (Edit(_BLOCK, "of_lane(k_block + kThreadsPerWarp)", "of_lane(k_block)"),),
        under("128x128"),
        sample="long",
    ),
    Mutant(
        "row-scales-of-b-from-a",
        "with row scales on both sides, those of B are read where those of A are",
        (Edit(_ROW, "&stages_.scales.b[slot]", "&stages_.scales.a[slot]"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "row-scales-of-b-of-the-next-block",
        "with row scales on both sides, those of B come from one K block later",
        (Edit(_COPIES, "map_scales_b_, full, row_b, k_block);", "map_scales_b_, full, row_b, k_block + 1);"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "column-pair-swapped",
        "the row scales of two neighbouring columns are exchanged",
        (
            Edit(_ROW, "return *reinterpret_cast", "const float2 read = *reinterpret_cast"),
            Edit(_ROW, "[first_col_ + pair * 8]);\n", "[first_col_ + pair * 8]);\n        return {read.y, read.x};\n"),
        ),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "kept-scales-of-the-wave-before",
        "the row scales that are kept for a wave are those of the wave before",
        (Edit(_MULTIPLY, _OF_THE_NEXT, "scales_.keep(flight.products.slot);"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "kept-scales-of-the-chunk-before",
        "a chunk's first wave is promoted with the row scales that are kept from the chunk before",
        (Edit(_MULTIPLY, "if (wave_of_chunk == 0 || (kInFlight == 1 && wave == 0)) {", "if (k_block == 0) {"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "columns-share-scales",
        "all lanes take the row scales of the first pair of columns of eight",
        (Edit(_ROW, "first_col_(first_col + ptx::lane_index() % 4 * 2)", "first_col_(first_col)"),),
        _ROWS,
        sample="row",
    ),
)


def _scaled_as_the_first(chunk: str) -> Edit:
    first = f"(kWaves == Chunks::{chunk} * kPerStep ? 0 : chunk.first_step)"
    return Edit(_MULTIPLY, _K_BLOCK, _K_BLOCK.replace("chunk.first_step", first))


_MOMENTS = (
    Mutant(
        "scales-of-b-not-fetched-for-the-next-k-block",
        "a K block is multiplied by the scales of B of the one before",
        (Edit(_MULTIPLY, _FETCH, _FETCH.replace(" + 1", "")),),
        under("128x192", "128x160"),
        sample="wide",
    ),
    Mutant(
        "scales-of-b-not-fetched-for-a-tile",
        "a tile's first K block is multiplied by what was fetched behind the last one of the tile before",
        (Edit(_MULTIPLY, "scales_.fetch(0);", ";"),),
        under("128x192", "128x160"),
        sample="wide",
    ),
    Mutant(
        "scales-of-the-other-wave",
        "of two waves in flight each is promoted with the scales of the other",
        (Edit(_MULTIPLY, PROMOTE, PROMOTE.replace("flight.", "flights[(wave_of_chunk + 1) % kInFlight].", 1)),),
        under("128x128"),
    ),
    Mutant(
        "long-chunk-scaled-as-the-first",
        "every long chunk takes the weight scales of the first K blocks",
        (_scaled_as_the_first("kLong"),),
        under("128x128"),
    ),
    Mutant(
        "short-chunk-scaled-as-the-first",
        "every short chunk takes the weight scales of the first K blocks",
        (_scaled_as_the_first("kShort"),),
        under("128x128"),
    ),
    Mutant(
        "scales-not-advanced-within-a-chunk",
        "when the 32nd K block is in the middle of a long chunk, the weight scales stay those of the first 32",
        (Edit(_MULTIPLY, _AT_A_STEP, "if (kInFlight > 1 && wave_of_chunk == 0) {"),),
        under("128x128"),
        sample="long",
    ),
    Mutant(
        "scales-not-advanced-before-a-chunk",
        "when a chunk begins at the 32nd K block, the weight scales stay those of the first 32",
        (Edit(_MULTIPLY, _AT_A_STEP, _AT_A_STEP.replace(") {", " && wave_of_chunk != 0) {")),),
        under("128x128"),
        sample="long",
    ),
    Mutant(
        "scales-not-advanced-under-a-wave",
        "with one wave in flight, the weight scales stay those of the first 32 K blocks",
        (Edit(_MULTIPLY, _ADVANCE, ""),),
        under("128x160"),
        sample="long_one_wave",
    ),
    Mutant(
        "scales-advanced-behind-the-fetch",
        "with one wave in flight, every 32nd K block takes the weight scale of the one 32 before it",
        (Edit(_MULTIPLY, _ADVANCE, ""), Edit(_MULTIPLY, _FETCH, f"{_FETCH}\n{_FETCH.replace('fetch', 'advance')}")),
        under("128x160"),
        sample="long_one_wave",
    ),
    Mutant(
        "scales-behind-not-shifted",
        "where all weight scales of a tile are held, those of the K blocks from the 65th on are those of the second 32",
        (Edit(_BLOCK, "behind_[block][i - 1] = behind_[block][i];", ";"),),
        under("128x160"),
        sample="long_one_wave",
    ),
    Mutant(
        "last-scales-behind-of-the-ones-before",
        "where all weight scales of a tile are held, those of the K blocks from the 97th on are those of the 32 before",
        (Edit(_BLOCK, "load(block, (i + 1) * kThreadsPerWarp)", "load(block, minimum(i + 1, 2u) * kThreadsPerWarp)"),),
        under("128x160"),
        sample="long_one_wave",
    ),
    Mutant(
        "scales-of-the-first-tile-kept",
        "all tiles of a CTA take the weight scales of its first",
        (Edit(_DENSE, f"{_NEXT}{_BEGIN}", _NEXT),),
        under("128x128", "128x160"),
    ),
    Mutant(
        "scales-of-the-tile-before",
        "a CTA's tiles take the weight scales of the tile before",
        (Edit(_DENSE, f"{_NEXT}{_BEGIN}", f"{_NEXT}{_BEGIN}".replace("begin(walk.tile)", "begin(finished)")),),
        under("128x128", "128x160"),
    ),
    Mutant(
        "scales-of-the-tile-after",
        "the weight scales of the next tile are asked for before this tile has used its own",
        (Edit(_DENSE, f"{_RUN}{_FINISHED}{_NEXT}{_BEGIN}", f"{_FINISHED}{_NEXT}{_BEGIN}{_RUN}"),),
        under("128x128", "128x160"),
    ),
)

MUTANTS = _SCALES_OF_A + _SCALES_OF_B + _MOMENTS
