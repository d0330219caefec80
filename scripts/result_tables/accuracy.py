"""What FP8 costs a model, from `scripts/accuracy.py --json`."""

from __future__ import annotations

from fp8gemm.lab.accuracy.products import LABELS, OURS
from result_tables.markdown import MISSING, Result, small, source, table


def accuracy(result: Result) -> list[str]:
    """By distribution, by K, and through the network."""
    by_k, n = _by_k(result), result["k_sweep"]["n"]
    network = result["network"]
    return [
        source(result, f"torch {result['torch']}") + f" M = {result['m']}, N x K = {_layers(result)}.",
        "",
        "Means over the layers, but the largest worst row and the largest |error| / S. A row is a token. "
        f"{_distributions(result)}",
        "",
        *_figures(result),
        "",
        f"Relative RMS error of {LABELS[OURS]}, by K at N = {n}:",
        "",
        *by_k,
        "",
        f"A network of {network['layers']} layers, {network['hidden']} wide and {network['inner']} inside, on "
        f"{network['tokens']} tokens, with {network['classes']} classes, against its float64 twin: relative RMS error "
        "of the last hidden state, and share of the tokens with the same best class. Its parts: "
        f"{network['description']}.",
        "",
        *_network(result),
        "",
        _gates(result),
    ]


def accuracy_summary(result: Result) -> list[str]:
    """One table of relative RMS errors, by distribution and product."""
    products = _products(result)
    rows = [
        [distribution, *(small(by_product[product]["relative_rms"]) for product in products)]
        for distribution, by_product in result["summary"].items()
    ]
    return [
        f"Relative RMS error against the unquantised product, mean over N x K = {_layers(result)} at "
        f"M = {result['m']}; {source(result)}",
        "",
        *table(["data", *(LABELS.get(product, product) for product in products)], rows),
    ]


def _figures(result: Result) -> list[str]:
    heads = ["data", "product", "relative RMS", "worst row", "1 - cos", "SQNR, dB", "|error| / S", "calc_diff"]
    rows = []
    for distribution, by_product in result["summary"].items():
        for product in _products(result):
            each = by_product[product]
            figures = [small(each[name]) for name in ("relative_rms", "worst_row", "cosine_loss")]
            figures += [f"{each['sqnr_db']:.1f}", small(each["max_over_s"]), small(each["calc_diff"])]
            rows.append([distribution, LABELS.get(product, product), *figures])
    return table(heads, rows)


def _by_k(result: Result) -> list[str]:
    errors = {
        (row["distribution"], row["k"]): row["figures"][OURS]["relative_rms"]
        for row in result["rows"]
        if row["sweep"] == "k"
    }
    rows = []
    for k in sorted({k for _, k in errors}):
        of_k = [errors.get((distribution, k)) for distribution in result["distributions"]]
        rows.append([str(k), *(MISSING if error is None else small(error) for error in of_k)])
    return table(["K", *result["distributions"]], rows)


def _network(result: Result) -> list[str]:
    products = _products(result)
    rows = [
        [
            distribution,
            *(f"{small(each[product]['relative_rms'])}, {each[product]['top1']:.1%}" for product in products),
        ]
        for distribution, each in result["network"]["agreement"].items()
    ]
    return table(["inputs", *(LABELS.get(product, product) for product in products)], rows)


def _gates(result: Result) -> str:
    """The same products as the tests judge them."""
    verdicts = [verdict for row in result["rows"] for verdict in row["gates"].values()]
    failed = sum(not verdict["passed"] for verdict in verdicts)
    if failed:
        return f"**{failed} of these {len(verdicts)} products of fp8gemm failed the kernels' own gates.**"
    closest = max((verdict for verdict in verdicts if verdict["limit"]), key=lambda each: each["worst"] / each["limit"])
    return (
        f"All {len(verdicts)} products of fp8gemm among these passed the kernels' own gates; closest to its limit came "
        f"`{closest['gate']}` on {closest['data']} data, {small(closest['worst'])} of {small(closest['limit'])}."
    )


def _products(result: Result) -> list[str]:
    return list(result["products"])


def _layers(result: Result) -> str:
    return ", ".join(result["layers"])


def _distributions(result: Result) -> str:
    return " ".join(f"*{name}*: {description}." for name, description in result["distributions"].items())
