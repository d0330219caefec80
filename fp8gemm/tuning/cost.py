"""The terms of a predicted time: what `model.py` computes and ``fp8gemm explain`` prints."""

from __future__ import annotations

from dataclasses import field

from fp8gemm.frozen import dataclass


def cost_term(group: str, unit: str, formula: str, *, part: bool = False) -> float:
    """A field of a cost: what it belongs to, its unit, how it comes about, and whether totals are made of it."""
    value: float = field(metadata={"group": group, "unit": unit, "formula": formula, "part": part})
    return value


@dataclass(frozen=True)
class TileCost:
    """What a tile costs its SM, whatever M and N are. Cycles are SM cycles; `Cost` explains the terms."""

    tensor_cycles: float
    shared_cycles: float
    latency_cycles: float
    block_cycles: float
    epilogue_cycles: float
    tile_cycles: float
    between_cycles: float
    l2_bytes: float


@dataclass(frozen=True)
class Cost:
    """Predicted time of one config, by term, in the order of the derivation. Cycles are SM cycles."""

    tensor_cycles: float = cost_term("a K block", "cycles", "block_m * block_n * block_k / 4096")
    shared_cycles: float = cost_term("a K block", "cycles", "waves * 128 * (64 + n) bytes / shared rate")
    latency_cycles: float = cost_term(
        "a K block",
        "cycles",
        "(wave + latency) * waves of a warpgroup / in flight; latency + load latency / K blocks in the ring",
    )
    block_cycles: float = cost_term(
        "a K block", "cycles", "norm of the three above; more for each further 64 rows of a warpgroup"
    )
    epilogue_cycles: float = cost_term(
        "a tile",
        "cycles",
        "a tile's + that of each up to 32 staged columns + of each 64 x 8 outputs of a warpgroup + shares' exchange",
    )
    tile_cycles: float = cost_term("a tile", "cycles", "K blocks, in whole stages, * block_cycles + epilogue_cycles")
    between_cycles: float = cost_term(
        "a tile", "cycles", "between two rounds from 256 rows on, of tiles that are staged in two parts or one"
    )
    tiles: int = cost_term("rounds and tail", "tiles", "ceil(M / block_m) * ceil(N / block_n), in whole clusters")  # type: ignore[assignment]
    rounds: int = cost_term("rounds and tail", "rounds", "ceil(tiles / SMs)")  # type: ignore[assignment]
    filled: float = cost_term("rounds and tail", "share", "tiles / (rounds * SMs)")
    energy_mj: float = cost_term(
        "energy", "mJ", "MACs, promotions, L2 and DRAM bytes, each times its energy at 1400 MHz"
    )
    clock_mhz: float = cost_term("energy", "MHz", "highest at which energy / time stays in the power limit")
    burst_mhz: float = cost_term("in a burst", "MHz", "clock_mhz at the power that some milliseconds may draw")
    burst_us: float = cost_term("in a burst", "us", "total_us at burst_mhz")
    sm_us: float = cost_term(
        "time",
        "us",
        "(rounds * tile_cycles + (rounds - 1) * between_cycles) / clock_mhz + last output / drain rate; less if B is"
        " streamed",
        part=True,
    )
    l2_us: float = cost_term(
        "time", "us", "rounds * K blocks * their bytes / L2 rate of an SM; less if B is streamed", part=True
    )
    dram_us: float = cost_term(
        "time", "us", "latency + (inputs as often as L2 forgets them + output) / DRAM rate", part=True
    )
    overhead_us: float = cost_term(
        "time", "us", "launch, first loads, leaving; of several warpgroups and of a cluster more", part=True
    )
    total_us: float = cost_term("time", "us", "overhead_us + norm(sm_us, l2_us, dram_us)")
