"""The chips that kernels are chosen for, and what every Hopper SM has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from fp8gemm.errors import InputError

SHARED_BYTES_PER_CTA = 227 * 1024
"""Shared memory one CTA may ask for: 228 KB an SM, 1 KB of it reserved for the system."""

SHARED_BYTES_PER_SM = 228 * 1024
RESERVED_SHARED_BYTES = 1024
"""Of each CTA, for the system."""

REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048

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
    """The chip of that name.

    Raises:
        InputError: the name is none of ``CHIPS``.
    """
    try:
        return CHIPS[name]
    except KeyError:
        raise InputError(f"expected a chip among {', '.join(CHIPS)}, got {name!r}") from None


@cache
def chip_of_device(device_name: str, num_sms: int, l2_bytes: int) -> Chip:
    """The chip that a Hopper device is: the known one whose name it carries, with the device's own SM count and L2."""
    name = device_name.lower()
    if "h20" in name and "h200" not in name:
        known = CHIPS["h20"]
    elif "h100" in name and "pcie" in name:
        known = CHIPS["h100-pcie"]
    elif "h200" in name or "gh200" in name:
        known = CHIPS["h200"]
    else:
        known = CHIPS["h100"]
    return replace(known, num_sms=num_sms, l2_bytes=l2_bytes)


@cache
def limited_chip(chip: Chip, num_sms: int) -> Chip:
    """The chip with at most so many of its SMs."""
    return chip if num_sms >= chip.num_sms else replace(chip, num_sms=num_sms, limited=True)
