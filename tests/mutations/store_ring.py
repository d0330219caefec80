"""Faults of the ring between consumers and store warp: what stages the output and what copies it away."""

from __future__ import annotations

from tests.mutations.mutant import Edit, deadlock, race

_TMA = "epilogue/tma_store.cuh"

_DEADLOCKS = (
    deadlock(
        "slot-never-handed-back",
        "the store warp does not say that a staging slot has been read",
        Edit(_TMA, "        ptx::mbarrier_arrive(&ring.empty[oldest.stage]);\n", ""),
    ),
    deadlock(
        "last-slots-kept",
        "the slots of a tile's last parts are not handed back",
        Edit(_TMA, "left = kReading; left > 0;", "left = kReading; left > kReading;"),
    ),
    deadlock(
        "batch-waits-for-its-own-store",
        "a slot of a batch is handed back only after the store of a part that is handed over with it",
        Edit(_TMA, "kReading = minimum(kSlots - kBatch, kParts - 1);", "kReading = kSlots - 1;"),
        sample="tall",
    ),
    deadlock(
        "batch-hands-over-its-first-part",
        "of the parts that are staged together the store warp is told of the first alone",
        Edit(
            _TMA,
            "if (ptx::lane_index() == 0) {\n                        ptx::mbarrier_arrive(&ring_.full[filled.stage]);",
            "if (i == first && ptx::lane_index() == 0) {\n ptx::mbarrier_arrive(&ring_.full[filled.stage]);",
        ),
        sample="tall",
    ),
)

_RACES = (
    race(
        "staging-not-awaited",
        "the store warp copies a staging slot that the consumers have not filled",
        Edit(_TMA, "                ring.wait_full(state);\n", ""),
    ),
    race(
        "slot-not-awaited",
        "consumers write a staging slot that the copies may still be reading",
        Edit(_TMA, "                    ring_.wait_empty(state_);\n", ""),
    ),
    race(
        "reading-not-awaited",
        "the store warp hands a slot back while the copies may still be reading it",
        Edit(_TMA, "        ptx::tma_store_wait_read<kLeft>();\n", ""),
    ),
    race(
        "youngest-reading-not-awaited",
        "the store warp hands a tile's last slots back while the copies may still be reading them",
        Edit(_TMA, "hand_back<0>(ring, oldest);", "hand_back<kReading>(ring, oldest);"),
        may_survive="the next tile is multiplied before its first part is staged, which takes longer than a copy reads",
    ),
    race(
        "first-warp-fills-the-slot",
        "a staging slot counts as full when the first of four warps has written its rows",
        Edit(_TMA, "initialize(kWarpsPerWarpgroup, 1)", "initialize(1, 1)"),
    ),
    race(
        "no-proxy-fence",
        "nothing makes ordinary writes to the staging slot visible to the copy engine",
        Edit(_TMA, "                ptx::fence_proxy_async();\n", ""),
        may_survive="the writes reach shared memory long before the store warp is awake and the copy engine reads; the "
        "fence is what the memory model demands for that to be so always",
    ),
    race(
        "warps-hand-over-unjoined",
        "a warp's first lane declares its rows staged without waiting for the others",
        Edit(_TMA, "ptx::fence_proxy_async();\n                __syncwarp();\n", "ptx::fence_proxy_async();\n"),
        may_survive="the lanes run in step there: nothing between the last write and the arrival divides the warp",
    ),
)

MUTANTS = _DEADLOCKS + _RACES
