"""The constants of the cost model, as fitted by ``scripts/calibrate.py`` to measured times."""

from __future__ import annotations

from dataclasses import field

from fp8gemm.frozen import dataclass


def _constant(value: float, unit: str, meaning: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning})
    return made


@dataclass(frozen=True)
class Constants:
    """What the formulas of ``model.py`` leave open. Cycles are SM cycles; energies hold at 1400 MHz."""

    shared_bytes_per_cycle: float = _constant(96.0, "bytes / cycle", "shared memory that WGMMA reads of an SM's")
    wave_latency_cycles: float = _constant(184.0, "cycles", "from the end of a wave to the start of the one after it")
    ahead_latency_cycles: float = _constant(145.0, "cycles", "the same where all it needs is in registers")
    drain_cycles: float = _constant(10.2, "cycles", "a K block's part in waiting for the last wave of a chunk")
    border_cycles: float = _constant(37.9, "cycles", "choosing between two weight scales, of a wave and warpgroup")
    row_scale_cycles: float = _constant(1.5, "cycles", "multiplying by a row scale of B, of a column and wave")
    load_latency_cycles: float = _constant(1890.0, "cycles", "from asking for a stage to having it")
    block_exponent: float = _constant(3.2, "exponent", "how well the terms of a K block hide each other")
    tile_cycles: float = _constant(878.0, "cycles", "between two tiles, beside the epilogue")
    epilogue_cycles: float = _constant(9.89, "cycles", "64 x 8 16-bit outputs of a warpgroup")
    part_cycles: float = _constant(129.0, "cycles", "handing over a staged part")
    exchange_cycles: float = _constant(286.0, "cycles", "two warpgroups that shared K waiting for each other's sums")
    exchange_piece_cycles: float = _constant(57.9, "cycles", "handing over the sums of 64 x 8 outputs")
    split_cycles: float = _constant(1500.0, "cycles", "the CTAs that divided K waiting for each other's sums")
    split_piece_cycles: float = _constant(60.0, "cycles", "sending the sums of 64 x 8 outputs to another CTA")
    multicast_share: float = _constant(0.694, "share", "of L2 time that a cluster's multicast leaves")
    l2_share: float = _constant(0.208, "share", "of L2 that operands stay in")
    mac_pj: float = _constant(0.272, "pJ", "multiply-accumulate")
    promotion_pj: float = _constant(5.94, "pJ", "promoting a block sum")
    l2_byte_pj: float = _constant(28.5, "pJ", "byte from L2 to an SM")
    dram_byte_pj: float = _constant(58.6, "pJ", "byte of device memory")
    idle_watts: float = _constant(149.0, "W", "power that does no work")
    voltage_exponent: float = _constant(1.55, "exponent", "of the clock, in the energy of an operation")
    burst_power: float = _constant(1.42, "times", "the chip's power limit, what a burst of some milliseconds may draw")
    launch_us: float = _constant(2.67, "us", "launch, first loads and leaving")
    cluster_us: float = _constant(1.03, "us", "what a cluster adds to that")
    overlap_exponent: float = _constant(29.4, "exponent", "how well SM, L2 and DRAM time hide each other")


DEFAULT = Constants()
"""Fitted on an H200, 2026-11-23, to 76 shapes alone, in bursts and under sustained load. `ahead_latency_cycles` came a
day later: by then 128x256, alone in what that is said of, was 3 % faster than predicted beside others at 12 shapes."""
