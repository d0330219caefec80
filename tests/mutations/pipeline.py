"""Faults of synchronisation. Most lose a race only now and then, so they run in the chaos build, many times."""

from __future__ import annotations

from tests.mutations.mutant import FAULT, HANG, PROMOTE, RELEASED, STRESS, Edit, Mutant, deadlock, race

_DENSE, _MULTIPLY, _LOOPS = "kernels/dense.cuh", "mainloop/multiply.cuh", "mainloop/chunk_loops.cuh"
_LOAD, _COPIES = "mainloop/load.cuh", "mainloop/operand_copies.cuh"
_PIPELINED, _NEXT = "mainloop/pipelined.cuh", "mainloop/next_stage.cuh"
_RING, _MBARRIER = "pipeline/barrier_ring.cuh", "ptx/mbarrier.cuh"

_WAIT_FULL = "            ptx::mbarrier_wait(full_, state_.parity);\n"
_AWAITS = "        if (wave == 0 && !(kAwaitsAhead && wave_of_chunk == 0)) {\n"
_KEEP = "                scales_.keep(slot);  // of others beside the promotion of the wave before\n"
_KEEP_EARLY = """\
        if constexpr (Scales::kKeeps) {
            if (wave_of_chunk == 0) {
                scales_.keep(next_.index() * Stages::kBlocksPerStage + share());
            }
        }
"""
_ADVANCE = "        state_.advance();\n"
_LOOK = "is_full_ = ptx::mbarrier_test(full_, state_.parity);"
_IS_LAST = "kRest == 0 && k_block + kLength >= Waves::kSteps;"
_NEXT_CHUNK = "        k_block += kLength;\n        waves.await(k_block);\n"
_READERS = "Shape::kSharers * Shape::kWarpgroups * kWarpsPerWarpgroup);"
_EXPECT = "ptx::mbarrier_arrive_expect_tx(full, operands.stage_bytes()"
_FILL = "        copies_.template fill<kOfB>("
_SLOT = "        const uint32_t slot = flight.stage * Stages::kBlocksPerStage + share();\n"
# What a wave's products are made of, kept until the wave is finished.
_FACTORS = (
    Edit(
        _MULTIPLY,
        "        uint32_t stage;\n        uint32_t full; ",
        "        uint32_t stage, slot, k_block;\n        uint32_t full; ",
    ),
    Edit(
        _MULTIPLY,
        _SLOT,
        f"{_SLOT}        flight.slot = slot;\n        flight.k_block = k_block;\n",
    ),
)
_SOURCE = "&stages_.scales.a[flight.slot][first_row_ + m * Shape::kWaveM];"
_RELEASE = """\
        if (wave == kPerStep - 1) {
            if constexpr (Scales::kKeeps && !kPromotionReadsStage) {
                release_.wait_for(release_.pending(scales_.kept()));
            }
            release_.release(flight.full);
"""
_LOOKS = "        if (wave == kPerStep - 1) {\n            go_on();\n"
_LATE_PRODUCTS = "const auto late = scales_.products(flight.slot, flight.k_block, n,"
_PROMOTE_LATE = PROMOTE.replace("flight.products", "late")
_FINISH = "finish_wave<kInFlight - 1>(waves, wave + 1 - kInFlight, chunk, flights, sums);"


_OPERAND_RING = (
    race(
        "full-not-awaited",
        "consumers multiply a stage without waiting for its data",
        Edit(_NEXT, _WAIT_FULL, ""),
    ),
    race(
        "kept-scales-before-the-stage-is-full",
        "the row scales that are kept for a chunk's first wave are loaded before its stage is full",
        Edit(_MULTIPLY, _KEEP, ""),
        Edit(_MULTIPLY, _AWAITS, _KEEP_EARLY + _AWAITS),
        sample="row",
    ),
    race(
        "look-ahead-believed",
        "consumers take the next stage for full although it was not when they looked",
        Edit(_NEXT, _LOOK, _LOOK.replace(";", " || true;")),
    ),
    race(
        "look-ahead-at-the-same-stage",
        "consumers look whether the stage in use is full and take the answer for the next",
        Edit(_NEXT, _LOOK, ""),
        Edit(_NEXT, _ADVANCE, f"        {_LOOK}\n{_ADVANCE}"),
    ),
    race(
        "empty-not-awaited",
        "the loader overwrites stages that are still in use",
        Edit(_LOAD, f"        ring_.wait_empty(state_);\n{_FILL}", _FILL),
    ),
    race(
        "first-steps-asked-for-twice",
        "the load role begins with the steps that were asked for ahead of it",
        Edit(_LOAD, "bool has_begun = true;", "bool has_begun = false;"),
    ),
    Mutant(
        "ring-goes-on-from-its-first-place",
        "what follows the first steps is put where they are",
        (Edit(_LOAD, "        state_.advance();\n    }\n\n    template", "    }\n\n    template"),),
        STRESS,
        HANG | FAULT,  # of a barrier that is arrived at once too often
    ),
    race(
        "first-steps-of-every-tile-passed-over",
        "the load role takes the first steps of each tile for asked for",
        Edit(_LOAD, "                has_begun = false;\n", ""),
    ),
    race(
        "parity-not-flipped",
        "a pipeline state keeps its parity when it wraps",
        Edit(_RING, "            parity ^= 1;\n", ""),
    ),
    race(
        "one-reader-too-few",
        "a stage counts as empty when all warps but one have said so",
        Edit(_DENSE, _READERS, _READERS.replace(");", " - 1);")),
    ),
    race(
        "bytes-expected-too-few",
        "a stage counts as full although the bytes of one box of scales may be missing",
        Edit(_COPIES, _EXPECT, f"{_EXPECT} - Shape::kBlockM * 4"),
    ),
    race(
        "remote-arrival-at-home",
        "a consumer of a cluster tells its own loader twice that a stage is empty, and the other's never",
        Edit(_MBARRIER, "mapa.shared::cluster.u32 remote, %0, %1;", "mov.b32 remote, %0;"),
        sample="cluster_m",
    ),
    race(
        "scales-of-a-read-after-release",
        "the scales of A are read when the stage has been given away",
        *_FACTORS,
        Edit(
            _MULTIPLY,
            PROMOTE,
            f"const float* source = {_SOURCE}\nconst float late_a[2] = {{source[0], source[8]}};\n"
            f"{_LATE_PRODUCTS} late_a);\n{_PROMOTE_LATE}",
        ),
    ),
    race(
        "release-before-the-products-are-there",
        "a stage is given away while the tensor cores may still read it",
        Edit(_MULTIPLY, _RELEASE, _RELEASE.splitlines(keepends=True)[0]),
        Edit(
            _MULTIPLY,
            _LOOKS,
            f"release_.wait_for(flight.pending);\n{_LOOKS}            release_.release(flight.full);\n",
        ),
        may_survive="a refill makes a round trip to L2 after the last warp has given the stage away, by which time the "
        "products that all four warps have started are done",
    ),
    race(
        "release-one-wave-early",
        "with two waves in flight, a stage is given away when the wave before its last one is done",
        Edit(_PIPELINED, RELEASED, ""),
        Edit(_PIPELINED, f"{_FINISH}\n        }}\n", f"{_FINISH}\n        }}\n    {RELEASED}"),
        may_survive="the last wave was started before the one that is done, and a refill takes longer than it does",
    ),
    race(
        "warps-release-unjoined",
        "a warp's first lane gives the stage away without waiting for the others",
        Edit("mainloop/release.cuh", "        __syncwarp();\n", ""),
        may_survive="the lanes run in step there: the WGMMA before it is an instruction of the whole converged warp",
    ),
)

_DEADLOCKS = (
    deadlock(
        "loader-starts-on-the-wrong-phase",
        "a writer waits for the first phase of a barrier before it has written anything",
        Edit(_RING, "PipelineState{0, 1}", "PipelineState{0, 0}"),
    ),
    deadlock(
        "one-reader-too-many",
        "a stage counts as empty only after one arrival more than there are warps",
        Edit(_DENSE, _READERS, _READERS.replace(");", " + 1);")),
    ),
    deadlock(
        "bytes-expected-too-many",
        "a stage waits for a box of scales more than is loaded",
        Edit(_COPIES, _EXPECT, f"{_EXPECT} + Shape::kBlockM * 4"),
    ),
    deadlock(
        "missing-rows-expected",
        "a stage waits for the rows of A past M, which nobody loads",
        Edit(_COPIES, "(a.missing + b.missing)", "b.missing"),
    ),
    deadlock(
        "missing-columns-expected",
        "a stage waits for the rows of B past N, which nobody loads",
        Edit(_COPIES, "(a.missing + b.missing)", "a.missing"),
    ),
    deadlock(
        "long-chunk-counted-as-short",
        "consumers go through more K blocks than there are, because long chunks count as short ones",
        Edit(_LOOPS, "k_block += Chunks::kLong;", "k_block += Chunks::kShort;"),
    ),
    deadlock(
        "short-chunk-not-counted",
        "consumers go through short chunks without end",
        Edit(_LOOPS, "k_block += Chunks::kShort;", "k_block += 0;"),
    ),
    deadlock(
        "equal-chunk-not-counted",
        "consumers go through chunks of one length without end",
        Edit(_LOOPS, _NEXT_CHUNK, _NEXT_CHUNK.replace("+= kLength", "+= 0")),
        sample="ahead",
    ),
    race(
        "rest-of-k-dropped",
        "the K blocks after the last whole chunk are not multiplied, and their stages never given back",
        Edit(_LOOPS, "while (k_block < Waves::kSteps) {", "while (k_block + Chunks::kShort <= Waves::kSteps) {"),
    ),
    race(
        "rest-of-k-dropped-behind-equal-chunks",
        "the same where chunks are of one length",
        Edit(_LOOPS, _IS_LAST, "k_block + 2 * kLength > Waves::kSteps;"),
        sample="ahead",
    ),
    race(
        "first-stage-of-a-tile-not-awaited",
        "the first chunk of a tile begins before its first stage is full",
        Edit(_LOOPS, "    uint32_t k_block = 0;\n    waves.await(k_block);\n", "    uint32_t k_block = 0;\n"),
        sample="ahead",
    ),
    race(
        "stage-of-the-next-chunk-not-awaited",
        "a chunk begins before its first stage is full",
        Edit(_LOOPS, _NEXT_CHUNK, _NEXT_CHUNK.replace("waves.await(k_block);", "")),
        sample="ahead",
    ),
    race(
        "end-of-k-overlooked",
        "a chunk that K ends in goes on with the stages of the next tile; chunks of one length then never end",
        Edit(_PIPELINED, "chunk.first_step + kRest == Waves::kSteps", "chunk.first_step + kRest == Waves::kSteps + 1"),
    ),
    race(
        "in-flight-at-the-end-of-k",
        "the last wave of a chunk that K ends in is never promoted, and its stage never given back",
        Edit(_PIPELINED, "                finish_wave<0>(waves, wave - 1, chunk, flights, sums);\n", ""),
    ),
)

# The assembler knows WGMMA's rules, puts in what is missing and warns; a test holds every kernel to no such warning.
_WARNED = ("tests/jit/test_kernels.py::test_kernels_do_not_spill_and_lose_no_overlap[4096x128-tma]",)

_TENSOR_CORE = (
    Mutant(
        "one-group-left-running",
        "the sums of a wave are used while its WGMMAs may still be running",
        (Edit(_PIPELINED, _FINISH, _FINISH.replace("kInFlight - 1", "kInFlight", 1)),),
        _WARNED,
        gpu=False,
    ),
    Mutant(
        "one-group-left-running-at-the-end-of-a-chunk",
        "the sums of a chunk's last wave are used while its WGMMAs may still be running",
        tuple(
            Edit(_PIPELINED, f"finish_wave<0>({last}", f"finish_wave<1>({last}")
            for last in ("waves, wave - 1,", "waves, kWaves - 1,")
        ),
        _WARNED,
        gpu=False,
    ),
    Mutant(
        "no-fence-before-wgmma",
        "nothing orders what was done with the registers before the WGMMAs that write them",
        (Edit("mainloop/wave_operands.cuh", "        ptx::wgmma_fence();\n", ""),),
        _WARNED,
        gpu=False,
    ),
    Mutant(
        "group-not-committed",
        "the WGMMAs of a wave are in no group that could be waited for",
        (Edit("mainloop/wave_operands.cuh", "        ptx::wgmma_commit();\n", ""),),
        (),
        gpu=False,
        same_code="the assembler ends a group at the last WGMMA before a wait, asked or not",
    ),
)

MUTANTS = _OPERAND_RING + _DEADLOCKS + _TENSOR_CORE
