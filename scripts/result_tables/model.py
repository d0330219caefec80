"""What FP8 costs a real network, from `scripts/accuracy.py --model --json`."""

from __future__ import annotations

from collections.abc import Sequence

from result_tables.markdown import Result, small, source, table

KINDS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attention's output",
    "intermediate.dense": "up",
    "output.dense": "down",
}
"""What a layer is for, by the end of its name; the first that fits."""


def kind_of(layer: str) -> str:
    """What this layer is for; its own name if nobody knows."""
    return next((kind for end, kind in KINDS.items() if layer.endswith(f".{end}")), layer)


def model_accuracy(result: Result) -> list[str]:
    """Embeddings and neighbours by form, and layers by kind."""
    return [
        source(result, f"torch {result['torch']}", f"transformers {result['transformers']}")
        + f" {result['model']} on {result['sentences']} sentences, {result['tokens']} tokens, against itself in "
        "float32.",
        "",
        *_forms(result),
        "",
        f"Clear neighbours are those whose cosine is {result['gates']['margin']} or more above the second best. "
        + _verdict(result),
        "",
        *_reference(result),
        "Signal to noise of the layers' outputs, in dB, on the inputs that the float32 network gives them: the mean of "
        "the layers and, in brackets, the worst.",
        "",
        *_layers(result),
    ]


def _forms(result: Result) -> list[str]:
    heads = ["network", "mean cosine", "least cosine", "1 - cos, median", "95 %", "99 %"]
    rows = []
    for form in result["forms"].values():
        cells = [f"{form['cosine_mean']:.5f}", f"{form['cosine_min']:.5f}"]
        cells += [small(form["loss_percentiles"][each]) for each in ("50", "95", "99")]
        cells += [f"{form['same_neighbour']} of {result['sentences']}", f"{form['decided_same']} of {form['decided']}"]
        rows.append([form["description"], *cells])
    return table([*heads, "same nearest neighbour", "of the clear ones"], rows)


def _verdict(result: Result) -> str:
    if result["failures"]:
        return f"**Missed: {'; '.join(result['failures'])}.**"
    gates = result["gates"]
    return (
        f"The networks with FP8 layers must keep all of those, a mean cosine of {gates['cosine_mean']} and a least one "
        f"of {gates['cosine_min']}, and do."
    )


def _reference(result: Result) -> list[str]:
    """A sentence on two runs, one on the kernels where a GPU ran, and an empty line."""
    lines = [
        f"With {result['forms']['fp8']['description']}, the least cosine between a sentence's embedding and that of "
        f"the same sentence in other batches is {result['other_batches']:.5f}: one float32 rounding changes a code "
        "here and there, and layer by layer more of them."
    ]
    places = {"cuda": "on the same GPU", "cpu": "on the CPU"}
    for device, found in result["reference"].items():
        lines.append(
            f"Between the kernels and the reference backend {places[device]} it is {found['free']:.5f}, and "
            f"{found['same_codes']:.8f} where every layer multiplies the same codes."
        )
    if result["reference"]:
        lines.append(f"With the same codes at least {result['gates']['cosine_to_reference']} is wanted.")
    return [" ".join(lines), ""]


def _layers(result: Result) -> list[str]:
    kinds = dict.fromkeys((kind_of(layer["name"]), layer["n"], layer["k"]) for layer in result["layers"])
    rows = []
    for kind, n, k in kinds:
        layers = [layer for layer in result["layers"] if kind_of(layer["name"]) == kind]
        values = ([layer[f"{form}_db"] for layer in layers] for form in ("fp8", "bf16"))
        rows.append([kind, f"{n} x {k}", *map(_mean_and_worst, values)])
    return table(["layer", "N x K", "FP8", "bfloat16"], rows)


def _mean_and_worst(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f} ({min(values):.1f})"
