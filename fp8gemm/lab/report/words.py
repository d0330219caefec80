"""Figures as a page has them: few digits, and a unit of their size."""

from __future__ import annotations

NONE = "\N{EN DASH}"
MICRO, TIMES = "\N{MICRO SIGN}s", "\N{MULTIPLICATION SIGN}"


def digits(value: float) -> str:
    """Three digits or, where they are whole, more."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def time_text(us: float | None) -> str:
    """Microseconds in the unit that people would take."""
    if us is None:
        return NONE
    if us < 999.5:
        return f"{digits(us)} {MICRO}"
    return f"{digits(us / 1e3)} ms" if us < 999.5e3 else f"{digits(us / 1e6)} s"


def share_text(share: float) -> str:
    """A share of one."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"
