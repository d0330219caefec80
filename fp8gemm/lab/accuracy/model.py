"""What FP8 costs a real network: a sentence encoder's embeddings, its nearest neighbours, and each of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm import settings
from fp8gemm.lab.accuracy.embeddings import GATES, EmbeddingAgreement, ModelGates, compare_embeddings, cosine_losses
from fp8gemm.lab.accuracy.encoder import MODEL_NAME, embed, in_bfloat16, in_fp8, load_batches, load_network
from fp8gemm.lab.accuracy.layers import LayerNoise, measure_layers
from fp8gemm.lab.accuracy.replay import embed_both
from fp8gemm.terminal.table import Column, Group, Table

CPU = torch.device("cpu")
_OTHER_BATCH = 7


@dataclass(frozen=True)
class Form:
    """A form of the network.

    Attributes:
        description: for the report.
        make: the form, from the float32 network.
        gated: whether it has FP8 layers and so must pass the gates.
    """

    description: str
    make: Callable[[nn.Module], nn.Module]
    gated: bool = True


FORMS = {
    "bf16": Form("all of it in bfloat16", in_bfloat16, gated=False),
    "fp8": Form("linear layers in FP8, the rest in float32", in_fp8),
    "fp8 in bf16": Form("linear layers in FP8, the rest in bfloat16", lambda network: in_fp8(in_bfloat16(network))),
}
"""By name; each is compared with the float32 network."""


@dataclass(frozen=True)
class AgainstReference:
    """Least cosine between embeddings by the kernels and by the reference backend, of the form "fp8".

    Attributes:
        same_codes: where every layer multiplied the same codes. This one has a gate.
        free: where each quantised what it came to by itself.
    """

    same_codes: float
    free: float


@dataclass(frozen=True)
class ModelReport:
    """A whole run.

    Attributes:
        heading: machine, date and versions; the start of the JSON.
        sentences, tokens: how many went through the network.
        agreement: by form.
        other_batches: least cosine between the embeddings of the form "fp8" and its own of the same sentences in other
            batches, where float32 rounds a little differently: what two runs cannot be expected to exceed.
        reference: a GPU's embeddings against the reference backend's, by the device that this one ran on; empty where
            no GPU ran.
        layers: in the network's order.
        gates: what the FP8 forms must reach.
    """

    heading: Mapping[str, Any]
    sentences: int
    tokens: int
    agreement: Mapping[str, EmbeddingAgreement]
    other_batches: float
    reference: Mapping[str, AgainstReference]
    layers: Sequence[LayerNoise]
    gates: ModelGates = GATES

    def failures(self) -> list[str]:
        """Which gates are missed, in words; empty if none is."""
        missed = [
            f"{form}: {failure}"
            for form, agreement in self.agreement.items()
            if FORMS[form].gated
            for failure in agreement.failures(self.gates)
        ]
        missed += [
            f"fp8: least cosine {found.same_codes:.6f} to the reference backend on {device} with the same codes, "
            f"at least {self.gates.cosine_to_reference} is wanted"
            for device, found in self.reference.items()
            if not found.same_codes >= self.gates.cosine_to_reference
        ]
        return missed

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            **self.heading,
            "model": MODEL_NAME,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "gates": asdict(self.gates),
            "passed": not self.failures(),
            "failures": self.failures(),
            "forms": {
                name: {"description": FORMS[name].description} | agreement.as_json(self.gates)
                for name, agreement in self.agreement.items()
            },
            "other_batches": round(self.other_batches, 6),
            "reference": {
                device: {name: round(value, 12) for name, value in asdict(found).items()}
                for device, found in self.reference.items()
            },
            "layers": [
                {"name": layer.name, "n": layer.n, "k": layer.k}
                | {f"{form}_db": round(value, 2) for form, value in layer.sqnr_db.items()}
                for layer in self.layers
            ],
        }

    def lines(self) -> list[str]:
        """Text tables: embeddings, neighbours, layers."""
        lines = [f"{MODEL_NAME}, {self.sentences} sentences, {self.tokens} tokens, against the float32 network:", ""]
        figures = Column("mean cos", 9), Column("least cos"), Column("same neighbour", 15), Column("of decided", 11)
        table = Table(Group((Column("form", 12, left=True), *figures)))
        lines.append(table.header())
        for form, each in self.agreement.items():
            decided = each.decided(self.gates.margin)
            counts = f"{sum(each.same_neighbour)}/{self.sentences}", f"{sum(decided)}/{len(decided)}"
            lines.append(table.line(form, f"{each.cosine_mean:.5f}", f"{each.cosine_min:.5f}", *counts))
        lines += ["", f"Decided: the best cosine exceeds the second best by {self.gates.margin} or more.", ""]
        lines.append(f"fp8, least cosine to itself in other batches: {self.other_batches:.5f}")
        for device, found in self.reference.items():
            text = f"{found.same_codes:.8f} with the same codes, {found.free:.5f} without"
            lines.append(f"fp8, least cosine to the reference backend on {device}: {text}")
        figures = Column("N", 5), Column("K", 5), Column("FP8 dB", 7), Column("bf16 dB", 8)
        table = Table(Group((Column("layer", 44, left=True), *figures)))
        lines += ["", table.header()]
        for layer in self.layers:
            values = [f"{layer.sqnr_db[form]:.2f}" for form in ("fp8", "bf16")]
            lines.append(table.line(layer.name, str(layer.n), str(layer.k), *values))
        return lines


def measure_model(
    folder: Path, sentences: Sequence[str], device: torch.device, *, heading: Mapping[str, Any] | None = None
) -> ModelReport:
    """Every form of the model in `folder` on a device. A GPU's are compared with the reference backend's, there and on
    the CPU.

    Args:
        folder: from `find_model_folder`.
        sentences: at least three.
        device: the CPU, where the reference backend computes, or a Hopper GPU.
        heading: goes into the report as it is.
    """
    network, batches = load_network(folder, device), load_batches(folder, sentences, device)
    exact = embed(network, batches)
    found = {name: embed(form.make(network), batches) for name, form in FORMS.items()}
    again = embed(in_fp8(network), load_batches(folder, sentences, device, size=_OTHER_BATCH))
    return ModelReport(
        heading=heading or {},
        sentences=len(sentences),
        tokens=sum(int(batch.mask.sum()) for batch in batches),
        agreement={name: compare_embeddings(vectors, exact) for name, vectors in found.items()},
        other_batches=_least_cosine(again, found["fp8"]),
        reference={} if device == CPU else against_reference(folder, sentences, device),
        layers=measure_layers(network, batches),
    )


def against_reference(folder: Path, sentences: Sequence[str], device: torch.device) -> dict[str, AgainstReference]:
    """The kernels of a device against the reference backend there and on the CPU."""
    found = {}
    kernels, batches = in_fp8(load_network(folder, device)), load_batches(folder, sentences, device)
    free = embed(kernels, batches)
    for place in (device, CPU):
        with settings.scope(backend="reference"):
            reference, there = in_fp8(load_network(folder, place)), load_batches(folder, sentences, place)
            expected = embed(reference, there)
        same_codes = embed_both(kernels, batches, reference, there)
        found[place.type] = AgainstReference(_least_cosine(*same_codes), _least_cosine(free, expected))
    return found


def _least_cosine(found: Tensor, expected: Tensor) -> float:
    return 1 - float(cosine_losses(found, expected).max())
