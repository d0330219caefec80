"""Every family of kernels by its problems: which is loaded and chosen from for each, and on which chip. No GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fp8gemm import settings
from fp8gemm.driver.device import DeviceInfo
from fp8gemm.kernels import catalogue, group_ranges, grouped, loaded, quantize
from fp8gemm.kernels.quantize import QuantizeSource
from fp8gemm.kernels.recording import recorded
from fp8gemm.products.quantizers import masked_quantizer
from fp8gemm.tuning.config import TileConfig, shared_bytes
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_config import grouped_shared_bytes
from fp8gemm.tuning.grouped_problem import AnyProblem, grouped_problem
from fp8gemm.tuning.hopper import limited_chip, named_chip
from fp8gemm.tuning.problem import FEW_ROWS, Grouping, Problem
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab import shared_bytes as swap_ab_shared_bytes
from fp8gemm.tuning.table import Entry, Table, Tables, tile_of

H200 = named_chip("h200")
SINGLE, GROUPED = Problem(8, 4096, 4096), grouped_problem(Grouping.MASKED, 4, 8, 4096, 4096)


def of_either_orientation(problem: AnyProblem) -> list[Config]:
    configs = catalogue.ranked(problem, H200)
    return [next(each for each in configs if isinstance(each, kind)) for kind in (TileConfig, SwapAbConfig)]


@pytest.mark.parametrize("problem", [SINGLE, GROUPED])
def test_kernels_are_told_apart_by_all_but_m_and_why_they_were_chosen(problem: AnyProblem) -> None:
    kind = catalogue.kind_of(problem)
    assert kind == replace(problem, m=1) and kind.batch_invariant is False
    assert catalogue.kind_of(replace(problem, m=77, batch_invariant=True)) == kind
    assert catalogue.kind_of(replace(problem, n=264)) == replace(kind, n=264)
    assert catalogue.kind_of(replace(SINGLE, static_weights=True)) == replace(SINGLE, m=1)


def test_configs_of_either_kind_of_problem() -> None:
    assert catalogue.ranked(SINGLE, H200) == ranked_configs(SINGLE, H200)
    tuned = ranked_configs(SINGLE, H200)[1]
    entry = Entry(SINGLE.m, SINGLE.n, SINGLE.k, tile_of(tuned), 1.0)
    tables = Tables((Table("NVIDIA H200", "h200", 132, "2026-01-01", "by hand", (entry,)),))
    assert catalogue.ranked(SINGLE, H200, tables)[0] == tuned
    assert catalogue.ranked(GROUPED, H200) == ranked_grouped(GROUPED, H200)


def test_candidates_are_the_best_first_and_then_those_of_few_rows() -> None:
    for problem, rows in ((SINGLE, (*FEW_ROWS, 2 * FEW_ROWS[-1])), (GROUPED, FEW_ROWS)):
        large = replace(problem, m=2048)
        expected = [*catalogue.ranked(large, H200)]
        for m in rows:
            expected += catalogue.ranked(replace(problem, m=m), H200)
        assert list(catalogue.candidates(large, H200)) == expected


def test_shared_memory_is_that_of_the_family() -> None:
    tile, swapped = of_either_orientation(SINGLE)
    assert catalogue.shared_bytes(SINGLE, tile) == shared_bytes(tile, SINGLE.store, SINGLE.output, SINGLE.scaling)
    assert catalogue.shared_bytes(SINGLE, swapped) == swap_ab_shared_bytes(swapped, SINGLE.k)
    for config in of_either_orientation(GROUPED):
        assert catalogue.shared_bytes(GROUPED, config) == grouped_shared_bytes(GROUPED, config)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("programmatic", [False, True])
def test_a_kernel_is_loaded_by_its_family(programmatic: bool, limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str) -> Any:
        return lambda *arguments, **options: (name, arguments, options)

    monkeypatch.setattr(catalogue, "DenseKernel", made("dense"))
    monkeypatch.setattr(catalogue, "SwapAbKernel", made("swapped"))
    monkeypatch.setattr(grouped, "GroupedKernel", made("grouped"))
    given: dict[str, Any] = {"device_index": 3, "num_sms": 77, "limited": limited, "programmatic": programmatic}
    given["allow_compile"] = not programmatic
    tile, swapped = of_either_orientation(SINGLE)
    assert catalogue.load_kernel(SINGLE, tile, **given) == ("dense", (SINGLE, tile), given)
    assert catalogue.load_kernel(SINGLE, swapped, **given) == ("swapped", (SINGLE, swapped), given)
    for config in of_either_orientation(GROUPED):
        assert catalogue.load_kernel(GROUPED, config, **given) == ("grouped", (GROUPED, config), given)


def test_the_chip_is_the_gpus_less_the_sms_that_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def info(index: int) -> DeviceInfo:
        asked.append(index)
        return DeviceInfo(index, "NVIDIA H100 PCIe", (9, 0), 100, 50 << 20, 232448, "13.0")

    monkeypatch.setattr(loaded, "hopper_info", info)
    whole = loaded.device_chip(2)
    assert whole == named_chip("h100-pcie:100") and asked == [2]
    with settings.scope(num_sms=60):
        assert loaded.device_chip(2) == limited_chip(whole, 60) != whole


def test_a_quantizer_is_loaded_once_on_a_gpu_that_is_hopper_and_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(loaded, "hopper_info", checked.append)
    monkeypatch.setattr(quantize, "QuantizeKernel", lambda *arguments, **options: (*arguments, options))
    quantizer, file = masked_quantizer(QuantizeSource.PLAIN, torch.bfloat16), tmp_path / "asked.jsonl"
    with settings.scope(record=file):
        found = loaded.quantizer_for(quantizer, 3)
    assert loaded.quantizer_for(quantizer, 3) is found and checked == [3]
    options = {"device_index": 3, "allow_compile": True, "programmatic": settings.current().pdl}
    assert found == (quantizer, options)
    constants = {name: getattr(value, "value", value) for name, value in quantizer.request.config}
    assert recorded(file)[1] == [(quantizer.request.family, constants)]


@pytest.mark.parametrize("policy", settings.JIT_POLICIES)
def test_the_kernel_of_group_ranges_is_one_for_each_gpu_and_way_of_launching(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Made:
        def __init__(self, **options: Any) -> None:
            made.append(options)

    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(group_ranges, "GroupRangesKernel", Made)
    with settings.scope(jit=policy, pdl=False):
        first = loaded.group_ranges_for(GROUPED, 3)
        assert loaded.group_ranges_for(replace(GROUPED, n=264), 3) is first
        assert loaded.group_ranges_for(GROUPED, 4) is not first
    with settings.scope(jit=policy, pdl=True):
        assert loaded.group_ranges_for(GROUPED, 3) is not first
    wanted = ((3, False), (4, False), (3, True))
    assert made == [
        {"device_index": index, "allow_compile": policy == "compile", "programmatic": pdl} for index, pdl in wanted
    ]
