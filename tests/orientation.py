"""Which orientation grouped products are computed in, whatever their sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fp8gemm.products import grouped_launch
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.swap_ab import SwapAbConfig


def choose_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on grouped products are computed in the swapped orientation, wherever that is possible."""

    def best(problem: GroupedProblem, chip: Chip, device_index: int, programmatic: bool) -> Any:
        ranked = ranked_grouped(replace(problem, m=1), chip)
        config = next((each for each in ranked if isinstance(each, SwapAbConfig)), ranked[0])
        return grouped_launch._key(problem, config, device_index, chip, programmatic)

    monkeypatch.setattr(grouped_launch, "_best", best)
