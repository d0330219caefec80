"""Faults of synchronisation. Most lose a race only now and then, so they run in the chaos build, many times."""

from __future__ import annotations

from tests.mutations.mutant import HANG, RACE, Edit, Mutant

_DENSE, _MULTIPLY, _LOAD, _TMA = (
    "kernels/dense.cuh",
    "mainloop/multiply.cuh",
    "mainloop/load.cuh",
    "epilogue/tma_store.cuh",
)
_RING, _MBARRIER = "pipeline/barrier_ring.cuh", "ptx/mbarrier.cuh"

_STRESS = ("tests/gpu/test_stress.py::test_launches_of_small_shapes_are_right",)

_FAULT_15 = "tests/gpu/faults/programmatic.py::test_fault_15_programmatic_launch_changes_no_bit"

_WAIT_FULL = """\
            if (!stage_is_full_) {
                ring_.wait_full(state_);
            }
"""
_LOOK_AHEAD = """\
        state_.advance();
        stage_is_full_ = ring_.is_full(state_);
"""
_READERS = "Shape::kClusterSize * Shape::kWarpgroups * kWarpsPerWarpgroup);"
_EXPECT = "ptx::mbarrier_arrive_expect_tx(full, Stages::kBytes"
_SCALES_A = """\
            scales_a[m][0] = source[0];
            scales_a[m][1] = source[8];
"""
_PROMOTE = "Scales::promote(scales_a[m], scales_b, block_sums, accumulators[m][n]);"
_RELEASE = """\
                if (last_wave) {
                    release_stage(stage);
                }
"""
_LOOK_WAIT = """\
                    look_ahead();
                }
                ptx::wgmma_wait<0>();
"""


def _race(name: str, what: str, *edits: Edit, sample: str = "plain", may_survive: str = "") -> Mutant:
    return Mutant(name, what, edits, _STRESS, RACE, chaos=True, sample=sample, may_survive=may_survive)


def _deadlock(name: str, what: str, *edits: Edit, sample: str = "plain") -> Mutant:
    return Mutant(name, what, edits, _STRESS, HANG, sample=sample)


_OPERAND_RING = (
    _race(
        "full-not-awaited",
        "consumers multiply a stage without waiting for its data",
        Edit(_MULTIPLY, _WAIT_FULL, ""),
    ),
    _race(
        "look-ahead-believed",
        "consumers take the next stage for full although it was not when they looked",
        Edit(_MULTIPLY, "stage_is_full_ = ring_.is_full(state_);", "stage_is_full_ = ring_.is_full(state_) || true;"),
    ),
    _race(
        "look-ahead-at-the-same-stage",
        "consumers look whether the stage in use is full and take the answer for the next",
        Edit(_MULTIPLY, _LOOK_AHEAD, "".join(reversed(_LOOK_AHEAD.splitlines(keepends=True)))),
    ),
    _race(
        "empty-not-awaited",
        "the loader overwrites stages that are still in use",
        Edit(_LOAD, "        ring_.wait_empty(state);\n", ""),
    ),
    _race(
        "parity-not-flipped",
        "a pipeline state keeps its parity when it wraps",
        Edit(_RING, "            parity ^= 1;\n", ""),
    ),
    _race(
        "one-reader-too-few",
        "a stage counts as empty when all warps but one have said so",
        Edit(_DENSE, _READERS, _READERS.replace(");", " - 1);")),
    ),
    _race(
        "bytes-expected-too-few",
        "a stage counts as full although the bytes of one box of scales may be missing",
        Edit(_LOAD, _EXPECT, f"{_EXPECT} - Shape::kBlockM * 4"),
    ),
    _race(
        "remote-arrival-at-home",
        "a consumer of a cluster tells its own loader twice that a stage is empty, and the other's never",
        Edit(_MBARRIER, "mapa.shared::cluster.u32 remote, %0, %1;", "mov.b32 remote, %0;"),
        sample="cluster_m",
    ),
    _race(
        "scales-of-a-read-after-release",
        "the scales of A are read when the stage has been given away",
        Edit(_MULTIPLY, _SCALES_A, ""),
        Edit(
            _MULTIPLY,
            _PROMOTE,
            "const float* late = &stages_.scales.a[stage][first_row_ + m * Shape::kWaveM];\n"
            f"scales_a[m][0] = late[0];\nscales_a[m][1] = late[8];\n{_PROMOTE}",
        ),
    ),
    _race(
        "scales-of-b-read-after-release",
        "the row scales of B are read when the stage has been given away",
        Edit(_MULTIPLY, "const typename Scales::Wave scales_b = scales.of_wave(stage, n);", ""),
        Edit(_MULTIPLY, _PROMOTE, _PROMOTE.replace("scales_b", "scales.of_wave(stage, n)")),
        sample="row",
    ),
    _race(
        "release-before-the-products-are-there",
        "a stage is given away while the tensor cores may still read it",
        Edit(_MULTIPLY, _RELEASE, ""),
        Edit(_MULTIPLY, _LOOK_WAIT, _LOOK_WAIT.replace("look_ahead();", "look_ahead();\nrelease_stage(stage);")),
        may_survive="a refill makes a round trip to L2 after the last warp has given the stage away, by which time the "
        "products that all four warps have started are done",
    ),
    _race(
        "warps-release-unjoined",
        "a warp's first lane gives the stage away without waiting for the others",
        Edit(_MULTIPLY, "        __syncwarp();\n", ""),
        may_survive="the lanes run in step there: the WGMMA before it is an instruction of the whole converged warp",
    ),
)

_DEADLOCKS = (
    _deadlock(
        "loader-starts-on-the-wrong-phase",
        "a writer waits for the first phase of a barrier before it has written anything",
        Edit(_RING, "PipelineState{0, 1}", "PipelineState{0, 0}"),
    ),
    _deadlock(
        "one-reader-too-many",
        "a stage counts as empty only after one arrival more than there are warps",
        Edit(_DENSE, _READERS, _READERS.replace(");", " + 1);")),
    ),
    _deadlock(
        "bytes-expected-too-many",
        "a stage waits for a box of scales more than is loaded",
        Edit(_LOAD, _EXPECT, f"{_EXPECT} + Shape::kBlockM * 4"),
    ),
    _deadlock(
        "slot-never-handed-back",
        "the store warp does not say that a staging slot has been read",
        Edit(_TMA, "                ptx::mbarrier_arrive(&ring.empty[state.stage]);\n", ""),
    ),
)

# The assembler knows WGMMA's rules, puts in what is missing and warns; a test holds every kernel to no such warning.
_WARNED = ("tests/jit/test_kernels.py::test_kernels_do_not_spill_and_lose_no_overlap[4096x128-tma]",)

_TENSOR_CORE = (
    Mutant(
        "one-group-left-running",
        "the sums of a wave are used while its WGMMAs may still be running",
        (Edit(_MULTIPLY, "ptx::wgmma_wait<0>();", "ptx::wgmma_wait<1>();"),),
        _WARNED,
        gpu=False,
    ),
    Mutant(
        "no-fence-before-wgmma",
        "nothing orders what was done with the registers before the WGMMAs that write them",
        (Edit(_MULTIPLY, "        ptx::wgmma_fence();\n", ""),),
        _WARNED,
        gpu=False,
    ),
    Mutant(
        "group-not-committed",
        "the WGMMAs of a wave are in no group that could be waited for",
        (Edit(_MULTIPLY, "        ptx::wgmma_commit();\n", ""),),
        (),
        gpu=False,
        same_code="the assembler ends a group at the last WGMMA before a wait, asked or not",
    ),
)

_STORE_RING = (
    _race(
        "staging-not-awaited",
        "the store warp copies a staging slot that the consumers have not filled",
        Edit(_TMA, "                ring.wait_full(state);\n", ""),
    ),
    _race(
        "slot-not-awaited",
        "consumers write a staging slot that the copies may still be reading",
        Edit(_TMA, "                    ring_.wait_empty(state_);\n", ""),
    ),
    _race(
        "reading-not-awaited",
        "the store warp hands a slot back while the copies may still be reading it",
        Edit(_TMA, "                ptx::tma_store_wait_read();\n", ""),
    ),
    _race(
        "first-warp-fills-the-slot",
        "a staging slot counts as full when the first of four warps has written its rows",
        Edit(_TMA, "initialize(kWarpsPerWarpgroup, 1)", "initialize(1, 1)"),
    ),
    _race(
        "no-proxy-fence",
        "nothing makes ordinary writes to the staging slot visible to the copy engine",
        Edit(_TMA, "                    ptx::fence_proxy_async();\n", ""),
        may_survive="the writes reach shared memory long before the store warp is awake and the copy engine reads; the "
        "fence is what the memory model demands for that to be so always",
    ),
    _race(
        "warps-hand-over-unjoined",
        "a warp's first lane declares its rows staged without waiting for the others",
        Edit(_TMA, "                    __syncwarp();\n", ""),
        may_survive="the lanes run in step there: nothing between the last write and the arrival divides the warp",
    ),
)

_LIFE = (
    _race(
        "barriers-used-before-they-are-there",
        "the warps of a CTA do not wait for the one that initialises the barriers",
        Edit(
            _DENSE, "        synchronize();\n        ptx::wait_for_previous_grids();", "ptx::wait_for_previous_grids();"
        ),
    ),
    _race(
        "cluster-not-joined-at-set-up",
        "a CTA multicasts and arrives although the other may not have initialised its barriers",
        Edit(
            _DENSE,
            "        synchronize();\n        ptx::wait_for_previous_grids();",
            "__syncthreads();\n        ptx::wait_for_previous_grids();",
        ),
        sample="cluster_m",
    ),
    _race(
        "cluster-not-joined-at-tear-down",
        "a CTA leaves while the other of its cluster may still arrive at its barriers",
        Edit(
            _DENSE,
            "if constexpr (Shape::kClusterSize > 1) {\n            synchronize();\n        }\n    }",
            "}",
        ),
        sample="cluster_m",
    ),
    Mutant(
        "no-fence-after-barrier-init",
        "nothing makes initialised barriers visible to the cluster and to the copy engine",
        (Edit(_DENSE, "            ptx::fence_mbarrier_init();\n", ""),),
        (),
        gpu=False,
        sample="cluster_m",
        same_code="sm_90a has no instruction for this fence; the barrier that follows orders the initialisation",
    ),
    Mutant(
        "previous-grids-not-awaited",
        "a programmatic dependent reads its inputs without waiting for the grid that writes them",
        (Edit("ptx/thread.cuh", '    asm volatile("griddepcontrol.wait;" ::: "memory");\n', ""),),
        (
            f"{_FAULT_15}[1d2d, 64x64, no cluster-1-our kernel-a]",
            f"{_FAULT_15}[1d2d, 64x64, no cluster-1-our kernel-c]",
        ),
        RACE,
        chaos=True,
        may_survive="no kernel lets its dependents begin early, so they begin when all of its CTAs have ended",
    ),
)

MUTANTS = _OPERAND_RING + _DEADLOCKS + _TENSOR_CORE + _STORE_RING + _LIFE
