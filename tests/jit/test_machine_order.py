"""What must come before what in the kernels, read in their machine code, under each NVRTC that there is.

Every family with a ring: single and grouped products of both scalings, all tiles, both stores, with and without
addends, and the swapped orientation. The claims are those of the table in docs/architecture.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from fp8gemm.jit import headers
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning import hopper
from fp8gemm.tuning.candidates import candidate_configs, deepest_config
from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import pair_candidates
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.jit import order
from tests.jit.listing import Listing
from tests.jit.nvrtcs import compile_with, is_older, libraries
from tests.jit.sass import disassemble, disassemblers
from tests.swap_ab import SPREAD
from tests.thirds import third_of

TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED
BF16, F16, F32 = OutputType.BFLOAT16, OutputType.FLOAT16, OutputType.FLOAT32
GROUPED = (
    GroupedProblem(Grouping.CONTIGUOUS, 8, 64, 584, 1168),
    GroupedProblem(Grouping.CONTIGUOUS, 8, 64, 577, 128, F32, PREDICATED),
    GroupedProblem(Grouping.MASKED, 1024, 64, 65, 128, F16, PREDICATED),
    GroupedProblem(Grouping.MASKED, 8, 64, 584, 2048),
    GroupedProblem(Grouping.COLUMNS, 8, 64, 577, 128, F32, PREDICATED),
    GroupedProblem(Grouping.COLUMNS, 8, 64, 584, 128, F32, c=Addend.FLOAT32),
    GroupedProblem(Grouping.COLUMNS, 8, 64, 584, 128, F32),
    GroupedProblem(Grouping.COLUMNS, 8, 64, 584, 128, F32, c=Addend.IN_PLACE),
)


def single() -> Iterator[tuple[Problem, Config]]:
    for scaling, store, k in product(Scaling, StoreKind, (128, 2048)):
        if store is TMA and k == 128:
            continue  # nothing but element-wise stores of the tile before makes loads late
        output = F32 if scaling is Scaling.ROW or store is PREDICATED else BF16
        problem = Problem(1, 584 if store is TMA else 577, k, output, store, scaling)
        yield from ((problem, config) for config in candidate_configs(store, output, scaling))
    for scaling in Scaling:
        added = Problem(1, 577, 1168, F32, PREDICATED, scaling, Addend.FLOAT32, Addend.BFLOAT16)
        yield from ((added, config) for config in candidate_configs(PREDICATED, F32, scaling))
    in_place = Problem(1, 584, 2048, F32, scaling=Scaling.ROW).accumulating()
    yield from ((in_place, config) for config in candidate_configs(TMA, F32, Scaling.ROW))
    # Scales that are loaded ahead: of two waves above each other, and where those of the weight are fetched anew. K
    # that a cluster divides, of every orientation of warpgroups. And row scales of a stage that two CTAs share.
    for problem, label in (
        (Problem(1, 584, 1168), "256x128"),
        (Problem(1, 577, 4224, F32, PREDICATED), "256x128"),
        (Problem(1, 584, 4224), "128x256"),
        (Problem(1, 584, 2048), "128x128-split2"),
        (Problem(1, 577, 1168, F32, PREDICATED), "128x192-split3"),
        (Problem(1, 577, 2048, F32, PREDICATED, Scaling.ROW), "64x128-split4"),
        (Problem(1, 584, 4224, F32, TMA, Scaling.ROW), "128x128-c2x1"),
        (Problem(1, 584, 2048, store=TMA, scaling=Scaling.ROW), "128x192-c2x1"),
    ):
        yield problem, labelled_config(label, problem)
    for index, config in enumerate(SPREAD):
        store = (TMA, PREDICATED)[index % 2]
        yield Problem(1, 584 if store is TMA else 577, (7168, 1168)[index % 2], store=store, c=Addend.FLOAT32), config


def groups() -> Iterator[tuple[GroupedProblem, Config]]:
    for problem in GROUPED:
        ranked = ranked_grouped(problem, hopper.CHIPS["h200"])
        yield from ((problem, config) for config in ranked if isinstance(config, TileConfig))
        yield from [(problem, config) for config in ranked if isinstance(config, SwapAbConfig)][:3]
        yield from ((problem, config) for config in pair_candidates(replace(problem, m=0), hopper.CHIPS["h200"]))


@dataclass(frozen=True)
class Kernel:
    """What is compiled."""

    request: KernelRequest
    config: Config
    scaling: Scaling

    @property
    def promotes_alone(self) -> bool:
        """Whether no wave is in flight when it promotes one by row scales that it reads from the stage."""
        config = self.config
        return isinstance(config, TileConfig) and self.scaling is Scaling.ROW and config.waves_in_flight == 1

    @property
    def loads_ahead(self) -> bool:
        """Whether it loads scales of the next K block beside a wave: mainloop/block_scales.cuh."""
        config = self.config
        if not isinstance(config, TileConfig) or self.scaling is not Scaling.BLOCK:
            return False
        return config.waves_in_flight == 1 and config.waves > config.warpgroups

    @property
    def divides_k(self) -> bool:
        """Whether the CTAs of a cluster do, in the ordinary orientation."""
        return isinstance(self.config, TileConfig) and self.config.split_k > 1

    @property
    def shares_operands(self) -> bool:
        """Whether the CTAs of a cluster do."""
        return isinstance(self.config, TileConfig) and self.config.cluster_m * self.config.cluster_n > 1

    @property
    def traits(self) -> tuple[bool, ...]:
        """What makes its machine code one of another sort."""
        return self.promotes_alone, self.loads_ahead, self.divides_k, self.shares_operands


def kernels() -> list[Kernel]:
    found = [Kernel(kernel_request(problem, config), config, problem.scaling) for problem, config in single()]
    found += [Kernel(kernel_request(problem, config), config, problem.scaling) for problem, config in groups()]
    return list({kernel.request: kernel for kernel in found}.values())


Compiled = list[tuple[Kernel, Listing]]


def compile_all(library: str, wanted: list[Kernel], target: Path) -> Compiled:
    """Kernels and their machine code; the test is skipped if nothing here can disassemble it."""
    tool = next(disassemblers(), None)
    if tool is None:
        pytest.skip("no nvdisasm on PATH, in the package nvidia-cuda-nvdisasm or in triton")
    _, cubins = compile_with(library, [kernel.request for kernel in wanted], target, headers.include_dir())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        texts = list(pool.map(partial(_listing, tool), cubins))
    parsed = [Listing.parse(kernel.request.label, text) for kernel, text in zip(wanted, texts, strict=True)]
    assert all(len(listing.instructions) > 300 for listing in parsed), "a listing is not understood"
    return list(zip(wanted, parsed, strict=True))


@pytest.fixture(
    scope="module",
    params=["", *libraries()],
    ids=["the NVRTC in use", *map(os.path.basename, libraries())],
)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """All kernels whose turn it is, of a compiler that is older than the one in use, whose instructions are much the
    same, a fifth of them; and always one of each sort."""
    wanted = kernels()
    taken = range(0, len(wanted), 5 if is_older(request.param) else 1)
    chosen = third_of(taken, lambda index: wanted[index].request.label)
    wanted = [wanted[index] for index in sorted({*chosen, *_first_of_each_sort(wanted)})]
    return compile_all(request.param, wanted, tmp_path_factory.mktemp("order") / "kernels")


def _first_of_each_sort(wanted: list[Kernel]) -> list[int]:
    sorts = [(kernel.request.family, kernel.scaling, *kernel.traits) for kernel in wanted]
    return [sorts.index(sort) for sort in dict.fromkeys(sorts)]


def _listing(tool: Path, cubin: Path) -> str:
    text = disassemble(tool, cubin)
    assert text is not None, f"{tool} does not read {cubin}"
    return text


def ordinary(compiled: Compiled) -> Iterator[tuple[Kernel, Listing]]:
    return ((kernel, listing) for kernel, listing in compiled if isinstance(kernel.config, TileConfig))


def late_loads(kernel: Kernel, listing: Listing) -> list[str]:
    config = kernel.config
    keeps_some = isinstance(config, TileConfig) and kernel.scaling is Scaling.ROW
    keeps_some = keeps_some and kept_pairs(config) < config.wave_cols // 8
    return order.late_loads(listing, ahead=kernel.loads_ahead, keeps_some=keeps_some)


def unscaled_promotions(kernel: Kernel, listing: Listing) -> list[str]:
    """With row scales on both sides, waves that are promoted without those of all their columns that are not kept."""
    if kernel.scaling is not Scaling.ROW:
        return []
    assert isinstance(kernel.config, TileConfig)
    return order.unscaled_promotions(listing, kernel.config.wave_cols // 8, kept_pairs(kernel.config))


def kept_pairs(config: TileConfig) -> int:
    """Pairs of scales of B's rows that are loaded a wave ahead: all of waves above one another, and all beside one wave
    in flight where there is room (mainloop/row_scales.cuh)."""
    pairs = config.wave_cols // 8
    is_stacked = config.block_m > 64 * config.warpgroups_m
    has_room = config.waves_in_flight == 1 and config.wave_cols <= 160
    return pairs if is_stacked or has_room else min(pairs, 4)


def test_every_family_is_among_them(compiled: Compiled) -> None:
    assert {kernel.request.family for kernel, _ in compiled} >= {"Dense", "Grouped", "SwapAb", "GroupedSwapAb"}
    assert {kernel.promotes_alone for kernel, _ in compiled} == {False, True}
    assert {kernel.loads_ahead for kernel, _ in compiled} == {False, True}


def test_a_stage_is_handed_back_when_its_scales_are_in_registers(compiled: Compiled) -> None:
    wrong = {listing.label: late for kernel, listing in ordinary(compiled) if (late := late_loads(kernel, listing))}
    shown = "\n".join(f"{label}: {late[0]}, and {len(late) - 1} more" for label, late in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(compiled)} kernels:\n{shown}"


def test_scales_of_a_choice_of_kernels_are_in_registers(tmp_path: Path) -> None:
    """The test above on kernels of one wave and two, and on two that load scales ahead, of waves one below another
    and side by side: few enough for faulty headers to be tried one after the other."""
    wanted = [
        Kernel(kernel_request(problem, config), config, problem.scaling)
        for scaling, tile in product(Scaling, (Tile(64, 64), Tile(256, 64), Tile(64, 128), Tile(128, 192)))
        if (config := deepest_config(tile, PREDICATED, F32, scaling)) is not None
        for problem in (Problem(1, *((65, 128) if tile.block_n < 128 else (577, 1168)), F32, PREDICATED, scaling),)
    ]
    ahead = Problem(1, 65, 1168, F32, PREDICATED)
    for label in ("256x128", "128x256"):
        config = labelled_config(label, ahead)
        wanted.append(Kernel(kernel_request(ahead, config), config, ahead.scaling))
    for kernel, listing in compile_all("", wanted, tmp_path / "kernels"):
        assert order.scale_loads(listing)
        late = late_loads(kernel, listing) + order.loads_of_stages_given_away(listing)
        assert late == order.unbound_scales(listing) == unscaled_promotions(kernel, listing) == [], listing.label


def test_the_loads_that_are_looked_at_are_there(compiled: Compiled) -> None:
    """A test of order that finds nothing to order would pass."""
    for kernel, listing in ordinary(compiled):
        assert order.scale_loads(listing), kernel.request.label


def test_scales_are_part_of_the_address_of_an_arrival(compiled: Compiled) -> None:
    """Whatever the assembler makes of the order."""
    wrong = {listing.label: found for _, listing in ordinary(compiled) if (found := order.unbound_scales(listing))}
    assert not wrong


def test_promotion_reads_a_stage_before_it_is_handed_back(compiled: Compiled) -> None:
    wrong = {
        listing.label: found
        for kernel, listing in ordinary(compiled)
        if (found := order.loads_of_stages_given_away(listing) + unscaled_promotions(kernel, listing))
    }
    assert not wrong


def test_all_arrivals_and_loads_are_known(compiled: Compiled) -> None:
    assert set[str]().union(*(order.unknown_opcodes(listing) for _, listing in compiled)) == set()


def test_what_is_saved_is_little(compiled: Compiled) -> None:
    """NVRTC 12.4 saves two registers of K-grouped 64x256; newer ones none (test_kernels.py, test_grouped.py)."""
    assert all(len(listing.where(r"LDL|STL")) <= 4 for _, listing in compiled)


def test_what_is_staged_is_visible_before_it_is_handed_over(compiled: Compiled) -> None:
    wrong = {listing.label: late for _, listing in ordinary(compiled) if (late := order.unfenced_staging(listing))}
    assert not wrong


def test_a_slot_is_handed_back_when_it_has_been_read(compiled: Compiled) -> None:
    wrong = {listing.label: late for _, listing in compiled if (late := order.unread_slots(listing))}
    assert not wrong


def test_nothing_is_written_before_the_grids_ahead_have_ended(compiled: Compiled) -> None:
    wrong = {listing.label: early for _, listing in compiled if (early := order.early_writes(listing))}
    assert not wrong


def test_a_cluster_is_told_of_barriers_that_are_there(compiled: Compiled) -> None:
    wrong = {listing.label: late for _, listing in compiled if (late := order.barriers_shown_too_early(listing))}
    assert not wrong and any(listing.where("UCGABAR_ARV") for _, listing in compiled)


def test_a_cta_does_not_end_while_others_arrive_at_its_barriers(compiled: Compiled) -> None:
    wrong = {listing.label: early for _, listing in compiled if (early := order.arrivals_at_nobody(listing))}
    assert not wrong and any(listing.where(r"SYNCS\.ARRIVE\.TRANS64\.RED") for _, listing in compiled)


def test_sums_are_sent_to_those_that_have_barriers(compiled: Compiled) -> None:
    senders = [listing for _, listing in compiled if listing.where("STAS")]
    wrong = {listing.label: late for listing in senders if (late := order.unjoined_sums(listing))}
    assert not wrong and len(senders) >= sum(kernel.divides_k for kernel, _ in compiled) > 0
