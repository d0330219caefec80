"""Faults of the quantisers: whose largest value, what becomes of it, which codes are written and when."""

from __future__ import annotations

from tests.mutations.mutant import RACE, Caught, Edit, Mutant, race

_WARP, _SCALES, _ENCODE, _LANES, _SOURCE, _FLOAT = (
    "quantize/rows_of_warp.cuh",
    "quantize/store_scales.cuh",
    "quantize/encode.cuh",
    "quantize/lanes.cuh",
    "quantize/source.cuh",
    "ptx/arithmetic.cuh",
)
_ROWS, _BLOCKS, _NORM = (f"kernels/quantize_{name}.cuh" for name in ("rows", "blocks", "norm"))

_BITWISE, _FUSED, _MEMORY, _ORDER = (
    f"tests/gpu/test_quantize{name}.py::test_" for name in ("", "_fused", "_memory", "_order")
)
_SAME = (f"{_BITWISE}same_bits_as_on_the_cpu[1.0-333-7168-dtype0]",)
_TINY = (f"{_BITWISE}same_bits_as_on_the_cpu[1e-37-333-7168-dtype2]",)
_TIES = (f"{_BITWISE}true_division_at_and_beside_every_tie[1-dtype2]",)
_IN_BLOCKS = (f"{_BITWISE}true_division_in_blocks_of_weights[dtype2]",)
_SILU = (f"{_FUSED}silu_mul[150-4112-torch.bfloat16]",)
_RMS = (f"{_FUSED}rms_norm[1500-4112-torch.bfloat16]",)
_ADD = (f"{_FUSED}add_rms_norm[150-4112-torch.bfloat16]",)
_WRONG_OR_FAULT = frozenset({Caught.WRONG, Caught.FAULT})


def _around(kind: str, m: int = 1, k: int = 144) -> tuple[str, ...]:
    """The test of canaries and of NaN past the end of inputs."""
    name = "outputs_are_written_whole_and_nothing_around_them_and_no_nan_past_an_input_matters"
    return (f"{_MEMORY}{name}[{m}-{k}-torch.bfloat16-{kind}]",)


def _after_a_product(kind: str) -> tuple[str, ...]:
    return (f"{_ORDER}what_a_product_wrote_just_before[8-{kind}]",)


_ARITHMETIC = (
    Mutant(
        "largest-of-half-a-block",
        "lanes 8 apart do not compare their largest values, so that half a block has a scale of its own",
        (Edit(_ENCODE, "mask = kLanes / 2; mask > 0;", "mask = kLanes / 4; mask > 0;"),),
        _SAME,
        sample="quantize_rows",
    ),
    Mutant(
        "largest-of-two-blocks",
        "the two K blocks of a warp share the larger one's scale",
        (Edit(_WARP, "largest_of_lanes<kLanesPerBlock>", "largest_of_lanes<32>"),),
        _SAME,
        sample="quantize_rows",
    ),
    Mutant(
        "largest-without-nan",
        "a NaN does not count among a block's largest values",
        (Edit(_FLOAT, '"max.NaN.f32 %0', '"max.f32 %0'),),
        (f"{_BITWISE}nan_and_infinity_as_on_the_cpu[nan]",),
        sample="quantize_rows",
    ),
    Mutant(
        "scale-without-floor",
        "the scale of tiny values is subnormal, and has lost bits",
        (Edit(_ENCODE, "kSmallest = 0x1p-126f;", "kSmallest = 0.0f;"),),
        _TINY,
        sample="quantize_rows",
    ),
    Mutant(
        "scale-of-zeros-is-the-floor",
        "a block of zeros has the smallest scale and not 1",
        (Edit(_ENCODE, "return amax == 0 ? 1.0f : scale;", "return scale;"),),
        (f"{_FUSED}zero_rows_have_scale_one",),
        sample="quantize_rows",
    ),
    Mutant(
        "quotients-uncorrected",
        "values are multiplied by the scale's reciprocal",
        (Edit(_ENCODE, "return corrected(x, corrected(x, estimate));", "return estimate;"),),
        _TIES,
        sample="quantize_rows",
    ),
    Mutant(
        "quotients-corrected-once",
        "the second correction of a quotient is missing",
        (Edit(_ENCODE, "return corrected(x, corrected(x, estimate));", "return corrected(x, estimate);"),),
        _TIES,
        sample="quantize_rows",
        may_survive="once corrected, a quotient is seldom wrong, and in its last place alone; a code shows it only "
        "where the border between two codes lies just there, of which no case is known",
    ),
    Mutant(
        "remainders-of-tiny-values-lose-bits",
        "values whose remainders are subnormal are not scaled up",
        (Edit(_ENCODE, "shift_ = scale < 0x1p-96f ? 0x1p64f : 1.0f;", "shift_ = 1.0f;"),),
        _TIES,
        sample="quantize_rows",
    ),
    Mutant(
        "negative-zero-lost",
        "the remainder is negated inside, so that the quotient of a negative zero is a positive one",
        (Edit(_ENCODE, "fmaf(-fmaf(quotient, divisor_, -x),", "fmaf(fmaf(-quotient, divisor_, x),"),),
        _TIES,
        sample="quantize_rows",
    ),
    Mutant(
        "infinite-scale-divides",
        "finite values in a block with an infinite one become NaN and not 0",
        (Edit(_ENCODE, "divisor_ = scale == __int_as_float(0x7f800000) ? 0.0f : divisor_;", ""),),
        (f"{_BITWISE}nan_and_infinity_as_on_the_cpu[inf]",),
        sample="quantize_rows",
    ),
    Mutant(
        "gate-and-up-exchanged",
        "the second half is taken for the gate",
        (
            Edit(
                _SOURCE,
                "{Input::load(gate), Input::load(gate + params.k)}",
                "{Input::load(gate + params.k), Input::load(gate)}",
            ),
        ),
        _SILU,
        sample="quantize_silu_mul",
    ),
    Mutant(
        "weight-block-of-one-thread",
        "the other warps' largest values do not count",
        (Edit(_BLOCKS, "            amax = ptx::max_or_nan(amax, other);\n", "            (void)other;\n"),),
        _IN_BLOCKS,
        sample="quantize_blocks",
    ),
)

_PLACES = (
    Mutant(
        "columns-past-k-read",
        "values past the end of a row count in its last block",
        (Edit(_WARP, "(inside && i < rows) {\n                raw", "(i < rows) {\n                raw"),),
        _around("rows"),
        _WRONG_OR_FAULT,
        sample="quantize_rows",
    ),
    Mutant(
        "codes-past-the-last-row",
        "a warp writes the codes of all its rows, even of those that are not there",
        (Edit(_WARP, "(inside && i < rows) {\n                const", "(inside) {\n                const"),),
        _around("rows"),
        _WRONG_OR_FAULT,
        sample="quantize_rows",
    ),
    Mutant(
        "scales-past-the-last-row",
        "a warp writes scales between the last row's and the next column",
        (Edit(_SCALES, "(i < rows) {\n", "(i < kRows) {\n"),),
        _around("rows"),
        _WRONG_OR_FAULT,
        sample="quantize_rows",
    ),
    Mutant(
        "scales-of-both-blocks-in-one-column",
        "both halves of a warp write their scales to the first one's column",
        (Edit(_WARP, "(col / kBlockCols) * params.scales_pitch", "(col / kColsOfWarp * 2) * params.scales_pitch"),),
        _around("rows"),
        sample="quantize_rows",
    ),
    Mutant(
        "scales-at-the-pitch-of-rows",
        "columns of scales are as far apart as there are rows, without the padding",
        (Edit(_WARP, "* params.scales_pitch + first_row,", "* params.rows + first_row,"),),
        _around("rows", 65),
        _WRONG_OR_FAULT,
        sample="quantize_rows",
    ),
    Mutant(
        "scales-of-a-norm-a-row-off",
        "two neighbouring rows of a norm write each other's scales",
        (Edit(_NORM, "params.scales_pitch + row] = scale;", "params.scales_pitch + (row ^ 1)] = scale;"),),
        _RMS,
        sample="quantize_norm",
    ),
    Mutant(
        "rows-past-n-read",
        "rows past the end of a weight count in its last blocks",
        (Edit(_BLOCKS, " && row < params.rows) {\n                raw", ") {\n                raw"),),
        _around("blocks", 129, 400),
        _WRONG_OR_FAULT,
        sample="quantize_blocks",
    ),
)

_NORMS = (
    Mutant(
        "squares-of-the-first-warp-dropped",
        "the mean lacks the squares of a row's first columns",
        (
            Edit(
                _NORM,
                "        for (float of_warp : of_warps) {\n            squares += of_warp;\n        }",
                "        for (uint32_t i = 1; i < kWarps; ++i) {\n            squares += of_warps[i];\n        }",
            ),
        ),
        _RMS,
        sample="quantize_norm",
    ),
    Mutant(
        "eps-dropped",
        "nothing is added to the mean of the squares",
        (Edit(_NORM, "mean + params.eps", "mean"),),
        _RMS,
        sample="quantize_norm",
    ),
    Mutant(
        "sum-written-and-not-normed",
        "what is normed is the input and not its sum with the residual",
        (
            Edit(_NORM, "raw[i] = Input::pack(sum(", "const typename Input::Raw total = Input::pack(sum("),
            Edit(_NORM, "Input::store(summed + column_of(i), raw[i]);", "Input::store(summed + column_of(i), total);"),
        ),
        _ADD,
        sample="quantize_add_norm",
    ),
    Mutant(
        "sum-truncated",
        "the sum with the residual is cut off to bfloat16 and not rounded",
        (
            Edit(
                _LANES,
                "return ptx::pack_bfloat16(low, high);",
                "return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);",
            ),
        ),
        _ADD,
        sample="quantize_add_norm",
    ),
    Mutant(
        "squares-read-before-they-are-there",
        "the warps of a row do not wait for each other's sums of squares",
        (
            Edit(
                _NORM,
                "        of_warps[threadIdx.x / 32] = squares;\n        __syncthreads();",
                "        of_warps[threadIdx.x / 32] = squares;",
            ),
        ),
        _RMS,
        RACE,
        sample="quantize_norm",
    ),
    Mutant(
        "largest-read-before-it-is-there",
        "the warps of a block of weights do not wait for each other's largest values",
        (Edit(_BLOCKS, "        __syncthreads();\n", ""),),
        (f"{_BITWISE}one_row_decides_for_all_warps_of_a_block",),
        RACE,
        sample="quantize_blocks",
    ),
)

_GRIDS = (
    race(
        "quantised-before-it-is-written",
        "a quantiser of rows reads its input without waiting for the grid that writes it",
        Edit(
            _ROWS,
            "        ptx::wait_for_previous_grids();\n        if (first_row >= params.rows)",
            "        if (first_row >= params.rows)",
        ),
        tests=_after_a_product("rows"),
        sample="quantize_rows",
    ),
    race(
        "normed-before-it-is-written",
        "a norm reads its input without waiting for the grid that writes it",
        Edit(_NORM, "        ptx::wait_for_previous_grids();\n        typename Weight", "        typename Weight"),
        tests=_after_a_product("add_rms_norm"),
        sample="quantize_add_norm",
    ),
    race(
        "weight-quantised-before-it-is-written",
        "a quantiser of weights reads its input without waiting for the grid that writes it",
        Edit(_BLOCKS, "        ptx::wait_for_previous_grids();\n        typename Input", "        typename Input"),
        tests=_after_a_product("blocks"),
        sample="quantize_blocks",
    ),
)

MUTANTS = _ARITHMETIC + _PLACES + _NORMS + _GRIDS
