"""Device side of tuning: every candidate's kernel checked, captured and timed in turn on the same operands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fp8gemm.driver.device import DeviceInfo
from fp8gemm.errors import Fp8GemmError
from fp8gemm.kernels.catalogue import load_kernel
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.lab.bench.graph import GraphTimer, check_result, measure_alone
from fp8gemm.lab.bench.load import Load
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Call, normal
from fp8gemm.lab.bench.peers import deep_gemm_call, scaled_mm_call
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.bench.timing import L2_MULTIPLE, MIN_SETS, Schedule, Timer, describe, measure_in_turn, schedule
from fp8gemm.lab.tune.report import DEEP_GEMM, PEERS, TENSORWISE
from fp8gemm.products.quantize import quantize_activation, quantize_weight
from fp8gemm.scales import empty_mn_major
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config

MAX_DIFFERENCE = 2e-3
"""Between two configs, relative Frobenius norm over so many elements: another order of sums costs less than half of
that, a wrong tile of 64 x 64 seven times as much."""

_CACHED_BYTES = 32 << 30
"""Freed memory that torch may keep for later shapes: what it keeps, kernels cannot be loaded into."""

_CHUNK = 2**24
"""Elements compared at a time; what float64 needs for more is gigabytes."""


class LostDeviceError(Fp8GemmError, RuntimeError):
    """A kernel has broken the process's CUDA context, so that nothing further can be measured in it.

    Attributes:
        label: what was running.
    """

    def __init__(self, message: str, label: str) -> None:
        super().__init__(message)
        self.label = label


@dataclass(frozen=True)
class Measured:
    """Median microseconds per call, by label of the config and name of the peer; reasons of those that have none."""

    us: dict[str, float]
    peers: dict[str, float]
    failed: dict[str, str]


class Tuner:
    """Measures one shape after another on one GPU.

    Args:
        device: the GPU, which is torch's current device.
        chip: how many SMs a kernel may occupy.
        generator: of the operands, on that GPU.
        rounds: measurements per candidate.
        measure_us: length of one, where they take turns.
        warm_seconds: load before those of a shape, then.
        regime: how they share the GPU's time.
        load: between the shapes that are measured under sustained load.

    Attributes:
        device, chip, generator, measure_us: as above.
    """

    def __init__(
        self,
        device: DeviceInfo,
        chip: Chip,
        generator: torch.Generator,
        *,
        rounds: int,
        measure_us: float,
        warm_seconds: float = 0.03,
        regime: Regime = Regime.TURN,
        load: Load,
    ) -> None:
        self.device, self.chip, self.generator, self._regime, self._load = device, chip, generator, regime, load
        self._rounds, self.measure_us, self._warm_seconds = rounds, measure_us, warm_seconds

    def measure(self, problem: Problem, configs: Sequence[Config], *, peers: Sequence[str]) -> Measured:
        """Time these configs, and of `PEERS` those asked for.

        Raises:
            LostDeviceError: a kernel ended the context.
        """
        self.make_room()
        m, n, k = problem.m, problem.n, problem.k
        plan = schedule(m, n, k, l2_bytes=self.device.l2_bytes, measure_us=self.measure_us)
        operands = _OperandSets(problem, plan, self.device, self.generator)
        makers: dict[str, Callable[[], list[Call]]] = {
            config.label: partial(self._calls, problem, config, operands) for config in configs
        }
        calls_of = {TENSORWISE: operands.scaled_mm_calls, DEEP_GEMM: operands.deep_gemm_calls}
        makers |= {peer: calls_of[peer] for peer in peers}
        return self.in_turn(makers, operands.check, plan)

    def make_room(self) -> None:
        """Before operands are made: give back memory that torch keeps of earlier shapes, if it is much."""
        if torch.cuda.memory_reserved() > _CACHED_BYTES:
            torch.cuda.empty_cache()

    def in_turn(
        self, makers: Mapping[str, Callable[[], list[Call]]], check: Callable[[str, Call], None], plan: Schedule
    ) -> Measured:
        """Time what can be made and checked.

        Args:
            makers: by label, from which the calls come, one per operand set.
            check: raises unless the first call's result is right.
            plan: how.

        Raises:
            LostDeviceError: a kernel ended the context.
        """
        timers: dict[str, GraphTimer] = {}
        failed: dict[str, str] = {}
        for label, make in makers.items():
            try:
                calls = make()
                check(label, calls[0])
                timers[label] = GraphTimer(calls, plan)
            except Exception as error:  # NOTE: whatever one candidate raises must not end the others' run
                failed[label] = describe(error)
                _require_context(label, error)
        if self._regime is Regime.TURN:
            takes: dict[str, Timer] = {**timers}
            self._warm(takes)
            timings = measure_in_turn(takes, rounds=self._rounds)
        else:
            takes = {label: partial(timer.alone, self._regime) for label, timer in timers.items()}
            timings = measure_alone(takes, self._regime, self._load, rounds=self._rounds)
        for label, reason in timings.failed.items():
            _require_context(label, RuntimeError(reason))
        peers = {name: us for name, us in timings.us.items() if name in PEERS}
        us = {label: us for label, us in timings.us.items() if label not in PEERS}
        return Measured(us, peers, {**failed, **timings.failed})

    def _calls(self, problem: Problem, config: Config, operands: _OperandSets) -> list[Call]:
        kernel = load_kernel(
            problem,
            config,
            device_index=self.device.index,
            num_sms=self.chip.num_sms,
            programmatic=problem.static_weights,
        )
        return operands.calls(kernel)

    def _warm(self, timers: dict[str, Timer]) -> None:
        """One candidate's load is as good as another's: whole rounds of all of them would take a second."""
        timer = next(iter(timers.values()), None)
        until = time.monotonic() + self._warm_seconds
        while timer is not None and time.monotonic() < until:
            try:
                timer()
            except Exception:  # NOTE: it fails again, and is reported, when it is measured
                return


class _OperandSets:
    """Operands that the calls of a shape rotate over, their outputs, and what the result must be.

    The first set is quantised from standard normal data; the others hold the same codes, rows rotated, so that they
    cost a copy. Outputs rotate over as many tensors as exceed L2 as often as the operands do, and over two at least.
    """

    def __init__(self, problem: Problem, plan: Schedule, device: DeviceInfo, generator: torch.Generator) -> None:
        self._problem = problem
        m, n = problem.m, problem.n
        x, w = normal(generator, m, problem.k), normal(generator, n, problem.k)
        (a, scales_a), (b, scales_b) = quantize_activation(x), quantize_weight(w)
        self._product = torch.mm(x, w.t())
        self._sets = [(a, scales_a, b, scales_b)]
        for index in range(1, plan.sets):
            own_scales = empty_mn_major(*scales_a.shape, device=a.device).copy_(scales_a)
            self._sets.append((rotated(a, index), own_scales, rotated(b, index), scales_b.clone()))
        count = min(max(L2_MULTIPLE * device.l2_bytes // (2 * m * n) + 1, MIN_SETS), plan.sets)
        self._outs = [torch.empty(m, n, dtype=torch.bfloat16, device=a.device) for _ in range(count)]
        self._expected: Tensor | None = None

    def calls(self, kernel: SingleKernel) -> list[Call]:
        """One call of the kernel per operand set."""

        def call(index: int) -> Tensor:
            out = self._outs[index % len(self._outs)]
            stream = torch.cuda.current_stream(out.device).cuda_stream
            kernel(*self._sets[index], out=out, stream=stream, static_weights=self._problem.static_weights)
            return out

        return [partial(call, index) for index in range(len(self._sets))]

    def scaled_mm_calls(self) -> list[Call]:
        """One call of torch._scaled_mm per operand set, on the same codes under one scale."""
        one = torch.ones((), device=self._outs[0].device)
        return [
            scaled_mm_call(a, one, b, one, out=self._outs[index % len(self._outs)])
            for index, (a, _, b, _) in enumerate(self._sets)
        ]

    def deep_gemm_calls(self) -> list[Call]:
        """One call of DeepGEMM per operand set.

        Raises:
            ImportError: there is no DeepGEMM.
        """
        outs = self._outs
        return [deep_gemm_call(*terms, out=outs[index % len(outs)]) for index, terms in enumerate(self._sets)]

    def check(self, label: str, call: Call) -> None:
        """Run a call on the first set, and hold every element of its result to the product, and to the first result
        that was right.

        Raises:
            WrongResultError: it is off by more than rounding explains.
        """
        self._outs[0].fill_(math.nan)  # what a kernel does not write must not be what another has written
        out = call()
        if label == TENSORWISE:
            torch.cuda.synchronize()  # other scales make another product; a failed launch is to be noticed here, though
            return
        if self._expected is None:
            require_close(out, self._product, MAX_RELATIVE_ERROR, "the bfloat16 product")
            self._expected = self._product.copy_(out)  # in its memory: neither is small
        else:
            require_close(out, self._expected, MAX_DIFFERENCE, "the first config's result")


def rotated(codes: Tensor, rows: int) -> Tensor:
    """A copy, rows moved down; eight bytes at a time, because bytes are slow to copy."""
    return codes.view(torch.int64).roll(rows, 0).view(codes.dtype)


def require_close(out: Tensor, expected: Tensor, limit: float, name: str) -> None:
    """Raises:
    WrongResultError: some rows differ by more than the limit, as a relative Frobenius norm.
    """
    rows = max(_CHUNK // out.shape[1], 1)
    for part, right in zip(out.split(rows), expected.split(rows), strict=True):
        check_result(part, right, name, limit)


def _require_context(label: str, error: Exception) -> None:
    try:
        torch.cuda.synchronize()
    except Exception as broken:  # NOTE: torch has changed the type of this error
        raise LostDeviceError(
            f"{label} has broken the CUDA context ({describe(error)}): run again to go on with the other configs", label
        ) from broken
