"""`fp8gemm tune` on a Hopper GPU: every candidate is timed, and `select` follows the table that comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.lab.tune import report
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import eligible_configs
from fp8gemm.tuning.table import NO_TABLES, forget_tables, read_table, tile_of
from tests import cases

SHAPES = [(300, 512, 256), (64, 256, 384)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    """The only cache directory in force; no table is."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="compile", backend="auto", tables=()):
        yield tmp_path / "cache"


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    shapes = ",".join("x".join(map(str, shape)) for shape in SHAPES)
    code = cli.main(["tune", "--shapes", shapes, "--candidates", "3", "--measure-ms", "1", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_candidates_are_timed_and_select_follows_the_table(
    device: torch.device, seed: int, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, path = tmp_path / "results.json", tmp_path / "table.json"
    # Each shape has an entry then, whichever config is fastest.
    monkeypatch.setattr(report, "updated", partial(report.updated, margin=-1.0))
    code, found = tune(capsys, "--peers", "tensorwise", "--results", str(results), "--table", str(path))
    assert code == 0, [row["failed"] for row in found["rows"]]
    chip = device_chip(device.index)
    for shape, row in zip(SHAPES, json.loads(results.read_text())["rows"], strict=True):
        ranked = [config.label for config in eligible_configs(Problem(*shape), chip, NO_TABLES)]
        assert set(row["us"]) == set(ranked[:3]) and set(row["peers"]) == {"tensorwise"}
        assert all(1 < us < 1000 for us in [*row["us"].values(), *row["peers"].values()])
    assert found["regret_mean"] >= 0 and found["peers"]["tensorwise"]["geomean"] > 0

    tiles = {entry.key: entry.tile for entry in read_table(path).entries}
    assert len(tiles) == len(SHAPES)
    forget_tables()
    with settings.scope(tables=[path]):
        for (m, n, k), row in zip(SHAPES, found["rows"], strict=True):
            case = cases.signed(m, n, k, seed=seed, device=device)
            plan = fp8gemm.plan(case.b, case.scales_b, max_m=m)
            kernel = plan.kernel_for(m)
            assert kernel is not None and kernel.config.label == row["best"]
            assert tile_of(kernel.config) in tiles.values()
            case.check(plan(case.a, case.scales_a)).raise_if_failed(f"{case}, {kernel.config}")

    before = results.read_text()
    assert tune(capsys, "--peers", "tensorwise", "--results", str(results))[0] == 0
    assert json.loads(results.read_text())["rows"] == json.loads(before)["rows"], "nothing was measured again"
