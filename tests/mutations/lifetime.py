"""Faults at the beginning and the end of a CTA, and between one grid and the next."""

from __future__ import annotations

from tests.mutations.grouped import STRESS_GROUPED
from tests.mutations.mutant import RACE, Edit, Mutant, race

_DENSE = "kernels/dense.cuh"
_FENCE = "        ptx::fence_mbarrier_init();\n"
_SET_UP = "        set_up(params, shared, warp);\n"
_BEGIN = """\
        if (warp == 0 && ptx::elect_one()) {
            OperandLoader<Config>::begin(params, shared.operands, rank, walk);
        }
"""
_WALK = """\
        if (!Groups::kTilesAreKnown) {
            walk.advance();
        }
"""
_STAGES_AWAITED = """\
            for (uint32_t stage = 0; stage < Config::kStages; ++stage) {
                ring_.wait_empty(state_);
"""
_EMULATED = (
    "tests/jit/test_dense_emulated.py::test_products_are_right_on_an_emulated_hopper[64x64-s3-c2x1-200x136x656]",
)
_TWO_TILES = ("tests/gpu/test_masked.py::test_any_counts[576-272-300-counts2-two tiles]", *STRESS_GROUPED)
_FAULT_15 = "tests/gpu/faults/programmatic.py::test_fault_15_programmatic_launch_changes_no_bit"

_NO_INSTRUCTION = "sm_90a has no instruction for this fence; the barrier that follows is arrived at when it is done"

MUTANTS = (
    race(
        "barriers-used-before-they-are-there",
        "the warps of a CTA do not wait for the one that initialises the barriers",
        Edit(_DENSE, "            __syncthreads();\n        }\n        ptx::wait", "        }\n        ptx::wait"),
    ),
    race(
        "operands-asked-for-before-barriers-are-there",
        "the first operands are asked for ahead of the set-up",
        Edit(_DENSE, f"{_SET_UP}{_WALK}{_BEGIN}", f"{_BEGIN}{_SET_UP}{_WALK}"),
    ),
    race(
        "cluster-not-joined-at-set-up",
        "a CTA multicasts and arrives although the other may not have initialised its barriers",
        Edit(
            _DENSE, "            ptx::cluster_wait();\n        } else", "            __syncthreads();\n        } else"
        ),
        sample="cluster_m",
    ),
    race(
        "cluster-not-joined-at-tear-down",
        "a CTA leaves while the other of its cluster may still arrive at its barriers",
        Edit("mainloop/load.cuh", "                ring_.wait_empty(state_);\n", ""),
        sample="cluster_m",
    ),
    *(
        Mutant(
            f"cluster-joined-{name}-at-tear-down",
            f"a CTA leaves when it has seen the arrivals {which}, and the other may still send some",
            (Edit("mainloop/load.cuh", _STAGES_AWAITED, edited),),
            _EMULATED,
            RACE,
            gpu=False,
            sample="cluster_m",
        )
        for name, which, edited in (
            ("but-for-a-stage", "of all stages but one", _STAGES_AWAITED.replace("stage = 0", "stage = 1")),
            ("a-phase-late", "of a phase ago", f"            state_.parity ^= 1;\n{_STAGES_AWAITED}"),
        )
    ),
    race(
        "stages-passed-unseen",
        "a warpgroup without rows hands back stages that are not full yet, and may still be read as what they were",
        Edit(
            "mainloop/multiply.cuh",
            "            next_.wait();\n            release_.release(next_.full());\n",
            "            release_.release(next_.full());\n",
        ),
        tests=_TWO_TILES,
        sample="cluster_m",
    ),
    Mutant(
        "last-rows-passed-over",
        "a warpgroup of which the tile's last rows are takes them for none",
        (Edit("mainloop/multiply.cuh", ".row >= tile.end_of_d(rows)", ".row + 64 >= tile.end_of_d(rows)"),),
        _TWO_TILES[:1],
        sample="cluster_m",
    ),
    Mutant(
        "no-fence-after-barrier-init",
        "nothing makes initialised barriers visible to the cluster and to the copy engine",
        (Edit(_DENSE, _FENCE, ""),),
        (),
        gpu=False,
        sample="cluster_m",
        same_code=_NO_INSTRUCTION,
    ),
    Mutant(
        "barriers-fenced-by-another",
        "a warp that has not initialised the barriers makes its own, of which there are none, visible",
        (Edit(_DENSE, _FENCE, _FENCE.replace("ptx", "if (warp == 0) ptx")),),
        (),
        gpu=False,
        sample="cluster_m",
        same_code=_NO_INSTRUCTION,
    ),
    Mutant(
        "previous-grids-not-awaited",
        "a programmatic dependent reads its inputs without waiting for the grid that writes them",
        (Edit("ptx/thread.cuh", '    asm volatile("griddepcontrol.wait;" ::: "memory");\n', ""),),
        (
            f"{_FAULT_15}[64x64 amid swapped-a-our kernel-1]",
            f"{_FAULT_15}[swapped-a-our kernel-1]",
        ),
        RACE,
        chaos=True,
    ),
)
