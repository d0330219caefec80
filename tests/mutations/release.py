"""Faults of the orders that hand a place back or over: what an arrival is to wait for, and does not.

Those of tests/mutations/pipeline.py arrive too early in the program, or not at all. Of these some arrive in their
place, but before loads that were issued ahead are done; a stage's next occupant is then seldom there in time.
"""

from __future__ import annotations

from tests.mutations.grouped import STRESS_GROUPED
from tests.mutations.mutant import RACE, Edit, Mutant, race

_RELEASE, _ROW, _SWAPPED = "mainloop/release.cuh", "mainloop/row_scales.cuh", "mainloop/swap_ab_multiply.cuh"
_ORDER_OF_WAVES, _MULTIPLY = "mainloop/pipelined.cuh", "mainloop/multiply.cuh"
_TMA, _CLIPPED, _STREAM = "epilogue/tma_store.cuh", "epilogue/clipped_store.cuh", "kernels/stream.cuh"

IN_REGISTERS = ("tests/jit/test_machine_order.py::test_scales_of_a_choice_of_kernels_are_in_registers",)
_ORDER = "tests/gpu/test_release_order.py::test_"
_CALL = f"{_ORDER}rows_have_the_scales_of_their_own_tile[float16-batch-invariant-pdl]"


def _behind_stores(*families: str) -> tuple[str, ...]:
    return tuple(f"{_ORDER}launches_behind_many_stores_are_right[{family}]" for family in families)


def _seen_in_machine_code(name: str, fault: str, *edits: Edit, sample: str = "plain") -> Mutant:
    return Mutant(name, fault, edits, IN_REGISTERS, gpu=False, sample=sample)


# Without sleeps, which would give the loads the time that they lack.
_SCALES = (
    Mutant(
        "scales-not-awaited-at-release",
        "a stage is given away while loads of its scales may be on their way",
        (Edit(_RELEASE, "arrive_empty(full + pending_);", "arrive_empty(full);"),),
        (*_behind_stores("dense 1D2D", "dense 1D1D"), _CALL),
        may_survive="of many tiles the assembler puts instructions that wait for the loads ahead of the arrival, and "
        "of the others they must queue for longer than a refill takes; zero-known-to-the-compiler comes to the same, "
        "and is seen in machine code",
    ),
    _seen_in_machine_code(
        "zero-known-to-the-compiler",
        "the compiler knows what the loaded scales are and'ed with, and leaves nothing to wait for",
        Edit(_RELEASE, "zero_(zero)", "zero_(0)"),
    ),
    _seen_in_machine_code(
        "scales-of-the-first-wave-not-awaited",
        "with several waves to a K block, a stage is given away when the last one's scales are there",
        Edit(_RELEASE, "pending_ |= pending;", "pending_ = pending;"),
        sample="tall",
    ),
    _seen_in_machine_code(
        "scales-ahead-not-awaited",
        "scales that are loaded ahead are taken to be there by the time that their K block has been multiplied",
        Edit(_MULTIPLY, "Scales::kAhead && n > 0 ? 0", "Scales::kAhead ? 0"),
        sample="ahead",
    ),
    _seen_in_machine_code(
        "row-scales-of-b-not-awaited",
        "with row scales on both sides, a stage is given away when those of A are there",
        Edit(_ROW, "                loaded |= __float_as_uint(pair.x);\n", ""),
        sample="row",
    ),
    _seen_in_machine_code(
        "kept-row-scales-of-b-not-awaited",
        "with row scales on both sides, a stage is given away while those that are kept may be on their way",
        Edit(_MULTIPLY, "release_.wait_for(release_.pending(scales_.kept()));", ""),
        sample="row_stacked",
    ),
    _seen_in_machine_code(
        "scales-of-b-read-after-release",
        "with row scales on both sides, a stage is given away before those of B are read",
        Edit(_ORDER_OF_WAVES, "if constexpr (!Waves::kPromotionReadsStage)", "if constexpr (true)"),
        Edit(_ORDER_OF_WAVES, "if constexpr (Waves::kPromotionReadsStage)", "if constexpr (false)"),
        sample="row",
    ),
    race(
        "swapped-warps-release-unjoined",
        "a warp's first lane gives the stage away without waiting for the others",
        Edit(_SWAPPED, "            __syncwarp();\n", ""),
        tests=("tests/gpu/test_stress.py::test_launches_of_small_shapes_are_right[swap_ab]",),
        sample="swapped",
        may_survive="the lanes run in step there: the WGMMA before it is an instruction of the whole converged warp",
    ),
)

_COPIES = """\
                if (row + Base::kPartRows > end) {
                    copy_rows(params, slot, row, end, col);
                }
"""
_EMPTY = "                    ptx::mbarrier_arrive(&ring.empty[state.stage]);\n                }\n"
_FULL = """\
                    if (ptx::lane_index() == 0) {
                        ptx::mbarrier_arrive(&ring_.full[filled.stage]);
                    }
"""
_STAGE = "                    stage(part, accumulators);\n"


def _of_groups(name: str, what: str, *edits: Edit, may_survive: str = "") -> Mutant:
    return race(f"grouped-{name}", what, *edits, tests=STRESS_GROUPED, sample="grouped", may_survive=may_survive)


_STAGING = (
    race(
        "staging-handed-over-before-it-is-written",
        "a warp declares its rows staged, and writes them then",
        Edit(_TMA, _FULL, ""),
        Edit(_TMA, _STAGE, _FULL.replace("filled", "state_") + _STAGE),
    ),
    _of_groups(
        "staging-not-awaited",
        "the store warp copies rows of a staging slot that the consumers have not filled",
        Edit(_CLIPPED, "                ring.wait_full(state);\n", ""),
    ),
    _of_groups(
        "rows-copied-after-the-slot-is-handed-back",
        "the store warp copies rows of a staging slot that it has given away",
        Edit(_CLIPPED, _COPIES, ""),
        Edit(_CLIPPED, _EMPTY, _EMPTY + _COPIES),
    ),
    _of_groups(
        "reading-not-awaited",
        "the store warp hands a slot back while a box that is stored may still be read",
        Edit(_CLIPPED, "                        ptx::tma_store_wait_read();\n", ""),
    ),
    _of_groups(
        "lanes-hand-back-unjoined",
        "the store warp's first lane hands a slot back without waiting for what the others copy",
        Edit(_CLIPPED, "                __syncwarp();\n", ""),
        may_survive="the first lane copies as many rows as any other, in step with them, and a row that is stored is "
        "in registers",
    ),
)

_ENDS = (
    race(
        "grouped-sums-of-warps-overwritten",
        "with more groups than threads, a warp writes its next sum before the others have read the one before",
        Edit(
            "mainloop/fill_table.cuh",
            "        __syncthreads();  // what warps left here the last time has been read\n",
            "",
        ),
        tests=("tests/gpu/test_grouped.py::test_256_groups[small_integers-4-4]",),
        sample="grouped_swapped_many",
        may_survive="a warp reads the next groups' ranges from global memory before, which takes longer than it takes "
        "the others to read a few sums",
    ),
    Mutant(
        "streamed-weight-not-awaited",
        "a CTA of the streaming floor ends while copies may still write to its shared memory",
        (Edit(_STREAM, "            ptx::mbarrier_wait(&shared.full[state.stage], state.parity);\n", ""),),
        ("tests/gpu/test_stream.py::test_any_weight_is_streamed_and_left_as_it_was",),
        RACE,
        sample="stream",
        may_survive="its own copies alone write there, and nobody reads; what the next CTA there has is what it copies",
    ),
    Mutant(
        "stream-ends-before-the-grid-ahead",
        "the streaming floor does not wait for the grid ahead, and the one behind then need not either",
        (Edit(_STREAM, "        ptx::wait_for_previous_grids();\n", ""),),
        ("tests/gpu/test_stream.py::test_programmatic_launches_keep_their_order_with_other_kernels",),
        sample="stream",
        may_survive="torch's kernels, which are ahead there, let none begin before they end",
    ),
)

MUTANTS = _SCALES + _STAGING + _ENDS
