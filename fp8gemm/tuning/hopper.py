"""The chips that kernels are chosen for, and what every Hopper SM has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted

GPCS = 8
"""Groups of SMs in a GPU; a cluster lies in one of them."""

SHARED_BYTES_PER_CTA = 227 * 1024
"""Shared memory one CTA may ask for: 228 KB an SM, 1 KB of it reserved for the system."""

SHARED_BYTES_PER_SM = 228 * 1024
RESERVED_SHARED_BYTES = 1024
"""Of each CTA, for the system."""

REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
MAX_SMS = 144
"""Of a whole GH100 die: no product has more."""

TENSOR_MACS_PER_CYCLE = 4096
"""Dense e4m3 multiply-accumulates of one SM's four tensor cores in one cycle."""

MAX_BOX_ROWS = 256
"""Most elements of a TMA box along one dimension."""


@dataclass(frozen=True)
class Chip:
    """What tile choice depends on besides the problem.

    Attributes:
        name: the name users give, such as ``h200``.
        num_sms: streaming multiprocessors.
        l2_bytes: size of the L2 cache.
        dram_bytes_per_us: memory bandwidth that a copy reaches, not the datasheet's.
        l2_bytes_per_us: bytes that one SM takes in from L2 when all of them do.
        power_watts: what the board may draw.
        max_clock_mhz: SM clock where power is no limit.
        limited: whether the GPU has more SMs, kept for others. A launch then has no more CTAs than ``num_sms``,
            because CTAs that could share an SM spread over those that are free.
    """

    name: str
    num_sms: int
    l2_bytes: int
    dram_bytes_per_us: float
    l2_bytes_per_us: float = 1e5
    power_watts: float = 700.0
    max_clock_mhz: float = 1980.0
    limited: bool = False

    def clusters(self, ctas: int) -> int:
        """Clusters of so many CTAs that it holds at once, one CTA to an SM; at least one."""
        return clusters_at_once(self.num_sms, ctas)


def clusters_at_once(num_sms: int, ctas: int) -> int:
    """Clusters of so many CTAs that so many SMs hold, one CTA to an SM; at least one."""
    if ctas <= 2:  # two SMs of a TPC are in one GPC
        return max(num_sms // ctas, 1)
    # GPCs have unequal numbers of SMs: H200s ran 30 clusters of four at once and not 31, 38 of three and not 40.
    gpcs = min(GPCS, num_sms)
    return max(gpcs * (num_sms // gpcs // ctas) - gpcs // 4, 1)


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("h200", num_sms=132, l2_bytes=60 << 20, dram_bytes_per_us=4.3e6),
        Chip("h100", num_sms=132, l2_bytes=50 << 20, dram_bytes_per_us=3.0e6),
        Chip("h100-pcie", 114, 50 << 20, dram_bytes_per_us=1.8e6, power_watts=350.0, max_clock_mhz=1755.0),
        Chip("h20", num_sms=78, l2_bytes=60 << 20, dram_bytes_per_us=3.6e6, power_watts=500.0),
    )
}


def named_chip(name: str) -> Chip:
    """The chip of that name; ``h200:60`` is one that has 60 SMs, such as a part of a GPU (MIG).

    Raises:
        InputError: the name is none of ``CHIPS``, or the count is none.
    """
    known, _, count = name.partition(":")
    # Of a count no more digits are read than the most has, for int() refuses thousands.
    counts = count.isascii() and count.isdigit() and len(count) <= len(str(MAX_SMS)) and 1 <= int(count) <= MAX_SMS
    if known not in CHIPS or ":" in name and not counts:
        raise InputError(
            f"expected a chip among {', '.join(CHIPS)}, perhaps with its SMs, 1 to {MAX_SMS}, as h200:60, got "
            f"{quoted(name)}"
        )
    return _with_sms(CHIPS[known], int(count)) if count else CHIPS[known]


def chip_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names of chips, each once: a sequence of them, or one word with commas between them; ``all`` is every known one.

    Raises:
        InputError: a name is none that `named_chip` finds.
    """
    words = [word for each in ([names] if isinstance(names, str) else names) for word in each.split(",")]
    found = tuple(dict.fromkeys(name for word in words for name in (CHIPS if word == "all" else [word])))
    for name in found:
        named_chip(name)
    return found


def chip_name(chip: Chip) -> str:
    """What `named_chip` finds the chip by."""
    return chip.name if chip.num_sms == CHIPS[chip.name].num_sms else f"{chip.name}:{chip.num_sms}"


@cache
def chip_of_device(device_name: str, num_sms: int) -> Chip:
    """The chip that a Hopper device is: the known one whose name it carries, with as many SMs as it has.

    NOTE: nothing else is read off the device, so that the choice on it is the choice ahead of it, by the name alone.
    """
    name = device_name.lower()
    if "h20" in name and "h200" not in name:
        known = CHIPS["h20"]
    elif "h100" in name and "pcie" in name:
        known = CHIPS["h100-pcie"]
    elif "h200" in name or "gh200" in name:
        known = CHIPS["h200"]
    else:
        known = CHIPS["h100"]
    return _with_sms(known, num_sms)


def _with_sms(chip: Chip, num_sms: int) -> Chip:
    """A chip with so many SMs, and its share of the L2 cache if these are fewer."""
    share = min(num_sms / chip.num_sms, 1.0)
    return replace(chip, num_sms=num_sms, l2_bytes=int(chip.l2_bytes * share))


@cache
def limited_chip(chip: Chip, num_sms: int) -> Chip:
    """The chip with at most so many of its SMs."""
    return chip if num_sms >= chip.num_sms else replace(chip, num_sms=num_sms, limited=True)
