"""The constants of the cost model, as fitted by ``scripts/calibrate.py`` to measured times."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    shared_bytes_per_cycle=110.0,  # bytes / cycle
    wave_latency_cycles=332.0,  # cycles
    drain_cycles=12.9,  # cycles
    border_cycles=86.9,  # cycles
    row_scale_cycles=1.5,  # cycles
    load_latency_cycles=1200.0,  # cycles
    block_exponent=6.31,  # exponent
    tile_cycles=732.0,  # cycles
    epilogue_cycles=10.0,  # cycles
    part_cycles=120.0,  # cycles
    multicast_share=1.0,  # share
    l2_share=0.25,  # share
    mac_pj=0.312,  # pJ
    promotion_pj=7.09,  # pJ
    l2_byte_pj=25.3,  # pJ
    dram_byte_pj=44.8,  # pJ
    idle_watts=176.0,  # W
    voltage_exponent=2.16,  # exponent
    launch_us=2.81,  # us
    cluster_us=0.779,  # us
    overlap_exponent=10.9,  # exponent
)
"""Fitted on an H200, 2026-11-21, to docs/results/sweep-h200.json and sweep-random-h200.json."""
