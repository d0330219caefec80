"""Device side of tuning grouped products: random groups, and every candidate's kernel launched on the same of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.lab.bench.grouped_operands import check_groups, offsets_of, random_masked, random_weights
from fp8gemm.lab.bench.grouped_operands import random_rows as random_tokens
from fp8gemm.lab.bench.operands import Call
from fp8gemm.lab.bench.timing import Schedule, schedule_bytes
from fp8gemm.lab.tune.measure import MAX_DIFFERENCE, Measured, Tuner, require_close
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Grouping
from fp8gemm.tuning.select import Config


def measure_grouped(tuner: Tuner, problem: GroupedProblem, configs: Sequence[Config], sizes: Sequence[int]) -> Measured:
    """Time these configs in turn, for groups of these sizes.

    Raises:
        LostDeviceError: a kernel ended the context.
    """
    tuner.make_room()
    moved = problem.groups * problem.of_group().bytes
    plan = schedule_bytes(moved, l2_bytes=tuner.device.l2_bytes, measure_us=tuner.measure_us)
    operands = _OperandSets(problem, sizes, plan, tuner.generator)

    def calls(config: Config) -> list[Call]:
        kernel = GroupedKernel(
            problem,
            config,
            device_index=tuner.device.index,
            num_sms=tuner.chip.num_sms,
            limited=tuner.chip.limited,
        )
        return operands.calls(kernel)

    makers: dict[str, Callable[[], list[Call]]] = {config.label: partial(calls, config) for config in configs}
    return tuner.in_turn(makers, lambda label, call: operands.check(call), plan)


class _OperandSets:
    """Operands that the calls rotate over, each a copy of the first, and what the result must be."""

    def __init__(
        self, problem: GroupedProblem, sizes: Sequence[int], plan: Schedule, generator: torch.Generator
    ) -> None:
        self._problem, self._sizes, device = problem, sizes, generator.device
        self._masked = problem.grouping is Grouping.MASKED
        self._room = max(sizes) if self._masked else sum(sizes)
        self._offsets = offsets_of(sizes, device)
        self._counts = torch.tensor(list(sizes), dtype=torch.int32, device=device)
        rows = (
            random_masked(generator, self._room, problem.k, self._counts)
            if self._masked
            else random_tokens(generator, self._room, problem.k)
        )
        first = *rows, *random_weights(generator, problem.groups, problem.n, problem.k)
        self._sets = [first, *(tuple(map(_copy, first)) for _ in range(1, plan.sets))]
        shape = (problem.groups, self._room, problem.n) if self._masked else (self._room, problem.n)
        self._outs = [torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in range(plan.sets)]
        self._expected: Tensor | None = None

    def calls(self, kernel: GroupedKernel) -> list[Call]:
        """One call of the kernel per operand set."""
        problem = self._problem
        ends = self._counts if self._masked else self._offsets[1:]

        def call(index: int) -> Tensor:
            (a, scales_a, b, scales_b), out = self._sets[index], self._outs[index]
            operands = GroupedOperands(
                a=a.view(-1, problem.k),
                scales_a=scales_a,
                b=b.flatten(0, 1),
                scales_b=scales_b,
                out=out.view(-1, problem.n),
                begins=0 if self._masked else self._offsets.data_ptr(),
                ends=ends.data_ptr(),
                rows=self._room,
                products=sum(self._sizes) * problem.n * problem.k,
            )
            kernel.bind(operands, torch.cuda.current_stream(out.device).cuda_stream)()
            return out

        return [partial(call, index) for index in range(len(self._sets))]

    def check(self, call: Call) -> None:
        """Run a call on the first set, and hold its rows to the product or, once one was right, to that result.

        Raises:
            WrongResultError: they are off by more than rounding explains.
        """
        self._outs[0].fill_(math.nan)  # what a kernel does not write must not be what another has written
        results = self._of_groups(call())
        if self._expected is None:
            a, scales_a, b, scales_b = self._sets[0]
            rows = zip(self._of_groups(a), self._of_groups(scales_a), strict=True)
            check_groups(results, rows, zip(b, scales_b, strict=True))
            self._expected = torch.cat(results)
        else:
            require_close(torch.cat(results), self._expected, MAX_DIFFERENCE, "the first config's result")

    def _of_groups(self, rows: Tensor) -> list[Tensor]:
        if self._masked:
            return [group[:size] for group, size in zip(rows, self._sizes, strict=True)]
        return list(rows.split(list(self._sizes)))


def _copy(tensor: Tensor) -> Tensor:
    """Of the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
