"""Several GPUs by a model: speedups of tensor and expert parallel layers, and how far off the model is."""

from __future__ import annotations

from result_tables.markdown import Result, table, whole

_TENSOR = {
    "products": "products alone",
    "all_reduce": "all-reduce",
    "bf16_gather": "gather, bfloat16",
    "fp8_gather": "gather, FP8",
    "overlapped": "FP8, overlapped",
}
_EXPERTS = {
    "products": "products alone",
    "bf16_exchange": "exchange, bfloat16",
    "fp8_exchange": "exchange, FP8",
    "overlapped": "FP8, overlapped",
}


def tensor(result: Result) -> list[str]:
    """Speed of a layer on several ranks relative to one, by how sums and rows travel."""
    part = result["tensor_parallel"]
    rows = [
        [str(row["m"]), str(row["ranks"]), *(f"{row['alone_us'] / row['us'][name]:.2f}" for name in _TENSOR)]
        for row in part["rows"]
    ]
    return [
        f"{part['model']}, {result['chip']}, {_assumed(result)}. Speed of the linear layers of a decoder layer on so "
        "many ranks, relative to one.",
        "",
        *table(["M", "ranks", *_TENSOR.values()], rows),
    ]


def experts(result: Result) -> list[str]:
    """Time of a layer's experts, and tokens a GPU beside the least number of ranks."""
    part = result["expert_parallel"]
    least = part["least_ranks"]
    of_least = {row["t"]: row["us"] for row in part["rows"] if row["ranks"] == least}
    rows = [
        [
            *(str(row[name]) for name in ("t", "ranks")),
            *(whole(row["us"][name]) for name in _EXPERTS),
            *(f"{of_least[row['t']][name] / row['us'][name]:.2f}" for name in ("fp8_exchange", "overlapped")),
        ]
        for row in part["rows"]
    ]
    heads = ["tokens a rank", "ranks", *(f"{name}, µs" for name in _EXPERTS.values())]
    speeds = [f"tokens a GPU beside {least} ranks", "the same, overlapped"]
    return [
        f"{part['model']}, {result['chip']}, {result['assumptions']['top_k']} experts a token, {_assumed(result)}. "
        "Routed experts of a layer.",
        "",
        *table([*heads, *speeds], rows),
    ]


def check(result: Result) -> list[str]:
    """What the formulas say of collectives that were measured."""
    rows = [
        [
            row["collective"],
            str(row["rows"]),
            {1: "FP8", 2: "bfloat16"}[row["element_bytes"]],
            whole(row["measured_us"]),
            whole(row["model_us"]),
            f"{100 * (row['model_us'] / row['measured_us'] - 1):+.0f} %",
        ]
        for row in result["check"]
    ]
    took = result["overlapped"]
    sent = took["gather_then_multiply_us"] - took["multiply_us"]
    saved = took["gather_then_multiply_us"] - took["fused_us"]
    return [
        *table(["collective of (rows, 8192)", "rows", "elements", "two H200s, µs", "model, µs", "off by"], rows),
        "",
        f"torch's fused gather and product, bfloat16 at 8192x8192x8192 on the same two: {whole(took['fused_us'])} µs, "
        f"where one after the other takes {whole(took['gather_then_multiply_us'])} and the product alone "
        f"{whole(took['multiply_us'])}: {100 * saved / sent:.0f} % of the gather is hidden, and the model takes "
        f"{100 * result['assumptions']['overlap']:.0f} %.",
    ]


def _assumed(result: Result) -> str:
    given = result["assumptions"]
    return (
        f"NVLink {given['nvlink_gbs']:g} GB/s a direction of which collectives reach {100 * given['nvlink_share']:.0f} "
        f"%, {given['latency_us']:g} µs each; between nodes of {given['node']} GPUs {given['ib_gbs']:g} GB/s, "
        f"{100 * given['ib_share']:.0f} %, {given['ib_latency_us']:g} µs"
    )


TABLES = {"parallel_tensor": tensor, "parallel_experts": experts, "parallel_check": check}
"""What draws each section of a page."""
