"""What a swap-AB config is predicted to cost: how fast the weight streams, and what a tile's end and the launch add.

Without programmatic dependent launch a kernel begins when the one ahead of it has ended: launch, then the slowest of
device memory, L2, the latency of a ring that does not hold all of a CTA's K, and the tensor work; then the sums of
the shares and the output.

With it, and a static weight, kernels follow each other as a pipeline does. What then counts is how long after the end
of one the next can end: its chain of tokens, products, sums and output, less what its ring could fetch meanwhile.
"""

from __future__ import annotations

from fp8gemm.frozen import dataclass
from fp8gemm.tuning.constants import cost_term
from fp8gemm.tuning.dependent_launch import UNEVEN_WEIGHT
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.model import norm
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.swap_ab import SwapAbConfig, busiest_sm, resident_ctas, tiles_of

_CLOCK_MHZ = 1755.0
_FREE_KB_IN_FLIGHT = 100.0


@dataclass(frozen=True)
class SwapAbConstants:
    """What the formulas leave open, as fitted to 3094 times of seven N x K at M from 8 to 128 (H200, 2026-11-22).

    ``held_cluster_us``, and that clusters take whole places of a GPC, are by 2752 times of these and 18 other N x K:
    from 16 to 128 rows the choice takes 1.9 % more than the fastest that was measured, and 2.3 with a static weight,
    instead of 3.6 and 5.4 (H200, 2026-11-27). ``held_step_us`` and ``alone_large_us`` are by 372 times of 23 N x K at 8
    rows and 336 of eight others at 8 to 32, with a static weight: there the choice takes 4.5 and 2.0 % more than the
    fastest instead of 6.1 and 3.4, and nowhere more than before of what the others are by (H200, 2026-11-28). The
    choice is the same from 0.01 to 0.02, and from 0.6 to 1. ``held_room`` is by these and 8 other N x K, with a static
    weight up to 32 rows: at 8 rows the choice takes 2.6 % more than the fastest at 39 shapes instead of 4.4, and is the
    same from 1.1 to 1.25. At three N x K it is the fastest, 7 to 21 % behind before; one of 242 other shapes loses 1.2.
    At 23 further N x K, of small weights, it takes 5.6, 5.7 and 9.2 % more than the fastest at 8, 16 and 32 rows, and
    would take 9.9, 5.7 and 8.7 without ``held_room`` (H200, 2026-12-01).
    """

    launch_us: float = 1.87
    cluster_us: float = 1.22
    dram_share: float = 1.061  # of the chip's rate: reads alone are faster than a copy
    l2_bytes_per_us: float = 2.35e5  # into an SM
    ring_latency_us: float = 0.801  # from asking for a stage to its next use
    step_cycles: float = 63.6  # a stage of a warpgroup, shared by the warpgroups of an SM
    column_cycles: float = 0.09  # the same, of each column of a wave
    shared_cycles_per_kb: float = 7.86  # operands of WGMMA
    token_us: float = 0.0001  # loading one token of one K block
    crowded_token_share: float = 3.0  # the same, more for each 64 tokens of a tile
    tail_us: float = 0.369  # adding up shares, output
    share_us: float = 0.002  # the same, of a sum of a thread
    crowd_us_per_kb: float = 0.00549  # in flight on an SM beyond 100 KB
    exponent: float = 2.43  # how well the streams hide each other
    alone_us: float = 2.06  # with a static weight, where the next kernel finds no room beside this one
    alone_large_us: float = 0.7  # the same of a large weight, whose CTAs make room one after the other
    handover_us: float = 1.83  # with a static weight, from the end of a kernel to the next one's products
    handover_sm_share: float = 0.273  # of the tensor work, that is behind it
    handover_tail_share: float = 0.476  # of the sums and output
    beside_share: float = 0.379  # of what the ring can fetch meanwhile, lost where the next kernel is there already
    held_cluster_us: float = 1.0  # with a static weight, of clusters that hold all of K: the next start beside them
    held_step_us: float = 0.02  # the same of a stage, without clusters: all are multiplied when the tokens come
    held_room: float = 1.2  # and of the part of a kernel that has room


DEFAULT = SwapAbConstants()


@dataclass(frozen=True)
class SwapAbCost:
    """Predicted time of one config, by term, in the order of the derivation."""

    tiles: int = cost_term("CTAs and SMs", "tiles", "ceil(M / block_m) * ceil(N / block_n)")  # type: ignore[assignment]
    resident_ctas: int = cost_term("CTAs and SMs", "CTAs", "that an SM holds, by shared memory, registers, threads")  # type: ignore[assignment]
    busiest_sm: int = cost_term("CTAs and SMs", "CTAs", "of the SM that has most; ahead one more if it has room")  # type: ignore[assignment]
    steps: int = cost_term("a CTA", "stages", "K blocks / (blocks of a stage * split_k)")  # type: ignore[assignment]
    step_cycles: float = cost_term("a CTA", "cycles", "max(operands read by WGMMA, latency / warpgroups of an SM)")
    dram_us: float = cost_term("time", "us", "(weight + output) / DRAM rate", part=True)
    l2_us: float = cost_term("time", "us", "busiest_sm * bytes of a CTA / L2 rate of an SM", part=True)
    ring_us: float = cost_term(
        "time", "us", "the same at bytes in flight / latency, if the ring is filled again", part=True
    )
    sm_us: float = cost_term("time", "us", "busiest_sm * steps * step_cycles / clock", part=True)
    tokens_us: float = cost_term("time", "us", "tokens * K blocks of the busiest SM", part=True)
    sums_us: float = cost_term("time", "us", "sums of the shares and output; of a cluster more", part=True)
    crowd_us: float = cost_term("time", "us", "more than 100 KB in flight on an SM", part=True)
    launch_us: float = cost_term("time", "us", "launch, or with a static weight what is not hidden of it", part=True)
    total_us: float = cost_term("time", "us", "launch_us + norm(dram, l2, ring, sm) + tokens_us + sums_us + crowd_us")


def predict_swap_ab(
    problem: Problem, config: SwapAbConfig, chip: Chip, constants: SwapAbConstants = DEFAULT
) -> SwapAbCost:
    """Predicted cost of a problem under a legal config."""
    tiles = tiles_of(config, problem.m, problem.n)
    steps = config.steps(problem.k)
    resident = resident_ctas(config, problem.k)
    busiest = busiest_sm(config, tiles, chip.num_sms)
    held = min(config.stages, steps)
    at_once = min(resident, busiest)
    is_large = problem.n * problem.k >= UNEVEN_WEIGHT
    if problem.static_weights and is_large and resident > busiest:
        busiest += 1  # CTAs that start ahead take what falls free, so that some SM with room for one more has it
    step = step_cycles(config, at_once, constants)
    bytes_of_sm = busiest * steps * config.stage_bytes
    dram = (problem.n * problem.k + problem.m * problem.n * problem.output.bytes) / (
        chip.dram_bytes_per_us * constants.dram_share
    )
    l2 = bytes_of_sm / constants.l2_bytes_per_us
    in_flight = at_once * held * config.stage_bytes
    ring = bytes_of_sm * constants.ring_latency_us / in_flight if steps > held else 0.0
    sm = busiest * steps * step / _CLOCK_MHZ
    stream = norm(constants.exponent, dram, l2, ring, sm)
    sums_of_thread = config.blocks_per_stage * config.block_m * config.block_n / (128 * config.warpgroups_k)
    sums = constants.tail_us + constants.share_us * sums_of_thread * busiest
    if config.split_k > 1:
        sums += constants.cluster_us
    tokens = constants.token_us * min(problem.m, config.block_m) * busiest * steps * config.blocks_per_stage
    tokens *= 1 + constants.crowded_token_share * config.block_m / 64
    crowd = constants.crowd_us_per_kb * max(in_flight / 1024 - _FREE_KB_IN_FLIGHT, 0.0)
    launch = constants.launch_us
    if problem.static_weights:
        # The next kernel's clusters need as many places in one GPC as they have CTAs.
        places = chip.clusters(config.split_k) * resident
        room = max(places / tiles - 1, 0.0)  # for so many kernels beside this one
        beside = min(room, 1.0)
        ahead = held / steps
        window = ahead * dram * (1 - (constants.beside_share * beside if held < steps else 0.0))
        chain = constants.handover_us + constants.handover_sm_share * sm + constants.handover_tail_share * sums
        alone = constants.alone_large_us if is_large else constants.alone_us
        if held == steps and config.split_k == 1:
            # One that waits with all of K reads nothing more: memory is kept busy by the next, part of which has room.
            beside = min(constants.held_room * (room % 1.0), 1.0)
            if room >= 1:
                alone = min(alone, dram)  # the one beside has read its weight: what is lost is that of the next at most
        launch = alone * (1 - beside) + max(chain - window, 0.0)
        launch = max(launch, chain + (1 - ahead) * dram - stream - tokens)
        if held == steps:
            launch += constants.held_cluster_us if config.split_k > 1 else constants.held_step_us * steps
        sums = crowd = 0.0
    total = launch + stream + tokens + sums + crowd
    return SwapAbCost(tiles, resident, busiest, steps, step, dram, l2, ring, sm, tokens, sums, crowd, launch, total)


def step_cycles(config: SwapAbConfig, at_once: float, constants: SwapAbConstants) -> float:
    """Cycles of a stage in a CTA: reading its operands or, if so many CTAs of an SM do not hide it, latency."""
    return config.warpgroups_k * max(
        (64 + config.wave_cols) * 0.128 * constants.shared_cycles_per_kb,
        (constants.step_cycles + constants.column_cycles * config.wave_cols) / min(at_once * config.warpgroups_k, 4),
    )
