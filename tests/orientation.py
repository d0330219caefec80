"""Which orientation grouped products are computed in, whatever their sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fp8gemm.kernels import loaded
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import Tables


def choose_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on grouped products are computed in the swapped orientation, wherever that is possible."""

    chosen = loaded._best

    def best(problem: AnyProblem, chip: Chip, device_index: int, programmatic: bool, tables: Tables) -> Any:
        if not isinstance(problem, GroupedProblem):
            return chosen(problem, chip, device_index, programmatic, tables)
        ranked = ranked_grouped(replace(problem, m=1), chip)
        config = next((each for each in ranked if isinstance(each, SwapAbConfig)), ranked[0])
        return loaded._key(problem, config, chip, device_index, programmatic)

    monkeypatch.setattr(loaded, "_best", best)
