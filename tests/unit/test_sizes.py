"""Sizes on the command line and in a model's config have bounds that are said, and what no kernel can take costs
nothing: no walk, no list, no compiler."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fp8gemm
from fp8gemm.ahead.kernels import all_quantizers, recorded_quantizers
from fp8gemm.cli import main as cli
from fp8gemm.cli.arguments import parse_count
from fp8gemm.errors import InputError
from fp8gemm.lab.tune.shapes import MOST_RANDOM
from fp8gemm.products import quantize
from fp8gemm.quoting import quoted
from fp8gemm.sizes import LIMIT, MAX_NORM_K
from fp8gemm.tuning.grouped_problem import MAX_GROUPS, GroupedProblem
from fp8gemm.tuning.problem import Grouping, OutputType, Problem

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
DEEPSEEK = json.loads((ROOT / "tests" / "data" / "configs" / "deepseek-v3.json").read_text())
QWEN_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_hidden_layers": 48,
}
BILLION, HUGE, DIGITS = str(10**9), str(10**30), "9" * 5000
BELOW, NORM = "below 2^31", "expected K <= 65536, because the registers"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("warmup", "--quantizers", "17"), "--quantizers: a norm: expected K to be a multiple of 16"),
        (("warmup", "--quantizers", "0"), BELOW),
        (("warmup", "--quantizers", str(MAX_NORM_K + 16)), NORM),
        (("warmup", "--quantizers", "4096,1048576"), NORM),
        (("warmup", "--quantizers", HUGE), BELOW),
        (("warmup", "--nk", "64x16", "--max-m", str(LIMIT)), BELOW),
        (("warmup", "--nk", "64x16", "--max-m", DIGITS), BELOW),
        (("warmup", "--nk", f"{HUGE}x16"), BELOW),
        (("warmup", "--nk", f"64x{DIGITS}"), BELOW),
        (("warmup", "--nk", "64x17"), "multiple of 16"),
        (("warmup", "--nk", DIGITS), "expected NxK"),
        (("warmup", "--grouped", f"{DIGITS}x64x16"), BELOW),
        (("warmup", "--nk", "64x16", "--tp", HUGE), BELOW),
        (("warmup", "--nk", "64x16", "--ep", HUGE), BELOW),
        (("warmup", "--nk", "64x16", "--jobs", HUGE), BELOW),
        (("warmup", "--nk", "64x16", "--chip", f"h200:{BILLION}"), "1 to 144"),
        (("warmup", "--nk", "64x16", "--chip", f"h200:{DIGITS}"), "1 to 144"),
        (("warmup", "--nk", "64x16", "--calls", DIGITS), "layer or gemm"),
        (("warmup", "--nk", "64x16", "--layout", DIGITS), "contiguous"),
        (("explain", str(LIMIT), "64", "16"), BELOW),
        (("explain", DIGITS, "64", "16"), BELOW),
        (("explain", "64", "64", "17"), "multiple of 16"),
        (("explain", "64", "64", "16", "--groups", HUGE), BELOW),
        (("explain", "64", "64", "16", "--runners-up", DIGITS), BELOW),
        (("bench", "--m", HUGE), BELOW),
        (("bench", "--nk", "64x17"), "multiple of 16"),
        (("bench", "--nk", f"{HUGE}x16"), BELOW),
        (("bench", "--rounds", DIGITS), BELOW),
        (("tune", "--m", HUGE), BELOW),
        (("tune", "--shapes", f"1x2x{HUGE}"), BELOW),
        (("tune", "--grouped", f"{HUGE}x64x16"), BELOW),
        (("tune", "--random", str(MOST_RANDOM + 1)), f"at most {MOST_RANDOM} shapes"),
        (("demo", "--m", HUGE), BELOW),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)
def test_a_size_that_no_option_takes_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert said in complaint and len(complaint) < 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("warmup", "--grouped", f"{MAX_GROUPS + 1}x64x16"), "1 to 1024 groups"),
        (("warmup", "--grouped", "1024x2097152x16"), "G * N < 2^31"),
        (("explain", "64", "64", "16", "--groups", "1025"), "1 to 1024 groups"),
        (("explain", "64", "2097152", "16", "--groups", "1024"), "G * N < 2^31"),
        (("tune", "--grouped", "1025x64x16"), "1 to 1024 groups"),
        (("tune", "--grouped", "8x64x17"), "multiple of 16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_groups_that_no_product_has_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (QWEN_MOE | {"num_hidden_layers": 10**30}, "num_hidden_layers: expected a whole number, 1 to 2147483647"),
        (QWEN_MOE | {"num_experts": 10**9}, "experts (ep = 1): expected a whole number, 1 to 1024, got 1000000000"),
        (QWEN_MOE | {"moe_intermediate_size": 2**31}, "moe_intermediate_size: expected a whole number"),
        (QWEN_MOE | {"mlp_only_layers": "x" * 10**6}, "mlp_only_layers: expected a list"),
        (LLAMA | {"hidden_size": 4194304}, "hidden_size: expected a whole number, 1 to 65536, got 4194304"),
        (LLAMA | {"hidden_size": "x" * 10**6}, "hidden_size: expected a whole number"),
        (LLAMA | {"hidden_size": 10**99}, "1 to 65536, got about 2^329"),
        (LLAMA | {"intermediate_size": 10**12}, "intermediate_size: expected a whole number, 1 to 2147483647"),
        (LLAMA | {"num_attention_heads": 2**30, "head_dim": 2**30}, "q_proj (tp = 1): expected N < 2^31"),
        (LLAMA | {"num_attention_heads": 8192}, "q_proj (tp = 1): expected N >= 1"),
        (DEEPSEEK | {"n_shared_experts": 2**30}, "shared_experts.gate_proj (tp = 1): expected N < 2^31"),
        (DEEPSEEK | {"q_lora_rank": 2**20}, "q_lora_rank: expected a whole number, 1 to 65536"),
        (DEEPSEEK | {"kv_lora_rank": 2**20}, "kv_lora_rank: expected a whole number, 1 to 65536"),
        ({"model_type": "x" * 10**6}, "model_type: expected one of"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_field_that_no_model_has_is_refused(
    config: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    kernels = tmp_path / "kernels"
    assert cli.main(["warmup", "--model", str(tmp_path), "--cache-dir", str(kernels)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and len(line) < 400
    assert not kernels.exists()


MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
"""
"""In a process of its own, because what is measured begins with the memory of the one that starts it."""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--model", "config.json", "--list"), 0),
        (("--model", "wide.json"), 1),
        (("--quantizers", "1048576"), 2),
        (("--quantizers", HUGE), 2),
        (("--nk", "64x16", "--max-m", str(LIMIT)), 2),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)
def test_a_billion_layers_and_wide_norms_take_no_time_and_no_memory(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """In seconds of the processor, because the machine may be busy."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN_MOE | {"num_hidden_layers": 10**9, "mlp_only_layers": [6]}))
    (tmp_path / "wide.json").write_text(json.dumps(LLAMA | {"hidden_size": 4194304}))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, "-m", "fp8gemm", "warmup", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FP8GEMM_CACHE_DIR": str(tmp_path / "kernels")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    exit_code, kibibytes, seconds = done.stdout.split()
    assert int(exit_code) == code, done.stderr
    assert int(kibibytes) < 100 * 1024
    assert float(seconds) < (3 if code == 0 else 1.5)


@pytest.mark.parametrize("k", [17, 0, -5, 8, MAX_NORM_K + 16, 2**20, 10**30, 4096.5, "4096", True])
def test_a_recorded_norm_that_cannot_be_is_refused(k: Any) -> None:
    config = {"k": k, "input": "bf16", "weight": "bf16", "residual": False, "threads": 1024}
    with pytest.raises(InputError, match="^expected the constants of a quantiser QuantizeNorm, got") as caught:
        recorded_quantizers("QuantizeNorm", config)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert recorded_quantizers("QuantizeNorm", config | {"k": MAX_NORM_K})


def test_norms_are_made_ready_where_there_are_any() -> None:
    """A K of products that no norm has, of groups of columns even an odd one, adds no kernel."""
    without = all_quantizers([OutputType.BFLOAT16], [])
    assert all_quantizers([OutputType.BFLOAT16], [MAX_NORM_K + 16, 2**20, 77]) == without
    assert len(all_quantizers([OutputType.BFLOAT16], [MAX_NORM_K])) > len(without)


def test_a_row_that_no_norm_takes_is_refused() -> None:
    for made in (torch.ones, lambda *size: torch.ones(*size, device="meta")):
        x, weight = made(1, MAX_NORM_K + 16), made(MAX_NORM_K + 16)
        with pytest.raises(InputError, match=f"^x: {NORM}"):
            quantize.quantize_rms_norm(x, weight)
        with pytest.raises(InputError, match=f"^x: {NORM}"):
            quantize.quantize_add_rms_norm(x, x, weight)
        assert fp8gemm.quantize_activation(x)[0].shape == x.shape
    x = torch.ones(1, MAX_NORM_K)
    assert quantize.quantize_rms_norm(x, x[0])[0].shape == x.shape


def test_what_a_library_call_is_given_has_the_same_bounds() -> None:
    with pytest.raises(InputError, match="max_m: expected a whole number, 1 to 2147483647, got 2147483648"):
        fp8gemm.warmup([(64, 16)], LIMIT)
    with pytest.raises(InputError, match="N = about 2\\^16610"):
        Problem(1, 10**5000, 16)
    with pytest.raises(InputError, match="groups, got about 2\\^16610"):
        GroupedProblem(Grouping.MASKED, 10**5000, 1, 64, 16)
    # Groups of columns have outputs of their own, and no weight.
    assert GroupedProblem(Grouping.COLUMNS, 1024, 64, 2**21, 16).groups == 1024


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (17, "17"),
        (-(10**30), str(-(10**30))),
        (-(2**400), "about -2^401"),
        ("x" * 100, "'" + "x" * 79 + "..."),
        (None, "None"),
    ],
)
def test_what_came_is_shown_in_few_characters(value: object, words: str) -> None:
    assert quoted(value) == words


def test_a_count_may_be_nothing() -> None:
    assert [parse_count(text) for text in ("0", " 7 ", str(LIMIT - 1))] == [0, 7, LIMIT - 1]
    for text in ("-1", "", "1.0", str(LIMIT)):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 0, below 2\\^31"):
            parse_count(text)
