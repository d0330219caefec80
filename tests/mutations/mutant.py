"""What a mutant is: edits of the device headers, the tests that must catch it, and a kernel on which it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import stream
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.group_ranges import GROUP_RANGES
from fp8gemm.kernels.quantize import (
    QuantizeSource,
    quantizer_of_blocks,
    quantizer_of_norm,
    quantizer_of_rows,
    quantizer_to_rows,
)
from fp8gemm.kernels.routing import COPY_TO_ROWS, ROUTE_TOKENS, route_and_quantize_request, unpermute_request
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, InputType, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig


class Caught(Enum):
    """How a mutant is caught."""

    WRONG = "wrong result"
    HANG = "hang"
    FAULT = "CUDA error"
    REFUSED = "does not compile"


WRONG, HANG, FAULT, REFUSED = (frozenset({how}) for how in (Caught.WRONG, Caught.HANG, Caught.FAULT, Caught.REFUSED))
RACE = WRONG | HANG | FAULT
"""A lost race may damage data, barriers or addresses."""


# Text that several faults are put into. Of mainloop/multiply.cuh: a wave is promoted.
PROMOTE = """\
        scales_.promote(chunk.borders, n, flight.products, flight.block_sums, accumulators[m][n], loaded);
"""
# Of mainloop/pipelined.cuh: a wave is waited for, and its stage handed back.
WAITED = "    ptx::wgmma_wait<kLater>();\n"
RELEASED = """\
    if constexpr (!Waves::kPromotionReadsStage) {
        waves.release(wave, chunk, flights);
    }
"""


def under(*tiles: str) -> tuple[str, ...]:
    """Tests of exact products under the configs of these tiles, whatever the model would choose."""
    return tuple(f"tests/gpu/test_configs.py::test_any_number_of_k_blocks[{tile}]" for tile in tiles)


@dataclass(frozen=True)
class Edit:
    """One change of a header.

    Attributes:
        header: path relative to ``include/fp8gemm``.
        old: text that occurs exactly once in the header.
        new: what takes its place.
    """

    header: str
    old: str
    new: str


@dataclass(frozen=True)
class Sample:
    """A kernel that a mutant is compiled into where there is no GPU to run it on."""

    request: KernelRequest


def _product(problem: Problem, config: Config) -> Sample:
    return Sample(kernel_request(problem, config))


def _grouped(grouping: Grouping, config: Config, groups: int = 5, **others: Any) -> Sample:
    problem = GroupedProblem(grouping, groups, 1, _PROBLEM.n, _PROBLEM.k, **others)
    return Sample(kernel_request(problem, config))


def _rows(source: QuantizeSource, rows: int) -> Sample:
    return Sample(quantizer_of_rows(source, _INPUT, rows).request)


def _norm(*, residual: bool) -> Sample:
    return Sample(quantizer_of_norm(4112, _INPUT, _INPUT, residual=residual, threads=160).request)


# Small tiles compile fast; N and K have tails, and K a long chunk and an end inside a short one for both warpgroups.
_TILE = TileConfig(128, 64, 3, waves_in_flight=2)
_STACKED = TileConfig(192, 64, 3, warpgroups_m=1, warpgroups_n=2, waves_in_flight=2)
_SHARED_K = TileConfig(64, 64, 3, warpgroups_m=1, warpgroups_k=2, waves_in_flight=2)
_PROBLEM = Problem(1, 584, 1168)
_ODD = replace(_PROBLEM, k=2160)  # an odd number of K blocks
# More steps than stages, with shares of K of every kind.
_SWAPPED = SwapAbConfig(16, 32, 2, warpgroups_k=2)
_SWAPPED_CLUSTER = SwapAbConfig(16, 32, 2, split_k=2)
_INPUT = InputType.BFLOAT16

SAMPLES = {
    "plain": _product(_PROBLEM, _TILE),
    "tall": _product(_PROBLEM, TileConfig(256, 64, 3, waves_in_flight=2)),
    "ahead": _product(_PROBLEM, TileConfig(256, 128, 3)),
    "long": _product(replace(_PROBLEM, k=16384), _TILE),
    "long_one_wave": _product(replace(_PROBLEM, k=16384), TileConfig(128, 96, 3)),
    "border": _product(_PROBLEM, TileConfig(128, 96, 3, waves_in_flight=2)),
    "border_copies": _product(_PROBLEM, TileConfig(128, 96, 3)),
    "cluster_m": _product(_PROBLEM, replace(_TILE, cluster_m=2)),
    "half_columns": _product(replace(_PROBLEM, n=576), TileConfig(128, 256, 4, staging_slots=3)),
    "cluster_n": _product(_PROBLEM, replace(_TILE, cluster_n=2)),
    "predicated": _product(replace(_PROBLEM, n=577, store=StoreKind.PREDICATED), _TILE),
    "float16": _product(replace(_PROBLEM, output=OutputType.FLOAT16), _TILE),
    "float32": _product(replace(_PROBLEM, output=OutputType.FLOAT32), _TILE),
    "row": _product(replace(_PROBLEM, scaling=Scaling.ROW), _TILE),
    "row_stacked": _product(replace(_PROBLEM, scaling=Scaling.ROW), _STACKED),
    "shared_k": _product(_ODD, _SHARED_K),
    "shared_long_k": _product(replace(_ODD, k=16400), _SHARED_K),
    "shared_k_row": _product(replace(_ODD, scaling=Scaling.ROW), _SHARED_K),
    "split": _product(_PROBLEM, replace(_TILE, split_k=2)),
    "split_three": _product(_PROBLEM, TileConfig(128, 96, 3, split_k=3, waves_in_flight=2)),
    "split_narrow": _product(_PROBLEM, TileConfig(64, 128, 3, 1, 1, 1, 2, split_k=4, waves_in_flight=2)),
    "c": _product(replace(_PROBLEM, c=Addend.BFLOAT16), _TILE),
    "wide": _product(_PROBLEM, TileConfig(128, 192, 3)),
    "wide_c": _product(replace(_PROBLEM, c=Addend.FLOAT32), TileConfig(128, 192, 3)),
    "bias": _product(replace(_PROBLEM, bias=Addend.BFLOAT16), _TILE),
    "c_and_bias": _product(replace(_PROBLEM, c=Addend.FLOAT32, bias=Addend.FLOAT32), _TILE),
    "swapped": _product(_PROBLEM, _SWAPPED),
    "swapped_cluster": _product(_PROBLEM, _SWAPPED_CLUSTER),
    "swapped_many_blocks": _product(replace(_PROBLEM, k=16384), SwapAbConfig(32, 64, 3)),
    "swapped_predicated": _product(
        replace(_PROBLEM, n=577, store=StoreKind.PREDICATED, c=Addend.FLOAT32, bias=Addend.BFLOAT16), _SWAPPED
    ),
    "grouped": _grouped(Grouping.CONTIGUOUS, _TILE),
    "grouped_predicated": _grouped(Grouping.CONTIGUOUS, _TILE, store=StoreKind.PREDICATED),
    "grouped_masked": _grouped(Grouping.MASKED, _TILE),
    "grouped_columns": _grouped(Grouping.COLUMNS, _TILE, output=OutputType.FLOAT32, c=Addend.IN_PLACE),
    "grouped_swapped": _grouped(Grouping.CONTIGUOUS, _SWAPPED),
    "grouped_swapped_many": _grouped(Grouping.CONTIGUOUS, _SWAPPED, 512),
    "grouped_swapped_masked": _grouped(Grouping.MASKED, _SWAPPED),
    "group_ranges": Sample(GROUP_RANGES),
    "stream": Sample(stream.kernel_request(576, 7168, stream.StreamConfig())),
    "quantize_rows": _rows(QuantizeSource.PLAIN, 4),
    "quantize_silu_mul": _rows(QuantizeSource.SILU_MUL, 4),
    "quantize_blocks": Sample(quantizer_of_blocks(_INPUT, 8).request),
    "quantize_norm": _norm(residual=False),
    "quantize_add_norm": _norm(residual=True),
    "route_tokens": Sample(ROUTE_TOKENS),
    "quantize_to_rows": Sample(quantizer_to_rows(_INPUT).request),
    "route_and_quantize": Sample(route_and_quantize_request(_INPUT)),
    "copy_to_rows": Sample(COPY_TO_ROWS),
    "unpermute": Sample(unpermute_request(_INPUT)),
}


@dataclass(frozen=True)
class Mutant:
    """A fault, and what must notice it.

    Attributes:
        name: unique, in words joined by hyphens.
        what: the fault in one line.
        edits: applied in order; none for a control, which must survive.
        tests: pytest node ids, run together in this order until one fails.
        caught: the ways to be caught that count.
        gpu: whether the tests need a Hopper GPU.
        chaos: whether the tests run in the chaos build.
        sample: key of `SAMPLES`: a kernel whose code the fault changes.
        may_survive: why it may go unnoticed, for a fault of which no run can show more than that it did no harm.
        same_code: why it makes no difference to compiled code, for a fault that therefore no run can show.
        message: part of the compiler's message, for a mutant that must not compile.
    """

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    caught: frozenset[Caught] = WRONG
    gpu: bool = True
    chaos: bool = False
    sample: str = "plain"
    may_survive: str = ""
    same_code: str = ""
    message: str = ""

    @property
    def files(self) -> list[str]:
        """The headers it changes, sorted."""
        return sorted({edit.header for edit in self.edits})


_STRESS = "tests/gpu/test_stress.py::test_launches_of_small_shapes_are_right"
STRESS, STRESS_SWAPPED = (f"{_STRESS}[dense]",), (f"{_STRESS}[swap_ab]",)


def race(
    name: str,
    what: str,
    *edits: Edit,
    tests: tuple[str, ...] = STRESS,
    sample: str = "plain",
    may_survive: str = "",
) -> Mutant:
    """A fault that loses a race only now and then: it runs in the chaos build, many times."""
    return Mutant(name, what, edits, tests, RACE, chaos=True, sample=sample, may_survive=may_survive)


def deadlock(name: str, what: str, *edits: Edit, tests: tuple[str, ...] = STRESS, sample: str = "plain") -> Mutant:
    """A fault that leaves somebody waiting."""
    return Mutant(name, what, edits, tests, HANG, sample=sample)
