"""What a config is predicted to cost: a roofline of SMs, L2 and device memory, with rounds of tiles and a power limit.

A persistent kernel is taken to run as follows. Each SM computes its share of the tiles one after the other, so that
the tiles are done in rounds. A K block of a tile takes as long as the slowest of its tensor work, the shared-memory
reads of that work, and the latency between one block and the next as far as waves in flight do not hide it. A tile also
costs its epilogue, and the last one the time until it is written. Those cycles pass at a clock that the power limit
sets: the more energy a cycle needs, the slower it is. A burst of some milliseconds may draw more. Meanwhile L2 delivers
the operands of every tile, and device memory delivers what L2 does not hold and takes the output. Whichever of the
three ends last decides, and a little more, for none of them is hidden altogether.

Configs are compared under load that lasts: what is fastest there takes 0.1 % longer in bursts than what is fastest in
them (76 shapes, H200, 2026-11-23), so that there is one choice for both. Few rows have constants of their own.
"""

from __future__ import annotations

import math

from fp8gemm.frozen import dataclass
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.candidates import divides_last_round, has_divided_round
from fp8gemm.tuning.config import STAGING_COLS, WAVE_ROWS, TileConfig, has_short_lines, staged_part, staged_parts
from fp8gemm.tuning.constants import DEFAULT, Constants, cost_term
from fp8gemm.tuning.hopper import TENSOR_MACS_PER_CYCLE, Chip
from fp8gemm.tuning.l2 import STREAMED_FROM, out_of_step, out_of_step_bytes, raster_band, refetched_bytes, streamed_rows
from fp8gemm.tuning.problem import Problem, Scaling, StoreKind
from fp8gemm.tuning.tiles import MANY_ROWS

REFERENCE_MHZ = 1400.0
"""The clock that energies are given for."""

SHORT_K, MANY_ROUNDS = 1024, 3
"""Up to which K, and from which rounds on, short lines were seen to cost energy (docs/tuning.md, "The choice")."""

FEW_PARTS = 2
"""Of a warpgroup's staged tile, so few that its epilogue ends before what surrounds it is hidden. Where a warpgroup is
alone, nothing hides it (docs/tuning.md, "The choice")."""


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
    block_cycles: float = cost_term("a K block", "cycles", "norm of these; more for further 64 rows of a warpgroup")
    epilogue_cycles: float = cost_term(
        "a tile", "cycles", "a tile's + 32 columns' + 64 x 8 outputs' + shares' exchange"
    )
    tile_cycles: float = cost_term("a tile", "cycles", "K blocks, in whole stages, * block_cycles + epilogue_cycles")
    between_cycles: float = cost_term(
        "a tile", "cycles", "from 256 rows on, between two rounds of tiles of few parts, or of one warpgroup"
    )
    tiles: int = cost_term("rounds and tail", "tiles", "ceil(M / block_m) * ceil(N / block_n), in whole clusters")  # type: ignore[assignment]
    rounds: int = cost_term("rounds and tail", "rounds", "ceil(tiles / SMs)")  # type: ignore[assignment]
    filled: float = cost_term("rounds and tail", "share", "tiles / (rounds * SMs)")
    spared: float = cost_term("rounds and tail", "rounds", "of the last one, where two CTAs divide each of its tiles")
    energy_mj: float = cost_term(
        "energy", "mJ", "MACs, promotions, bytes of L2, DRAM and short lines, times theirs at 1400 MHz"
    )
    clock_mhz: float = cost_term("energy", "MHz", "highest at which energy / time stays in the power limit")
    burst_mhz: float = cost_term("in a burst", "MHz", "clock_mhz at the power that some milliseconds may draw")
    burst_us: float = cost_term("in a burst", "us", "total_us at burst_mhz")
    sm_us: float = cost_term(
        "time",
        "us",
        "((rounds - spared) * tile_cycles + those between) / clock_mhz + last output / drain; less if B is streamed",
        part=True,
    )
    l2_us: float = cost_term("time", "us", "rounds * tile's bytes / L2 rate of an SM; less if B is streamed", part=True)
    dram_us: float = cost_term("time", "us", "latency + (inputs, again as L2 forgets, + output) / DRAM rate", part=True)
    overhead_us: float = cost_term(
        "time", "us", "launch, first loads, leaving; of several warpgroups and of a cluster more, ahead less", part=True
    )
    total_us: float = cost_term("time", "us", "overhead_us + norm(sm_us, l2_us, dram_us)")


def predict(problem: Problem, config: TileConfig, chip: Chip, constants: Constants = DEFAULT) -> Cost:
    """Predicted cost of a problem under a legal config; with a static weight it starts ahead."""
    predictor = Predictor(problem, config, chip, tile_cost(problem, config, constants), constants)
    return predictor.cost(problem.m, ahead=problem.static_weights)


def tile_cost(problem: Problem, config: TileConfig, constants: Constants = DEFAULT) -> TileCost:
    """The part of a prediction that depends neither on M nor on N."""
    scaling, of_rows = problem.scaling, problem.scaling is Scaling.ROW
    waves_of_warpgroup = config.waves / config.warpgroups
    tensor = config.block_m * config.block_n * config.block_k / TENSOR_MACS_PER_CYCLE
    stacked = config.block_m // config.warpgroups_m // WAVE_ROWS  # waves above one another
    read = float(config.waves * config.block_k * (WAVE_ROWS + config.wave_cols))
    if of_rows:
        read += config.waves // stacked * config.wave_cols * constants.row_scale_bytes
    shared = read / constants.shared_bytes_per_cycle
    wave = max(tensor, shared) / config.waves
    # One after the other, or one behind the other with the last of a chunk waited for.
    # Of several waves one after the other, the next one's scales and descriptors are ready when a wave ends.
    is_ahead = config.waves_in_flight == 1 and waves_of_warpgroup > 1
    after_wave = constants.row_scaled_wave_latency_cycles if of_rows else constants.wave_latency_cycles
    behind = constants.ahead_latency_cycles if is_ahead else after_wave
    latency = waves_of_warpgroup * (wave + behind)
    if config.waves_in_flight > 1:
        latency = latency / config.waves_in_flight + constants.drain_cycles
    if of_rows:
        latency += waves_of_warpgroup * config.wave_cols * constants.row_scale_cycles
    elif config.waves_in_flight > 1 and SCALE_BLOCK % config.wave_cols:
        shared += waves_of_warpgroup * constants.border_cycles
    latency = max(latency, constants.load_latency_cycles / (config.stages * config.warpgroups_k))
    block = norm(constants.block_exponent, tensor, shared, latency)
    block += (stacked - 1) * (constants.lower_row_scaled_cycles if of_rows else constants.lower_wave_cycles)
    pieces = config.block_m * config.block_n / (config.warpgroups * WAVE_ROWS * 8)
    epilogue = constants.tile_cycles + pieces * constants.epilogue_cycles * problem.output.bytes / 2
    epilogue += staged_parts(config) * max(staged_part(config)[1] // STAGING_COLS, 1) * constants.part_cycles
    if config.warpgroups_k > 1:
        epilogue += constants.exchange_cycles + pieces * constants.exchange_piece_cycles
    if config.split_k > 1:
        sent = pieces * (config.split_k - 1) / config.split_k
        epilogue += constants.split_cycles + sent * constants.split_piece_cycles
    share = constants.multicast_share if config.cluster_m * config.cluster_n > 1 else 1.0
    l2 = -(-problem.k_blocks // config.split_k) * config.block_bytes(scaling) * share
    tile_cycles = config.whole_k_blocks(problem.k_blocks) * block + epilogue
    wait = constants.few_parts_cycles if config.staging_slots < staged_parts(config) else constants.slotted_parts_cycles
    between = 0.0 if of_rows or (config.warpgroups > 1 and staged_parts(config) > FEW_PARTS) else wait
    return TileCost(tensor, shared, latency, block, epilogue, tile_cycles, between, l2)


def launch_us(config: TileConfig, constants: Constants) -> float:
    """What a launch takes beside its work, clusters apart."""
    return constants.launch_us + (constants.second_warpgroup_us if config.warpgroups > 1 else 0.0)


class Predictor:
    """Predictions for one config and every M: what does not depend on M is computed once.

    Args:
        problem: M is ignored.
        config: a legal one.
        chip: what it runs on.
        tile: its `tile_cost`.
        constants: of the model.
    """

    def __init__(
        self, problem: Problem, config: TileConfig, chip: Chip, tile: TileCost, constants: Constants = DEFAULT
    ) -> None:
        self._tile, self._constants, self._chip = tile, constants, chip
        self._n, self._k, self._macs_of_row = problem.n, problem.k, problem.n * problem.k
        self._promotions_of_row = problem.n * problem.k_blocks
        self._bytes_of_row, self._bytes_of_weight = problem.row_bytes, problem.weight_bytes
        self._cluster_size, self._raster_band = config.cluster_size, raster_band(config, problem.n)
        self._tile_of_cluster = config.block_m * config.cluster_m, config.block_n * config.cluster_n
        self._cluster_cols = -(-problem.n // self._tile_of_cluster[1])
        self._clusters = chip.clusters(config.cluster_size)
        self._l2_capacity = constants.l2_share * chip.l2_bytes
        self._power_limit = chip.power_watts * constants.lasting_power - constants.idle_watts
        self._burst_limit = chip.power_watts * constants.burst_power - constants.idle_watts
        self._clock_exponent = 1 / (1 + constants.voltage_exponent)
        self._least_us_of_round = tile.tile_cycles / chip.max_clock_mhz * (1 - 1e-9)  # whatever the rounding
        self._overhead_us = launch_us(config, constants) + (constants.cluster_us if config.cluster_size > 1 else 0.0)
        self._ahead_us = self._overhead_us - constants.ahead_us
        written = config.block_m * config.block_n * problem.output.bytes / config.split_k
        self._drain_us = written / constants.drain_bytes_per_us
        self._streamed_rows, self._uneven_share = streamed_rows(problem, config), constants.uneven_share
        self._divides = divides_last_round(problem, config)
        by_blocks = problem.scaling is Scaling.BLOCK  # what follows was not measured with other scales
        self._out_of_step_times = constants.out_of_step_times * out_of_step(problem.k) if by_blocks else 0.0
        is_short = by_blocks and problem.k <= SHORT_K and problem.store is StoreKind.TMA
        has_lines = is_short and has_short_lines(config, problem.output)
        self._short_lines_of_row = problem.n * problem.output.bytes if has_lines else 0

    def total_us(self, m: int, limit: float = math.inf, *, ahead: bool = False) -> float:
        """`Cost.total_us` for so many rows; infinity instead, sooner, if it cannot be less than a limit."""
        overhead_us = self._ahead_us if ahead else self._overhead_us
        # NOTE: a norm is at least its largest value, and no clock is higher than the highest.
        if overhead_us + self._share(m) * (self._rounds(m) - self._spared(m)) * self._least_us_of_round >= limit:
            return math.inf
        *_, sm_us, l2_us, dram_us = self._times(m)
        if overhead_us + max(sm_us, l2_us, dram_us) >= limit:
            return math.inf
        return overhead_us + norm(self._constants.overlap_exponent, sm_us, l2_us, dram_us)

    def times_us(self, m: int) -> tuple[float, float, float]:
        """`Cost.sm_us`, `Cost.l2_us` and `Cost.dram_us` for so many rows."""
        *_, sm_us, l2_us, dram_us = self._times(m)
        return sm_us, l2_us, dram_us

    def cost(self, m: int, *, ahead: bool = False) -> Cost:
        """All terms for so many rows."""
        cluster_tiles, rounds, energy, clock, sm_us, l2_us, dram_us = self._times(m)
        tile, exponent = self._tile, self._constants.overlap_exponent
        burst = self._clock_mhz(self._cycles(m, rounds), energy, self._burst_limit)
        drain_us = self._share(m) * self._drain_us
        burst_sm_us = drain_us + (sm_us - drain_us) * clock / burst
        overhead_us = self._ahead_us if ahead else self._overhead_us
        return Cost(
            tensor_cycles=tile.tensor_cycles,
            shared_cycles=tile.shared_cycles,
            latency_cycles=tile.latency_cycles,
            block_cycles=tile.block_cycles,
            epilogue_cycles=tile.epilogue_cycles,
            tile_cycles=tile.tile_cycles,
            between_cycles=tile.between_cycles,
            tiles=cluster_tiles * self._cluster_size,
            rounds=rounds,
            filled=cluster_tiles / (rounds * self._clusters),
            spared=self._spared(m),
            energy_mj=energy,
            clock_mhz=clock,
            burst_mhz=burst,
            burst_us=overhead_us + norm(exponent, burst_sm_us, l2_us, dram_us),
            sm_us=sm_us,
            l2_us=l2_us,
            dram_us=dram_us,
            overhead_us=overhead_us,
            total_us=overhead_us + norm(exponent, sm_us, l2_us, dram_us),
        )

    def _share(self, m: int) -> float:
        """What is left of the time of SMs and L2 where B leaves L2 first."""
        return self._constants.streamed_share if STREAMED_FROM <= m <= self._streamed_rows else 1.0

    def _tiles(self, m: int) -> int:
        return -(-m // self._tile_of_cluster[0]) * self._cluster_cols

    def _rounds(self, m: int) -> int:
        return -(-self._tiles(m) // self._clusters)

    def _cycles(self, m: int, rounds: int) -> float:
        waits = rounds - 1 if m >= MANY_ROWS else 0  # few rows wait for weights anyway
        return (rounds - self._spared(m)) * self._tile.tile_cycles + waits * self._tile.between_cycles

    def _spared(self, m: int) -> float:
        """What two CTAs spare of a last round whose tiles they divide: scheduler/last_round.cuh."""
        is_divided = self._divides and has_divided_round(self._tiles(m), self._clusters)
        return 1.0 - self._constants.half_share if is_divided else 0.0

    def _times(self, m: int) -> tuple[int, int, float, float, float, float, float]:
        """Cluster tiles, rounds, energy in mJ, clock in MHz; and times in us of SMs, L2 and device memory."""
        tile, chip = self._tile, self._chip
        cluster_tiles = self._tiles(m)
        rounds = -(-cluster_tiles // self._clusters)
        product, band, ctas = (m, self._n, self._k), self._raster_band, self._clusters * self._cluster_size
        refetched = refetched_bytes(product, self._tile_of_cluster, band, self._clusters, self._l2_capacity)
        if self._out_of_step_times > 0.0 and m >= MANY_ROWS:
            refetched += self._out_of_step_times * out_of_step_bytes(product, refetched, ctas, self._l2_capacity)
        dram_bytes = self._bytes_of_weight + m * self._bytes_of_row + refetched
        energy = self._constants.energy_mj(
            macs=m * self._macs_of_row,
            promotions=m * self._promotions_of_row,
            l2_bytes=cluster_tiles * self._cluster_size * tile.l2_bytes,
            dram_bytes=dram_bytes,
            short_line_bytes=m * self._short_lines_of_row if m >= MANY_ROWS and rounds >= MANY_ROUNDS else 0,
        )
        cycles, share = self._cycles(m, rounds), self._share(m)
        clock = self._clock_mhz(cycles, energy, self._power_limit)
        l2_us = share * rounds * tile.l2_bytes / chip.l2_bytes_per_us
        dram_us = dram_bytes / chip.dram_bytes_per_us
        if self._uneven_share > 0.0 and rounds > 1:  # the last one asks device memory for less than it delivers
            dram_us *= 1.0 + self._uneven_share * (1.0 - cluster_tiles / (rounds * self._clusters))
        dram_us += self._constants.dram_latency_us
        return cluster_tiles, rounds, energy, clock, share * (self._drain_us + cycles / clock), l2_us, dram_us

    def _clock_mhz(self, cycles: float, energy_mj: float, power_limit: float) -> float:
        """The clock at which the energy of these cycles is the power that the chip may draw.

        Energy grows with the voltage that a clock needs: E(f) = E(f0) (f / f0)^g. With time = cycles / f, the power
        E(f) / time is the limit at f = f0 (limit / (E(f0) f0 / cycles))^(1 / (1 + g)).
        """
        watts = energy_mj * REFERENCE_MHZ / cycles * 1e3
        clock: float = REFERENCE_MHZ * (power_limit / watts) ** self._clock_exponent
        return min(self._chip.max_clock_mhz, clock)


def norm(exponent: float, *values: float) -> float:
    """Between the largest of the values and their sum: nearer the largest, the higher the exponent."""
    largest, total = max(values), 0.0
    # NOTE: no sum(), which rounds otherwise from Python 3.12 on: a choice must be the same everywhere.
    for value in values:
        total += (value / largest) ** exponent
    return largest * float(total ** (1 / exponent))
