"""The rules for DTensors, which need no ranks to be read: no block of scales is ever cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from fp8gemm.ops import SCHEMAS, sharding

ROOT = Path(__file__).resolve().parents[2]
WHOLE, PARTIAL = Replicate(), Partial()


def spec(*shape: int, ranks: int) -> Any:
    """As a rule is given an operand."""
    return SimpleNamespace(shape=shape, ndim=len(shape), mesh=SimpleNamespace(size=lambda: ranks))


def product(n: int, k: int, ranks: int, *, of_rows: bool = False) -> list[Any]:
    blocks = -(-k // 128)
    scales_b = spec(n if of_rows else -(-n // 128), blocks, ranks=ranks)
    operands = spec(96, k, ranks=ranks), spec(96, blocks, ranks=ranks), spec(n, k, ranks=ranks), scales_b
    return [outputs for outputs, _ in sharding._gemm(*operands, None, None, torch.bfloat16, None, False)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_rows_and_depth_of_b_are_divided_into_whole_blocks(ranks: int) -> None:
    always = [[WHOLE], [Shard(0)]]
    whole, cut = 128 * ranks, 128 * ranks + 128
    assert product(whole, whole, ranks) == [*always, [Shard(1)], [PARTIAL]]
    assert product(cut, whole, ranks) == [*always, [PARTIAL]]
    assert product(whole, cut, ranks) == [*always, [Shard(1)]]
    assert product(whole + 16, whole + 16, ranks) == always
    assert product(96 * ranks, cut, ranks, of_rows=True) == [*always, [Shard(1)]]  # a scale for each row


@pytest.mark.parametrize(
    ("rules", "shape", "whole"),
    [
        (sharding._quantize_activation, (96, 256), 3),
        (sharding._quantize_activation, (96, 384), 2),
        (sharding._quantize_weight, (256, 256), 3),
        (sharding._quantize_weight, (256, 384), 2),
        (sharding._quantize_weight, (384, 272), 1),
        (sharding._quantize_with_transpose, (256, 256), 3),
        (sharding._quantize_with_transpose, (96, 256), 2),
        (sharding._quantize_with_transpose, (256, 384), 2),
        (sharding._quantize_silu_mul, (96, 512), 2),
    ],
)
def test_quantisers_see_whole_blocks(rules: Any, shape: tuple[int, ...], whole: int) -> None:
    assert len(rules(spec(*shape, ranks=2))) == whole


def test_each_rule_places_each_argument() -> None:
    """As many as the operator has, and of those that are left out, and of options, none."""
    flat, stacked = spec(256, 256, ranks=2), spec(4, 256, 256, ranks=2)
    named = {schema.partition("(")[0] for schema in SCHEMAS if "_out(" not in schema}
    rules = {rule.__name__.removeprefix("_"): rule for rule in sharding._ALL}
    assert set(rules) == named
    for name, rule in rules.items():
        arguments = getattr(torch.ops.fp8gemm, name).default._schema.arguments
        x = stacked if name in ("gemm_grouped", "gemm_masked") else flat
        given = [x if "Tensor" in str(each.type) and "Optional" not in str(each.type) else None for each in arguments]
        for outputs, places in rule(*given):
            assert len(outputs) == len(getattr(torch.ops.fp8gemm, name).default._schema.returns)
            assert [place is None for place in places] == [each is None for each in given], name


def test_torch_distributed_is_not_imported_for_them() -> None:
    program = (
        "import sys, torch, fp8gemm\n"
        "before = 'torch.distributed.tensor' in sys.modules\n"
        "x, w = torch.ones(4, 128), torch.ones(128, 128)\n"
        "fp8gemm.gemm(*fp8gemm.quantize_activation(x), *fp8gemm.quantize_weight(w))\n"
        "assert before or 'torch.distributed.tensor' not in sys.modules\n"
        "assert 'fp8gemm.ops.sharding' not in sys.modules and 'fp8gemm.parallel' not in sys.modules\n"
        "assert fp8gemm.parallel.ColwiseParallel\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
