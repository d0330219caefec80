"""How far a product is from the exact one, in the figures that people quote."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_TILE_COLUMNS = 2048
"""Columns of the product, rows of the weight, that are converted to float64 at a time."""


@dataclass(frozen=True)
class Figures:
    """One product against the exact one; all are ratios, and all but `sqnr_db` are 0 when it is exact.

    Attributes:
        relative_rms: ||error|| / ||exact||, Frobenius norms.
        worst_row: the largest such ratio of one row, which is one token.
        cosine_loss: 1 - cos of the angle between the two, each as one long vector.
        sqnr_db: signal to quantisation noise, -20 log10(relative_rms).
        max_over_s: largest |error| / S, S the sum over k of |x w| of the element.
        calc_diff: 1 - 2 sum(xy) / sum(x^2 + y^2).
    """

    relative_rms: float
    worst_row: float
    cosine_loss: float
    sqnr_db: float
    max_over_s: float
    calc_diff: float


def exact_product(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """`x w^T` in float64, and S, the same product of absolute values.

    Args:
        x: (M, K) of any float dtype.
        w: (N, K) of any float dtype; converted tile by tile, so that a large weight is never whole in float64.

    Returns:
        Both (M, N) float64, row-major.
    """
    out = torch.empty(x.shape[0], w.shape[0], dtype=torch.float64, device=x.device)
    magnitude = torch.empty_like(out)
    x = x.to(torch.float64)
    for start in range(0, w.shape[0], _TILE_COLUMNS):
        columns = slice(start, start + _TILE_COLUMNS)
        tile = w[columns].to(torch.float64)
        out[:, columns] = x @ tile.t()
        magnitude[:, columns] = x.abs() @ tile.abs_().t()
    return out, magnitude


def compare(out: Tensor, exact: Tensor, magnitude: Tensor | None = None) -> Figures:
    """All figures of `out` against `exact`.

    Args:
        out: (M, N) of any float dtype.
        exact: (M, N) float64, no row of zeros.
        magnitude: S, (M, N) float64, not zero anywhere; None leaves `max_over_s` at NaN.
    """
    result = out.to(torch.float64)
    error = result - exact
    of_rows = torch.stack([values.square().sum(dim=1) for values in (error, exact, result)])
    noise, signal, power = of_rows.sum(dim=1).tolist()
    relative = math.sqrt(noise / signal)
    # 1 - cos by subtraction would lose what it measures: half the squared distance of the two unit vectors instead.
    cosine_loss = float((result / math.sqrt(power) - exact / math.sqrt(signal)).square().sum()) / 2
    return Figures(
        relative_rms=relative,
        worst_row=float((of_rows[0] / of_rows[1]).max().sqrt()),
        cosine_loss=cosine_loss,
        sqnr_db=-20 * math.log10(relative) if relative else math.inf,
        max_over_s=math.nan if magnitude is None else float((error.abs() / magnitude).max()),
        calc_diff=noise / (signal + power),
    )
