"""Several GPUs as measured by scripts/parallel_speed.py: MLPs, experts, gathers, what the host does, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from result_tables.markdown import MISSING, Result, source, table, whole

_Row = Mapping[str, Any]
_WAYS = {
    "all_reduce": "all-reduce",
    "overlapped_sum": "all-reduce, overlapped",
    "fp8_gather": "FP8 gather, reduce-scatter",
    "overlapped": "the same, overlapped",
}
_TIMED = ", us"


def mlps(result: Result) -> list[str]:
    """Speed of gated MLPs on all ranks relative to one, and to torch's in bfloat16 on as many."""
    rows = []
    for name, row in _timed(result, "prefill"):
        speeds = [f"{row['one'] / row[way]:.2f}" for way in _WAYS]
        bf16 = [
            f"{row[other] / row[way]:.2f}"
            for other, way in (("bf16_all_reduce", "all_reduce"), ("bf16_gather", "overlapped"))
        ]
        rows.append([*name.removesuffix(_TIMED).split(", "), whole(row["one"]), *speeds, *bf16])
    heads = [
        "MLP",
        "each alone",
        "one GPU, µs",
        *_WAYS.values(),
        "all-reduce of bfloat16's",
        "overlapped of bfloat16's",
    ]
    return [
        source(result, f"{result['ranks']} GPUs, torch {result['torch']}"),
        "",
        "Speed relative to one GPU; and that of all-reduce, and of overlapped gather and scatter, relative to torch's "
        f"own layers in bfloat16 on {result['ranks']} GPUs.",
        "",
        *table(heads, rows),
    ]


def decode(result: Result) -> list[str]:
    """The same of few rows, in CUDA graphs."""
    rows = [
        [
            *name.removesuffix(", graph").split(" M="),
            f"{row['one']:.1f}",
            *(f"{row['one'] / row[kernel]:.2f}" for kernel in ("nccl", "one_shot", "two_shot")),
        ]
        for name, row in _rows(result, "decode")
    ]
    heads = ["MLP", "M", "one GPU, µs", "NCCL", "each rank sums all", "a part for each"]
    return ["Speed in CUDA graphs relative to one GPU, by what sums.", "", *table(heads, rows)]


def gathers(result: Result) -> list[str]:
    """Rows in FP8 beside rows in bfloat16, in CUDA graphs."""
    rows = [
        [
            name.removeprefix("gather of ").removesuffix(" a rank"),
            f"{row['bf16']:.1f}",
            *(f"{row[kind] / row['bf16']:.2f}" for kind in ("fp8_copied", "fp8", "fp8_sent")),
            f"{row['fp8_copied'] / row['bf16_then_quantised']:.2f}",
        ]
        for name, row in _rows(result, "gathers")
        if "eager" not in name
    ]
    heads = [
        "bfloat16 of a rank",
        "its gather, µs",
        "FP8, copied",
        "FP8, NCCL",
        "bytes alone, NCCL",
        "copied, of a gather that is quantised",
    ]
    return [
        "`gather_quantized` of rows of 8192 in CUDA graphs, quantiser and all: time relative to that of a gather in "
        "bfloat16; of what is sent alone; and relative to such a gather and the quantiser behind it.",
        "",
        *table(heads, rows),
    ]


def experts(result: Result) -> list[str]:
    """A block of experts on all ranks."""
    ways = {"gather": "gather", "overlapped": "gather, overlapped", "all_to_all": "all-to-all"}
    rows = [
        [
            *name.removesuffix(_TIMED).split(", ", 2),
            whole(row["one"]),
            *(f"{row['one'] / row[way]:.2f}" for way in ways),
        ]
        for name, row in _timed(result, "experts")
    ]
    return [
        f"DeepSeek-V3's experts, 8 of a token, on {result['ranks']} GPUs: speed relative to one that has all tokens.",
        "",
        *table(["experts", "tokens", "each alone", "one GPU, µs", *ways.values()], rows),
    ]


def host(result: Result) -> list[str]:
    """What a call of a divided layer takes the host over one that is not."""
    less = dict(_rows(result, "host"))["a call, of the host, less"]
    names = {
        "colwise-not_divided": "`ColwiseParallel()`",
        "rowwise-not_divided_and_all_reduce": "`RowwiseParallel(overlap=False)`, over the layer and `all_reduce`",
        "rowwise_unasked-not_divided_and_all_reduce": "`RowwiseParallel()`, likewise",
        "rowwise_overlapped-not_divided_and_all_reduce": "`RowwiseParallel(overlap=True)`, likewise",
    }
    return table(
        ["a call of one row", "µs of the host over a layer that is not divided"],
        [[text, f"{less[name]:+.1f}"] for name, text in names.items()],
    )


def limits(result: Result) -> list[str]:
    """Each layer by itself, overlapped and as it does unasked, relative to without."""
    rows = []
    for name, row in _rows(result, "limits"):
        if "off" in row:
            shape, m = name.split(" M=")
            model, way = shape.rsplit(" ", 1)
            rows.append([way, model, m, whole(row["off"]), *(_ratio(row, "off", kind) for kind in ("on", "unasked"))])
    rows.sort(key=lambda row: ("gather", "scatter", "sum").index(row[0]))
    return [
        "Speed of one layer's calls, launched one by one, relative to those without overlap: with `overlap=True`, and "
        "as None decides. Where None does without, the ratio is of two times of the same, and says how these vary.",
        "",
        *table(["way", "MLP", "M", "without, µs", "True", "None"], rows),
    ]


def _ratio(row: _Row, one: str, other: str) -> str:
    return f"{row[one] / row[other]:.2f}" if other in row else MISSING


def _timed(result: Result, section: str) -> Iterator[tuple[str, _Row]]:
    return ((name, row) for name, row in _rows(result, section) if name.endswith(_TIMED))


def _rows(result: Result, section: str) -> Iterator[tuple[str, _Row]]:
    return ((row["name"], row) for row in result["rows"] if row["section"] == section and row["name"] != "seconds")


TABLES = {
    "parallel_mlps": mlps,
    "parallel_decode": decode,
    "parallel_gathers": gathers,
    "parallel_moe": experts,
    "parallel_host": host,
    "parallel_limits": limits,
}
OF_FOUR = {"parallel_four_mlps": mlps, "parallel_four_decode": decode, "parallel_four_limits": limits}
