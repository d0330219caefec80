"""What `compare_headers.py` times: the benchmark's shapes, and other products of the same device code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fp8gemm.driver.current import current_stream
from fp8gemm.driver.device import device_info
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request, load_kernel
from fp8gemm.kernels.grouped import GroupedKernel, GroupedOperands
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.lab.bench.regimes import ALONE_FROM
from fp8gemm.lab.bench.timing import schedule
from fp8gemm.scales import empty_mn_major
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Addend, Grouping, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config, select_config

NK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
FEW, MANY = (1, 16, 64, 128), (512, 777, 1024, 2048, 4096, 8192)
TURN_US = 1_500.0

Call = Callable[[], object]
Terms = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A product, and what launches it.

    Attributes:
        name: what it is, with its tile config.
        m: rows; what decides how it is timed.
        calls: makes a launch for each set of operands, of the kernel that the headers in force give.
        out: what the first of them writes.
        us: that a launch takes, about.
        deep_gemm: makes the peer's launches; None where it has no such product.
    """

    name: str
    m: int
    calls: Callable[[], list[Call]]
    out: Tensor
    us: float
    deep_gemm: Callable[[], list[Call]] | None = None


def codes(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda").to(torch.float8_e4m3fn)


def block_scales(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda") + 0.5


def row_scales(rows: int, blocks: int) -> Tensor:
    return empty_mn_major(rows, blocks, device=torch.device("cuda")).uniform_(0.5, 2.0)


def stream() -> int:
    return current_stream(0)


@dataclass(frozen=True)
class Single:
    """One product. The sets of operands exceed three times L2; each has an output of its own, since one that all calls
    write to stays in L2."""

    problem: Problem

    @property
    def config(self) -> Config:
        return select_config(self.problem, device_chip(0))

    @property
    def request(self) -> KernelRequest:
        return kernel_request(self.problem, self.config)

    @property
    def name(self) -> str:
        problem = self.problem
        kind = "1d1d" if problem.scaling is Scaling.ROW else "1d2d"
        added = "" if problem.c is Addend.NONE else " +=" if problem.c is Addend.IN_PLACE else " +c"
        return f"{kind} {problem.m}x{problem.n}x{problem.k} {self.config.label} {problem.store.value}{added}"

    def case(self) -> Case:
        problem, config = self.problem, self.config
        m, n, k = problem.m, problem.n, problem.k
        plan = schedule(m, n, k, l2_bytes=device_info(0).l2_bytes, measure_us=TURN_US)
        blocks, of_rows = -(-k // 128), problem.scaling is Scaling.ROW

        def scales_of_b() -> Tensor:
            return row_scales(n, blocks) if of_rows else block_scales(-(-n // 128), blocks)

        sets = [(codes(m, k), row_scales(m, blocks), codes(n, k), scales_of_b()) for _ in range(plan.sets)]
        outs = [torch.zeros(m, n, dtype=getattr(torch, problem.output.value), device="cuda") for _ in sets]
        adds = problem.c is not Addend.NONE

        def calls() -> list[Call]:
            kernel = load_kernel(problem, config, device_index=0, num_sms=device_chip(0).num_sms)

            def launch(terms: Terms, out: Tensor) -> None:
                kernel(*terms, out=out, stream=stream(), c=out if adds else None)

            return [partial(launch, *each) for each in zip(sets, outs, strict=True)]

        def deep_gemm() -> list[Call]:
            import deep_gemm

            recipe = {"recipe": (1, 1, 128)} if of_rows else {}
            return [
                partial(deep_gemm.fp8_gemm_nt, terms[:2], terms[2:], out, **recipe, **({"c": out} if adds else {}))
                for terms, out in zip(sets, outs, strict=True)
            ]

        us = max(2 * m * n * k / 1.2e9, (m + n) * k / 4e6, 4.0)
        return Case(self.name, m, calls, outs[0], us, deep_gemm if problem.store is StoreKind.TMA else None)


@dataclass(frozen=True)
class Groups:
    """Groups of equal size, of ``rows`` rows or columns; with masked ones there is room for ``room``."""

    problem: GroupedProblem
    rows: int
    room: int

    @property
    def config(self) -> Config:
        return select_grouped(self.problem, device_chip(0))

    @property
    def request(self) -> KernelRequest:
        return kernel_request(self.problem, self.config)

    @property
    def name(self) -> str:
        problem = self.problem
        kind = f"{problem.grouping.value} {problem.groups} of {self.rows}"
        return f"{kind} {problem.n}x{problem.k} {self.config.label} {problem.store.value}"

    def case(self) -> Case:
        problem, config = self.problem, self.config
        operands, held = self._columns() if problem.grouping is Grouping.COLUMNS else self._rows()

        def calls() -> list[Call]:
            kernel = GroupedKernel(problem, config, device_index=0, num_sms=device_chip(0).num_sms)

            def launch() -> Tensor:
                kernel.bind(operands, stream())()
                return held  # addresses alone are bound

            return [launch]

        us = max(2 * operands.products / 1.2e9, operands.b.numel() / 4e6, 4.0)
        return Case(self.name, ALONE_FROM, calls, operands.out, us)

    def _columns(self) -> tuple[GroupedOperands, Tensor]:
        m, n, k, groups = self.problem.m, self.problem.n, self.problem.groups * self.rows, self.problem.groups
        ends = torch.arange(groups + 1, dtype=torch.int32, device="cuda") * self.rows
        operands = GroupedOperands(
            *(codes(m, k), row_scales(m, k // 128), codes(n, k), row_scales(n, k // 128)),
            out=torch.zeros(groups * m, n, device="cuda"),
            begins=ends.data_ptr(),
            ends=ends[1:].data_ptr(),
            rows=m,
            products=m * n * k,
        )
        return operands, ends

    def _rows(self) -> tuple[GroupedOperands, Tensor]:
        problem, room = self.problem, self.room
        groups, n, k, blocks = problem.groups, problem.n, problem.k, -(-problem.k // 128)
        masked = problem.grouping is Grouping.MASKED
        if masked:
            ends = torch.full((groups,), self.rows, dtype=torch.int32, device="cuda")
            scales_a = (torch.rand(groups, blocks, room, device="cuda") + 0.5).transpose(1, 2)
        else:
            ends = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda") * self.rows
            scales_a = row_scales(groups * room, blocks)
        operands = GroupedOperands(
            *(codes(groups * room, k), scales_a, codes(groups * n, k), block_scales(groups, -(-n // 128), blocks)),
            out=torch.zeros(groups * room, n, dtype=getattr(torch, problem.output.value), device="cuda"),
            begins=0,
            ends=ends.data_ptr(),
            rows=room if masked else groups * room,
            products=groups * self.rows * n * k,
        )
        return operands, ends


def products() -> Iterator[Single | Groups]:
    for m, (n, k) in itertools.product((*FEW, *MANY), NK):
        yield Single(Problem(m, n, k))
    of_rows = Problem(4096, 7168, 4096, OutputType.FLOAT32, scaling=Scaling.ROW)
    for n, k in ((7168, 4096), (2112, 4096), (1536, 24576)):
        new = replace(of_rows, n=n, k=k)
        yield from map(Single, (new, replace(new, c=Addend.FLOAT32), new.accumulating()))
    for m, n, k in ((4096, 577, 7168), (8192, 2111, 512), (8192, 65, 128)):
        yield Single(Problem(m, n, k, store=StoreKind.PREDICATED))
    contiguous, masked = Grouping.CONTIGUOUS, Grouping.MASKED
    columns = GroupedProblem(Grouping.COLUMNS, 4, 4096, 7168, 128, OutputType.FLOAT32)
    yield Groups(GroupedProblem(contiguous, 4, 8192, 4096, 4096), 8192, 8192)
    yield Groups(GroupedProblem(contiguous, 8, 4096, 7168, 3072), 4096, 4096)
    yield Groups(GroupedProblem(masked, 32, 192, 6144, 7168), 192, 1024)
    yield Groups(GroupedProblem(masked, 6, 20, 7168, 3072), 20, 1024)
    yield Groups(columns, 8192, 0)
    yield Groups(columns.accumulating(), 8192, 0)
