"""The small-M kernels compile to what their design counts on: no spill, and as many on an SM as its memory holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.errors import CompileError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.problem import Addend, OutputType, Problem, StoreKind
from fp8gemm.tuning.swap_ab import SwapAbConfig, resident_ctas, swap_ab_candidates
from tests.jit.sass import Instructions, find, instructions_of
from tests.problems import TERMS
from tests.swap_ab import SPREAD, k_of_steps
from tests.thirds import third_of

pytestmark = pytest.mark.usefixtures("known_kernels")

REGISTERS_OF_SM = 65536
SHAPES = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (100, 112), (577, 144), (584, 7216)]
EPILOGUES = list(itertools.product(OutputType, StoreKind, TERMS, TERMS))
BENCHMARKED = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
Pair = tuple[Problem, SwapAbConfig]


def problem_of(n: int, k: int) -> Problem:
    return Problem(1, n, k, store=StoreKind.PREDICATED if n % 8 else StoreKind.TMA)


def of_shapes(first: int) -> list[Pair]:
    """Every config with a shape, in rotation."""
    return [(problem_of(*SHAPES[(3 * i + first) % len(SHAPES)]), config) for i, config in enumerate(SPREAD)]


def of_epilogues() -> list[Pair]:
    """Every epilogue with a config, in rotation."""
    pairs: list[Pair] = []
    for i, (output, store, c, bias) in enumerate(EPILOGUES):
        n, k = (584, 1168) if store is StoreKind.TMA else (577, 1280)
        pairs.append((Problem(1, n, k, output, store, c=c, bias=bias), SPREAD[i % len(SPREAD)]))
    return pairs


def of_steps() -> list[Pair]:
    """Every config with steps around its stages."""
    return [
        (problem_of(584, k_of_steps(config, steps, full=True)), config)
        for config in SPREAD
        for steps in (config.stages - 1, config.stages, config.stages + 9)
    ]


PARTS = {"shapes": of_shapes(0), "other shapes": of_shapes(1), "epilogues": of_epilogues(), "steps": of_steps()}


def candidates() -> list[Pair]:
    """Of all that tile choice considers for the benchmarked shapes: each tile with each number of steps once."""
    found: dict[tuple[int, ...], Pair] = {}
    for (n, k), m in itertools.product(BENCHMARKED, (8, 16, 32, 64)):
        for config in swap_ab_candidates(m, n, k, 132):
            key = config.block_m, config.block_n, config.warpgroups_k, config.steps(k)
            found.setdefault(key, (problem_of(n, k), config))
    return list(found.values())


def faults_of(artifact: Artifact) -> list[str]:
    uses = artifact.resources
    faults = [f"{code} from the assembler" for code in artifact.warnings]
    if uses.spill_store_bytes or uses.spill_load_bytes or uses.stack_bytes:
        faults.append(f"registers ran out: {uses}")
    if uses.shared_bytes:
        faults.append(f"{uses.shared_bytes} bytes of static shared memory beside the dynamic")
    return faults


def build_all(pairs: list[Pair]) -> list[Artifact]:
    """A kernel whose shared memory the host counts otherwise does not compile."""
    return build_many([kernel_request(*pair) for pair in pairs])


@pytest.mark.parametrize("part", PARTS)
def test_kernels_do_not_spill_and_lose_no_overlap(part: str, cache: Path) -> None:
    artifacts = build_all(third_of(dict.fromkeys(PARTS[part]), repr))
    faults = {artifact.request.label: found for artifact in artifacts if (found := faults_of(artifact))}
    assert faults == {}


def ctas_by_registers(artifact: Artifact, config: SwapAbConfig) -> int:
    """CTAs whose registers fit an SM: warps get them in units of 256."""
    of_warp = -(-artifact.resources.registers * 32 // 256) * 256
    return REGISTERS_OF_SM // (of_warp * (config.threads // 32))


def test_what_tile_choice_considers_spills_nothing_and_fits_an_sm_as_often_as_it_counts(cache: Path) -> None:
    every = candidates()
    pairs = third_of(every, repr)
    wrong = []
    for (problem, config), artifact in zip(pairs, build_all(pairs), strict=True):
        wrong += [f"{artifact.request.label}: {fault}" for fault in faults_of(artifact)]
        counted, fitting = resident_ctas(config, problem.k), ctas_by_registers(artifact, config)
        if fitting < counted:
            registers = artifact.resources.registers
            wrong.append(
                f"{artifact.request.label}: {registers} registers leave room for {fitting} CTAs, not {counted}"
            )
    assert not wrong, "\n".join(wrong)
    assert len(every) > 50


def test_a_host_that_counts_other_shared_memory_is_refused(cache: Path) -> None:
    request = kernel_request(Problem(1, 64, 128), SPREAD[0])
    wrong = replace(request, config=tuple((name, 1024 if name == "shared_bytes" else v) for name, v in request.config))
    with pytest.raises(CompileError, match="another size of shared memory"):
        build(wrong)


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel and its instructions."""

    label: str
    problem: Problem
    config: SwapAbConfig
    instructions: Instructions

    def count(self, pattern: str) -> int:
        return len(find(self.instructions, pattern))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """Every config, with K of whole blocks and not."""
    directory = tmp_path_factory.mktemp("sass")
    added = {"c": Addend.FLOAT32, "bias": Addend.BFLOAT16}
    pairs = [(replace(problem_of(584, k), **added), config) for config in SPREAD for k in (7168, 1168)]
    with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
        artifacts = build_all(pairs)
    listings = instructions_of(artifacts, directory)
    return [
        Kernel(artifact.request.label, *pair, listing)
        for pair, artifact, listing in zip(pairs, artifacts, listings, strict=True)
    ]


def test_tensor_cores_multiply_all_slices_at_once(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        opcodes = {text.split()[0] for text in find(kernel.instructions, "[A-Z]*MMA")} - {"IMMA"}
        assert opcodes == {f"QGMMA.64x{kernel.config.wave_cols}x32.F32.E4M3.E4M3"}, kernel.label


def test_operands_come_by_tma_as_many_blocks_at_once_as_k_allows(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        of_rank = 3 if kernel.problem.k % 128 == 0 else 2
        assert kernel.count(rf"UTMALDG\.{of_rank}D") and not kernel.count(rf"UTMALDG\.{5 - of_rank}D"), kernel.label
        assert not kernel.count(r"UTMASTG"), kernel.label


def test_nothing_lives_in_local_memory(kernels: list[Kernel]) -> None:
    assert [kernel.label for kernel in kernels if kernel.count("LDL|STL")] == []


def test_every_role_waits_for_the_grid_ahead_and_the_next_is_let_in(kernels: list[Kernel]) -> None:
    """The loader waits, and the consumers do twice: with static weights only before what is not."""
    for kernel in kernels:
        assert kernel.count("ACQBULK") == 3 and kernel.count("PREEXIT") == 1, kernel.label


def test_only_clusters_pay_for_cluster_barriers_and_send_their_sums(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        in_cluster = kernel.config.split_k > 1
        assert bool(kernel.count("UCGABAR_ARV")) == bool(kernel.count("UCGABAR_WAIT")) == in_cluster, kernel.label
        assert bool(kernel.count(r"STAS")) == in_cluster, kernel.label
