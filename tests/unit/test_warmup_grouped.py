"""Which kernels of grouped products a warmup makes ready: those that are then asked for, and few. Choices are real."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fp8gemm
from fp8gemm import nn, settings
from fp8gemm.ahead.grouped import GroupedVariants, grouped_kernels
from fp8gemm.ahead.kernels import Demand, demand
from fp8gemm.ahead.models import demand_of_model
from fp8gemm.cli import warmup as command
from fp8gemm.cli.asked import demand_of
from fp8gemm.errors import CacheMissError, InputError
from fp8gemm.kernels import group_ranges, loaded
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.group_ranges import GROUP_RANGES
from fp8gemm.kernels.hints import warmup_of
from fp8gemm.kernels.recording import record_problem, recorded
from fp8gemm.nn import experts_routed
from fp8gemm.products import grouped_products
from fp8gemm.tuning.grouped import GROUPINGS, enumerate_grouped_configs, select_grouped
from fp8gemm.tuning.grouped_problem import MAX_GROUPS, GroupedProblem, grouped_problem
from fp8gemm.tuning.hopper import chip_name, limited_chip, named_chip
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, StoreKind, parse_output

H200 = named_chip("h200")
MOST = 3000
DEEPSEEK_V3 = Path(__file__).resolve().parents[1] / "data" / "configs" / "deepseek-v3.json"


def asked(*arguments: str) -> Demand:
    """What ``fp8gemm warmup`` with these arguments would make ready."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return demand_of(parser.parse_args(arguments))


def shapes_of(found: Demand, chip: str = "h200") -> set[tuple[str, int, int, int]]:
    """Grouping, G, N and K of the grouped kernels."""
    configs = [dict(request.config) for request in found.gemms[chip] if request.family.startswith("Grouped")]
    return {(each["grouping"].value, each["groups"], each["n"], each["k"]) for each in configs}


@st.composite
def grouped_problems(draw: st.DrawFn) -> GroupedProblem:
    """Every kind that `fp8gemm.products.grouped_products` makes, of any size."""
    grouping = draw(st.sampled_from(GROUPINGS))
    of_columns = grouping is Grouping.COLUMNS
    output = OutputType.FLOAT32 if of_columns else draw(st.sampled_from(OutputType))
    problem = grouped_problem(
        grouping,
        draw(st.integers(1, MAX_GROUPS)),
        draw(st.integers(1, MOST)),
        draw(st.integers(1, 20_000)),
        16 * draw(st.integers(1, 600)),
        output,
        batch_invariant=not of_columns and draw(st.booleans()),
    )
    store = draw(st.sampled_from([problem.store, StoreKind.PREDICATED]))
    problem = replace(problem, store=store)
    return problem.accumulating() if of_columns and draw(st.booleans()) else problem


chips = st.sampled_from(["h200", "h100", "h20", "h200:77"])


@hypothesis_settings(max_examples=12, deadline=None)
@given(problem=grouped_problems(), chip=chips, data=st.data())
def test_any_m_of_any_grouped_product_finds_its_kernel_ready_and_they_are_few(
    problem: GroupedProblem, chip: str, data: Any
) -> None:
    ready = demand([problem], [named_chip(chip)]).requests
    assert 1 <= len(ready) <= 24 and (GROUP_RANGES in ready) == (problem.grouping is Grouping.CONTIGUOUS)
    for m in data.draw(st.lists(st.integers(1, problem.m), min_size=20, max_size=20)):
        assert kernel_request(problem, select_grouped(replace(problem, m=m), named_chip(chip))) in ready


@pytest.mark.parametrize("grouping", GROUPINGS, ids=lambda grouping: grouping.value)
def test_the_configs_are_those_that_some_m_chooses(grouping: Grouping) -> None:
    found = enumerate_grouped_configs(grouping.value, 8, 4096, 2048, 700)
    usual = OutputType.FLOAT32 if grouping is Grouping.COLUMNS else OutputType.BFLOAT16
    problem = grouped_problem(grouping, 8, 700, 4096, 2048, usual)
    asked = [problem, problem.accumulating()] if grouping is Grouping.COLUMNS else [problem]
    chosen = {select_grouped(replace(each, m=m), H200) for m in range(1, 701) for each in asked}
    assert set(found) == chosen and len(found) == len(chosen)
    assert fp8gemm.enumerate_grouped_configs(grouping.value, 8, 4096, 2048, 700, chip="h200") == found


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        (("rows", 8, 128, 128, 64), {}, "expected contiguous or masked or columns, got 'rows'"),
        (("masked", 0, 128, 128, 64), {}, "1 to 1024 groups"),
        (("masked", MAX_GROUPS + 1, 128, 128, 64), {}, "1 to 1024 groups"),
        (("masked", 8, 128, 100, 64), {}, "multiple of 16"),
        (("masked", 8, 128, 128, 0), {}, "max_m: expected a whole number, 1 to 2147483647, got 0"),
        (("masked", 8, 128, 128, 64), {"out_dtype": "int8"}, "out_dtype: expected"),
        (("masked", 8, 128, 128, 64), {"chip": "b200"}, "b200"),
        (("columns", 8, 128, 128, 64), {"out_dtype": torch.bfloat16}, "columns: expected a float32 output"),
        (("columns", 8, 128, 128, 64), {"batch_invariant": True}, "got float32, batch-invariant"),
    ],
)
def test_what_no_grouped_product_is_like_is_refused(arguments: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        enumerate_grouped_configs(*arguments, **options)


@hypothesis_settings(max_examples=25, deadline=None)
@given(problem=grouped_problems(), chip=chips, limit=st.one_of(st.none(), st.integers(1, 131)))
def test_the_command_that_a_miss_names_makes_it_ready(problem: GroupedProblem, chip: str, limit: int | None) -> None:
    met = named_chip(chip) if limit is None or ":" in chip else limited_chip(named_chip(chip), limit)
    words = shlex.split(warmup_of(problem, met))
    limited = [word for word in words if word.startswith("FP8GEMM_NUM_SMS=")]
    words = words[words.index("fp8gemm") :]
    assert words[:2] == ["fp8gemm", "warmup"] and bool(limited) == met.limited
    options = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(options)
    parsed = options.parse_args([*words[2:], *(() if "--max-m" in words else ("--max-m", str(MOST)))])
    with settings.scope(num_sms=int(limited[0].partition("=")[2]) if limited else None):
        ready = demand_of(parsed)
    assert kernel_request(problem, select_grouped(problem, met)) in ready.gemms[chip_name(met)]


def test_many_rows_and_the_tables_in_force_are_named(tmp_path: Path) -> None:
    many = grouped_problem(Grouping.CONTIGUOUS, 2, 40_000, 128, 128)
    assert "--max-m 40000" in warmup_of(many, H200)
    none = grouped_problem(Grouping.COLUMNS, 2, 0, 128, 128, OutputType.FLOAT32)
    assert " --grouped 2x1x128 --layout columns" in warmup_of(none, H200)
    with settings.scope(tables=(tmp_path / "mine.json",)):
        assert warmup_of(many, H200).startswith(f"FP8GEMM_TABLES={tmp_path}/mine.json ")


class Missing:
    """In place of a kernel: it is in no cache."""

    def __init__(self, *_: Any, **options: Any) -> None:
        assert options["allow_compile"] is False
        raise CacheMissError("kernel x is not ready", key="x")


def test_a_miss_names_the_command_and_a_recording_has_the_product(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = grouped_problem(Grouping.MASKED, 6, 20, 4096, 2048)
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(loaded, "load_kernel", Missing)
    file = tmp_path / "asked.jsonl"
    with settings.scope(jit="error", record=file), pytest.raises(CacheMissError) as caught:
        loaded.kernel_for(problem, H200, 0)
    assert "make it ready with: fp8gemm warmup --grouped 6x4096x2048 --layout masked --chip h200" in str(caught.value)
    assert caught.value.key == "x"
    assert recorded(file)[0] == [replace(problem, m=24)]


def test_a_miss_of_the_ranges_of_indices_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.zeros(4, 4096, 2048, dtype=torch.float8_e4m3fn)
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(group_ranges, "GroupRangesKernel", Missing)
    monkeypatch.setattr(loaded, "device_chip", lambda index: H200)
    with settings.scope(jit="error"), pytest.raises(CacheMissError) as caught:
        grouped_products._find_ranges(torch.zeros(3, dtype=torch.int32), weights)
    words = shlex.split(str(caught.value).partition("make it ready with: ")[2])
    assert GROUP_RANGES in asked(*words[2:], "--max-m", "1").requests


@hypothesis_settings(max_examples=25, deadline=None)
@given(problem=grouped_problems())
def test_a_recording_gives_back_what_was_recorded(tmp_path_factory: pytest.TempPathFactory, problem: Any) -> None:
    file = tmp_path_factory.mktemp("recording") / "asked.jsonl"
    for m in (1, problem.m, 7):
        record_problem(file, replace(problem, m=m))
    found, quantizers = recorded(file)
    assert [replace(each, m=problem.m) for each in found] == [problem] and problem.m <= found[0].m < problem.m + 64
    assert quantizers == [] and len(file.read_text().splitlines()) <= 2
    kernel = kernel_request(problem, select_grouped(problem, H200))
    assert kernel in asked("--recorded", str(file), "--chip", "h200").requests


def test_a_recording_of_no_product_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    record_problem(file, grouped_problem(Grouping.MASKED, 6, 20, 4096, 2048))
    good = json.loads(file.read_text())["grouped"]
    changes = ({"groups": 0}, {"groups": 1.5}, {"grouping": "rows"}, {"k": 17}, {"m": True}, {"more": 1})
    for change in changes:
        file.write_text(json.dumps({"grouped": good | change}) + "\n")
        with pytest.raises(InputError, match=r"asked\.jsonl:1: expected a line that FP8GEMM_RECORD wrote"):
            recorded(file)


def test_weights_of_groups_by_their_sizes() -> None:
    usual = ("--grouped", "8x512x256", "--max-m", "64", "--chip", "h200")
    assert shapes_of(asked(*usual)) == {("contiguous", 8, 512, 256), ("masked", 8, 512, 256)}
    # A gradient has the weight's own shape: N rows of K columns, from any number of tokens.
    assert shapes_of(asked(*usual, "--layout", "columns")) == {("columns", 8, 256, 128)}
    assert shapes_of(asked(*usual, "--layout", "all")) == shapes_of(asked(*usual)) | {("columns", 8, 256, 128)}
    assert not shapes_of(asked(*usual, "--layout", "none"))
    quantizers = {f"Quantize{name}" for name in ("Masked", "Rows", "ToRows", "Blocks", "Norm")} | {"RouteAndQuantize"}
    found = {each.family for each in asked(*usual).quantizers}
    assert found == quantizers | {"RouteTokens", "CountRoutes", "CopyToRows", "Unpermute"}
    more = asked(*usual, "--out-dtype", "bfloat16,float32", "--any-strides", "--batch-invariant").gemms["h200"]
    kinds = {(dict(each.config)["output"], dict(each.config)["store"]) for each in more if each != GROUP_RANGES}
    assert len(kinds) == 4 and not [each for each in more if each.family == "GroupedSwapAb"]
    for words, complaint in (
        (("8x512x100",), "multiple of 16"),
        (("2000x512x128",), "1 to 1024 groups"),
    ):
        with pytest.raises(InputError, match=complaint):
            asked("--grouped", *words)


def test_accumulating_a_gradient_is_a_kernel_of_its_own() -> None:
    problems = GroupedVariants((Grouping.COLUMNS,)).problems(4, 512, 256, 1)
    assert [(each.m, each.n, each.output, each.c) for each in problems] == [
        (512, 256, OutputType.FLOAT32, Addend.NONE),
        (512, 256, OutputType.FLOAT32, Addend.IN_PLACE),
    ]
    for problem in GroupedVariants((Grouping.COLUMNS,), any_strides=True).problems(4, 512, 256, 1):
        assert problem.c in {Addend.NONE, replace(problem, c=Addend.NONE).accumulating().c}
    first, second = (set(grouped_kernels(each, H200)) for each in problems)
    assert first and second and not first & second


def test_the_mode_of_the_settings_holds_unless_another_is_asked_for() -> None:
    with settings.scope(batch_invariant=True):
        assert all(each.batch_invariant for each in GroupedVariants().problems(4, 512, 256, 1))
        assert not any(each.batch_invariant for each in GroupedVariants(batch_invariant=False).problems(4, 512, 256, 1))


def test_a_models_experts_come_from_its_config() -> None:
    usual = ("--model", str(DEEPSEEK_V3), "--max-m", "64", "--chip", "h200")
    whole = {(kind, 256, n, k) for kind in ("contiguous", "masked") for n, k in ((4096, 7168), (7168, 2048))}
    assert shapes_of(asked(*usual)) == whole
    found = shapes_of(asked(*usual, "--tp", "1,8", "--ep", "1,8", "--layout", "masked"))
    assert {(groups, n, k) for _, groups, n, k in found} == {
        (groups, n, k) for groups, i in ((256, 2048), (256, 256), (32, 2048)) for n, k in ((2 * i, 7168), (7168, i))
    }


def test_a_models_blocks_of_experts_are_enough_on_no_device_yet() -> None:
    block = nn.Fp8Experts(8, 256, 128, first_expert=2, num_local_experts=4, device="meta", batch_invariant=True)
    found = demand_of_model(torch.nn.Sequential(block), 64, ["h200"], OutputType.FLOAT16)
    assert shapes_of(found) == {
        (kind, 4, n, k) for kind in ("contiguous", "masked") for n, k in ((256, 256), (256, 128))
    }
    configs = [dict(each.config) for each in found.gemms["h200"] if each != GROUP_RANGES]
    assert {each["output"] for each in configs} == {OutputType.FLOAT16}
    assert {each.label for each in found.quantizers} == {
        *(f"quantize-rows-{source}-f16-r{rows}" for source in ("plain", "silu-mul") for rows in (1, 2, 4)),
        *(f"quantize-masked-{source}-f16" for source in ("plain", "silu-mul")),
        *("route-tokens", "count-routes", "copy-to-rows"),
        *(f"{name}-f16" for name in ("quantize-to-rows", "route-and-quantize", "unpermute")),
    }
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024, device="meta", dtype=torch.bfloat16), block)
    nn.convert(model)
    both = demand_of_model(model, 64, ["h200"])
    assert {each.family for each in both.gemms["h200"]} >= {"Dense", "Grouped"}


def test_a_block_of_experts_asks_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, hidden, intermediate = 4, 256, 128
    block = nn.Fp8Experts(groups, hidden, intermediate)
    asked_for: list[GroupedProblem] = []

    def noted(name: str, multiply: Any, *operands: Any, out_dtype: Any, expected_m: int | None, **options: Any) -> Any:
        rows, (n, k) = operands[0].shape[-2] if expected_m is None else expected_m, operands[2].shape[1:]
        grouping = Grouping.MASKED if "masked" in name else Grouping.CONTIGUOUS
        asked_for.append(grouped_problem(grouping, groups, rows, n, k, parse_output(out_dtype)))
        return multiply(*operands, out_dtype=out_dtype, expected_m=expected_m, **options)

    for name in ("gemm_grouped", "gemm_grouped_again", "gemm_masked", "gemm_masked_again"):
        monkeypatch.setattr(experts_routed, name, partial(noted, name, getattr(experts_routed, name)))
    for tokens in (1, 40, 300):
        ids = torch.randint(0, groups, (tokens, 2))
        block(torch.randn(tokens, hidden, dtype=torch.bfloat16), ids, torch.rand(tokens, 2))
    block.forward_masked(torch.randn(groups, 60, hidden, dtype=torch.bfloat16), torch.tensor([3, 0, 60, 1]))
    assert [each.m for each in asked_for] == [1, 1, 20, 20, 150, 150, 60, 60]
    ready = demand_of_model(block, 300, ["h200"]).requests
    assert all(kernel_request(each, select_grouped(each, H200)) in ready for each in asked_for)


def test_shapes_of_neither_a_weight_nor_of_groups_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"expected \(N, K\) of a weight or \(G, N, K\) of groups, whole numbers, got \(128,\)"
    ):
        fp8gemm.warmup([(128,)])
