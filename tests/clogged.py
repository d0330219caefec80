"""Kernels of every family whose element-wise stores keep the load/store units busy, to be launched very often.

A consumer's loads of a stage's scales queue behind the stores of the tile before, and whatever does not wait for them
then goes wrong. So K is short, a stage or two for a tile; N is odd, which no TMA store takes; and each CTA has many
tiles, with C and bias where there are such. The launches of all streams together fill the GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request, load_kernel
from fp8gemm.kernels.grouped import GroupedKernel
from fp8gemm.kernels.quantize import QuantizeKernel
from fp8gemm.tuning.candidates import deepest_config
from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.grouped_config import grouped_shared_bytes, scales_of_box
from fp8gemm.tuning.grouped_problem import NOMINAL_K, GroupedProblem
from fp8gemm.tuning.hopper import MAX_BOX_ROWS, SHARED_BYTES_PER_CTA
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.launches import Lanes, Prepared, Repeated
from tests.prepared import prepare_columns, prepare_dense, prepare_grouped
from tests.quantizer_launches import Quantising, prepare_quantising, quantisings

COLUMNS = (65, 1, 577, 3, 101)
DEPTHS = (128, 16, 256, 64, 144)
OUTPUTS = (OutputType.FLOAT16, OutputType.FLOAT32, OutputType.BFLOAT16)
ADDENDS = (
    (Addend.NONE, Addend.NONE),
    (Addend.FLOAT32, Addend.BFLOAT16),
    (Addend.BFLOAT16, Addend.NONE),
    (Addend.NONE, Addend.FLOAT32),
)
OPERAND_SETS, ROUNDS = 5, 4
NUM_SMS = 26
"""Of a launch, so that those of all streams together have a whole GPU."""
TILES_OF_CTA = 24
"""Three times around the deepest ring."""
MOST_ELEMENTS = 2**23
"""Of an output."""
GROUPS, MOST_ROWS, FEW_ROWS = 48, 512, 24
K_GROUPS = (128, 0, 256, 128, 128, 0, 256, 128) * 2

TILES = (
    *(Tile(64, 64), Tile(64, 128), Tile(128, 64), Tile(128, 128), Tile(256, 64)),
    *(Tile(64, 192), Tile(128, 192), Tile(64, 256), Tile(128, 160), Tile(128, 256)),
)
SHARED_K = (Tile(64, 64, 2), Tile(64, 96, 2), Tile(64, 160, 2))
CLUSTERS = (Tile(64, 64, 1, 2, 1), Tile(64, 64, 1, 1, 2), Tile(128, 64, 1, 2, 1), Tile(64, 128, 1, 1, 2))
SWAPPED = (
    *(SwapAbConfig(64, 64, 2), SwapAbConfig(8, 16, 2), SwapAbConfig(32, 32, 2), SwapAbConfig(112, 64, 2)),
    *(SwapAbConfig(16, 64, 2, warpgroups_k=2), SwapAbConfig(24, 16, 2, split_k=2)),
)
GROUPED_SWAPPED = (
    *(SwapAbConfig(8, 16, 2), SwapAbConfig(16, 32, 2, warpgroups_k=2), SwapAbConfig(64, 64, 4)),
    *(SwapAbConfig(32, 64, 2), SwapAbConfig(24, 32, 3), SwapAbConfig(48, 32, 2)),
)


@dataclass(frozen=True)
class Subject:
    """A kernel that is launched very often.

    Attributes:
        request: what the JIT builds.
        load: from a device index, and whether launches are programmatic, to the kernel.
        prepare: from the kernel, a seed, a device and a CUstream, torch's current one, to operands.
    """

    request: KernelRequest
    load: Callable[[int, bool], Any]
    prepare: Callable[[Any, int, torch.device, int], Prepared]


def dense_subjects(tiles: tuple[Tile, ...], scaling: Scaling = Scaling.BLOCK) -> Iterator[tuple[Problem, TileConfig]]:
    """Each tile that is legal with three odd N, and with other outputs, K and addends each time."""
    for i, tile in enumerate(tiles):
        for j in range(3):
            turn = 3 * i + j
            output, (c, bias) = OUTPUTS[(turn + i) % 3], ADDENDS[turn % 4]
            n, k = COLUMNS[turn % 5], DEPTHS[(turn + i) % 5]
            config = deepest_config(tile, StoreKind.PREDICATED, output, scaling)
            if config is not None:
                m = rows_of(config.block_m * config.cluster_m, config.block_n * config.cluster_n, n)
                yield Problem(m, n, k, output, StoreKind.PREDICATED, scaling, c, bias), config


def swapped_subjects() -> Iterator[tuple[Problem, SwapAbConfig]]:
    """Each config with so many steps that stages come again, and with the shortest K."""
    for i, config in enumerate(SWAPPED):
        of_step = 128 * config.blocks_per_stage * config.split_k
        for j, k in enumerate((of_step * (config.stages + 1), of_step * config.stages + 16, DEPTHS[i % 5])):
            turn = 3 * i + j
            n, (c, bias) = COLUMNS[turn % 5], ADDENDS[turn % 4]
            m = rows_of(config.block_m, config.block_n, n)
            yield Problem(m, n, k, OUTPUTS[turn % 3], StoreKind.PREDICATED, c=c, bias=bias), config


def rows_of(block_m: int, block_n: int, n: int) -> int:
    """M such that each CTA has its tiles, and no output is larger than it may be; the last tile is partial."""
    rows = -(-TILES_OF_CTA * NUM_SMS // -(-n // block_n)) * block_m
    return min(rows, MOST_ELEMENTS // n) - 7


def grouped_subjects(grouping: Grouping) -> Iterator[tuple[GroupedProblem, Config]]:
    """Each tile that fits with two odd N, with one cluster, and with K shared."""
    shared_k, cluster = Tile(64, 64, 2), Tile(128, 64, 1, 2, 1)
    for i, tile in enumerate((*TILES, cluster, shared_k)):
        for j in range(2):
            turn = 2 * i + j
            output, n = OUTPUTS[(turn + i) % 3], COLUMNS[turn % 5]
            k = 256 if tile is shared_k else DEPTHS[(turn + i) % 5]
            config = deepest_config(tile, StoreKind.PREDICATED, output)
            problem = GroupedProblem(grouping, GROUPS, 1, n, k, output, StoreKind.PREDICATED)
            yield from ((problem, fitting) for fitting in _fitting(problem, config))


def column_subjects() -> Iterator[tuple[GroupedProblem, Config]]:
    """Each tile that fits with two odd N, with C and without."""
    for i, tile in enumerate(TILES):
        for j, c in enumerate((Addend.NONE, Addend.FLOAT32)):
            n = COLUMNS[(2 * i + j) % 5]
            m = min(2000, MOST_ELEMENTS // (n * len(K_GROUPS))) - 7
            config = deepest_config(tile, StoreKind.PREDICATED, OutputType.FLOAT32, Scaling.ROW)
            problem = GroupedProblem(
                Grouping.COLUMNS, len(K_GROUPS), m, n, NOMINAL_K, OutputType.FLOAT32, StoreKind.PREDICATED, c
            )
            yield from ((problem, fitting) for fitting in _fitting(problem, config))


def _fitting(problem: GroupedProblem, config: TileConfig | None) -> Iterator[TileConfig]:
    """The config, or with a stage less if the table of groups needs the room."""
    for fewer in (0, 1):
        if config is not None and config.stages - fewer >= 2:
            shallower = replace(config, stages=config.stages - fewer)
            fits = grouped_shared_bytes(problem, shallower) <= SHARED_BYTES_PER_CTA
            if fits and scales_of_box(problem, shallower) <= MAX_BOX_ROWS:
                yield shallower
                return


def grouped_swapped_subjects() -> Iterator[tuple[GroupedProblem, Config]]:
    """Each config in both layouts."""
    for i, config in enumerate(GROUPED_SWAPPED):
        for j, grouping in enumerate((Grouping.CONTIGUOUS, Grouping.MASKED)):
            turn = 2 * i + j
            n, k = COLUMNS[turn % 5], DEPTHS[(turn + i) % 5]
            yield GroupedProblem(grouping, GROUPS, 1, n, k, OUTPUTS[turn % 3], StoreKind.PREDICATED), config


def group_sizes(problem: GroupedProblem, config: Config, seed: int) -> tuple[list[int], int]:
    """Rows of each group, of some none, and room for them."""
    draw = random.Random(seed)
    most = FEW_ROWS if isinstance(config, SwapAbConfig) else min(MOST_ROWS, MOST_ELEMENTS // (GROUPS * problem.n))
    return [draw.choice((0, 1, most, most, draw.randrange(1, most))) for _ in range(problem.groups)], most


def _of_dense(problem: Problem, config: Config) -> Subject:
    def load(device_index: int, programmatic: bool) -> Any:
        return load_kernel(problem, config, device_index=device_index, num_sms=NUM_SMS, programmatic=programmatic)

    def prepare(kernel: Any, seed: int, device: torch.device, stream: int) -> Prepared:
        return prepare_dense(problem, seed, device)

    return Subject(kernel_request(problem, config), load, prepare)


def _of_grouped(problem: GroupedProblem, config: Config) -> Subject:
    def load(device_index: int, programmatic: bool) -> Any:
        return GroupedKernel(
            problem, config, device_index=device_index, num_sms=NUM_SMS, limited=True, programmatic=programmatic
        )

    def prepare(kernel: Any, seed: int, device: torch.device, stream: int) -> Prepared:
        if problem.grouping is Grouping.COLUMNS:
            sizes = random.Random(seed).sample(K_GROUPS, len(K_GROUPS))
            return prepare_columns(problem, sizes, seed, device)
        return prepare_grouped(problem, *group_sizes(problem, config, seed), seed, device)

    return Subject(kernel_request(problem, config), load, prepare)


def _of_quantiser(each: Quantising) -> Subject:
    def load(device_index: int, programmatic: bool) -> Any:
        return QuantizeKernel(each.quantizer, device_index=device_index, programmatic=programmatic)

    def prepare(kernel: Any, seed: int, device: torch.device, stream: int) -> Prepared:
        return prepare_quantising(each, kernel, seed, device, stream=stream)

    return Subject(each.quantizer.request, load, prepare)


def _dense_family(*args: Any) -> list[Subject]:
    return [_of_dense(*pair) for pair in dense_subjects(*args)]


def _grouped_family(pairs: Callable[[], Iterator[tuple[GroupedProblem, Config]]]) -> list[Subject]:
    return [_of_grouped(*pair) for pair in pairs()]


FAMILIES: dict[str, Callable[[], list[Subject]]] = {
    "dense 1D2D": partial(_dense_family, TILES),
    "dense 1D1D": partial(_dense_family, TILES, Scaling.ROW),
    "K shared by warpgroups": lambda: _dense_family(SHARED_K) + _dense_family(SHARED_K, Scaling.ROW),
    "clusters": lambda: _dense_family(CLUSTERS) + _dense_family(CLUSTERS, Scaling.ROW),
    "swapped": lambda: [_of_dense(*pair) for pair in swapped_subjects()],
    "grouped contiguous": partial(_grouped_family, partial(grouped_subjects, Grouping.CONTIGUOUS)),
    "grouped masked": partial(_grouped_family, partial(grouped_subjects, Grouping.MASKED)),
    "grouped swapped": partial(_grouped_family, grouped_swapped_subjects),
    "K-grouped": partial(_grouped_family, column_subjects),
    "quantisers": lambda: [_of_quantiser(each) for each in quantisings()],
}


def graphs_of(family: str, seed: int, device: torch.device) -> list[Repeated]:
    """The kernels of a family, each loaded and with its operands; every other one is launched programmatically.

    Raises:
        AssertionError: the first launch of a quantiser was not right.
    """
    subjects = FAMILIES[family]()
    build_many([subject.request for subject in subjects])
    stream = torch.cuda.current_stream(device).cuda_stream
    lanes, found = Lanes(device, OPERAND_SETS), []
    for index, subject in enumerate(subjects):
        kernel = subject.load(device.index, index % 2 == 1)
        sets = [subject.prepare(kernel, seed + i, device, stream) for i in range(OPERAND_SETS)]
        found.append(Repeated(subject.request.label, kernel, sets, rounds=ROUNDS, lanes=lanes))
    return found
