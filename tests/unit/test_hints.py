"""The command that a miss names, run as a shell would: it must make ready the very kernel that was missed."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fp8gemm import settings
from fp8gemm.ahead.kernels import chips_named
from fp8gemm.cli import warmup as command
from fp8gemm.cli.asked import demand_of
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import hints, loaded
from fp8gemm.kernels import quantize as quantize_family
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.quantize import (
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    Quantizer,
    QuantizeSource,
    all_norm_threads,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
)
from fp8gemm.products import quantizers
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import limited_chip, named_chip
from fp8gemm.tuning.problem import Grouping, InputType, packed_problem
from fp8gemm.tuning.select import select_config
from fp8gemm.tuning.table import Table, write_table

PAIRS = list(product(InputType, InputType))


def made_ready_by(line: str) -> list[KernelRequest]:
    """What a command line would compile, environment variables before it and those of the process included."""
    words = shlex.split(line)
    start = words.index("fp8gemm")
    variables = dict(word.split("=", 1) for word in words[:start])
    assert words[start + 1] == "warmup"
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    there = settings.from_environment({**os.environ, **variables})
    with settings.scope(num_sms=there.num_sms, tables=there.tables, batch_invariant=there.batch_invariant):
        return demand_of(parser.parse_args(words[start + 2 :])).requests


def missed(quantizer: Quantizer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command that a call names under the policy ``error``."""

    def miss(request: KernelRequest, *arguments: object, **options: object) -> None:
        raise CacheMissError(f"kernel {request.label} is not ready", key="x")

    monkeypatch.setattr(quantize_family, "load", miss)
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(loaded, "hopper_info", lambda index: None)
    with settings.scope(jit="error"), pytest.raises(CacheMissError) as caught:
        loaded.quantizer_for(quantizer, 0)
    return str(caught.value).partition("make it ready with: ")[2]


@pytest.mark.parametrize(("dtype", "weight"), PAIRS, ids=[f"{x.value}-{weight.value}" for x, weight in PAIRS])
@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_of_any_two_types(
    dtype: InputType, weight: InputType, residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in (16, 1536, 7168):
        for threads in all_norm_threads(k):
            quantizer = quantizer_of_norm(k, dtype, weight, residual=residual, threads=threads)
            assert quantizer.request in made_ready_by(missed(quantizer, monkeypatch))


@pytest.mark.parametrize("dtype", InputType)
def test_every_other_quantiser(dtype: InputType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [quantizer_of_rows(source, dtype, rows) for source in QuantizeSource for rows in ROWS_OF_WARP]
    found += [quantizer_of_masked(source, dtype) for source in QuantizeSource]
    found += [quantizer_of_blocks(dtype, warps) for warps in WARPS_OF_BLOCK]
    for quantizer in found:
        assert quantizer.request in made_ready_by(missed(quantizer, monkeypatch))


@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_types_are_those_of_tensors(
    dtype: torch.dtype, weight: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(each).removeprefix("torch.") for each in (dtype, weight)]
    quantizer = quantizers._norm_quantizer(4096, dtype, weight, False, 512)
    line = missed(quantizer, monkeypatch)
    assert f"--quantizers 4096 --out-dtype {names[0]}" in line
    assert (f"--norm-weights {names[1]}" in line) == (dtype is not weight)


@hypothesis_settings(max_examples=20, deadline=None)
@given(
    chip=st.sampled_from(["h200", "h100", "h20", "h200:77", "h100:140"]),
    limit=st.integers(1, 139),
    m=st.integers(1, 3000),
    invariant=st.booleans(),
    of_settings=st.booleans(),
)
def test_a_product_on_some_sms_of_a_part_of_a_gpu(
    chip: str, limit: int, m: int, invariant: bool, of_settings: bool
) -> None:
    met = limited_chip(named_chip(chip), limit)
    one = packed_problem(m, 2112, 7168, batch_invariant=invariant)
    groups = grouped_problem(Grouping.MASKED, 8, m, 768, 2048, batch_invariant=invariant)
    with settings.scope(batch_invariant=of_settings), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FP8GEMM_BATCH_INVARIANT", str(int(of_settings)))
        line = hints.warmup_of(one, met)
        assert kernel_request(one, select_config(one, met)) in made_ready_by(line)
        line = hints.warmup_of(groups, met) + " --max-m 3000"
        assert kernel_request(groups, select_grouped(groups, met)) in made_ready_by(line)


def test_the_paths_of_tables_are_words_of_a_shell(tmp_path: Path) -> None:
    place = tmp_path / "a b;c$(d)"
    with settings.scope(tables=(place / "mine.json",)):
        line = hints.warmup_of(replace(packed_problem(1, 128, 128), m=1), named_chip("h200"))
    assert shlex.split(line)[:2] == [f"FP8GEMM_TABLES={place}/mine.json", "fp8gemm"]


def test_the_command_of_some_options_finds_the_settings_of_now(tmp_path: Path) -> None:
    table = tmp_path / "own tables.json"
    write_table(table, Table("", "h200", 132, "", ""))
    words, parser = ["--nk", "136x272", "--max-m", "200"], argparse.ArgumentParser()
    command.add_arguments(parser)
    with settings.scope(num_sms=60, batch_invariant=True, tables=(table,)):
        (chip,) = chips_named("h200")
        line = hints.warmup_with(words, chip)
        expected = demand_of(parser.parse_args([*words, "--chip", "h200"])).requests
    assert made_ready_by(line) == expected != made_ready_by(shlex.join(["fp8gemm", "warmup", *words, "--chip", "h200"]))
