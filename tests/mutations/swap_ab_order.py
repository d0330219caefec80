"""Faults of the small-M kernels' synchronisation: the ring, the sums of a cluster, and the grid ahead."""

from __future__ import annotations

from tests.mutations.mutant import RELEASED, STRESS_SWAPPED, WAITED, Edit, Mutant, deadlock, race

_KERNEL, _LOAD, _MULTIPLY = "kernels/swap_ab.cuh", "mainloop/swap_ab_load.cuh", "mainloop/swap_ab_multiply.cuh"
_PIPELINED = "mainloop/pipelined.cuh"
_SHARES = "epilogue/cluster_reduction.cuh"

_FAULT_15 = "tests/gpu/faults/programmatic.py::test_fault_15_programmatic_launch_changes_no_bit"
_SPILLS = ("tests/jit/test_swap_ab.py::test_kernels_do_not_spill_and_lose_no_overlap[shapes]",)


def _race(name: str, what: str, *edits: Edit, sample: str = "swapped", may_survive: str = "") -> Mutant:
    return race(f"swapped-{name}", what, *edits, tests=STRESS_SWAPPED, sample=sample, may_survive=may_survive)


def _hang(name: str, what: str, *edits: Edit, sample: str = "swapped") -> Mutant:
    return deadlock(f"swapped-{name}", what, *edits, tests=STRESS_SWAPPED, sample=sample)


def _late(name: str, what: str, *edits: Edit, cases: tuple[str, ...]) -> Mutant:
    """A fault that shows where the kernel ahead is still running."""
    return Mutant(f"swapped-{name}", what, edits, tuple(f"{_FAULT_15}[{case}]" for case in cases), sample="swapped")


_FILL = "ptx::mbarrier_arrive_expect_tx(&stages_.ring.full[step], Stages::kBytes"
_READERS = "shared.stages.ring.initialize(1, Shape::kLoadWarp"
_RING = (
    _race(
        "full-not-awaited",
        "consumers multiply a stage without waiting for its data",
        Edit(_MULTIPLY, "        stages_.ring.wait_full(state_);\n", ""),
    ),
    _race(
        "empty-not-awaited",
        "the loader overwrites stages that are still in use",
        Edit(_LOAD, "            stages_.ring.wait_empty(state);\n", ""),
    ),
    _race(
        "one-reader-too-few",
        "a stage counts as empty when all warps but one have said so",
        Edit(_KERNEL, _READERS, f"{_READERS} - 1"),
    ),
    _race(
        "bytes-expected-too-few",
        "a stage counts as full although as many bytes as its tokens have are missing",
        Edit(_LOAD, _FILL, f"{_FILL} - Stages::kTokenBytes"),
    ),
    _race(
        "release-before-the-products-are-there",
        "a stage is given away while the tensor cores may still read it",
        Edit(_PIPELINED, WAITED + RELEASED, RELEASED + WAITED),
        may_survive="a refill makes a round trip to L2 after the last warp has given the stage away, by which time the "
        "products that all warps have started are done",
    ),
    _hang(
        "one-reader-too-many",
        "a stage counts as empty only after one arrival more than there are warps",
        Edit(_KERNEL, _READERS, f"{_READERS} + 1"),
    ),
    _race(
        "barriers-used-before-they-are-there",
        "the consumers do not wait for the thread that initialises the barriers",
        Edit(_KERNEL, "        ptx::named_barrier_sync(kBarriersInitialized, Shape::kThreads);\n", ""),
    ),
    _race(
        "products-not-awaited",
        "a warp does not wait for the products of scales that other warps write",
        Edit(_KERNEL, "        ptx::named_barrier_sync(kProductsWritten, Shape::kConsumers);\n", ""),
    ),
    Mutant(
        "swapped-no-fence-after-barrier-init",
        "nothing makes initialised barriers visible to the cluster and to the copy engine",
        (Edit(_KERNEL, "            ptx::fence_mbarrier_init();\n", ""),),
        (),
        gpu=False,
        sample="swapped_cluster",
        same_code="sm_90a has no instruction for this fence; the barriers that follow order the initialisation",
    ),
)

# The assembler knows WGMMA's rules, puts in what is missing and warns.
_TENSOR_CORE = tuple(
    Mutant(f"swapped-{name}", what, (edit,), _SPILLS, gpu=False, sample="swapped")
    for name, what, edit in (
        (
            "one-group-left-running",
            "the sums of a wave are used while its WGMMAs may still be running",
            Edit(_PIPELINED, WAITED, WAITED.replace("kLater", "kLater + 1")),
        ),
        (
            "no-fence-before-wgmma",
            "nothing orders what was done with the registers before the WGMMAs that write them",
            Edit(_MULTIPLY, "        ptx::wgmma_fence();\n", ""),
        ),
    )
)

_SUMS = (
    _race(
        "sums-of-tokens-that-do-not-exist",
        "a warp sends the sums of tokens past M too, which no barrier expects",
        Edit(_SHARES, "first_pair + pair < pairs", "first_pair + pair < Shape::kTokens / 2"),
        sample="swapped_cluster",
    ),
    _hang(
        "sums-of-all-tokens-expected",
        "a CTA waits for the sums of tokens past M, which nobody sends",
        Edit(_SHARES, "Shape::kShares * pairs_of(tokens) *", "Shape::kShares * pairs_of(Shape::kTokens) *"),
        sample="swapped_cluster",
    ),
    _race(
        "shares-of-a-cta-not-awaited",
        "a warp does not wait for the sums of the other warps of its CTA",
        Edit(_SHARES, "            ptx::named_barrier_sync(kSharesStored, Shape::kConsumers);\n", ""),
    ),
    _race(
        "shares-of-a-cluster-not-awaited",
        "a CTA does not wait for the sums of the other CTAs of its cluster",
        Edit(_SHARES, "                ptx::mbarrier_wait_cluster(&shared.full, 0);\n", ""),
        sample="swapped_cluster",
    ),
    _race(
        "cluster-not-joined",
        "a CTA sends its sums although another may not have initialised its barriers",
        Edit(_SHARES, "            ptx::cluster_wait();  // until every CTA has initialised its barrier\n", ""),
        sample="swapped_cluster",
        may_survive="the CTAs of a cluster start together, and initialise their barriers in less time than the first "
        "of them takes to multiply its part of K",
    ),
)

_EARLY = """\
        if (params.static_weights == 0) {
            ptx::wait_for_previous_grids();
        }
"""
_LAUNCHES = (
    _late(
        "operands-loaded-before-they-are-written",
        "the loader does not wait for the grid that may be writing the tokens",
        Edit(_LOAD, "        ptx::wait_for_previous_grids();\n", ""),
        cases=("swapped-a-our kernel-1", "swapped, cluster of three, static-a-our kernel-1"),
    ),
    _late(
        "scales-read-before-they-are-written",
        "with static weights, the consumers do not wait for the grid that may be writing the scales of the tokens",
        Edit(_KERNEL, "        ptx::wait_for_previous_grids();\n        scales.write", "        scales.write"),
        cases=("swapped, static-scales_a-our kernel-1", "swapped, cluster of three, static-scales_a-our kernel-1"),
    ),
    _late(
        "weights-always-prefetched",
        "weights are loaded before the grid that may be writing them has ended, although they are not static",
        Edit(_LOAD, "weights_first_(params.static_weights != 0)", "weights_first_(true)"),
        cases=("swapped-b-our kernel-1", "swapped-b-our kernel-2"),
    ),
    _late(
        "weight-scales-always-prefetched",
        "scales of weights are read before the grid that may be writing them has ended, although they are not static",
        Edit(_KERNEL, _EARLY, ""),
        cases=("swapped-scales_b-our kernel-1", "swapped-scales_b-our kernel-2"),
    ),
)

MUTANTS = _RING + _TENSOR_CORE + _SUMS + _LAUNCHES
