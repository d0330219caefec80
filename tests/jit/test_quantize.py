"""The quantisers compile to what memory's speed needs: wide loads, many of them in flight, and no local memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.quantize import (
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    Quantizer,
    QuantizeSource,
    norm_threads,
    quantizer_of_blocks,
    quantizer_of_norm,
    quantizer_of_rows,
)
from fp8gemm.tuning.problem import InputType
from tests.jit.sass import Instructions, find, instructions_of

pytestmark = pytest.mark.usefixtures("known_kernels")

REGISTERS_OF_SM, THREADS_OF_SM, CTAS_OF_SM, REGISTER_STEP = 65536, 2048, 32, 8
BYTES_IN_FLIGHT = 27 * 1024
"""Of an SM: 4.8 TB/s of memory, 132 SMs, and about 0.7 us from a load to its data."""
LANE_VALUES, VECTOR_BYTES, BLOCK = 8, 16, 128
VALUES_OF_PAIR = 2
SIZES = {InputType.BFLOAT16: 2, InputType.FLOAT16: 2, InputType.FLOAT32: 4}
NORM_K = (16, 144, 384, 2048, 4096, 7168, 16384)
MANY, WIDE = 2**16, 2048
"""Rows and columns from which a norm's time is memory's."""


@dataclass(frozen=True)
class Case:
    """A quantiser and what its code must hold: for each thread, pieces of eight values as they are loaded.

    Attributes:
        quantizer: the kernel.
        sizes: bytes of an element of everything that is loaded for a piece.
        pieces: of a thread.
        summed: bytes of an element of what a fused addition stores; 0 without one.
    """

    quantizer: Quantizer
    sizes: tuple[int, ...]
    pieces: int
    summed: int = 0

    @property
    def loads(self) -> int:
        """128-bit loads of a thread."""
        return self.pieces * sum(self.sizes) * LANE_VALUES // VECTOR_BYTES

    @property
    def label(self) -> str:
        return self.quantizer.request.label

    def ctas_of_sm(self, registers: int) -> int:
        """How many CTAs an SM holds at once."""
        threads = self.quantizer.threads
        allocated = -(-registers // REGISTER_STEP) * REGISTER_STEP
        return min(REGISTERS_OF_SM // (allocated * threads), THREADS_OF_SM // threads, CTAS_OF_SM)


def of_rows() -> Iterator[Case]:
    for source, dtype, rows in product(QuantizeSource, InputType, ROWS_OF_WARP):
        halves = 2 if source is QuantizeSource.SILU_MUL else 1
        yield Case(quantizer_of_rows(source, dtype, rows), halves * (SIZES[dtype],), rows)


def of_blocks() -> Iterator[Case]:
    for dtype, warps in product(InputType, WARPS_OF_BLOCK):
        quantizer = quantizer_of_blocks(dtype, warps)
        yield Case(quantizer, (SIZES[dtype],), BLOCK * BLOCK // (quantizer.threads * LANE_VALUES))


def of_norms() -> Iterator[Case]:
    for k, dtype, weight, residual in product(NORM_K, InputType, InputType, (False, True)):
        if k != NORM_K[-2] and weight not in (dtype, InputType.FLOAT32):
            continue
        for threads in sorted({norm_threads(m, k) for m in (1, 256, MANY)}):
            quantizer = quantizer_of_norm(k, dtype, weight, residual=residual, threads=threads)
            sizes = (SIZES[dtype],) * (1 + residual) + (SIZES[weight],)
            yield Case(quantizer, sizes, -(-k // (threads * LANE_VALUES)), SIZES[dtype] * residual)


ROWS, BLOCKS, NORMS = tuple(of_rows()), tuple(of_blocks()), tuple(of_norms())
CASES = ROWS + BLOCKS + NORMS
Built = dict[Case, Artifact]
Listed = dict[Case, Instructions]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantize")


@pytest.fixture(scope="module")
def built(place: Path) -> Built:
    with settings.scope(cache_dirs=(place,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([case.quantizer.request for case in CASES])
    return dict(zip(CASES, artifacts, strict=True))


@pytest.fixture(scope="module")
def listed(built: Built, place: Path) -> Listed:
    """The instructions of those that have two pieces or more: a listing of fewer is too short to be told from none."""
    cases = [case for case in CASES if case.pieces > 1 and (case not in NORMS or "-bf16-bf16-" in case.label)]
    return dict(zip(cases, instructions_of([built[case] for case in cases], place), strict=True))


def test_every_quantiser_has_a_name_of_its_own() -> None:
    assert len({case.label for case in CASES}) == len({case.quantizer.request for case in CASES}) == len(CASES) > 150


def test_nothing_spills_and_nothing_is_warned_of(built: Built) -> None:
    for case, artifact in built.items():
        uses = artifact.resources
        assert uses.spill_store_bytes == uses.spill_load_bytes == uses.stack_bytes == 0, (case.label, uses)
        assert artifact.warnings == (), case.label


def test_shared_memory_is_a_float_for_each_warp_that_meets_others(built: Built) -> None:
    for case, artifact in built.items():
        expected = 0 if case in ROWS else case.quantizer.threads // 32 * 4
        assert artifact.resources.shared_bytes == expected, case.label


def test_an_sm_has_room_for_as_many_loads_as_keep_memory_busy(built: Built) -> None:
    """Of rows and blocks always; of norms with the threads that many wide rows have, of which activations count."""
    for case, artifact in built.items():
        ctas = case.ctas_of_sm(artifact.resources.registers)
        assert ctas > 0, case.label
        activations = case.sizes if case not in NORMS else case.sizes[:-1]
        bytes_of_cta = case.quantizer.threads * case.pieces * LANE_VALUES * sum(activations)
        k = dict(case.quantizer.request.config).get("k", WIDE)
        busy = case not in NORMS or (k >= WIDE and case.quantizer.threads == norm_threads(MANY, k))
        assert not busy or ctas * bytes_of_cta >= BYTES_IN_FLIGHT, (case.label, ctas, bytes_of_cta)


def test_the_next_kernel_fits_beside_a_quantiser_of_rows(built: Built) -> None:
    """One CTA of it takes at most a sixth of an SM's registers, and none of its shared memory."""
    for case in ROWS:
        assert case.ctas_of_sm(built[case].resources.registers) >= 6, case.label


def test_every_load_and_store_is_as_wide_as_it_can_be(listed: Listed) -> None:
    for case, instructions in listed.items():
        loads = [text.split()[0] for text in find(instructions, r"LDG?\.")]
        assert loads == ["LDG.E.128"] * case.loads, case.label
        codes = find(instructions, r"STG\.E\.64 ")
        summed = case.pieces * case.summed * LANE_VALUES // VECTOR_BYTES
        of_scales = case in ROWS and case.pieces % 4 == 0
        wide = find(instructions, r"STG\.E\.128 ")
        assert (len(codes), len(wide)) == (case.pieces, summed + of_scales), case.label


def test_codes_come_two_at_a_time_from_the_conversion_to_e4m3(listed: Listed) -> None:
    for case, instructions in listed.items():
        conversions = find(instructions, r"F2FP\.SATFINITE\.E4M3\.F32")
        assert len(conversions) == case.pieces * LANE_VALUES // VALUES_OF_PAIR, case.label


def test_nothing_lives_in_local_memory(listed: Listed) -> None:
    assert [case.label for case, instructions in listed.items() if find(instructions, r"LDL|STL")] == []


def test_dependents_start_first_and_the_grids_before_are_awaited_before_any_memory(listed: Listed) -> None:
    for case, instructions in listed.items():
        opcodes = [text.split()[0] for text in instructions]
        assert opcodes.count("PREEXIT") == opcodes.count("ACQBULK") == 1, case.label
        first_access = min(i for i, opcode in enumerate(opcodes) if opcode.startswith(("LDG", "STG", "STS")))
        assert opcodes.index("PREEXIT") < opcodes.index("ACQBULK") < first_access, case.label


def test_lanes_of_a_block_meet_by_shuffles_and_only_ctas_that_share_a_scale_or_a_sum_at_a_barrier(
    listed: Listed,
) -> None:
    for case, instructions in listed.items():
        shuffles, barriers = len(find(instructions, r"SHFL\.BFLY")), len(find(instructions, r"BAR\.SYNC"))
        if case in BLOCKS:
            assert (shuffles, barriers) == (5, 1), case.label
        else:
            of_sum = 5 * (case in NORMS)
            assert (shuffles, barriers) == (4 * case.pieces + of_sum, int(case in NORMS)), case.label


def test_the_exponential_and_the_division_by_it_are_the_fast_ones(listed: Listed) -> None:
    for case, instructions in listed.items():
        values = case.pieces * LANE_VALUES
        of_silu = QuantizeSource.SILU_MUL.value in case.label
        assert len(find(instructions, r"MUFU\.EX2")) == values * of_silu, case.label
        if of_silu:  # and one for each scale, and one where the CTA's place is divided into row and column
            assert len(find(instructions, r"MUFU\.RCP")) == values + case.pieces + 1, case.label
