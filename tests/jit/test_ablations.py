"""What is left out of a kernel, to see what limits it, is not in its machine code; the rest is, as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8gemm.jit.build import build
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem
from tests.jit.sass import Instructions, find, instructions_of
from tests.scripts import load_script

pytestmark = pytest.mark.usefixtures("known_kernels")

ablations = load_script("ablations")
CONFIGS = (TileConfig(128, 256, 4), TileConfig(128, 64, 8, waves_in_flight=2))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
@pytest.mark.parametrize("part", ablations.ABLATIONS)
def test_a_part_is_left_out(part: str, config: TileConfig, tmp_path: Path) -> None:
    whole = _instructions(None, config, tmp_path)
    rest = _instructions(ablations.headers_without(part, tmp_path), config, tmp_path / "rest")

    def counts(pattern: str) -> tuple[int, int]:
        return len(find(whole, pattern)), len(find(rest, pattern))

    multiplications, promotions, loads = counts("QGMMA"), counts("FFMA"), counts("UTMALDG")
    comparisons = counts("U?ISETP")
    if part == "multiplication":
        assert multiplications[0] > multiplications[1] == 0
    else:
        assert multiplications[0] == multiplications[1] > 0
    if "promotion" in part:
        assert promotions[1] < promotions[0] / 16
    else:
        assert promotions[0] == promotions[1]
    assert loads[0] == loads[1], "the first turn of the ring is loaded in any case"
    assert part != "loads" or comparisons[1] > comparisons[0], "with the number of stages"
    assert not find(rest, "LDL") and not find(rest, "STL")


def _instructions(include: Path | None, config: TileConfig, place: Path) -> Instructions:
    place.mkdir(exist_ok=True)
    artifact = build(kernel_request(Problem(777, 4096, 7168), config), include_dir=include)
    return instructions_of([artifact], place)[0]
