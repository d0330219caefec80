"""Grouped products: beside single ones, beside reading their weights, and as layers of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fp8gemm.lab.bench.grouped_cases import CONTIGUOUS, DECODE, K_GROUPED, LAYER, MASKED, MOST_ROWS_OF_DECODE, SPREAD
from fp8gemm.lab.bench.grouped_layer import IN_BF16, OURS
from fp8gemm.lab.bench.grouped_operands import FLOOR
from fp8gemm.lab.bench.grouped_peers import BF16, DEEP_GEMM
from fp8gemm.lab.bench.grouped_products import ACCUMULATE, BY_COLUMNS, DENSE, IN_MASK, INDICES, OFFSETS
from result_tables.linear import verdicts
from result_tables.markdown import MISSING, Result, regime, table
from result_tables.speed import bench_source

_Row = Mapping[str, Any]
_Column = tuple[str, Callable[[_Row], str]]

PEERS = {DEEP_GEMM: "DeepGEMM", BF16: "`torch._grouped_mm`, bf16"}


def grouped(result: Result) -> list[str]:
    """The three layouts and decode steps, a table each, and what is asked of them."""
    parts = {part: [row for row in result["rows"] if row["part"] == part] for part in _HEADINGS}
    lines = [bench_source(result), ""]
    for part, rows in parts.items():
        if rows:
            lines += [_HEADINGS[part], "", *_table(_COLUMNS[part], rows), ""]
    missing = [f"{PEERS[name]} was not measured: {reason}." for name, reason in result["skipped"].items()]
    return [*lines, *missing, *[""] * bool(missing), *_failures(result["rows"]), *verdicts(result)]


def experts(result: Result) -> list[str]:
    """Layers of experts by tokens, beside bfloat16."""
    rows = [row for row in result["rows"] if row["part"] == LAYER]
    return [
        bench_source(result),
        "",
        "Microseconds of `Fp8Experts`, from bfloat16 tokens to bfloat16 results, routing included; over those of "
        "kernels that read the weights of as many experts as have tokens and do nothing else; and its speed relative "
        "to the same layer with `torch._grouped_mm` in bfloat16, above 1 where `Fp8Experts` is faster:",
        "",
        *_table(_LAYER_COLUMNS, rows),
    ]


def _table(columns: Sequence[_Column], rows: Sequence[_Row]) -> list[str]:
    """Without the columns that are empty in all rows; where peers did not take turns, the last says so."""
    columns = [*columns, ("regime", regime)]
    cells = [[cell(row) for _, cell in columns] for row in rows]
    kept = [index for index in range(len(columns)) if any(line[index] != MISSING for line in cells)]
    return table([columns[index][0] for index in kept], [[line[index] for index in kept] for line in cells])


def _failures(rows: Sequence[_Row]) -> list[str]:
    lines = [
        f"- {row['part']}, {row['groups']} x {row['m']}, {_nk(row)}: {name} was not timed: {reason}"
        for row in rows
        for name, reason in row.get("failed", {}).items()
    ]
    return [*lines, ""] if lines else []


def _nk(row: _Row) -> str:
    return f"{row['n']} x {row['k']}"


def _groups(row: _Row) -> str:
    return f"{row['groups']} x {row['m']}"


def _some_of(row: _Row) -> str:
    return str(row["groups"]) if row["touched"] == row["groups"] else f"{row['touched']} of {row['groups']}"


def _config(row: _Row) -> str:
    return str(row["configs"][0]) if row["configs"] else MISSING


def _us(name: str) -> Callable[[_Row], str]:
    return lambda row: f"{row['us'][name]:.1f}" if name in row["us"] else MISSING


def _rate(figure: str, per_us: float, name: str) -> Callable[[_Row], str]:
    return lambda row: f"{row[figure] / row['us'][name] / per_us:.0f}" if name in row["us"] else MISSING


def _ratio(over: str, under: str) -> Callable[[_Row], str]:
    return lambda row: f"{row['us'][over] / row['us'][under]:.2f}" if {over, under} <= row["us"].keys() else MISSING


_HEADINGS = {
    CONTIGUOUS: f"Contiguous, sizes of groups up to {SPREAD:.0%} from the typical one; speeds are relative to one "
    "product of as many rows, with the first group's weight, and to others' grouped products:",
    MASKED: f"Masked, valid rows up to {SPREAD:.0%} from the typical number; the floor is a kernel that reads the "
    "weights of all groups with rows into shared memory once and does nothing else:",
    DECODE: f"Decode: 1 to {MOST_ROWS_OF_DECODE} rows in each of 256 groups, and one token's 8:",
    K_GROUPED: f"K-grouped, sizes of groups up to {SPREAD:.0%} from the typical one, new outputs and accumulating; "
    "speeds are relative to one product of as many operations, and to others' grouped products that accumulate:",
}
_COLUMNS: Mapping[str, Sequence[_Column]] = {
    CONTIGUOUS: (
        ("groups x rows", _groups),
        ("N x K", _nk),
        ("tile config", _config),
        ("µs", _us(OFFSETS)),
        ("TFLOPS", _rate("flops", 1e6, OFFSETS)),
        ("speed, one product", _ratio(DENSE, OFFSETS)),
        ("indices: µs", _us(INDICES)),
        ("speed, one product", _ratio(DENSE, INDICES)),
        (f"speed, {PEERS[DEEP_GEMM]}", _ratio(DEEP_GEMM, OFFSETS)),
        (f"speed, {PEERS[BF16]}", _ratio(BF16, OFFSETS)),
    ),
    MASKED: (
        ("groups x rows", _groups),
        ("room", lambda row: str(row["max_m"])),
        ("N x K", _nk),
        ("tile config", _config),
        ("µs", _us(IN_MASK)),
        ("TFLOPS", _rate("flops", 1e6, IN_MASK)),
        ("GB/s of weights", _rate("weight_bytes", 1e3, IN_MASK)),
        ("time over floor", _ratio(IN_MASK, FLOOR)),
        (f"speed, {PEERS[DEEP_GEMM]}", _ratio(DEEP_GEMM, IN_MASK)),
    ),
    DECODE: (
        ("groups", _some_of),
        ("N x K", _nk),
        ("tile config", _config),
        ("floor, µs", _us(FLOOR)),
        ("contiguous, µs", _us(OFFSETS)),
        ("GB/s of weights", _rate("weight_bytes", 1e3, OFFSETS)),
        ("time over floor", _ratio(OFFSETS, FLOOR)),
        ("masked, µs", _us(IN_MASK)),
        ("time over floor", _ratio(IN_MASK, FLOOR)),
    ),
    K_GROUPED: (
        ("groups", lambda row: str(row["groups"])),
        ("M x N", lambda row: f"{row['m']} x {row['n']}"),
        ("K of a group", lambda row: str(row["k"])),
        ("tile config", _config),
        ("µs", _us(BY_COLUMNS)),
        ("TFLOPS", _rate("flops", 1e6, BY_COLUMNS)),
        ("speed", _ratio(DENSE, BY_COLUMNS)),
        ("accumulating, µs", _us(ACCUMULATE)),
        ("speed", _ratio(DENSE, ACCUMULATE)),
        (f"speed, {PEERS[DEEP_GEMM]}", _ratio(DEEP_GEMM, ACCUMULATE)),
    ),
}
_LAYER_COLUMNS: Sequence[_Column] = (
    ("experts", lambda row: str(row["groups"])),
    ("hidden, intermediate", lambda row: f"{row['n']}, {row['k']}"),
    ("tokens", lambda row: str(row["m"])),
    ("µs", _us(OURS)),
    ("TFLOPS", _rate("flops", 1e6, OURS)),
    ("GB/s of weights", _rate("weight_bytes", 1e3, OURS)),
    ("time over floor", _ratio(OURS, FLOOR)),
    ("bfloat16, µs", _us(IN_BF16)),
    ("speed", _ratio(IN_BF16, OURS)),
)
