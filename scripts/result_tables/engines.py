"""How fast inside an engine: its linear layer on each of its kernels and on ours; and weights in small blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fp8gemm.lab.bench.engine import DEEP_GEMM_IN_VLLM
from fp8gemm.lab.bench.linear import OURS, SMALL_BLOCKS
from result_tables.markdown import MISSING, Result, by_m, table
from result_tables.speed import bench_source

IN_VLLM = "vllm_fp8gemm"
OTHERS = {"vllm": "vLLM's choice", DEEP_GEMM_IN_VLLM: "DeepGEMM", "vllm_flashinfer": "FlashInfer"}
_Row = Mapping[str, Any]


def vllm_kernels(result: Result) -> list[str]:
    """Every shape: microseconds on fp8gemm's kernel, and its speed relative to the others."""
    others = [name for name in OTHERS if name in result["peers"]]
    rows = [
        [m, _nk(row), f"{row['us'][IN_VLLM]:.2f}", *(_ratio(row, name, IN_VLLM) for name in others)]
        for m, of_m in by_m(result["rows"])
        for row in of_m
    ]
    return [
        bench_source(result),
        "",
        "A linear layer of vLLM's, from bfloat16 to bfloat16, quantiser and all: speed on fp8gemm's kernel relative to "
        "that on others, above 1 where fp8gemm's is faster.",
        "",
        *table(["M", "N x K", "µs on fp8gemm's", *(OTHERS[name] for name in others)], rows),
    ]


def small_blocks(result: Result) -> list[str]:
    """Every shape: microseconds with scales of 128x128, and the speed of a weight with those of 32x32."""
    rows = [
        [m, _nk(row), f"{row['us'][OURS]:.2f}", _ratio(row, OURS, SMALL_BLOCKS)]
        for m, of_m in by_m(result["rows"])
        for row in of_m
    ]
    heads = ["M", "N x K", "µs, 128x128", "speed of 32x32"]
    return [bench_source(result), "", *table(heads, rows)]


def _nk(row: _Row) -> str:
    return f"{row['n']} x {row['k']}"


def _ratio(row: _Row, base: str, name: str) -> str:
    """Speed of ``name`` relative to ``base``."""
    us = row["us"]
    return f"{us[base] / us[name]:.2f}" if {base, name} <= us.keys() else MISSING
