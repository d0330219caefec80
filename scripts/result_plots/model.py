"""A real network in FP8: noise of each layer, and how far each sentence's embedding moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from result_tables.model import KINDS, kind_of

from fp8gemm.lab.pyplot import load_pyplot
from result_plots import canvas

_MARKERS = "osD^v*"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Above the layers, below the sentences."""
    figure, (above, below) = load_pyplot().subplots(2, 1, figsize=(8, 11), layout="constrained")
    figure.suptitle(f"{result['model']}, {result['sentences']} sentences: {result['device']}, {result['date']}")
    _layers(above, result)
    _sentences(below, result)
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    canvas.save(figure, path, result)


def _layers(axes: Any, result: Mapping[str, Any]) -> None:
    """Decibels by block of the encoder: solid lines for FP8, dotted ones for bfloat16, one colour per kind of layer."""
    for kind, marker in zip(KINDS.values(), _MARKERS, strict=True):
        of_kind = [layer for layer in result["layers"] if kind_of(layer["name"]) == kind]
        if not of_kind:
            continue
        fp8, bf16 = ([layer[f"{form}_db"] for layer in of_kind] for form in ("fp8", "bf16"))
        label = f"{kind}, {of_kind[0]['n']} x {of_kind[0]['k']}"
        (drawn,) = axes.plot(range(len(fp8)), fp8, marker=marker, label=label)
        axes.plot(range(len(bf16)), bf16, marker=marker, markersize=3, linestyle=":", color=drawn.get_color())
    axes.plot([], [], linestyle=":", color="grey", label="the same in bfloat16")
    axes.set_xticks(range(max(1, len(result["layers"]) // len(KINDS))))
    axes.set_ylim(0, axes.get_ylim()[1])
    axes.set_xlabel("block of the encoder")
    axes.set_ylabel("signal to noise, dB")
    axes.set_title("Outputs of linear layers on the inputs of the float32 network", fontsize="medium")


def _sentences(axes: Any, result: Mapping[str, Any]) -> None:
    """1 - cosine, sentences in ascending order of it."""
    for form in result["forms"].values():
        losses = form["losses"]
        shares = [100 * (place + 0.5) / len(losses) for place in range(len(losses))]
        axes.plot(shares, losses, label=form["description"])
    axes.axhline(1 - result["gates"]["cosine_min"], color="grey", linestyle="--", label="what no sentence may exceed")
    axes.set_yscale("log")
    axes.set_xlabel("share of the sentences, %")
    axes.set_ylabel("1 - cosine to the float32 network's embedding")
    axes.set_title("Embeddings", fontsize="medium")
