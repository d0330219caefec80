"""Linear layers beside bfloat16 ones, and what they are made of: quantise functions, host time, a whole decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fp8gemm.lab.bench import decoder as decoders
from fp8gemm.lab.bench import host as hosts
from fp8gemm.lab.bench.linear import BF16, OURS
from fp8gemm.lab.bench.quantize import FEW, MANY
from result_tables.markdown import MISSING, Result, by_m, source, table
from result_tables.speed import bench_source, sentence, spread

_Row = Mapping[str, Any]

HOST_NAMES = {
    hosts.FORWARD: "`Fp8Linear.forward`",
    hosts.FRESH: "at changing addresses",
    hosts.LINEAR: "`F.linear`",
    hosts.MODULE: "`Fp8Linear`",
    hosts.NN_LINEAR: "`nn.Linear`",
    hosts.PLAN: "a plan",
    hosts.GEMM: "`gemm`",
    hosts.QUANTIZE: "`quantize_activation`",
}


def linear(result: Result) -> list[str]:
    """Speed relative to a bfloat16 layer by M: mean, and the range over the N x K."""
    rows = result["rows"]
    layers = len(_layers(rows))
    speeds = [[m, spread(_speeds(of_m), layers)] for m, of_m in by_m(rows)]
    return [
        bench_source(result),
        "",
        "Speed of `Fp8Linear` relative to `torch.nn.functional.linear` in bfloat16, both from bfloat16 activations to "
        f"bfloat16 results, above 1 where `Fp8Linear` is faster: geometric mean over {layers} N x K, and from the "
        "least to the largest.",
        "",
        *table(["M", "speed"], speeds),
        "",
        *verdicts(result),
    ]


def linear_shapes(result: Result) -> list[str]:
    """Every shape: microseconds, and the speed relative to bfloat16."""
    rows = result["rows"]
    layers = _layers(rows)
    lines = []
    for m, of_m in by_m(rows):
        by_layer = {(row["n"], row["k"]): row for row in of_m}
        lines.append([m, *(_time_and_speed(by_layer.get(layer)) for layer in layers)])
    return [
        bench_source(result),
        "",
        "Microseconds of `Fp8Linear`, and in brackets its speed relative to bfloat16:",
        "",
        *table(["M", *(f"{n} x {k}" for n, k in layers)], lines),
    ]


def quantize_kernels(result: Result) -> list[str]:
    """Many rows beside a copy, few rows in microseconds."""
    cases, rows = result["cases"], result["rows"]
    many = [[f"{row['m']} x {row['k']}", *(_share(row, case) for case in cases)] for row in rows if row["m"] >= MANY]
    few = [
        [f"{row['m']} x {row['k']}", *(_figure(row["us"].get(case)) for case in cases)]
        for row in rows
        if row["m"] <= FEW
    ]
    heads = ["M x K", *(f"`{name}`" for name in cases)]
    lines = [bench_source(result), "", *(f"- `{name}`: {what}" for name, what in cases.items()), ""]
    if many:
        lines += ["Microseconds, and the share of the copy's speed:", "", *table(heads, many), ""]
    if few:
        lines += ["Few rows, microseconds:", "", *table(heads, few), ""]
    return [*lines, *verdicts(result)]


def host(result: Result) -> list[str]:
    """Microseconds of the host by call, and the two ratios."""
    heads = ["M x N x K", *HOST_NAMES.values()]
    heads += [f"{HOST_NAMES[over]} over {HOST_NAMES[under]}" for over, under in hosts.RATIOS.values()]
    rows = []
    for row in result["rows"]:
        us = row["us"]
        ratios = [us[over] / us[under] if {over, under} <= us.keys() else None for over, under in hosts.RATIOS.values()]
        cells = [*(_figure(us.get(name)) for name in HOST_NAMES), *map(_figure, ratios)]
        rows.append([f"{row['m']} x {row['n']} x {row['k']}", *cells])
    where = source(result, f"torch {result['torch']}", f"Python {result['python']}", str(result["cpu"]))
    return [f"{where} {sentence(result['method'])}", "", *table(heads, rows), "", *verdicts(result)]


def decoder(result: Result) -> list[str]:
    """Memory of the weights, milliseconds and speeds by step."""
    variants = list(result["variants"])
    pairs = {name: pair for name, pair in decoders.PAIRS.items() if set(pair) <= set(variants)}
    heads = ["step", *(f"{name}, ms" for name in map(_spoken, variants)), *(f"speed, {name}" for name in pairs)]
    heads += [f"{_spoken(variants[-1])}, tokens/s"]
    rows = []
    for row in result["rows"]:
        ms = row["ms"]
        speeds = [ms[base] / ms[ours] if {base, ours} <= ms.keys() else None for base, ours in pairs.values()]
        rate = row["tokens_per_s"].get(variants[-1])
        cells = [*(_figure(ms.get(name)) for name in variants), *map(_figure, speeds)]
        rows.append([_step(row), *cells, MISSING if rate is None else f"{rate:.0f}"])
    whole, layers = result["weight_bytes"], result["layer_bytes"]
    where = source(result, f"torch {result['torch']}", f"transformers {result['transformers']}")
    return [
        f"{where} {sentence(result['method'])}",
        "",
        f"A decoder of Qwen3's kind: {result['decoder']['description']}. Its weights take "
        f"{_gb(whole['bf16'])} in bfloat16 and {_gb(whole['fp8'])} after `convert`; those of its layers alone "
        f"{_gb(layers['bf16'])} and {_gb(layers['fp8'])}.",
        "",
        *table(heads, rows),
        "",
        *_failures(result["rows"]),
        *verdicts(result),
    ]


def verdicts(result: Result) -> list[str]:
    """A line per gate."""
    lines = []
    for name, gate in result["gates"].items():
        what = "geometric mean" if gate["mean"] else "worst"
        met = "met" if gate["met"] else "**not met**"
        judged = f"- {name}: {what} of {gate['count']} {gate['figure']:.2f}, {gate['bound']} {gate['limit']:g} is asked"
        worst = f"; the worst is {gate['worst']:.2f} at {gate['at']}" if gate["mean"] else f", at {gate['at']}"
        lines.append(f"{judged}: {met}{worst}.")
    return lines


def _failures(rows: Sequence[_Row]) -> list[str]:
    lines = [
        f"- {_step(row)}, {_spoken(name)}, was not timed: {reason}"
        for row in rows
        for name, reason in row.get("failed", {}).items()
    ]
    return [*lines, ""] if lines else []


def _layers(rows: Sequence[_Row]) -> list[tuple[int, int]]:
    return sorted({(row["n"], row["k"]) for row in rows})


def _speeds(rows: Sequence[_Row]) -> list[float]:
    return [row["us"][BF16] / row["us"][OURS] for row in rows if {BF16, OURS} <= row["us"].keys()]


def _time_and_speed(row: _Row | None) -> str:
    if row is None or OURS not in row["us"]:
        return MISSING
    speeds = _speeds([row])
    return f"{row['us'][OURS]:.1f}" + (f" ({speeds[0]:.2f})" if speeds else "")


def _share(row: _Row, case: str) -> str:
    if case not in row["us"]:
        return MISSING
    copied = row["copy_us"].get(case)
    return f"{row['us'][case]:.1f}" + ("" if copied is None else f", {copied / row['us'][case]:.0%}")


def _figure(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _spoken(variant: str) -> str:
    return variant.replace("_", ", ")


def _step(row: _Row) -> str:
    if row["kind"] == decoders.PREFILL:
        return f"prefill of {row['tokens']} tokens"
    return f"decode, batch {row['batch']}, context {row['context']}"
