"""The grouped products of sanitize_kernels.py: each grouping in both orientations, and the kernel that finds ranges."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm.jit.request import KernelRequest  # noqa: E402
from fp8gemm.kernels.catalogue import kernel_request  # noqa: E402
from fp8gemm.kernels.group_ranges import GROUP_RANGES, GroupRangesKernel  # noqa: E402
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands  # noqa: E402
from fp8gemm.lab.bench.operands import relative_error  # noqa: E402
from fp8gemm.products.quantize import quantize_activation, quantize_weight  # noqa: E402
from fp8gemm.reference import gemm_reference  # noqa: E402
from fp8gemm.scales import block_count, empty_mn_major_groups  # noqa: E402
from fp8gemm.tuning.config import TileConfig  # noqa: E402
from fp8gemm.tuning.grouped_problem import GroupedProblem  # noqa: E402
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, StoreKind  # noqa: E402
from fp8gemm.tuning.select import Config  # noqa: E402
from fp8gemm.tuning.swap_ab import SwapAbConfig  # noqa: E402

Upload = Callable[[Tensor], Tensor]

NUM_SMS = 4  # so that a CTA computes several tiles
ROWS = 277
RANGES = ((3, 8), (139, 140), (0, 0), (8, 139), (150, 277))
"""Of rows: some of no group, one that is empty, and ends inside tiles."""
COUNTS = (70, 0, 33, 1)
ROOM = 70
COLUMNS = ((0, 128), (128, 128), (128, 512))


@dataclass(frozen=True)
class GroupedProduct:
    """One launch of groups of `RANGES`, `COUNTS` or `COLUMNS`."""

    problem: GroupedProblem
    config: Config

    @property
    def request(self) -> KernelRequest:
        """What must be built for it."""
        return kernel_request(self.problem, self.config)

    @property
    def label(self) -> str:
        """As in the cache."""
        return self.request.label

    @property
    def shape(self) -> str:
        sizes = "+".join(str(end - begin) for begin, end in self.ranges)
        return f"({sizes})x{self.problem.n}x{self.problem.k}"

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Rows or columns of each group."""
        if self.problem.grouping is Grouping.MASKED:
            return [(group * ROOM, group * ROOM + count) for group, count in enumerate(COUNTS)]
        return list(COLUMNS if self.problem.grouping is Grouping.COLUMNS else RANGES)

    @property
    def limit(self) -> float:
        """Largest relative error of a right result."""
        return 3e-4 if self.problem.output is OutputType.FLOAT32 else 2.5e-3

    def run(self, upload: Upload) -> float:
        """One launch, and the relative error of what groups have; infinite if it writes rows of none.

        Args:
            upload: brings a tensor to the GPU, strides and all.
        """
        of_columns = self.problem.grouping is Grouping.COLUMNS
        operands, expected, initial = self._columns() if of_columns else self._rows()
        out = upload(initial)
        a, scales_a, b, scales_b, begins, ends = (upload(each) for each in (*operands, *self._bounds()))
        masked = self.problem.grouping is Grouping.MASKED
        given = GroupedOperands(
            a,
            scales_a,
            b,
            scales_b,
            out,
            begins=0 if masked else begins.data_ptr(),
            ends=ends.data_ptr(),
            rows=ROOM if masked else self.problem.m if of_columns else ROWS,
            products=0,
        )
        kernel = GroupedKernel(self.problem, self.config, device_index=0, num_sms=NUM_SMS, limited=True)
        kernel.bind(given, torch.cuda.current_stream().cuda_stream)()
        torch.cuda.synchronize()
        found, there = out.cpu().double(), ~expected.isnan()
        return relative_error(found[there], expected[there]) if found[~there].isnan().all() else math.inf

    def _bounds(self) -> tuple[Tensor, Tensor]:
        begins, ends = torch.tensor(self.ranges, dtype=torch.int32).unbind(1)
        if self.problem.grouping is Grouping.MASKED:
            ends = ends - begins
        return begins.contiguous(), ends.contiguous()

    def _rows(self) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Operands, the product in float64 with NaN where there is none, and the output before."""
        n, k = self.problem.n, self.problem.k
        masked = self.problem.grouping is Grouping.MASKED
        rows = ROOM * len(COUNTS) if masked else ROWS
        generator = torch.Generator().manual_seed(rows * n + k)
        a, scales_a = quantize_activation(torch.randn(rows, k, generator=generator))
        weights = [quantize_weight(torch.randn(n, k, generator=generator)) for _ in self.ranges]
        expected = torch.full((rows, n), math.nan, dtype=torch.float64)
        for (begin, end), weight in zip(self.ranges, weights, strict=True):
            if begin < end:
                terms = a[begin:end], scales_a[begin:end], *weight
                expected[begin:end] = gemm_reference(*terms, out_dtype=torch.float64)
        b = torch.cat([codes.view(torch.uint8) for codes, _ in weights]).view(a.dtype)
        if masked:
            by_rows = scales_a.reshape(len(COUNTS), ROOM, -1)
            scales_a = empty_mn_major_groups(len(COUNTS), ROOM, block_count(k), device=a.device).copy_(by_rows)
        dtype = getattr(torch, self.problem.output.value)
        initial = torch.full((rows, n), math.nan, dtype=dtype)
        return (a, scales_a, b, torch.stack([scales for _, scales in weights])), expected, initial

    def _columns(self) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """The same for groups of columns; where C is added it is the output before."""
        m, n, k = self.problem.m, self.problem.n, COLUMNS[-1][1]
        generator = torch.Generator().manual_seed(m * n + k)
        a, scales_a = quantize_activation(torch.randn(m, k, generator=generator))
        b, scales_b = quantize_activation(torch.randn(n, k, generator=generator))
        c = torch.randn(len(COLUMNS), m, n, generator=generator)
        adds = self.problem.c is not Addend.NONE
        expected = c.double() if adds else torch.zeros(c.shape, dtype=torch.float64)
        for group, (begin, end) in enumerate(COLUMNS):
            if begin < end:
                columns, blocks = slice(begin, end), slice(begin // 128, end // 128)
                terms = a[:, columns], scales_a[:, blocks], b[:, columns], scales_b[:, blocks]
                expected[group] += gemm_reference(*terms, out_dtype=torch.float64)
        initial = c if adds else torch.full(c.shape, math.nan)
        return (a, scales_a, b, scales_b), expected.flatten(0, 1), initial.flatten(0, 1)


@dataclass(frozen=True)
class Ranges:
    """From indices of rows to `RANGES`."""

    label: str = GROUP_RANGES.label
    shape: str = f"{len(RANGES)} groups of {ROWS} rows"
    limit: float = 0.0

    @property
    def request(self) -> KernelRequest:
        """What must be built for it."""
        return GROUP_RANGES

    def run(self, upload: Upload) -> float:
        """One launch, and how many ranges are wrong."""
        indices = torch.full((ROWS,), -1, dtype=torch.int32)
        for group, (begin, end) in enumerate(RANGES):
            indices[begin:end] = group
        given, ranges = upload(indices), upload(torch.zeros(2, len(RANGES), dtype=torch.int32))
        kernel = GroupRangesKernel(device_index=0)
        kernel.bind(given, ranges, stream=torch.cuda.current_stream().cuda_stream)()
        torch.cuda.synchronize()
        return float((torch.tensor(RANGES) != ranges.cpu().T).sum())


def grouped() -> Iterator[GroupedProduct | Ranges]:
    """Both orientations and stores of rows, contiguous and masked; columns with C and without; and ranges."""
    ordinary, wide = TileConfig(64, 64, 3, 1, 1, 1, waves_in_flight=2), TileConfig(128, 64, 3)
    swapped, shared = SwapAbConfig(16, 32, 2, warpgroups_k=2), SwapAbConfig(8, 16, 4)
    contiguous, masked, columns = Grouping.CONTIGUOUS, Grouping.MASKED, Grouping.COLUMNS
    float16, float32, predicated = OutputType.FLOAT16, OutputType.FLOAT32, StoreKind.PREDICATED
    yield GroupedProduct(GroupedProblem(contiguous, len(RANGES), 60, 136, 272), wide)
    yield GroupedProduct(GroupedProblem(contiguous, len(RANGES), 60, 101, 272, float32, predicated), ordinary)
    yield GroupedProduct(GroupedProblem(contiguous, len(RANGES), 4, 136, 656, float16), swapped)
    yield GroupedProduct(GroupedProblem(masked, len(COUNTS), ROOM, 136, 272, float32), ordinary)
    yield GroupedProduct(GroupedProblem(masked, len(COUNTS), ROOM, 101, 272, store=predicated), wide)
    yield GroupedProduct(GroupedProblem(masked, len(COUNTS), 4, 101, 1024, float32, predicated), shared)
    for store, n in ((StoreKind.TMA, 136), (predicated, 101)):
        new = GroupedProblem(columns, len(COLUMNS), 150, n, 4096, float32, store)
        yield GroupedProduct(new, wide)
        yield GroupedProduct(new.accumulating(), ordinary)
    yield Ranges()
