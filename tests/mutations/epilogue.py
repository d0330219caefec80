"""Faults behind the main loop: the addends, rounding, staging and both stores."""

from __future__ import annotations

from tests.mutations.mutant import RACE, Edit, Mutant, under

_CONVERT, _ADDENDS = "ptx/arithmetic.cuh", "epilogue/addends.cuh"
_TMA, _PREDICATED = "epilogue/tma_store.cuh", "epilogue/predicated_store.cuh"

_EXACT = ("tests/gpu/test_gemm.py::test_other_data[distinct_scales-333-7168-512]",)
_ODD = ("tests/gpu/test_gemm.py::test_other_data[distinct_scales-333-577-272]",)
_SIGNED = ("tests/gpu/test_gemm.py::test_signed_data_into_a_poisoned_output[333-7168-512]",)
_FAULTS = "tests/gpu/faults"
_ADDENDS_OF_16_BITS = (
    f"{_FAULTS}/values.py::test_fault_09_extreme_scales_everywhere"
    "[-1.7-333-2112-1040-1d2d-float16-c-bfloat16-bias-bfloat16]",
)
_EXACT_FLOAT16 = (
    f"{_FAULTS}/values.py::test_fault_09_special_scales_stay_with_what_they_scale[-1.0-333-2112-1040-1d2d-float16]",
)
_ADDENDS_IN_TURN = (
    "tests/gpu/test_configs.py::test_addends_under_every_tile[1d2d-float32-c-float32-tma-128x192-c1x1]",
)
_OVERFLOW_OF_FLOAT16 = (f"{_FAULTS}/values.py::test_fault_11_output_overflows_as_rounding_says[1.0-dtype1]",)
_ORDER_OF_ADDENDS = (f"{_FAULTS}/values.py::test_fault_11_c_is_added_before_the_bias",)
_EVERY_TILE_IN_FLOAT32 = (f"{_FAULTS}/values.py::test_fault_10_under_every_config[1d2d-float32-300]",)
_GUARDS = (f"{_FAULTS}/memory.py::test_fault_02_canaries_around_the_output[1d2d-bfloat16]",)

_BFLOAT16 = 'asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));'
_FLOAT16 = 'asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));'
_BIAS = "first = col + 8 * i < Config::kN ? bias[8 * i] : Storage{};"
_SUMS = "8 * i * stride_n_, col + 8 * i, convert(four[{}], four[{}])"

_ROUNDING = (
    Mutant(
        "bfloat16-truncated",
        "bfloat16 outputs are rounded towards zero",
        (Edit(_CONVERT, _BFLOAT16, _BFLOAT16.replace("cvt.rn", "cvt.rz")),),
        _SIGNED,
    ),
    Mutant(
        "float16-truncated",
        "float16 outputs are rounded towards zero",
        (Edit(_CONVERT, _FLOAT16, _FLOAT16.replace("cvt.rn", "cvt.rz")),),
        _EXACT_FLOAT16,
        sample="float16",
    ),
    Mutant(
        "float16-saturates",
        "float16 outputs past the range become its largest number instead of infinite",
        (Edit(_CONVERT, _FLOAT16, _FLOAT16.replace("cvt.rn", "cvt.rn.satfinite")),),
        _OVERFLOW_OF_FLOAT16,
        sample="float16",
    ),
    Mutant(
        "halves-swapped",
        "the two elements of a packed pair are exchanged",
        (Edit(_CONVERT, _BFLOAT16, _BFLOAT16.replace('"f"(high), "f"(low)', '"f"(low), "f"(high)')),),
        _EXACT,
    ),
)

_ADDED = (
    Mutant(
        "bias-before-c",
        "the bias is added before C, so sums are rounded in another order",
        (
            Edit(_ADDENDS, "            c.add_to(accumulators, part);\n", ""),
            Edit(
                _ADDENDS,
                "            bias.add_to(accumulators, part);\n",
                "            bias.add_to(accumulators, part);\n            c.add_to(accumulators, part);\n",
            ),
        ),
        _ORDER_OF_ADDENDS,
        sample="c_and_bias",
    ),
    Mutant(
        "c-ignored",
        "C is read and not added to the second column of a pair",
        (Edit(_ADDENDS, "four[1] += Element::to_float(upper[i].second);", ""),),
        _ADDENDS_OF_16_BITS,
        sample="c",
    ),
    Mutant(
        "c-of-another-row",
        "C is taken from 8 rows above",
        (Edit(_ADDENDS, "c_ + row * stride_m_", "c_ + (row < 8 ? row : row - 8) * stride_m_"),),
        _ADDENDS_OF_16_BITS,
        sample="c",
    ),
    Mutant(
        "halves-of-c-swapped",
        "the two elements of a pair of a bfloat16 C are exchanged",
        (Edit(_ADDENDS, "*reinterpret_cast<const ElementPair<Storage>*>(source);", "{source[1], source[0]};"),),
        _ADDENDS_OF_16_BITS,
        sample="c",
    ),
    Mutant(
        "bias-shifted",
        "even columns take the bias of their right neighbours",
        (
            Edit(
                _ADDENDS,
                _BIAS,
                _BIAS.replace("col + 8 * i", "col + 8 * i + 1").replace("bias[8 * i]", "bias[8 * i + 1]"),
            ),
        ),
        _ADDENDS_OF_16_BITS,
        sample="bias",
    ),
    Mutant(
        "bias-of-the-first-tile",
        "every tile takes the bias of the first tile's columns",
        (Edit(_ADDENDS, "bias_.load(fragment_, tile, part);", "bias_.load(fragment_, Tile{}, part);"),),
        _ADDENDS_OF_16_BITS,
        sample="bias",
    ),
    Mutant(
        "addends-of-the-first-parts-alone",
        "C and the bias are added to the columns that are asked for first, and to no other",
        (Edit(_TMA, "if (i % kPartsAddedAtOnce == 0) {", "if (i == 0) {"),),
        _ADDENDS_IN_TURN,
        sample="wide_c",
    ),
)

_TMA_STORE = (
    Mutant(
        "part-columns-off",
        "each part of a tile is stored one part too far to the right",
        (Edit(_TMA, "part % kPartsN * kPartCols", "(part + 1) * kPartCols"),),
        _EXACT,
    ),
    Mutant(
        "every-part-from-the-first-slot",
        "every part of a tile is stored from the first staging slot's memory",
        (Edit(_TMA, "shared.slots[warpgroup][state.stage];", "shared.slots[warpgroup][0];"),),
        under("128x112"),
    ),
    Mutant(
        "parts-staged-backwards",
        "the last part of a tile is staged first, and stored where the first one belongs",
        (
            Edit(
                _TMA,
                "part{i / kPartsN * kPartRows, i % kPartsN * kPartCols};",
                "part{(kParts - 1 - i) / kPartsN * kPartRows, (kParts - 1 - i) % kPartsN * kPartCols};",
            ),
        ),
        under("128x128"),
    ),
    Mutant(
        "staging-not-swizzled",
        "the staging tile is written in plain rows, and TMA reads it swizzled",
        (Edit(_TMA, "offset ^ ((offset / 128 & kChunkMask) * 16)", "offset"),),
        _EXACT,
    ),
    Mutant(
        "warpgroups-store-one-place",
        "both warpgroups' rows are stored at those of the first",
        (Edit(_TMA, "tile.row_of_d() + origin.row", "tile.row_of_d()"),),
        under("128x128"),
    ),
    Mutant(
        "parts-in-the-wrong-order",
        "the parts of a tile are stored column by column of parts, and staged row by row",
        (
            Edit(_TMA, "part / kPartsN * kPartRows", "part % kPartsM * kPartRows"),
            Edit(_TMA, "part % kPartsN * kPartCols", "part / kPartsM * kPartCols"),
        ),
        under("256x128"),
        sample="ahead",
    ),
    Mutant(
        "quarter-of-a-fragment-misplaced",
        "in float32 staging the lower right 8x8 of a fragment goes where the lower left is",
        (Edit(_TMA, "address(lane_row + 8, lane_col + 8), s[6]", "address(lane_row + 8, lane_col), s[6]"),),
        _EVERY_TILE_IN_FLOAT32,
        sample="float32",
    ),
)

_PREDICATED_STORE = (
    Mutant(
        "rows-not-checked",
        "the predicated store writes rows past the last one",
        (Edit(_PREDICATED, "if (row < end) {", "{"),),
        _GUARDS,
        RACE,
        sample="predicated",
    ),
    Mutant(
        "columns-not-checked",
        "the predicated store writes columns past the last one",
        (
            Edit(_PREDICATED, "if (col < Config::kN) {", "{"),
            Edit(_PREDICATED, "if (col + 1 < Config::kN) {", "{"),
        ),
        _GUARDS,
        RACE,
        sample="predicated",
    ),
    Mutant(
        "last-odd-column-dropped",
        "the predicated store writes whole pairs of columns only",
        (Edit(_PREDICATED, "if (col < Config::kN) {", "if (col + 1 < Config::kN) {"),),
        _ODD,
        sample="predicated",
    ),
    Mutant(
        "rows-of-a-fragment-swapped",
        "a thread's upper and lower row are exchanged where sums are mapped to places in the output",
        (
            Edit(_PREDICATED, "upper + " + _SUMS.format(0, 1), "upper + " + _SUMS.format(2, 3)),
            Edit(_PREDICATED, "lower + " + _SUMS.format(2, 3), "lower + " + _SUMS.format(0, 1)),
        ),
        _ODD,
        sample="predicated",
    ),
)

MUTANTS = _ROUNDING + _ADDED + _TMA_STORE + _PREDICATED_STORE
