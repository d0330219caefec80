"""From weights of groups to the grouped products that they will be asked for: pure functions, without tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fp8gemm import settings
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.group_ranges import GROUP_RANGES
from fp8gemm.sizes import check_whole_number
from fp8gemm.tuning.grouped import grouped_configs
from fp8gemm.tuning.grouped_problem import GroupedProblem, grouped_problem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Grouping, OutputType, StoreKind

SERVED = (Grouping.CONTIGUOUS, Grouping.MASKED)
"""What inference asks for."""


@dataclass(frozen=True)
class GroupedVariants:
    """How the products of weights (G, N, K) may be asked for; one of each is combined with one of each other.

    Attributes:
        groupings: contiguous and masked are products of the weights, columns those that make their gradients.
        outputs: types of D; gradients are float32.
        batch_invariant: as in `fp8gemm.gemm_grouped`, but for None: what the settings say.
        any_strides: also for outputs that TMA cannot write, in columns or at odd addresses.
    """

    groupings: tuple[Grouping, ...] = SERVED
    outputs: tuple[OutputType, ...] = (OutputType.BFLOAT16,)
    batch_invariant: bool | None = None
    any_strides: bool = False

    def problems(self, groups: int, n: int, k: int, max_m: int) -> list[GroupedProblem]:
        """Those of weights (G, N, K), each with the largest M of a typical group.

        Raises:
            InputError: sizes that no kernel takes.
        """
        check_whole_number("max_m", max_m, 1)
        invariant = settings.current().batch_invariant if self.batch_invariant is None else self.batch_invariant
        found: list[GroupedProblem] = []
        for grouping in self.groupings:
            if grouping is Grouping.COLUMNS:
                new = [grouped_problem(grouping, groups, n, k, k, OutputType.FLOAT32)]
            else:
                new = [
                    grouped_problem(grouping, groups, max_m, n, k, output, batch_invariant=invariant)
                    for output in self.outputs
                ]
            if self.any_strides:
                new += [replace(each, store=StoreKind.PREDICATED) for each in new if each.store is StoreKind.TMA]
            found += new
            if grouping is Grouping.COLUMNS:
                found += [each.accumulating() for each in new]
        return found


def grouped_kernels(problem: GroupedProblem, chip: Chip) -> Iterator[KernelRequest]:
    """Those that are asked for with some M up to the problem's own."""
    if problem.grouping is Grouping.CONTIGUOUS:
        yield GROUP_RANGES
    for config in grouped_configs(problem, chip):
        yield kernel_request(problem, config)
