"""`fp8gemm demo` on a Hopper GPU: the kernels that its table names are those that ran, and its figures are figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.driver.device import hopper_info
from fp8gemm.jit.kernel import is_loaded
from fp8gemm.lab.demo.measure import measure_layer
from fp8gemm.lab.demo.target import find_target

# A column count that TMA cannot store among them.
SHAPES = ["--m", "1,333", "--nk", "2112x7168,100x144"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    """The only cache directory in force; it does not exist yet."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="compile", backend="auto"):
        yield tmp_path / "cache"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["demo", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_every_product_is_checked_and_timed(device, capsys) -> None:
    code, found = run_json(capsys, *SHAPES)
    assert code == 0 and found["ok"], [row["failures"] for row in found["rows"]]
    assert found["backend"] == "hopper" and found["gpu"] == hopper_info(device.index).name
    assert found["passed"] == len(found["rows"]) == 4
    for row in found["rows"]:
        assert row["rows_checked"] == row["m"]
        assert math.isclose(row["tflops"], 2 * row["m"] * row["n"] * row["k"] / row["us"] / 1e6)
        # The floor of a launch, and what no Hopper GPU reaches.
        assert row["us"] > 1 and row["tflops"] < 2000 and row["gigabytes_per_second"] < 20000


@pytest.mark.parametrize("num_sms", [None, 64])
def test_the_kernel_in_the_table_is_the_one_that_ran(device, generator, num_sms) -> None:
    with settings.scope(num_sms=num_sms):
        rows = list(measure_layer(7168, 2048, [64, 1024], find_target(), generator))
    assert [row.problem.m for row in rows] == [64, 1024]
    for row in rows:
        assert is_loaded(row.artifact.request, device.index)


def test_a_wrong_product_is_exit_code_one(device, monkeypatch, capsys) -> None:
    right = fp8gemm.gemm

    def wrong(*operands: Tensor, out: Tensor) -> Tensor:
        right(*operands, out=out)
        out[:, :128].mul_(1.02)
        return out

    monkeypatch.setattr(fp8gemm, "gemm", wrong)
    code, found = run_json(capsys, "--m", "64", "--nk", "2112x7168")
    assert code == 1 and found["failed"] == 1 and found["rows"][0]["failures"]


def test_the_reference_setting_rules_here_too(device, monkeypatch, capsys) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr("fp8gemm.kernels.gemm.BoundLaunch", refuse)
    with settings.scope(backend="reference"):
        code, found = run_json(capsys, "--m", "333", "--nk", "2112x7168")
    (row,) = found["rows"]
    assert code == 0 and found["backend"] == "reference"
    assert row["us"] is None and row["rows_checked"] == 16 and row["registers"] > 0


def test_info_describes_the_device(device, capsys) -> None:
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    gpu = found["gpus"][device.index]
    properties = torch.cuda.get_device_properties(device)
    assert found["status"] == "ready" and found["driver"]["version"] and found["torch_cuda"]
    assert (gpu["name"], gpu["capability"]) == (properties.name, f"{properties.major}.{properties.minor}")
    assert (gpu["num_sms"], gpu["l2_bytes"]) == (properties.multi_processor_count, properties.L2_cache_size)
