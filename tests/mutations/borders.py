"""Faults of scales of B where a tile's columns lie across the border of two scale blocks."""

from __future__ import annotations

from tests.mutations.mutant import Edit, Mutant, under

_MULTIPLY, _BLOCK = "mainloop/multiply.cuh", "mainloop/block_scales.cuh"

MUTANTS = (
    Mutant(
        "border-a-step-late",
        "the first columns past the border of two scale blocks take the scale of the block before",
        (Edit(_BLOCK, "col >= border_ ? beyond", "col > border_ ? beyond"),),
        under("64x192", "128x112"),
        sample="border",
    ),
    Mutant(
        "border-ignored",
        "columns past the border of two scale blocks take the scale of the block before, as far as one may lie",
        (Edit(_BLOCK, "col >= border_ ? beyond : before", "before"),),
        under("64x192", "128x112"),
        sample="border",
    ),
    Mutant(
        "second-border-of-two-for-both",
        "columns between the two borders of a copy of the main loop take the scale of the block before",
        (Edit(_BLOCK, "return (border_ & kBorderStep) != 0;", "return false;"),),
        under("128x192", "128x144"),
        sample="wide",
    ),
    Mutant(
        "first-border-of-two-for-both",
        "they take the scale of the block behind",
        (Edit(_BLOCK, "return (border_ & kBorderStep) != 0;", "return true;"),),
        under("128x192", "128x144"),
        sample="wide",
    ),
    Mutant(
        "first-border-for-all",
        "of the copies of the main loop the first serves every tile",
        (Edit(_MULTIPLY, "if (scales_.border() > kLargest) {", "if (scales_.border() > kScaleBlock) {"),),
        under("128x160"),
        sample="border_copies",
    ),
    Mutant(
        "second-block-is-the-first",
        "columns on both sides of the border take the scales of the block before it",
        (Edit(_BLOCK, "minimum(col / kScaleBlock + block, ", "minimum(col / kScaleBlock, "),),
        under("128x256", "128x144"),
        sample="border",
    ),
)
