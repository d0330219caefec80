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

    shared_bytes_per_cycle: float = _constant(79.5, "bytes / cycle", "shared memory that WGMMA reads of an SM's")
    wave_latency_cycles: float = _constant(257.0, "cycles", "from the end of a wave to the start of the one after it")
    ahead_latency_cycles: float = _constant(145.0, "cycles", "the same where all it needs is in registers")
    drain_cycles: float = _constant(10.2, "cycles", "a K block's part in waiting for the last wave of a chunk")
    border_cycles: float = _constant(37.9, "cycles", "choosing between two weight scales, of a wave and warpgroup")
    row_scale_cycles: float = _constant(1.5, "cycles", "multiplying by a row scale of B, of a column and wave")
    load_latency_cycles: float = _constant(2680.0, "cycles", "from asking for a stage to having it")
    block_exponent: float = _constant(4.81, "exponent", "how well the terms of a K block hide each other")
    tile_cycles: float = _constant(688.0, "cycles", "between two tiles, beside the epilogue")
    epilogue_cycles: float = _constant(9.83, "cycles", "64 x 8 16-bit outputs of a warpgroup")
    part_cycles: float = _constant(133.0, "cycles", "handing over a staged part")
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
    launch_us: float = _constant(1.67, "us", "launch, first loads and leaving")
    second_warpgroup_us: float = _constant(0.13, "us", "what a second consumer warpgroup adds to that")
    drain_bytes_per_us: float = _constant(
        30200.0, "bytes / us", "of its last tile that an SM writes when all else is done"
    )
    cluster_us: float = _constant(1.03, "us", "what a cluster adds to that")
    dram_latency_us: float = _constant(1.1, "us", "from asking device memory for the first bytes to having them")
    overlap_exponent: float = _constant(29.4, "exponent", "how well SM, L2 and DRAM time hide each other")


DEFAULT = Constants()
"""Fitted on an H200, 2026-11-23, to 76 shapes alone, in bursts and under sustained load. What comes before, between and
behind K blocks, and the rate of shared memory, came anew on 2026-11-25, when launches had become shorter and narrow
tiles had one warpgroup: by 100 shapes on an H200 and 71 on an H100, in bursts, so that of what was measured the fastest
is predicted to be so (the choice took 0.46 and 1.40 % more than the fastest before, 0.25 and 0.78 % then).
`dram_latency_us` is by 72 shapes of few rows, in turns (H100)."""
