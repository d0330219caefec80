"""The constants of the cost model, as fitted by ``scripts/calibrate.py`` to measured times."""

from __future__ import annotations

from dataclasses import field

from fp8gemm.frozen import dataclass


def _constant(unit: str, meaning: str) -> float:
    value: float = field(metadata={"unit": unit, "meaning": meaning})
    return value


@dataclass(frozen=True)
class Constants:
    """What the formulas of ``model.py`` leave open. Cycles are SM cycles; energies hold at 1400 MHz."""

    shared_bytes_per_cycle: float = _constant("bytes / cycle", "shared memory that WGMMA reads of an SM's")
    wave_latency_cycles: float = _constant("cycles", "from the end of a wave to the start of the one after it")
    drain_cycles: float = _constant("cycles", "a K block's part in waiting for the last wave of a chunk")
    border_cycles: float = _constant("cycles", "choosing between two weight scales, of a wave and warpgroup")
    row_scale_cycles: float = _constant("cycles", "multiplying by a row scale of B, of a column and wave")
    load_latency_cycles: float = _constant("cycles", "from asking for a stage to having it")
    block_exponent: float = _constant("exponent", "how well the terms of a K block hide each other")
    tile_cycles: float = _constant("cycles", "between two tiles, beside the epilogue")
    epilogue_cycles: float = _constant("cycles", "64 x 8 16-bit outputs of a warpgroup")
    part_cycles: float = _constant("cycles", "handing over a staged part")
    exchange_cycles: float = _constant("cycles", "two warpgroups that shared K waiting for each other's sums")
    exchange_piece_cycles: float = _constant("cycles", "handing over the sums of 64 x 8 outputs")
    multicast_share: float = _constant("share", "of L2 time that a cluster's multicast leaves")
    l2_share: float = _constant("share", "of L2 that operands stay in")
    mac_pj: float = _constant("pJ", "multiply-accumulate")
    promotion_pj: float = _constant("pJ", "promoting a block sum")
    l2_byte_pj: float = _constant("pJ", "byte from L2 to an SM")
    dram_byte_pj: float = _constant("pJ", "byte of device memory")
    idle_watts: float = _constant("W", "power that does no work")
    voltage_exponent: float = _constant("exponent", "of the clock, in the energy of an operation")
    launch_us: float = _constant("us", "launch, first loads and leaving")
    cluster_us: float = _constant("us", "what a cluster adds to that")
    overlap_exponent: float = _constant("exponent", "how well SM, L2 and DRAM time hide each other")


DEFAULT = Constants(
    shared_bytes_per_cycle=112.0,  # bytes / cycle
    wave_latency_cycles=314.0,  # cycles
    drain_cycles=10.2,  # cycles
    border_cycles=109.0,  # cycles
    row_scale_cycles=1.5,  # cycles
    load_latency_cycles=1200.0,  # cycles
    block_exponent=3.23,  # exponent
    tile_cycles=788.0,  # cycles
    epilogue_cycles=10.2,  # cycles
    part_cycles=152.0,  # cycles
    exchange_cycles=469.0,  # cycles
    exchange_piece_cycles=78.7,  # cycles
    multicast_share=1.0,  # share
    l2_share=0.257,  # share
    mac_pj=0.155,  # pJ
    promotion_pj=6.03,  # pJ
    l2_byte_pj=29.1,  # pJ
    dram_byte_pj=46.1,  # pJ
    idle_watts=145.0,  # W
    voltage_exponent=1.5,  # exponent
    launch_us=2.64,  # us
    cluster_us=1.08,  # us
    overlap_exponent=21.9,  # exponent
)
"""Fitted on an H200, 2026-11-21, to docs/results/sweep-h200.json and sweep-random-h200.json."""
