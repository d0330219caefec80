"""The kernels of grouped products compile to what their design counts on; the device refuses what it cannot do.

They share their parts with those of single products, which `test_kernels.py`, `test_swap_ab.py` and `test_sass.py` look
at closely; here is a choice of them, each tile with some grouping, store and output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.errors import CompileError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.group_ranges import GROUP_RANGES
from fp8gemm.tuning import hopper
from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import swapped_resident_ctas
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.jit.cases import wrong_registers
from tests.jit.sass import Instructions, find, find_in_waves, instructions_of

pytestmark = pytest.mark.usefixtures("known_kernels")

CONTIGUOUS, MASKED, COLUMNS = Grouping.CONTIGUOUS, Grouping.MASKED, Grouping.COLUMNS
TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED
BF16, F16, F32 = OutputType.BFLOAT16, OutputType.FLOAT16, OutputType.FLOAT32
CHIP = hopper.CHIPS["h200"]

ORDINARY = (
    GroupedProblem(CONTIGUOUS, 8, 512, 7168, 2048),
    GroupedProblem(MASKED, 6, 192, 4096, 7168),
    GroupedProblem(CONTIGUOUS, 256, 512, 584, 1904, F32),
    GroupedProblem(COLUMNS, 8, 512, 2112, 4096, F32, c=Addend.IN_PLACE),
    GroupedProblem(CONTIGUOUS, 4, 512, 301, 144, F16, PREDICATED),
    GroupedProblem(MASKED, 1024, 512, 2111, 512, F32, PREDICATED),
    GroupedProblem(COLUMNS, 256, 512, 136, 4096, F32),
    GroupedProblem(COLUMNS, 8, 512, 101, 4096, F32, PREDICATED, Addend.FLOAT32),
    GroupedProblem(MASKED, 32, 512, 2048, 384, F16),
)
FEW_ROWS = (
    (GroupedProblem(CONTIGUOUS, 256, 4, 4096, 7168), SwapAbConfig(8, 64, 4)),
    (GroupedProblem(MASKED, 32, 4, 7168, 2048), SwapAbConfig(16, 32, 6, warpgroups_k=2)),
    (GroupedProblem(CONTIGUOUS, 8, 4, 577, 144, F32, PREDICATED), SwapAbConfig(24, 32, 4)),
    (GroupedProblem(MASKED, 1024, 4, 584, 1168, F16), SwapAbConfig(64, 64, 4)),
)


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel and its instructions."""

    problem: GroupedProblem
    config: Config
    artifact: Artifact
    instructions: Instructions

    @property
    def label(self) -> str:
        return self.artifact.request.label

    @property
    def swaps(self) -> bool:
        return isinstance(self.config, SwapAbConfig)

    def count(self, pattern: str) -> int:
        return len(find(self.instructions, pattern))


def tiles_of(problem: GroupedProblem) -> dict[Tile, Config]:
    """Those that are considered for a problem."""
    ranked = sorted(ranked_grouped(problem, CHIP), key=str)
    return {config.tile: config for config in ranked if isinstance(config, TileConfig)}


def chosen() -> Iterator[tuple[GroupedProblem, Config]]:
    """Each tile with a problem, and each problem with a tile, in rotation; for few rows also the best."""
    every = {problem: tiles_of(problem) for problem in ORDINARY}
    for i, tile in enumerate(sorted({tile for tiles in every.values() for tile in tiles})):
        with_it = [problem for problem, tiles in every.items() if tile in tiles]
        problem = with_it[i % len(with_it)]
        yield problem, every[problem][tile]
    for i, (problem, tiles) in enumerate(every.items()):
        yield problem, list(tiles.values())[i % len(tiles)]
    for problem, swapped in FEW_ROWS:
        yield problem, swapped
        yield problem, ranked_grouped(problem, CHIP)[0]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """A kernel whose shared memory the host counts otherwise does not compile."""
    directory = tmp_path_factory.mktemp("grouped")
    pairs = list(dict.fromkeys(chosen()))
    with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([kernel_request(*pair) for pair in pairs])
    listings = instructions_of(artifacts, directory)
    return [
        Kernel(*pair, artifact, listing) for pair, artifact, listing in zip(pairs, artifacts, listings, strict=True)
    ]


def test_every_tile_and_both_orientations_are_among_them(kernels: list[Kernel]) -> None:
    found = {kernel.config.tile for kernel in kernels if isinstance(kernel.config, TileConfig)}
    assert found == {tile for problem in ORDINARY for tile in tiles_of(problem)} and len(found) > 8
    assert sum(kernel.swaps for kernel in kernels) >= len(FEW_ROWS)
    assert {(kernel.problem.grouping, kernel.problem.store) for kernel in kernels if not kernel.swaps} == {
        (grouping, store) for grouping in (CONTIGUOUS, MASKED, COLUMNS) for store in StoreKind
    }


def test_kernels_do_not_spill_and_lose_no_overlap(kernels: list[Kernel]) -> None:
    faults = {kernel.label: found for kernel in kernels if (found := faults_of(kernel))}
    assert faults == {}


def faults_of(kernel: Kernel) -> list[str]:
    uses = kernel.artifact.resources
    faults = [f"{code} from the assembler" for code in kernel.artifact.warnings]
    if uses.spill_store_bytes or uses.spill_load_bytes or uses.stack_bytes:
        faults.append(f"registers ran out: {uses}")
    if isinstance(kernel.config, TileConfig):
        faults += wrong_registers(uses.registers, kernel.config)
    if isinstance(kernel.config, SwapAbConfig):
        of_warp = -(-uses.registers * 32 // 256) * 256
        fitting = hopper.REGISTERS_PER_SM // (of_warp * (kernel.config.threads // 32))
        if fitting < (counted := swapped_resident_ctas(kernel.problem, kernel.config)):
            faults.append(f"{uses.registers} registers leave room for {fitting} CTAs on an SM, not {counted}")
    if uses.shared_bytes:
        faults.append(f"{uses.shared_bytes} bytes of static shared memory beside the dynamic")
    return faults


def test_tensor_cores_are_used_with_the_shape_of_a_wave(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        opcodes = {text.split()[0] for text in find(kernel.instructions, "[A-Z]*MMA")} - {"IMMA"}
        assert opcodes == {f"QGMMA.64x{kernel.config.wave_cols}x32.F32.E4M3.E4M3"}, kernel.label


def test_operands_and_outputs_go_by_tma_but_for_the_ends_of_groups(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        assert kernel.count(r"UTMALDG\."), kernel.label
        by_tma = not kernel.swaps and kernel.problem.store is TMA
        assert bool(kernel.count(r"UTMASTG\.2D|UTMAREDG\.2D\.ADD")) == by_tma, kernel.label
        # What is copied beside TMA, 16 bytes at a time, and what is written without it.
        assert bool(kernel.count(r"STG\.E\.128")) or not by_tma, kernel.label
        assert kernel.count(r"STG\."), kernel.label


def test_descriptors_of_a_wave_are_in_uniform_registers(kernels: list[Kernel]) -> None:
    """Where the compiler did not see that a warp's lanes go one way, moves to them stood between a wave's WGMMAs."""
    tiles = [kernel for kernel in kernels if not kernel.swaps]
    assert {kernel.label: moves for kernel in tiles if (moves := find_in_waves(kernel.instructions, "R2UR"))} == {}


def test_nothing_lives_in_local_memory(kernels: list[Kernel]) -> None:
    assert [kernel.label for kernel in kernels if kernel.count("LDL|STL")] == []


def test_every_thread_waits_for_the_grid_ahead_once_and_the_next_is_let_in(kernels: list[Kernel]) -> None:
    """All of them read the table of groups."""
    for kernel in kernels:
        if not kernel.swaps:
            assert kernel.count("ACQBULK") == 1 and kernel.count("PREEXIT") == 1, kernel.label


def test_of_few_rows_no_more_than_groups_and_weights_are_read_ahead_of_the_grid_ahead(kernels: list[Kernel]) -> None:
    """Where they are static: all threads wait, or none; then the consumers do, and the loader behind its first weights,
    which have an L2 policy. It lets the next kernel in behind all loads."""
    for kernel in kernels:
        if kernel.swaps:
            found = find(kernel.instructions, r"ACQBULK|PREEXIT|UTMALDG|LDG|STG|BAR\.SYNC")
            _, consumers, loader = (i for i, text in enumerate(found) if text.startswith("ACQBULK"))
            ahead = [text for text in found[:consumers] if not text.startswith(("ACQBULK", "BAR"))]
            assert ahead and all(text.startswith("LDG.E.STRONG.SYS") for text in ahead), kernel.label
            loads = [i for i, text in enumerate(found) if text.startswith("UTMALDG")]
            weights = [i for i in loads if "desc" in found[i]]
            assert weights[0] < loader and set(loads) - set(weights) and loads[0] > consumers, kernel.label
            assert all(i > loader for i in loads if i not in weights), kernel.label
            (let_in,) = (i for i, text in enumerate(found) if text.startswith("PREEXIT"))
            assert let_in > max(loads), kernel.label


def test_the_kernel_that_finds_ranges_uses_nothing_but_registers(cache: Path) -> None:
    uses = build(GROUP_RANGES).resources
    assert uses.registers <= 32 and not (uses.stack_bytes or uses.spill_store_bytes or uses.shared_bytes), uses


ONE = GroupedProblem(CONTIGUOUS, 8, 512, 584, 384)


@pytest.mark.parametrize(
    ("problem", "config", "changes", "message"),
    [
        (ONE, TileConfig(128, 64, 3), {"shared_bytes": 1024}, "another size of shared memory"),
        (ONE, TileConfig(128, 64, 3), {"groups": 300}, "another size of shared memory"),
        (replace(ONE, m=4), SwapAbConfig(16, 64, 4), {"groups": 300}, "another size of shared memory"),
        (replace(ONE, m=4), SwapAbConfig(16, 64, 4), {"split_k": 2}, "a tile's K is one CTA's"),
        (
            replace(ONE, grouping=MASKED),
            TileConfig(64, 64, 3, warpgroups_m=1, warpgroups_k=2),
            {},
            "would be another group's instead of zeros",
        ),
    ],
    ids=["shared memory", "groups", "groups, swapped", "split K", "shared K"],
)
def test_the_device_refuses_what_the_host_must_not_ask_for(
    problem: GroupedProblem, config: Config, changes: dict[str, int], message: str, cache: Path
) -> None:
    request = kernel_request(problem, config)
    wrong = replace(request, config=tuple((name, changes.get(name, value)) for name, value in request.config))
    with pytest.raises(CompileError) as caught:
        build(wrong)
    assert message in caught.value.log
