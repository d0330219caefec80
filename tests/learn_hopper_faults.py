"""Lines of examples/learn_hopper whose absence, or place, is a fault: what docs/learn-hopper.md says goes wrong."""

from __future__ import annotations

from dataclasses import dataclass

HANGS = "every thread waits"


@dataclass(frozen=True)
class Fault:
    """What is changed in a kernel, and what an emulated Hopper makes of it.

    Attributes:
        entry: of the kernel.
        name: for people.
        edits: texts, each of which is there once, and what comes in their place.
        outcome: what is said of it besides a wrong result; empty where that is all that shows.
    """

    entry: str
    name: str
    edits: tuple[tuple[str, str], ...]
    outcome: str = ""

    def apply(self, source: str) -> str:
        for old, new in self.edits:
            assert source.count(old) == 1, f"{self.name}: {old!r} is there {source.count(old)} times"
            source = source.replace(old, new)
        return source


def without(text: str) -> tuple[tuple[str, str], ...]:
    return ((text, ""),)


def _moved(text: str, ahead_of: str) -> tuple[tuple[str, str], ...]:
    """The text stands ahead of another, and no longer where it was."""
    return (text, ""), (ahead_of, f"{text}\n{ahead_of}")


_STATE_OF_STEP_5 = (
    ("        auto state = Ring::State::for_reader();\n        for", "        for"),
    (
        "            Fragment sums = {};\n",
        "            auto state = Ring::State::for_reader();\n            Fragment sums = {};\n",
    ),
)
_RELEASE = """if (ptx::lane_index() == 0) {
            ptx::mbarrier_arrive(&shared.ring.empty[state.stage]);
        }"""
_LEFT, _OUTLIVES = "// the tile before has left", "// shared memory outlives the last store's reads"

FAULTS = (
    Fault("tma_ring", "the producer starts at the readers' phase", (("for_writer()", "for_reader()"),), HANGS),
    Fault("tma_ring", "the readers start at the writer's phase", (("for_reader()", "for_writer()"),)),
    Fault("tma_ring", "no bytes are expected", (("arrive_expect_tx(full, kTileBytes)", "arrive(full)"),)),
    Fault("tma_ring", "twice the bytes are expected", (("(full, kTileBytes)", "(full, 2 * kTileBytes)"),), HANGS),
    Fault("tma_ring", "the swizzle is not undone", (("(piece ^ row % 8)", "piece"),)),
    Fault("tma_ring", "the barriers are not fenced", without("ptx::fence_mbarrier_init();"), "does not know"),
    Fault("tma_ring", "nobody waits for the barriers", without("__syncthreads();"), "not initialised"),
    Fault("tma_ring", "a stage is released before the read", _moved(_RELEASE, "const uint8_t* tile")),
    Fault("tma_ring", "one lane does not wait for the others", without("__syncwarp();")),
    Fault("wgmma", "the result is not waited for", without("ptx::wgmma_wait<0>();")),
    Fault("wgmma", "registers are not fenced", without("ptx::wgmma_fence();"), "without a fence"),
    Fault("wgmma", "the bytes of B are not expected", without(" + sizeof(shared.b)")),
    Fault("promotion", "a stage is released before the multiplication", _moved(_RELEASE, "ptx::wgmma_wait<0>();")),
    Fault("promotion", "both rows have the upper one's scale", (("i % 4 < 2 ? s_upper : s_lower", "s_upper"),)),
    Fault("warp_roles", "no registers are given back", without("ptx::decrease_registers<40>();"), HANGS),
    Fault("warp_roles", "half of the readers are counted", (("initialize(1, 8)", "initialize(1, 4)"),)),
    Fault("warp_roles", "the bytes of the scales are not expected", without(" + sizeof(stages.scales_a[0])")),
    Fault("persistent", "the phase starts anew with each tile", _STATE_OF_STEP_5),
    Fault("persistent", "what is staged is not fenced", without("ptx::fence_proxy_async();")),
    Fault("persistent", "a staged tile is not waited for", without(f"ptx::tma_store_wait_read();  {_LEFT}")),
    Fault(
        "persistent",
        "one thread alone knows that a staged tile has left",
        (("ptx::named_barrier_sync(barrier, 128);\n    const uint32_t staged", "const uint32_t staged"),),
    ),
    Fault(
        "persistent",
        "a tile is stored before all of it is staged",
        (("fence_proxy_async();\n    ptx::named_barrier_sync(barrier, 128);", "fence_proxy_async();"),),
    ),
    Fault(
        "persistent",
        "shared memory ends before it is read",
        without(f"ptx::tma_store_wait_read();  {_OUTLIVES}"),
        "ends before its bulk stores",
    ),
)
