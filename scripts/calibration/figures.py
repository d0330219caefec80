"""The statistics that tables and pictures share: classes of M, quantiles, regret."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_M_STEPS = (1, 64, 256, 1024, 4096, 16385)


def m_class(m: int) -> str:
    """The range of M that a shape is counted under, such as ``256-1023``."""
    for low, end in zip(_M_STEPS, _M_STEPS[1:], strict=False):
        if low <= m < end:
            return f"{low}-{end - 1}"
    return f"from {_M_STEPS[-1]}"


def in_order(classes: Sequence[str]) -> list[str]:
    """Each class of M once, ascending."""
    names = [m_class(low) for low in _M_STEPS]
    return sorted(set(classes), key=names.index)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def regret_figures(regrets: Sequence[float]) -> dict[str, Any]:
    """Of choices that took ``1 + regret`` of the best time: how many there are, mean, 95th percentile, largest."""
    return {
        "shapes": len(regrets),
        "mean": round(sum(regrets) / len(regrets), 4),
        "p95": round(quantile(regrets, 0.95), 4),
        "max": round(max(regrets), 4),
    }


def error_figures(log_ratios: Sequence[float]) -> dict[str, Any]:
    """Of log(predicted / measured): geometric mean of the ratio, median and 90th percentile of the magnitude."""
    magnitudes = [abs(each) for each in log_ratios]
    return {
        "timings": len(log_ratios),
        "bias": round(math.exp(sum(log_ratios) / len(log_ratios)), 4),
        "median": round(quantile(magnitudes, 0.5), 4),
        "p90": round(quantile(magnitudes, 0.9), 4),
    }
