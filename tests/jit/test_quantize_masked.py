"""The quantisers of groups compile to what the plain ones are for each row, and to one wait before all memory."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.quantize import (
    MASKED_CTAS_OF_SM,
    QuantizeSource,
    quantizer_of_masked,
)
from fp8gemm.tuning.problem import InputType
from tests.jit.sass import Instructions, find, instructions_of
from tests.jit.test_quantize import LANE_VALUES, SIZES, VALUES_OF_PAIR, VECTOR_BYTES, Case

pytestmark = pytest.mark.usefixtures("known_kernels")

Built = dict[Case, Artifact]
Listed = dict[Case, Instructions]


def case_of(source: QuantizeSource, dtype: InputType) -> Case:
    """The code of one row, and that of as many as a warp has where there are more."""
    quantizer = quantizer_of_masked(source, dtype)
    rows = dict(quantizer.request.config)["rows"]
    assert isinstance(rows, int)
    return Case(quantizer, (2 if source is QuantizeSource.SILU_MUL else 1) * (SIZES[dtype],), 1 + rows)


CASES = tuple(case_of(source, dtype) for source, dtype in product(QuantizeSource, InputType))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("masked")


@pytest.fixture(scope="module")
def built(place: Path) -> Built:
    with settings.scope(cache_dirs=(place,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([case.quantizer.request for case in CASES])
    return dict(zip(CASES, artifacts, strict=True))


@pytest.fixture(scope="module")
def listed(built: Built, place: Path) -> Listed:
    return dict(zip(CASES, instructions_of([built[case] for case in CASES], place), strict=True))


def test_every_masked_quantiser_has_a_name_of_its_own() -> None:
    assert len({case.label for case in CASES}) == len({case.quantizer.request for case in CASES}) == 6


def test_nothing_spills_is_shared_or_warned_of(built: Built) -> None:
    for case, artifact in built.items():
        uses = artifact.resources
        assert uses.spill_store_bytes == uses.spill_load_bytes == uses.stack_bytes == uses.shared_bytes == 0, case.label
        assert artifact.warnings == (), case.label


def test_an_sm_has_room_for_as_many_ctas_as_a_grid_has_for_it(built: Built) -> None:
    for case, artifact in built.items():
        source = dict(case.quantizer.request.config)["source"]
        assert isinstance(source, QuantizeSource)
        assert case.ctas_of_sm(artifact.resources.registers) >= MASKED_CTAS_OF_SM[source], (
            case.label,
            artifact.resources.registers,
        )


def test_every_load_and_store_is_as_wide_as_it_can_be(listed: Listed) -> None:
    for case, instructions in listed.items():
        loads = [text.split()[0] for text in find(instructions, r"LDG?\.E\.")]
        assert loads == ["LDG.E.128"] * case.loads, case.label
        counts = find(instructions, r"LDG?\.E ")
        assert 0 < len(counts) < 20, f"{case.label}: of 32 bits are the counts alone"
        assert len(find(instructions, r"STG\.E\.64 ")) == case.pieces, case.label
        assert len(find(instructions, r"STG\.E\.128 ")) == 1, f"{case.label}: the scales of four rows"
        conversions = find(instructions, r"F2FP\.SATFINITE\.E4M3\.F32")
        assert len(conversions) == case.pieces * LANE_VALUES // VALUES_OF_PAIR, case.label
        assert case.loads == case.pieces * sum(case.sizes) * LANE_VALUES // VECTOR_BYTES
        assert find(instructions, r"LDL|STL|BAR\.") == [], case.label


def test_dependents_start_first_and_the_grids_before_are_awaited_before_any_memory(listed: Listed) -> None:
    """The counts among it, which the grid before may have written."""
    for case, instructions in listed.items():
        opcodes = [text.split()[0] for text in instructions]
        assert opcodes.count("PREEXIT") == opcodes.count("ACQBULK") == 1, case.label
        first_access = min(i for i, opcode in enumerate(opcodes) if opcode.startswith(("LDG", "STG", "EXIT")))
        assert opcodes.index("PREEXIT") < opcodes.index("ACQBULK") < first_access, case.label
