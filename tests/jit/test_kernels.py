"""Every dense kernel that tile choice can ask for compiles to what its design counts on: no spill, no lost overlap."""

from __future__ import annotations

import itertools
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.errors import CompileError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.compiler import compile_options, compile_source
from fp8gemm.jit.headers import include_dir
from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.candidates import DEEP_RING_K, candidate_configs
from fp8gemm.tuning.config import TileConfig, violations
from fp8gemm.tuning.hopper import CHIPS
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import enumerate_configs
from tests.jit.cases import wrong_registers
from tests.problems import TERMS
from tests.thirds import third_of

pytestmark = pytest.mark.usefixtures("known_kernels")

MAX_CPU_SECONDS = 2.0
LONGEST_CODE = 1904
"""K of 15 K blocks: chunks of every length there is but of 128x160 with many K blocks, and an end inside one."""
K_OF_LONGER_CHUNKS = 97 * 128
"""From so many K blocks on those of 128x160 are twice as long."""
BENCHMARKED = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]


def every_config(store: StoreKind) -> list[TileConfig]:
    """Those for short K, and for long."""
    return list(dict.fromkeys([*candidate_configs(store), *candidate_configs(store, k=DEEP_RING_K)]))


def every_tile(store: StoreKind, first: int = 0) -> list[TileConfig]:
    """Each tile once, K shared or not, with the cluster shapes in rotation."""
    by_tile: dict[tuple[int, int, int], list[TileConfig]] = {}
    for config in every_config(store):
        by_tile.setdefault((config.block_m, config.block_n, config.warpgroups_k), []).append(config)
    return [configs[(first + i) % len(configs)] for i, configs in enumerate(by_tile.values())]


def requests_for(n: int, k: int, store: StoreKind, configs: list[TileConfig]) -> list[KernelRequest]:
    return [kernel_request(Problem(1, n, k, store=store), config) for config in configs]


COVERAGE = [
    *((7168, 2048, store, every_config(store)) for store in StoreKind),
    *((1024, 512, store, every_config(store)) for store in StoreKind),  # four K blocks: unrolled whole, it once spilled
    *((584, LONGEST_CODE, store, every_config(store)) for store in StoreKind),
    (576, 1024, StoreKind.TMA, every_config(StoreKind.TMA)),  # eight: one turn of a ring of eight stages, and no loop
    *((2112, 7168, store, every_tile(store)) for store in StoreKind),
    *((32768, 512, store, every_tile(store, first=1)) for store in StoreKind),
    *((576, 144, store, every_tile(store, first=2)) for store in StoreKind),
    (100, 112, StoreKind.PREDICATED, every_config(StoreKind.PREDICATED)),
    (4096, 128, StoreKind.TMA, every_tile(StoreKind.TMA)),
]


EPILOGUES = list(itertools.product(OutputType, StoreKind, TERMS, TERMS))
SHAPES_OF_EPILOGUES = [(7168, 2048), (576, 144), (2112, 7168), (104, 256), (1024, 512), (584, LONGEST_CODE)]


@pytest.mark.parametrize("scaling", list(Scaling))
def test_every_epilogue_leaves_the_accumulators_their_registers(scaling: Scaling, cache: Path) -> None:
    """Each combination with one of the tiles that have the fewest registers to spare, and each second with another."""
    requests = []
    for i, (output, store, c, bias) in enumerate(EPILOGUES):
        n, k = SHAPES_OF_EPILOGUES[i % len(SHAPES_OF_EPILOGUES)]
        problem = Problem(1, n, k, output, store, scaling, c, bias)
        configs = list(candidate_configs(store, output, scaling))
        most = max(config.promotion_registers for config in configs)
        largest = [config for config in configs if config.promotion_registers == most]
        requests.append(kernel_request(problem, largest[i % len(largest)]))
        if i % 2:
            requests.append(kernel_request(problem, configs[(7 * i + i // len(configs)) % len(configs)]))
    assert faults_among(requests) == {}


@pytest.mark.parametrize("scaling", list(Scaling))
def test_what_is_asked_for_at_once_fits_beside_the_accumulators_of_every_tile(scaling: Scaling, cache: Path) -> None:
    """C and the bias in four bytes, which take the most registers, and either alone."""
    requests = []
    wide, none = Addend.FLOAT32, Addend.NONE
    for i, (store, terms) in enumerate(itertools.product(StoreKind, ((wide, wide), (wide, none), (none, wide)))):
        output = (OutputType.FLOAT32, OutputType.BFLOAT16)[i % 2]
        tiles = {
            (config.block_m, config.block_n, config.warpgroups_k, config.waves_in_flight): config
            for config in candidate_configs(store, output, scaling)
        }
        n = 584 if store is StoreKind.TMA else 577
        requests += [
            kernel_request(Problem(1, n, 1168, output, store, scaling, *terms), config) for config in tiles.values()
        ]
    assert faults_among(requests) == {} and len(requests) > 40


@pytest.mark.parametrize("scaling", list(Scaling))
def test_the_sum_of_shares_leaves_every_epilogue_its_registers(scaling: Scaling, cache: Path) -> None:
    """Each config whose warpgroups share K, with every store and width of output, and addends or none."""
    requests = []
    added = (Addend.FLOAT32, Addend.BFLOAT16)
    for i, (output, store) in enumerate(itertools.product((OutputType.BFLOAT16, OutputType.FLOAT32), StoreKind)):
        shared = [config for config in candidate_configs(store, output, scaling) if config.warpgroups_k > 1]
        for config, terms in itertools.product(shared, ((Addend.NONE, Addend.NONE), added)):
            k = (2 * LONGEST_CODE, 7168, 128, 2160)[i]
            requests.append(kernel_request(Problem(1, 584, k, output, store, scaling, *terms), config))
    assert faults_among(requests) == {}


@pytest.mark.parametrize(
    ("n", "k", "store", "configs"), COVERAGE, ids=[f"{n}x{k}-{store.value}" for n, k, store, _ in COVERAGE]
)
def test_kernels_do_not_spill_and_lose_no_overlap(
    n: int, k: int, store: StoreKind, configs: list[TileConfig], cache: Path
) -> None:
    requests = third_of(requests_for(n, k, store, configs), lambda request: request.label)
    artifacts = build_many(requests)
    assert [artifact.request for artifact in artifacts] == requests
    assert {artifact.source for artifact in artifacts} == {"compiled"}
    faults = {artifact.request.label: found for artifact in artifacts if (found := faults_of(artifact))}
    assert faults == {}


def test_an_end_of_k_inside_a_chunk_spills_nothing(cache: Path) -> None:
    """Tiles with one wave in flight: their widest waves leave the fewest registers to all else."""
    wide = [config for config in candidate_configs(StoreKind.TMA) if config.waves_in_flight == 1]
    requests = [
        kernel_request(Problem(1, 2112, 128 * blocks), config) for config in wide for blocks in (*range(1, 10), 15)
    ]
    assert faults_among(requests) == {} and wide


def faults_among(requests: list[KernelRequest]) -> dict[str, list[str]]:
    """What is wrong with which kernel, of those whose turn it is."""
    artifacts = build_many(third_of(requests, lambda request: request.label))
    return {artifact.request.label: found for artifact in artifacts if (found := faults_of(artifact))}


def config_of(request: KernelRequest) -> TileConfig:
    """What a kernel of the ordinary orientation is compiled for."""
    names = {field.name for field in fields(TileConfig)}
    return TileConfig(**{name: value for name, value in request.config if name in names})  # type: ignore[arg-type]


def faults_of(artifact: Artifact) -> list[str]:
    uses = artifact.resources
    faults = [f"{code} from the assembler" for code in artifact.warnings]
    if uses.spill_store_bytes or uses.spill_load_bytes or uses.stack_bytes:
        faults.append(f"registers ran out: {uses}")
    faults += wrong_registers(uses.registers, config_of(artifact.request))
    if uses.shared_bytes:
        faults.append(f"{uses.shared_bytes} bytes of static shared memory beside the dynamic")
    return faults


@pytest.mark.parametrize("store", list(StoreKind))
def test_the_longest_kernels_compile_in_time(store: StoreKind) -> None:
    """In processor time of this thread, which other processes do not stretch as they do the time of day."""
    seconds = {}
    widest = sorted(every_config(store), key=lambda config: config.block_m * config.block_n)[-10:]
    requests = requests_for(7168, LONGEST_CODE, store, widest)
    requests += requests_for(7168, K_OF_LONGER_CHUNKS, store, [config for config in widest if config.block_n == 160])
    for request in requests:
        source, options = render_source(request), compile_options(request.arch)
        started = time.thread_time()
        compile_source(source, label=request.label, options=options, arch=request.arch, include_dir=include_dir())
        seconds[request.label] = time.thread_time() - started
    assert min(seconds.values()) > 0.01, f"NVRTC does not compile in this thread, so nothing was measured: {seconds}"
    assert max(seconds.values()) < MAX_CPU_SECONDS, seconds


@pytest.mark.parametrize("scaling", list(Scaling))
def test_whatever_is_legal_can_be_built(scaling: Scaling, cache: Path) -> None:
    """Widths that no candidate has too, with few stages. They may spill, but the headers do not refuse them."""
    requests = []
    for i, (block_n, (rows, cols, shares), in_flight) in enumerate(
        itertools.product(range(16, 257, 16), ((2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 1)), (1, 2))
    ):
        store = (StoreKind.TMA, StoreKind.PREDICATED)[i // 5 % 2]
        config = TileConfig(64 * rows, block_n, 2, 1, 1, rows, cols, shares, waves_in_flight=in_flight)
        if not violations(config, store, scaling=scaling):
            requests.append(kernel_request(Problem(1, 584, 144, store=store, scaling=scaling), config))
    assert len(requests) > 15
    requests = third_of(requests, lambda request: request.label)
    assert len(build_many(requests)) == len(requests)


@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize(("n", "k"), BENCHMARKED)
def test_what_a_warmup_enumerates_is_among_the_kernels_tested_here(n: int, k: int, chip: str) -> None:
    configs = enumerate_configs(n, k, 16384, chip=chip)
    tiles = {config for config in configs if isinstance(config, TileConfig)}  # test_swap_ab.py has the others
    assert tiles and tiles <= set(every_config(StoreKind.TMA))


def with_constant(request: KernelRequest, **changes: Any) -> KernelRequest:
    return replace(request, config=tuple((name, changes.get(name, value)) for name, value in request.config))


@pytest.mark.parametrize("store", list(StoreKind))
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_bytes": 1024}, "another size of shared memory"),
        ({"stages": 2}, "another size of shared memory"),
        ({"block_k": 64}, "one scale block"),
        ({"block_m": 96}, "rows divide into 64-row waves"),
        ({"block_n": 193}, "columns divide into waves"),
        ({"block_n": 200}, "stages 16 columns at a time"),
        ({"block_n": 176}, "columns lie in two blocks"),
        ({"block_n": 160}, "another size of shared memory"),
        ({"warpgroups_n": 2}, "at most three consumer warpgroups"),
        ({"warpgroups_m": 1, "warpgroups_k": 2}, "half of the columns are half of the registers"),
        ({"warpgroups_m": 1, "warpgroups_k": 3}, "K is divided among two warpgroups at most"),
        ({"cluster_m": 2, "cluster_n": 2}, "multicast to at most one other"),
        ({"output": OutputType.FLOAT32, "scaling": Scaling.ROW}, "another size of shared memory"),
        ({"scaling": Scaling.ROW, "block_n": 256}, "what is kept is of one wave's columns"),
        ({"n": 7169, "c": Addend.FLOAT32, "store": StoreKind.TMA}, "would cross the end of a row"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_device_refuses_what_the_host_must_not_ask_for(
    store: StoreKind, changes: dict[str, int], message: str
) -> None:
    """Otherwise the host and the kernel could disagree in silence; also shows that the assertions are reached."""
    (request,) = requests_for(7168, 2048, store, every_config(store)[:1])
    wrong = with_constant(request, **changes)
    options = compile_options(wrong.arch)
    with pytest.raises(CompileError) as caught:
        compile_source(
            render_source(wrong), label=wrong.label, options=options, arch=wrong.arch, include_dir=include_dir()
        )
    assert message in caught.value.log
