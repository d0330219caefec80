"""Which kernels a warmup makes ready: exactly those that are then asked for. GPUs are played, choices are real."""

from __future__ import annotations

import argparse
import random
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fp8gemm
from fp8gemm import nn, settings
from fp8gemm.ahead.kernels import Demand, Variants, all_quantizers, chips_named, demand, recorded_quantizers
from fp8gemm.ahead.models import demand_of_model
from fp8gemm.cli import warmup as command
from fp8gemm.cli.asked import demand_of
from fp8gemm.errors import InputError
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.hints import warmup_of, warmup_of_quantizer
from fp8gemm.kernels.quantize import norm_threads, quantizer_of_norm
from fp8gemm.kernels.recording import recorded
from fp8gemm.tuning.hopper import CHIPS, chip_name, limited_chip, named_chip
from fp8gemm.tuning.problem import (
    Addend,
    InputType,
    OutputType,
    Problem,
    StoreKind,
    epilogue_text,
    packed_problem,
    parse_epilogue,
    parse_output,
)
from fp8gemm.tuning.select import select_config
from tests import cases
from tests.played_gpu import PlayedGpu
from tests.problems import any_problem

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
N, K = 136, 272


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGpu:
    return PlayedGpu(monkeypatch)


def asked(*arguments: str) -> Demand:
    """What ``fp8gemm warmup`` with these arguments would make ready."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return demand_of(parser.parse_args(arguments))


def rows_up_to(most: int) -> list[int]:
    """Every M where choices can change, the M beside it, and some in between."""
    edges = {m + d for m in (8, 16, 24, 32, 48, 64, 96, *range(128, most, 64)) for d in (0, 1)}
    return sorted({1, most, *(m for m in edges if m <= most), *random.sample(range(1, most + 1), min(most, 40))})


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (7, 144)])
def test_the_kernels_of_a_weight_are_those_that_some_m_asks_for(n: int, k: int, chip: str) -> None:
    most = 1500
    for problem in Variants((OutputType.BFLOAT16,), ("none", "bias:float32")).problems(n, k, most):
        found = demand([problem], [named_chip(chip)]).requests
        chosen = {
            kernel_request(problem, select_config(replace(problem, m=m), named_chip(chip))) for m in range(1, most + 1)
        }
        assert set(found) == chosen and len(found) == len(chosen) <= 24


chips = st.sampled_from(sorted(CHIPS)).flatmap(lambda name: st.sampled_from([name, f"{name}:{77}"]))
problems = any_problem(st.integers(1, 20_000))


@hypothesis_settings(max_examples=25, deadline=None)
@given(problem=problems, chip=chips, data=st.data())
def test_any_m_of_any_product_finds_its_kernel_ready_and_they_are_few(problem: Problem, chip: str, data: Any) -> None:
    ready = demand([problem], [named_chip(chip)]).requests
    assert 1 <= len(ready) <= 24
    for m in data.draw(st.lists(st.integers(1, problem.m), min_size=20, max_size=20)):
        assert kernel_request(problem, select_config(replace(problem, m=m), named_chip(chip))) in ready


@hypothesis_settings(max_examples=40, deadline=None)
@given(problem=problems, chip=chips, limit=st.one_of(st.none(), st.integers(1, 131)))
def test_the_command_that_a_miss_names_makes_it_ready(problem: Problem, chip: str, limit: int | None) -> None:
    # TMA cannot store rows that are no whole pieces of 16 bytes, so that nobody asks for it.
    store = packed_problem(1, problem.n, problem.k, problem.output).store
    c = Addend.FLOAT32 if problem.c is Addend.IN_PLACE else problem.c  # nor does L2 add to such rows
    problem = problem if store is StoreKind.TMA else replace(problem, store=StoreKind.PREDICATED, c=c)
    met = named_chip(chip) if limit is None or ":" in chip else limited_chip(named_chip(chip), limit)
    missed = kernel_request(problem, select_config(problem, met))
    words = shlex.split(warmup_of(problem, met))
    limited = [word for word in words if word.startswith("FP8GEMM_NUM_SMS=")]
    words = words[words.index("fp8gemm") :]
    assert words[:2] == ["fp8gemm", "warmup"] and bool(limited) == met.limited
    with settings.scope(num_sms=int(limited[0].partition("=")[2]) if limited else None):
        assert missed in asked(*words[2:]).requests


@pytest.mark.parametrize("dtype", InputType)
def test_the_command_that_a_missed_quantiser_names_makes_it_ready(dtype: InputType) -> None:
    for request in all_quantizers([parse_output(dtype.name.lower())], [1536]):
        assert request in asked(*shlex.split(warmup_of_quantizer(request))[2:]).requests


def test_a_miss_under_tables_of_ones_own_names_them(tmp_path: Path) -> None:
    with settings.scope(tables=(tmp_path / "mine.json",)):
        assert warmup_of(Problem(1, N, K), named_chip("h200")).startswith(f"FP8GEMM_TABLES={tmp_path}/mine.json ")


@pytest.mark.parametrize(("dtype", "bias"), [(BF16, BF16), (BF16, None), (FP16, FP32), (FP32, None)])
def test_a_model_asks_for_no_other_kernels_than_its_warmup_made(
    gpu: PlayedGpu, dtype: torch.dtype, bias: torch.dtype | None
) -> None:
    most = 300
    case = cases.signed(1, N, K, seed=1, bias=bias)
    layer = nn.Fp8Linear.from_quantized(case.b, case.scales_b, case.bias, dtype=dtype, max_m=most)
    ready = demand_of_model(torch.nn.Sequential(layer), None, None).requests
    layer._plan.prepare(layer.weight, layer.weight_scale_inv, layer.bias, dtype)
    for m in (1, 9, 70, most):
        layer(torch.randn(m, K, dtype=dtype))
    assert gpu.launches and set(gpu.loads) == set(demand_of_model(layer, None, ["h200"]).requests) <= set(ready)


def test_what_shapes_ask_for_is_ready_for_gemm_and_for_layers(gpu: PlayedGpu) -> None:
    ready = asked("--nk", f"{N}x{K}", "--max-m", "300", "--chip", "h200", "--epilogue", "none,bias").requests
    for bias in (None, BF16):
        for m in (1, 20, 100, 300):
            case = cases.signed(m, N, K, seed=1, bias=bias)
            fp8gemm.gemm(case.a, case.scales_a, case.b, case.scales_b, bias=case.bias)
        fp8gemm.plan(case.b, case.scales_b, bias=case.bias, max_m=300, static_weights=True)
    assert gpu.launches and set(gpu.loads) <= set(ready)


def test_a_model_that_is_on_no_device_yet_is_enough() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024, device="meta", dtype=BF16))
    with pytest.raises(InputError, match="Fp8Linear layers.* or Fp8Experts"):
        demand_of_model(model, None, None)
    nn.convert(model)
    found = demand_of_model(model, 64, None)
    assert set(found.gemms) == {"h200", "h100"} and len(found.quantizers) == 3
    assert found.requests == demand_of_model(model, 64, ["h200", "h100"]).requests


def test_what_was_recorded_is_what_is_made_ready(gpu: PlayedGpu, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    with settings.scope(record=file):
        for m in (1, 100, 7, 100):
            case = cases.signed(m, N, K, seed=1)
            fp8gemm.gemm(case.a, case.scales_a, case.b, case.scales_b, out_dtype=FP32)
        layer = nn.Fp8Linear.from_quantized(case.b, case.scales_b, None, max_m=200)
        layer(torch.randn(3, K, dtype=BF16))
    lines = file.read_text().splitlines()
    found, quantizers = recorded(file)
    assert {(each.m, each.output, each.static_weights) for each in found} == {
        (128, OutputType.FLOAT32, False),
        (256, OutputType.BFLOAT16, True),
    }
    assert len(lines) == 2 + 1 + 3, "M grew once; three quantisers; M as choices count it"
    assert len(quantizers) == 3
    ready = asked("--recorded", str(file), "--chip", "h200").requests
    assert gpu.launches and set(gpu.loads) <= set(ready)
    more = asked("--recorded", str(file), "--chip", "h200", "--max-m", "5000").requests
    assert set(ready) < set(more)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"gemm": {"m": 1}}', '{"gemm": {"m": 1, "n": 8, "k": 17}}', "{}"])
def test_a_file_that_is_no_recording_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"gemm": {"m": 1, "n": 8, "k": 16}}\n' + line + "\n")
    with pytest.raises(InputError, match=r"asked\.jsonl:2: expected a line that FP8GEMM_RECORD wrote"):
        recorded(file)
    with pytest.raises(InputError, match="expected a file that FP8GEMM_RECORD wrote"):
        recorded(tmp_path / "none")


def test_a_recording_that_cannot_be_written_fails_no_call(gpu: PlayedGpu, tmp_path: Path) -> None:
    case = cases.signed(3, N, K, seed=1)
    with (
        settings.scope(record=tmp_path / "no" / "such" / "place"),
        pytest.warns(RuntimeWarning, match="FP8GEMM_RECORD"),
    ):
        fp8gemm.gemm(case.a, case.scales_a, case.b, case.scales_b)
    assert gpu.launches


def test_constants_of_no_quantiser_are_refused() -> None:
    for family, config in (("Dense", {"input": "bf16"}), ("QuantizeRows", {}), ("QuantizeNorm", {"input": "bf16"})):
        with pytest.raises(InputError, match="expected"):
            recorded_quantizers(family, config)


def test_every_m_of_a_norm_is_served() -> None:
    for k in (16, 512, 4096, 7168, 20480):
        ready = all_quantizers([OutputType.FLOAT16], [k])
        for m in (1, 64, 128, 129, 384, 385, 10_000):
            for added in (False, True):
                dtype = InputType.FLOAT16
                wanted = quantizer_of_norm(k, dtype, dtype, residual=added, threads=norm_threads(m, k))
                assert wanted.request in ready


def test_a_limit_on_sms_holds_for_every_chip() -> None:
    with settings.scope(num_sms=100):
        assert [(chip_name(chip), chip.limited) for chip in chips_named(["h200", "h20"])] == [
            ("h200:100", True),
            ("h20", False),
        ]


@pytest.mark.parametrize(
    ("text", "c", "bias"),
    [
        ("none", Addend.NONE, Addend.NONE),
        ("bias", Addend.NONE, Addend.BFLOAT16),
        ("c+bias:float32", Addend.BFLOAT16, Addend.FLOAT32),
        ("c:float32", Addend.FLOAT32, Addend.NONE),
    ],
)
def test_an_epilogue_in_words(text: str, c: Addend, bias: Addend) -> None:
    assert parse_epilogue(text) == (c, bias) and epilogue_text(c, bias) == text


@pytest.mark.parametrize("text", ["", "d", "c+c", "bias:float16", "none+c", "c:", "c,bias"])
def test_an_epilogue_that_there_is_not(text: str) -> None:
    if text == "c:":
        assert parse_epilogue(text) == parse_epilogue("c")
        return
    with pytest.raises(InputError, match="epilogue: expected none, or terms among c, bias"):
        parse_epilogue(text)


def test_an_output_by_its_name_or_dtype() -> None:
    assert parse_output(FP32) is parse_output("float32") is OutputType.FLOAT32
    with pytest.raises(InputError, match="out_dtype: expected bfloat16, float16, float32, got int8"):
        parse_output(torch.int8)


def test_a_models_layers_come_from_its_config() -> None:
    path = CONFIGS / "deepseek-v3.json"
    usual = ("--model", str(path), "--max-m", "128", "--chip", "h200", "--calls", "layer", "--layout", "none")
    one = asked(*usual)
    shapes = {(dict(request.config)["n"], dict(request.config)["k"]) for request in one.gemms["h200"]}
    assert {(1536, 7168), (24576, 1536), (7168, 16384), (7168, 18432)} <= shapes
    norms = {dict(each.config)["k"] for each in one.quantizers if each.family == "QuantizeNorm"}
    assert norms == {7168, 1536, 512}, "what o_proj and down_proj read comes out of no norm"
    both = asked(*usual, "--tp", "1,8")
    assert set(one.requests) < set(both.requests)
    assert {(3072, 1536), (7168, 2304)} <= {
        (dict(request.config)["n"], dict(request.config)["k"]) for request in both.gemms["h200"]
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--chip", "b200"),
        ("--out-dtype", "int8"),
        ("--epilogue", "d"),
        ("--calls", "nobody"),
        ("--nk", "128x100"),
        ("--nk", "128"),
        ("--tp", "0"),
        ("--ep", "0"),
        ("--layout", "rows"),
        ("--layout", "masked,all"),
        ("--grouped", "128x128"),
        ("--grouped", "0x128x128"),
        ("--max-m", "x"),
    ],
)
def test_a_bad_option_is_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(argparse.ArgumentError, match="expected"):
        asked("--quantizers", "128", *arguments)


def test_nothing_to_do_is_an_error() -> None:
    with pytest.raises(InputError, match="--nk, --grouped, --model, --recorded or --quantizers"):
        asked()


def test_biases_are_those_that_ranks_add() -> None:
    own = Variants(static_weights=(True,))
    assert [each.bias for each in own.of_layer(OutputType.BFLOAT16, bias=True).problems(N, K, 1)] == [Addend.BFLOAT16]
    assert [each.bias for each in own.of_layer(OutputType.FLOAT16, bias=True, ranks=2).problems(N, K, 1)] == [
        Addend.FLOAT32,
        Addend.NONE,
    ]
