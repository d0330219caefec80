"""How near the embeddings of one network are to another's, and whether the same sentences stay neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class ModelGates:
    """What an FP8 network must reach; the script and the tests know no other numbers.

    Attributes:
        cosine_mean, cosine_min: least mean and least single cosine between a sentence's embedding and that of the
            float32 network.
        margin: where the float32 network's best cosine to another sentence exceeds the second best by this much, the
            FP8 network must find the same nearest neighbour.
        cosine_to_reference: least cosine between a GPU's embedding and the reference backend's, both by the same codes
            in every layer (`fp8gemm.lab.accuracy.replay` says why).
    """

    cosine_mean: float = 0.995
    cosine_min: float = 0.985
    margin: float = 0.02
    cosine_to_reference: float = 0.9999


GATES = ModelGates()


@dataclass(frozen=True)
class EmbeddingAgreement:
    """Embeddings against those of the float32 network.

    Attributes:
        losses: 1 - cosine of each sentence, in the order of the sentences.
        margins: of the float32 network: best minus second best cosine to another sentence, in the same order.
        same_neighbour: whether the nearest other sentence is the same one, in the same order.
    """

    losses: tuple[float, ...]
    margins: tuple[float, ...]
    same_neighbour: tuple[bool, ...]

    @property
    def cosine_mean(self) -> float:
        return 1 - sum(self.losses) / len(self.losses)

    @property
    def cosine_min(self) -> float:
        return 1 - max(self.losses)

    def decided(self, margin: float) -> list[bool]:
        """Whether the neighbour stayed the same, of the sentences with at least this margin."""
        return [same for same, each in zip(self.same_neighbour, self.margins, strict=True) if each >= margin]

    def failures(self, gates: ModelGates = GATES) -> list[str]:
        """Which gates are missed, in words; empty if none is."""
        missed = []
        wanted = {"mean": (self.cosine_mean, gates.cosine_mean), "least": (self.cosine_min, gates.cosine_min)}
        for which, (found, least) in wanted.items():
            if not found >= least:  # so that NaN is a miss
                missed.append(f"{which} cosine {found:.5f}, at least {least} is wanted")
        decided = self.decided(gates.margin)
        if not all(decided):
            changed = [margin for margin, same in zip(self.margins, self.same_neighbour, strict=True) if not same]
            missed.append(
                f"{decided.count(False)} of {len(decided)} nearest neighbours with a margin of {gates.margin} or more "
                f"changed, the clearest with {max(changed):.4f}"
            )
        return missed

    def as_json(self, gates: ModelGates = GATES) -> dict[str, Any]:
        """Means, percentiles and counts, and all losses in ascending order."""
        losses = torch.tensor(self.losses, dtype=torch.float64)
        decided = self.decided(gates.margin)
        return {
            "cosine_mean": round(self.cosine_mean, 6),
            "cosine_min": round(self.cosine_min, 6),
            "loss_mean": _short(float(losses.mean())),
            "loss_max": _short(max(self.losses)),
            "loss_percentiles": {str(each): _short(float(losses.quantile(each / 100))) for each in _PERCENTILES},
            "same_neighbour": sum(self.same_neighbour),
            "decided": len(decided),
            "decided_same": sum(decided),
            "losses": [_short(loss) for loss in sorted(self.losses)],
        }


def cosine_losses(found: Tensor, exact: Tensor) -> Tensor:
    """1 - cosine of each pair of rows; half the squared distance of unit vectors, which loses no digits near 0.

    Args:
        found, exact: (sentences, width) float64, rows of norm 1.

    Returns:
        (sentences,) float64.
    """
    return (found - exact).square().sum(dim=1) / 2


def compare_embeddings(found: Tensor, exact: Tensor) -> EmbeddingAgreement:
    """`found` against `exact`, both (sentences, width) float64 with rows of norm 1, of at least three sentences."""
    best = _similarities(exact).topk(2, dim=1)
    nearest = _similarities(found).argmax(dim=1)
    return EmbeddingAgreement(
        losses=tuple(cosine_losses(found, exact).tolist()),
        margins=tuple((best.values[:, 0] - best.values[:, 1]).tolist()),
        same_neighbour=tuple((nearest == best.indices[:, 0]).tolist()),
    )


def _similarities(vectors: Tensor) -> Tensor:
    """Cosines between all pairs; a vector is no neighbour of its own."""
    return (vectors @ vectors.t()).fill_diagonal_(-2.0)


def _short(value: float) -> float:
    return float(f"{value:.3g}")
