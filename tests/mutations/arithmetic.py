"""Faults of what is computed: block sums, their promotion, and which K blocks there are."""

from __future__ import annotations

from tests.mutations.mutant import PROMOTE, Edit, Mutant, under

_MULTIPLY, _BLOCK, _LOAD = "mainloop/multiply.cuh", "mainloop/block_scales.cuh", "mainloop/load.cuh"
_WGMMA = "ptx/wgmma.cuh"

_GEMM = "tests/gpu/test_gemm.py"
_EXACT = (f"{_GEMM}::test_other_data[distinct_scales-333-7168-512]",)
_TAIL = (f"{_GEMM}::test_other_data[distinct_scales-257-136-1040]",)
_SIGNED = (f"{_GEMM}::test_signed_data_into_a_poisoned_output[333-7168-512]",)
_LONG = (f"{_GEMM}::test_positive_data_over_long_k[7-2112-16384]",)
_SUBNORMAL = (f"{_GEMM}::test_extreme_scales_everywhere[1.1754943508222875e-38-333-2112-1040]",)


_K_LOOP = "for (; step < tile.steps(); ++step) {\n"
_ONE_MORE = _K_LOOP.replace("<", "<=")
_ZEROES = """\
            const bool zeroes = kZeroesMissingRows && !tile.is_half && !tile.is_half_wide &&
                                tile.rows_of_product(m_) >= kManyRows && step / Config::kStages == 1;
"""
_LOADS = "            load<kOfB>(tile, zeroes ? copies_.with_zeros(operands) : operands, step);"
_LAST_STEP = "minimum(step, tile.steps() - 1)"

# A wave is started where the tile's sums are known.
_SUMS_AT_THE_START = (
    Edit(
        _MULTIPLY,
        "NextStage<Ring> next_;",
        "typename Shape::Accumulators* sums_;\n    NextStage<Ring> next_;",
    ),
    Edit(_MULTIPLY, "        clear(accumulators);\n", "        clear(accumulators);\n        sums_ = &accumulators;\n"),
)
_MULTIPLY_WAVE = "operands_.multiply(flight.stage, m, n, flight.block_sums);"
_PROMOTE_AT_THE_END = f"""\
        if (chunk.first_step + wave_of_chunk / kPerStep + 1 == kSteps) {{
            float block_sums[Shape::kWaveRegisters];
            for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) {{
                asm volatile("" : "+f"(accumulators[m][n][i]));
                block_sums[i] = accumulators[m][n][i];
                accumulators[m][n][i] = 0.0f;
            }}
{PROMOTE.replace("flight.block_sums", "block_sums")}        }}
"""
_ALL_OF_K = "            multiply_up_to<Chunks::kBorderRange>(accumulators);\n"

MUTANTS = (
    Mutant(
        "promotion-dropped",
        "the tensor core keeps the sums of all of K, which are promoted once, with the last block's scales",
        (
            *_SUMS_AT_THE_START,
            Edit(_MULTIPLY, _MULTIPLY_WAVE, _MULTIPLY_WAVE.replace("flight.block_sums", "(*sums_)[m][n]")),
            Edit(_WGMMA, "setp.ne.b32 start, 0, 0;", "setp.ne.b32 start, 1, 0;"),
            Edit(_MULTIPLY, PROMOTE, _PROMOTE_AT_THE_END),
        ),
        _LONG,
    ),
    Mutant(
        "accumulators-not-cleared",
        "a CTA's later tiles start from the sums of the tile before",
        (
            Edit(_MULTIPLY, "NextStage<Ring> next_;", "bool started_ = false;\n    NextStage<Ring> next_;"),
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
            *_SUMS_AT_THE_START,
            Edit(_WGMMA, "setp.ne.b32 start, 0, 0;", "setp.ne.b32 start, 1, 0;"),
            Edit(
                _MULTIPLY,
                _MULTIPLY_WAVE,
                "for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) flight.block_sums[i] = (*sums_)[m][n][i];\n"
                f"{_MULTIPLY_WAVE}",
            ),
        ),
        _EXACT,
    ),
    Mutant(
        "last-instruction-skipped",
        "the last 32 columns of each K block are not multiplied",
        (Edit(_WGMMA, 'FP8GEMM_WGMMA_K32(N, 6, "accumulate")', '""'),),
        _SIGNED,
    ),
    Mutant(
        "descriptor-of-b-advanced-by-half",
        "the descriptor of B advances along K by half of what that of A does",
        (Edit(_WGMMA, '"add.u64 b, %1, " #OFFSET ";', '"add.u64 b, %1, " #OFFSET " / 2;'),),
        _SIGNED,
    ),
    Mutant(
        "first-wave-of-the-stage-before",
        "a K block's first wave is described before the ring goes on to its stage",
        (
            Edit(
                "mainloop/multiply.cuh",
                "        next_.advance();\n        operands_.describe_first(next_.index());\n",
                "        operands_.describe_first(next_.index());\n        next_.advance();\n",
            ),
        ),
        under("256x128", "128x256"),
        sample="ahead",
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
                f"{_K_LOOP}{_ZEROES}{_LOADS}",
                f"{_ONE_MORE}{_ZEROES}{_LOADS.replace('step', _LAST_STEP)}",
            ),
            Edit(
                _MULTIPLY,
                _ALL_OF_K,
                f"{_ALL_OF_K}        await(kSteps - 1);\n"
                "        pipelined<1, 0>(*this, Chunk{kSteps - 1, {Scales::kBorderStep, kScaleBlock}}, "
                "accumulators);\n",
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
                "products.upper[i] = scales_a[0] * scale_b;",
                'asm("mul.ftz.f32 %0, %1, %2;" : "=f"(products.upper[i]) : "f"(scales_a[0]), "f"(scale_b));',
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
                "ptx::fma_in_order(upper, block_sums[i + 0], accumulators[i + 0]);",
                'asm volatile("fma.rn.ftz.f32 %0, %1, %2, %0;"\n'
                ': "+f"(accumulators[i + 0]) : "f"(upper), "f"(block_sums[i + 0]));',
            ),
        ),
        _SUBNORMAL,
    ),
)
