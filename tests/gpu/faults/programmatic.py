"""Programmatic dependent launch: on and off, the same bits, whoever wrote an operand and how late.

A chain of kernels on one stream: one writes an operand of a product, whose output is C of a third. With programmatic
launches each may begin while the one before is still running; nothing in between waits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.families.dense import DenseKernel
from fp8gemm.operands import store_kind
from fp8gemm.scales import mn_major_pitch
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.launching import captured
from tests.gpu.faults.support import E4M3, F32, Kind, config_of, launch, make_kernels

M, N, K = 192, 264, 512
ROUNDS = 300
VARIANTS = 3
OPERANDS = ("a", "scales_a", "b", "scales_b", "c", "bias")
KINDS = {
    "1d2d, 64x64, no cluster": (Kind(F32, c=F32, bias=F32), "64x64-c1x1"),
    "1d1d, 128x64, cluster of two": (Kind(F32, Scaling.ROW, c=F32, bias=F32), "128x64-c2x1"),
}


def written_as_floats(case: Case, name: str) -> tuple[Tensor, Tensor]:
    """An operand in memory of its own, and that memory as a float32 matrix for a kernel to write."""
    tensor: Tensor = getattr(case, name)
    if tensor.dtype == E4M3:
        matrix = torch.zeros(tensor.shape[0], tensor.shape[1] // 4, device=tensor.device)
        return matrix.view(E4M3), matrix
    if name.startswith("scales") and tensor.stride(0) == 1:
        rows, columns = tensor.shape
        matrix = torch.zeros(columns, mn_major_pitch(rows), device=tensor.device)
        return matrix.t()[:rows], matrix
    matrix = torch.zeros(tensor.numel() // tensor.shape[-1], tensor.shape[-1], device=tensor.device)
    return matrix.view(tensor.shape), matrix


def sources_of(matrix: Tensor, seed: int) -> list[Case]:
    """Products, each of which is a matrix of ±1, 1.5, 2, 3 times a power of two.

    As scales and terms these are exact, and as codes too: their bytes are 0, ±1.875 and ±2, and never NaN.
    """
    rows, columns = matrix.shape
    made = []
    for variant in range(VARIANTS):
        generator = torch.Generator(matrix.device).manual_seed(seed + variant)
        sizes = torch.tensor([1.0, 1.5, 2.0, 3.0, -1.0, -1.5, -2.0, -3.0], device=matrix.device)
        drawn = torch.randint(0, 8, (columns, 16), generator=generator, device=matrix.device)
        one_hot = torch.eye(16, device=matrix.device)[(7 * torch.arange(rows) + variant) % 16]
        scale = torch.full((rows, 1), 2.0 ** (variant % 2), device=matrix.device)
        ones = torch.ones(-(-columns // 128), 1, device=matrix.device)
        made.append(Case("exact", seed, one_hot.to(E4M3), scale, sizes[drawn].to(E4M3), ones))
    return made


@dataclass
class Chain:
    """One writer, one product and one reader, launched with or without programmatic dependence."""

    case: Case
    matrix: Tensor
    sources: list[Case]
    values: list[Tensor]
    kernels: dict[str, DenseKernel]

    @classmethod
    def build(cls, case: Case, name: str, problem_kind: tuple[Kind, str], *, programmatic: bool) -> Chain:
        kind, tile = problem_kind
        operand, matrix = written_as_floats(case, name)
        sources = sources_of(matrix, case.seed)
        writer = Kind(F32).problem(*matrix.shape, 16, store_kind(matrix))
        product, reader = kind.problem(M, N, K), Kind(F32, c=F32).problem(M, N, 16)

        tiles = ((writer, "64x64-c1x1"), (product, tile), (reader, "64x64-c1x1"))
        wanted = [(problem, config_of(problem, tile)) for problem, tile in tiles]
        made = make_kernels(wanted, matrix.device, programmatic=programmatic)
        kernels = dict(zip(("writer", "product", "reader"), made, strict=True))
        values = []
        for source in sources:
            launch(kernels["writer"], source, matrix)
            source.check(matrix).raise_if_failed("writer")
            values.append(matrix.clone())
        return cls(replace(case, **{name: operand}), matrix, sources, values, kernels)

    def run(self, written_by: str, distance: int, rounds: int) -> tuple[Tensor, Tensor]:
        """The products of all rounds, and what their reader makes of them."""
        device = self.matrix.device
        outputs, read = (torch.full((rounds, M, N), math.nan, device=device) for _ in range(2))
        other = cases.signed(M, N, 16, seed=self.case.seed, device=device, c=F32)
        scratch = torch.empty(M, N, device=device)
        torch.cuda.synchronize(device)
        for i in range(rounds):
            if i % 20 == 0:
                # A slow producer: until it ends, all that follows is queued, and then runs without a gap.
                torch.cuda._sleep(1_000_000)
            if written_by == "our kernel":
                launch(self.kernels["writer"], self.sources[i % VARIANTS], self.matrix)
            else:
                self.matrix.copy_(self.values[i % VARIANTS])
            if distance == 2:
                launch(self.kernels["reader"], other, scratch)
            launch(self.kernels["product"], self.case, outputs[i])
            launch(self.kernels["reader"], other, read[i], c=outputs[i])
        torch.cuda.synchronize(device)
        return outputs, read


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("written_by", ["our kernel", "copy_"])
@pytest.mark.parametrize("distance", [1, 2])
@pytest.mark.parametrize("problem_kind", KINDS.values(), ids=KINDS)
def test_fault_15_programmatic_launch_changes_no_bit(problem_kind, distance, written_by, name, device, seed):
    """The operand is written by the kernel before the product or by the one before that; nothing is declared static."""
    case = cases.small_integers(M, N, K, seed=seed, device=device, **problem_kind[0].options)
    chains = [Chain.build(case, name, problem_kind, programmatic=programmatic) for programmatic in (False, True)]
    off, on = (chain.run(written_by, distance, ROUNDS) for chain in chains)
    # What is compared with must be right itself, and the operand must matter.
    for variant, values in enumerate(chains[0].values):
        chains[0].matrix.copy_(values)
        chains[0].case.check(off[0][variant]).raise_if_failed(f"{case}, {name}, variant {variant}")
    assert not any(same_bits(x, y) for x, y in itertools.combinations(off[0][:VARIANTS], 2))
    for what, without, with_it in zip(("product", "reader"), off, on, strict=True):
        assert same_bits(with_it, without), f"{case}, {name} by {written_by}: {what}"


@pytest.mark.parametrize("problem_kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", OPERANDS)
def test_fault_15_inside_a_graph(name, problem_kind, device, seed):
    """The dependence is captured with the launches."""
    case = cases.small_integers(M, N, K, seed=seed, device=device, **problem_kind[0].options)
    chain = Chain.build(case, name, problem_kind, programmatic=True)
    expected = chain.run("our kernel", 1, VARIANTS)[0]
    outputs = torch.full((VARIANTS, M, N), math.nan, device=device)

    def chained() -> None:
        for source, out in zip(chain.sources, outputs, strict=True):
            launch(chain.kernels["writer"], source, chain.matrix)
            launch(chain.kernels["product"], chain.case, out)

    graph = captured(chained, device)
    for replay in range(100):
        outputs.fill_(math.nan)
        graph.replay()
        assert same_bits(outputs, expected), f"{case}, {name}, replay {replay}"


@pytest.mark.parametrize("name", OPERANDS)
def test_fault_15_runs_on_the_current_stream_in_order(name, device, seed):
    """An operand comes out of a slow chain on a side stream; no stream waits for another here."""
    case = cases.signed(333, 2112, 1040, seed=seed, device=device, c=F32, bias=F32)
    expected = fp8gemm.gemm(*case.operands, **case.epilogue)
    ready = getattr(case, name)
    operand = torch.empty_strided(ready.shape, ready.stride(), dtype=ready.dtype, device=device).zero_()
    late = replace(case, **{name: operand})
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        operand.copy_(ready)
        out = fp8gemm.gemm(*late.operands, **late.epilogue)
        after = out.clone()
    stream.synchronize()
    assert same_bits(out, expected) and same_bits(after, expected), case
