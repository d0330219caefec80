"""docs/batch-invariance.md: its program runs, and what it says of the choice is so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import OutputType, Scaling, packed_problem
from fp8gemm.tuning.select import ranked_configs

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "batch-invariance.md").read_text()


def test_the_program_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert "assert torch.equal" in program
    exec(compile(program, "docs/batch-invariance.md", "exec"), {})


@pytest.mark.parametrize("chip", ["h200", "h100", "h200:60"])
@pytest.mark.parametrize("scaling", Scaling)
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (7168, 2048), (512, 1024)])
def test_one_instruction_shape_and_one_order_serve_every_m_output_and_store(
    n: int, k: int, scaling: Scaling, chip: str
) -> None:
    problem = packed_problem(1, n, k, OutputType.BFLOAT16, scaling, batch_invariant=True)
    of_all = [
        config
        for m in (1, 8, 64, 128, 512, 8192)
        for output in OutputType
        for config in ranked_configs(replace(problem, m=m, output=output), named_chip(chip))
    ]
    shapes = {
        (config.wave_cols, config.warpgroups_k, config.split_k) if isinstance(config, TileConfig) else config
        for config in of_all
    }
    assert len(shapes) == 1 and {(1, 1)} == {(k_shares, split) for _, k_shares, split in shapes}
