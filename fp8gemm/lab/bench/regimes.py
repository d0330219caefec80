"""What clock a kernel is measured at. The chip's follows the power that is drawn, 20 to 60 ms late. Touches no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted

IDLE_S = 0.04
"""Before a burst: until the clock has risen to the highest."""
AHEAD_S, SUSTAINED_S = 0.25, 0.86
"""Of one kernel alone: what is not timed, behind another kernel, and what is. Whenever the load changes, a clock that
power limits rings around its mean for ten seconds, with a period of 0.86 s, by 6 % at first. Over a whole period the
mean is right within 0.2 to 0.4 %; over 0.25 s it is 2.2 % off, root mean square (H100, 2026-11-25)."""
ALONE_S = AHEAD_S + SUSTAINED_S
"""Both together."""
SETTLE_S = 2.0
"""Of uninterrupted load before the first: behind idleness the clock is 5 % too high for 0.7 s, then 15 % too low (H100,
2026-11-25)."""
ALONE_FROM = 512
"""Rows from which power sets the clock, so that kernels are by default measured alone."""


class Regime(Enum):
    """How peers share the chip's time, and so its clock."""

    TURN = "turn"
    """A few milliseconds each, one after the other: at one clock, that of their mean power. For products of few rows,
    which draw little; of many rows it hides what a frugal kernel gains, and favours few cycles at many joules."""
    BURST = "burst"
    """Alone, some milliseconds after a pause: at the highest clock. Decoding with pauses, mixed kernels."""
    SUSTAINED = "sustained"
    """Alone for so long that the clock is what its own power leaves. Prefill, batches, training."""

    @property
    def rounds(self) -> int:
        """How many measurements a median is of, if nobody says."""
        return {Regime.TURN: 5, Regime.BURST: 7, Regime.SUSTAINED: 3}[self]

    @property
    def method(self) -> str:
        """Half a sentence for tables."""
        if self is Regime.TURN:
            return "peers in turn in an order drawn for each round"
        if self is Regime.BURST:
            return f"each alone, {1e3 * IDLE_S:g} ms idle, one graph of about 2 ms, then one that counts"
        timed = f"{1e3 * AHEAD_S:g} ms of graphs, then {1e3 * SUSTAINED_S:g} ms that count"
        return f"each alone, {timed}, behind {SETTLE_S:g} s of load without a gap"


def default_regimes(m: int) -> tuple[Regime, ...]:
    """Those that products of so many rows are measured in."""
    return (Regime.TURN,) if m < ALONE_FROM else (Regime.BURST, Regime.SUSTAINED)


def parse_regime(text: str) -> Regime:
    """A regime by its name.

    Raises:
        InputError: there is none of that name.
    """
    try:
        return Regime(text)
    except ValueError:
        raise InputError(f"expected {' or '.join(each.value for each in Regime)}, got {quoted(text)}") from None


def method(regimes: Sequence[Regime], rounds: int | None) -> str:
    """How these are measured, ``rounds`` times each, or as often as usual for None."""
    said = [f"{each.method}, median of {rounds or each.rounds}" for each in regimes]
    return said[0] if len(said) == 1 else "; ".join(map("{0.value}: {1}".format, regimes, said))
