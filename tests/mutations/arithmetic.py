"""Faults of what is computed: promotion, scales, K blocks, rounding, the addends."""

from __future__ import annotations

from tests.mutations.mutant import Edit, Mutant

_MULTIPLY, _BLOCK, _ROW = "mainloop/multiply.cuh", "mainloop/block_scales.cuh", "mainloop/row_scales.cuh"
_LOAD, _CONVERT, _ADDENDS = "mainloop/load.cuh", "ptx/convert.cuh", "epilogue/addends.cuh"

_GEMM = "tests/gpu/test_gemm.py"
_EXACT = (f"{_GEMM}::test_other_data[distinct_scales-333-7168-512]",)
_TAIL = (f"{_GEMM}::test_other_data[distinct_scales-257-136-1040]",)
_SIGNED = (f"{_GEMM}::test_signed_data_into_a_poisoned_output[333-7168-512]",)
_LONG = (f"{_GEMM}::test_positive_data_over_long_k[7-2112-16384]",)
_SUBNORMAL = (f"{_GEMM}::test_extreme_scales_everywhere[1.1754943508222875e-38-333-2112-1040]",)
_ROWS = ("tests/gpu/faults/values.py::test_fault_10_a_power_of_two_of_its_own_in_every_scale_block[1d1d-bfloat16]",)

_K_LOOP = "for (uint32_t k_block = 0; k_block < Shape::kNumKBlocks; ++k_block) {\n"
_ONE_MORE = _K_LOOP.replace("<", "<=")
_LAST_K = "minimum(k_block, Shape::kNumKBlocks - 1)"

_PROMOTE = "Scales::promote(scales_a[m], scales_b, block_sums, accumulators[m][n]);"
_PROMOTE_AT_THE_END = """\
if (last_block) {
                    for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) {
                        block_sums[i] = accumulators[m][n][i];
                        accumulators[m][n][i] = 0.0f;
                    }
                    Scales::promote(scales_a[m], scales_b, block_sums, accumulators[m][n]);
                }"""

_PROMOTION = (
    Mutant(
        "promotion-dropped",
        "the tensor core keeps the sums of all of K, which are promoted once, with the last block's scales",
        (
            Edit(
                _MULTIPLY,
                "multiply_block(scales, accumulators);",
                "multiply_block(scales, accumulators, k_block + 1 == Shape::kNumKBlocks);",
            ),
            Edit(
                _MULTIPLY,
                "multiply_block(const Scales& scales, typename Shape::Accumulators& accumulators) {",
                "multiply_block(const Scales& scales, typename Shape::Accumulators& accumulators, bool last_block) {",
            ),
            Edit(_MULTIPLY, "start_wave(stage, m, n, block_sums);", "start_wave(stage, m, n, accumulators[m][n]);"),
            Edit(_MULTIPLY, "k != 0);", "true);"),
            Edit(_MULTIPLY, "touch_after_wait(block_sums);", "touch_after_wait(accumulators[m][n]);"),
            Edit(_MULTIPLY, _PROMOTE, _PROMOTE_AT_THE_END),
        ),
        _LONG,
    ),
    Mutant(
        "accumulators-not-cleared",
        "a CTA's later tiles start from the sums of the tile before",
        (
            Edit(_MULTIPLY, "bool stage_is_full_ = false;", "bool started_ = false, stage_is_full_ = false;"),
            Edit(
                _MULTIPLY,
                "        clear(accumulators);\n",
                "        if (!started_) clear(accumulators);\n        started_ = true;\n",
            ),
        ),
        (f"{_GEMM}::test_signed_data_into_a_poisoned_output[4096-7168-512]",),
    ),
    Mutant(
        "block-sums-not-started-afresh",
        "the sums of a block start from the tile's sums so far instead of from zero",
        (
            Edit(_MULTIPLY, "k != 0);", "true);"),
            Edit(
                _MULTIPLY,
                "start_wave(stage, m, n, block_sums);",
                "for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) block_sums[i] = accumulators[m][n][i];\n"
                "start_wave(stage, m, n, block_sums);",
            ),
        ),
        _EXACT,
    ),
    Mutant(
        "last-instruction-skipped",
        "the last 32 columns of each K block are not multiplied",
        (
            Edit(
                _MULTIPLY,
                "k < Shape::kBlockK; k += kInstructionK",
                "k < Shape::kBlockK - kInstructionK; k += kInstructionK",
            ),
        ),
        _SIGNED,
    ),
    Mutant(
        "descriptor-of-b-advanced-by-half",
        "the descriptor of B advances along K by half of what that of A does",
        (
            Edit(
                _MULTIPLY,
                "matrix_descriptor(b + descriptor_offset(k))",
                "matrix_descriptor(b + descriptor_offset(k / 2))",
            ),
        ),
        _SIGNED,
    ),
    Mutant(
        "k-tail-skipped",
        "the number of K blocks is rounded down",
        (Edit("common/tile_shape.cuh", "ceil_div(Config::kK, kBlockK)", "Config::kK / kBlockK"),),
        _TAIL,
    ),
    Mutant(
        "last-k-block-twice",
        "loader and multiplier go through one K block more, which is the last again",
        (
            Edit(
                _LOAD,
                f"{_K_LOOP}                load(tile, k_block, state);",
                f"{_ONE_MORE}                load(tile, {_LAST_K}, state);",
            ),
            Edit(
                _MULTIPLY,
                f"{_K_LOOP}            scales.take(k_block);",
                f"{_ONE_MORE}            scales.take({_LAST_K});",
            ),
        ),
        _SIGNED,
    ),
    Mutant(
        "product-of-scales-flushed",
        "a product of scales that is subnormal becomes zero",
        (
            Edit(
                _BLOCK,
                "const float upper = scales_a[0] * scale_b;",
                'float upper;\n        asm("mul.ftz.f32 %0, %1, %2;" : "=f"(upper) : "f"(scales_a[0]), "f"(scale_b));',
            ),
        ),
        _SUBNORMAL,
    ),
    Mutant(
        "sums-flushed",
        "an accumulator that is subnormal becomes zero",
        (
            Edit(
                _BLOCK,
                "accumulators[i + 0] = __fmaf_rn(upper, block_sums[i + 0], accumulators[i + 0]);",
                'asm("fma.rn.ftz.f32 %0, %1, %2, %0;"\n'
                ': "+f"(accumulators[i + 0]) : "f"(upper), "f"(block_sums[i + 0]));',
            ),
        ),
        _SUBNORMAL,
    ),
)

_SCALES_OF_A = (
    Mutant(
        "scale-of-a-of-the-next-block",
        "the scales of A come from one K block later",
        (Edit(_LOAD, "map_scales_a_, full, row_a, k_block);", "map_scales_a_, full, row_a, k_block + 1);"),),
        _EXACT,
    ),
    Mutant(
        "rows-share-a-scale",
        "the lower of a thread's two rows takes the scale of the upper, 8 rows above",
        (Edit(_MULTIPLY, "scales_a[m][1] = source[8];", "scales_a[m][1] = source[0];"),),
        _EXACT,
    ),
    Mutant(
        "waves-share-scales",
        "the second wave of 64 rows takes the scales of the first",
        (Edit(_MULTIPLY, "[stage][first_row_ + m * Shape::kWaveM]", "[stage][first_row_]"),),
        _EXACT,
        sample="tall",
    ),
)

_SCALES_OF_B = (
    Mutant(
        "scale-of-b-ignored",
        "block sums are multiplied by the scale of A alone",
        (
            Edit(_BLOCK, "const float upper = scales_a[0] * scale_b;", "const float upper = scales_a[0];"),
            Edit(_BLOCK, "const float lower = scales_a[1] * scale_b;", "const float lower = scales_a[1];"),
        ),
        _EXACT,
    ),
    Mutant(
        "scale-of-b-of-the-next-block-in-k",
        "the scales of B come from one K block later",
        (Edit(_BLOCK, "__ldg(rows_[wave] + k_block)", "__ldg(rows_[wave] + (k_block + 1) % Shape::kNumKBlocks)"),),
        _EXACT,
    ),
    Mutant(
        "scale-of-b-of-the-next-block-in-n",
        "the scales of B come from 128 rows of B further down",
        (Edit(_BLOCK, "minimum(col / kScaleBlock, kNumNBlocks - 1)", "(col / kScaleBlock + 1) % kNumNBlocks"),),
        _EXACT,
    ),
    Mutant(
        "scales-of-b-transposed",
        "the matrix of B's scales is read as if it lay transposed",
        (
            Edit(_BLOCK, "scales + block * Shape::kNumKBlocks;", "scales + block;"),
            Edit(_BLOCK, "__ldg(rows_[wave] + k_block)", "__ldg(rows_[wave] + k_block * kNumNBlocks)"),
        ),
        _EXACT,
    ),
    Mutant(
        "scales-of-b-not-fetched-anew",
        "from the 64th K block on the scales of B are those of 32 blocks before",
        (Edit(_BLOCK, "load(wave, k_block + kThreadsPerWarp);", "load(wave, k_block);"),),
        _LONG,
        sample="long",
    ),
    Mutant(
        "row-scales-of-b-from-a",
        "with row scales on both sides, those of B are read where those of A are",
        (Edit(_ROW, "&stages_.scales.b[stage]", "&stages_.scales.a[stage]"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "row-scales-of-b-of-the-next-block",
        "with row scales on both sides, those of B come from one K block later",
        (Edit(_LOAD, "map_scales_b_, full, row_b, k_block);", "map_scales_b_, full, row_b, k_block + 1);"),),
        _ROWS,
        sample="row",
    ),
    Mutant(
        "column-pair-swapped",
        "the row scales of two neighbouring columns are exchanged",
        (
            Edit(_ROW, "scales.first[i] = pair.x;", "scales.first[i] = pair.y;"),
            Edit(_ROW, "scales.second[i] = pair.y;", "scales.second[i] = pair.x;"),
        ),
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

MUTANTS = _PROMOTION + _SCALES_OF_A + _SCALES_OF_B
