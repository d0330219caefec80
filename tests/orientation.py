"""How grouped products are computed, whatever their sizes: in which orientation, in clusters, and in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fp8gemm.kernels import loaded
from fp8gemm.tuning.candidates import PIECE_ROWS
from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import PAIR_ROWS
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.table import Tables

FEW, TWO_TILES, MANY = 4, 192, 512
"""Rows of a typical group that stand for a config: one of the swapped orientation, one of clusters, and one without
them whose tiles have several pieces."""


def choose_for_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config that a test's ``expected_m`` stands for, if it is one of these."""
    choose = {FEW: choose_swapped, TWO_TILES: choose_pairs, MANY: choose_pieces}
    if "expected_m" in request.fixturenames and (rows := request.getfixturevalue("expected_m")) in choose:
        choose[rows](monkeypatch)


def choose_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on grouped products are computed in the swapped orientation, wherever that is possible."""
    _choose(monkeypatch, lambda config: isinstance(config, SwapAbConfig), m=1)


def choose_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a cluster of two computes the tiles of grouped products, wherever that is possible."""
    _choose(monkeypatch, lambda config: isinstance(config, TileConfig) and config.cluster_m > 1, m=PAIR_ROWS[-1])


def choose_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on tiles of grouped products have more rows than a piece, and a group's last one is loaded in these."""
    _choose(
        monkeypatch,
        lambda config: isinstance(config, TileConfig) and config.block_m > PIECE_ROWS and config.cluster_size == 1,
        m=MANY,
    )


def choose_tile(monkeypatch: pytest.MonkeyPatch, tile: Tile) -> None:
    """From here on each CTA computes such tiles of grouped products."""
    _choose(monkeypatch, lambda config: isinstance(config, TileConfig) and config.tile == tile, m=1024)


def _choose(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Config], bool], *, m: int) -> None:
    """The first that is wanted of those for so many rows, or else the first of all."""
    chosen = loaded._best

    def best(problem: AnyProblem, chip: Chip, device_index: int, programmatic: bool, tables: Tables) -> Any:
        if not isinstance(problem, GroupedProblem):
            return chosen(problem, chip, device_index, programmatic, tables)
        ranked = ranked_grouped(replace(problem, m=m), chip)
        config = next(filter(wanted, ranked), ranked[0])
        return loaded._key(problem, config, chip, device_index, programmatic)

    monkeypatch.setattr(loaded, "_best", best)
