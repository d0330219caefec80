"""The constants of the cost model, as fitted by ``scripts/calibrate.py`` to measured times."""

from __future__ import annotations

from dataclasses import field, replace

from fp8gemm.frozen import dataclass


def cost_term(group: str, unit: str, formula: str, *, part: bool = False) -> float:
    """A field of a cost: what it belongs to, its unit, how it comes about, and whether totals are made of it."""
    value: float = field(metadata={"group": group, "unit": unit, "formula": formula, "part": part})
    return value


def _constant(value: float, unit: str, meaning: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning})
    return made


@dataclass(frozen=True)
class Constants:
    """What the formulas of ``model.py`` leave open. Cycles are SM cycles; energies hold at 1400 MHz."""

    shared_bytes_per_cycle: float = _constant(94.2, "bytes / cycle", "shared memory that WGMMA reads of an SM's")
    wave_latency_cycles: float = _constant(326.0, "cycles", "from the end of a wave to the start of the one after it")
    row_scaled_wave_latency_cycles: float = _constant(306.0, "cycles", "the same with row scales of B")
    ahead_latency_cycles: float = _constant(180.0, "cycles", "the same where all it needs is in registers")
    drain_cycles: float = _constant(10.2, "cycles", "a K block's part in waiting for the last wave of a chunk")
    border_cycles: float = _constant(37.9, "cycles", "choosing between two weight scales, of a wave and warpgroup")
    lower_wave_cycles: float = _constant(12.0, "cycles", "a K block's part for each further 64 rows of a warpgroup")
    lower_row_scaled_cycles: float = _constant(5.0, "cycles", "the same with row scales of B")
    row_scale_cycles: float = _constant(1.0, "cycles", "multiplying by a row scale of B, of a column and wave")
    row_scale_bytes: float = _constant(
        64.0, "bytes", "of those above, that loads of a row scale of B keep from a warpgroup's waves"
    )
    load_latency_cycles: float = _constant(2600.0, "cycles", "from asking for a stage to having it")
    block_exponent: float = _constant(3.81, "exponent", "how well the terms of a K block hide each other")
    tile_cycles: float = _constant(569.0, "cycles", "between two tiles, beside the epilogue")
    few_parts_cycles: float = _constant(400.0, "cycles", "between two rounds of tiles of few parts or one warpgroup")
    slotted_parts_cycles: float = _constant(75.0, "cycles", "the same where each of these parts has a staging slot")
    half_share: float = _constant(0.67, "share", "of a round that one takes whose tiles two CTAs divide")
    epilogue_cycles: float = _constant(9.88, "cycles", "64 x 8 16-bit outputs of a warpgroup")
    part_cycles: float = _constant(135.0, "cycles", "handing over a staged part")
    exchange_cycles: float = _constant(286.0, "cycles", "two warpgroups that shared K waiting for each other's sums")
    exchange_piece_cycles: float = _constant(57.9, "cycles", "handing over the sums of 64 x 8 outputs")
    split_cycles: float = _constant(1870.0, "cycles", "the CTAs that divided K waiting for each other's sums")
    split_piece_cycles: float = _constant(62.2, "cycles", "sending the sums of 64 x 8 outputs to another CTA")
    multicast_share: float = _constant(0.694, "share", "of L2 time that a cluster's multicast leaves")
    l2_share: float = _constant(0.189, "share", "of L2 that operands stay in")
    out_of_step_times: float = _constant(1.5, "times", "that tiles out of step fetch again what larger ones would not")
    mac_pj: float = _constant(0.352, "pJ", "multiply-accumulate")
    promotion_pj: float = _constant(6.17, "pJ", "promoting a block sum")
    l2_byte_pj: float = _constant(23.6, "pJ", "byte from L2 to an SM")
    dram_byte_pj: float = _constant(160.0, "pJ", "byte of device memory")
    short_line_byte_pj: float = _constant(50.0, "pJ", "byte of the output that many tiles write in lines of 64 bytes")
    idle_watts: float = _constant(149.0, "W", "power that does no work")
    voltage_exponent: float = _constant(1.55, "exponent", "of the clock, in the energy of an operation")
    burst_power: float = _constant(1.42, "times", "the chip's power limit, what a burst of some milliseconds may draw")
    lasting_power: float = _constant(1.0, "times", "the chip's power limit, what load that lasts may draw")
    launch_us: float = _constant(1.67, "us", "launch, first loads and leaving")
    second_warpgroup_us: float = _constant(0.13, "us", "what a second consumer warpgroup adds to that")
    drain_bytes_per_us: float = _constant(
        26700.0, "bytes / us", "of its last tile that an SM writes when all else is done"
    )
    cluster_us: float = _constant(1.03, "us", "what a cluster adds to that")
    dram_latency_us: float = _constant(1.1, "us", "from asking device memory for the first bytes to having them")
    overlap_exponent: float = _constant(39.0, "exponent", "how well SM, L2 and DRAM time hide each other")
    streamed_share: float = _constant(0.94, "share", "of SM and L2 time that is left where B leaves L2 first")
    uneven_share: float = _constant(0.0, "share", "of DRAM time, that is lost where a last round of tiles has none")
    ahead_us: float = _constant(0.0, "us", "less, where a static weight is read ahead of the end of the kernel before")

    def energy_mj(
        self, *, macs: int, promotions: int, l2_bytes: float, dram_bytes: float, short_line_bytes: int
    ) -> float:
        """What so much work takes."""
        return 1e-9 * (
            macs * self.mac_pj
            + promotions * self.promotion_pj
            + l2_bytes * self.l2_byte_pj
            + dram_bytes * self.dram_byte_pj
            + short_line_bytes * self.short_line_byte_pj
        )


DEFAULT = Constants()
"""Fitted on an H200, 2026-11-23, to 76 shapes alone, in bursts and under sustained load, and anew on an H100,
2026-11-25, when bands of tiles had come to depend on N: to 198 shapes in bursts, of which the choice takes 0.4 %
more than the fastest that was measured, and to 72 of few rows, in turns. What few rows take was held to the fit
before. Of that one are, too, what clusters and a second warpgroup cost, a launch, an idle chip's power,
`drain_cycles`, `border_cycles`, `row_scale_cycles`, `exchange_cycles`, `exchange_piece_cycles`, `multicast_share`,
`voltage_exponent`, `burst_power` and `dram_latency_us`. `dram_byte_pj`, 68.1 by the fit, is what bands of tiles say
it is, at the lower end (docs/tuning.md, "Where the cycles of prefill go"): with it the choice takes 0.64 % more than
the fastest candidate in bursts instead of 0.69, and 0.42 % under sustained load instead of 0.44 (100 shapes of no
fit, H100, 2026-11-26). `lower_wave_cycles` is 17 by the fit, to which 256x128 was no candidate for N < 4096; 4 was
better at 111 shapes under sustained load and 121 in bursts (H200, 2026-11-27), and 12 is since it is one for any K
and more columns: 0.23 and 0.27 % more than the fastest at 269 and 283, with 4 0.23 and 0.30 (2026-11-29).
`out_of_step_times` is of the same day (docs/tuning.md, "The choice"), as is `short_line_byte_pj`. `few_parts_cycles`
is none by the fit: at 400 random shapes, block-scaled, tiles of few parts took longer than predicted where rounds
are several and K short, by 6 % at K <= 384, by 2 % at K = 1536, and others did not (H100, H200, 2026-11-28). Where
rows are few, weights are what is waited for. With a slot for each part 128x128 takes 120 to 230 cycles less between
two rounds (eight products in bursts, H200, 2026-11-29), and 75, `slotted_parts_cycles`, choose better than the 200 of
before: 0.7 instead of 2.1 % more than the fastest at 22 products for which other tiles had been about as good by the
model (2026-11-30). With descriptors of 64 bits 128x256 was 1 to 2 % faster beside 128x192, and 128x160 3 to 5 % beside
64x256 with K = 384, than predicted: `wave_latency_cycles`, 306 before and still with row scales, and
`few_parts_cycles`, 300 before, are since what chooses best at 87 products of several candidates and not worse at
those of before (H200, 2026-11-30; docs/tuning.md, "The choice")."""

OF_FEW_ROWS = replace(
    DEFAULT,
    shared_bytes_per_cycle=102.0,
    wave_latency_cycles=157.0,
    load_latency_cycles=1790.0,
    tile_cycles=933.0,
    exchange_cycles=473.0,
    split_cycles=1020.0,
    split_piece_cycles=126.0,
    launch_us=1.61,
    cluster_us=0.3,
    uneven_share=0.54,
    lasting_power=DEFAULT.burst_power,
    ahead_us=0.45,
)
"""Of 48 to 192 rows and a weight scaled by blocks, with which no clock falls far: at the power of a burst, beside
swapped configs, whose model is of times in turns, as these are. Fitted to 213 shapes of 37 N x K, of 108 of which the
fastest and what had been chosen were known (H200, 2026-12-01)."""

GROUPED = replace(
    DEFAULT,
    shared_bytes_per_cycle=79.5,
    wave_latency_cycles=257.0,
    row_scaled_wave_latency_cycles=257.0,
    ahead_latency_cycles=145.0,
    lower_wave_cycles=17.0,
    load_latency_cycles=2680.0,
    block_exponent=4.81,
    tile_cycles=688.0,
    few_parts_cycles=0.0,
    slotted_parts_cycles=0.0,
    half_share=1.0,
    epilogue_cycles=9.83,
    part_cycles=133.0,
    l2_share=0.208,
    out_of_step_times=0.0,
    short_line_byte_pj=0.0,
    mac_pj=0.272,
    promotion_pj=5.94,
    l2_byte_pj=28.5,
    dram_byte_pj=58.6,
    drain_bytes_per_us=30200.0,
    overlap_exponent=29.4,
)
"""Of groups: the fit before, by which the shares of `grouped_model.py` were measured."""
