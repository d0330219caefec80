"""A chain of kernels on one stream: one writes an operand of a product, whose output is C of a third."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.kernels.gemm import GemmKernel
from fp8gemm.products.operands import store_kind
from fp8gemm.scales import mn_major_pitch, to_mn_major
from fp8gemm.tuning.problem import Scaling
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import cases
from tests.cases import Case
from tests.gpu.faults.support import E4M3, F32, Kind, config_of, launch, make_kernels

M, N, K = 192, 264, 512
VARIANTS = 3
OPERANDS = ("a", "scales_a", "b", "scales_b", "c", "bias")


@dataclass(frozen=True)
class Launched:
    """The product of a chain and how it is launched.

    Attributes:
        kind, tile: its own.
        static_weights: whether its weight is declared static.
        neighbours: the config of the writer and the reader.
        writer_k: what the writer takes long by: all but 16 columns are zeros.
    """

    kind: Kind
    tile: str | SwapAbConfig
    static_weights: bool = False
    neighbours: str | SwapAbConfig = "64x64-c1x1"
    writer_k: int = 16

    @property
    def operands(self) -> tuple[str, ...]:
        """Those that the kernel ahead may write."""
        return tuple(name for name in OPERANDS if not (self.static_weights and name in ("b", "scales_b")))


ADDING = Kind(F32, c=F32, bias=F32)
WHOLE, SPLIT = SwapAbConfig(16, 16, 4, warpgroups_k=2), SwapAbConfig(64, 64, 2, split_k=3)
AMID_SWAPPED: dict[str, Any] = {"neighbours": SwapAbConfig(64, 64, 2), "writer_k": 8192}
KINDS = {
    "1d2d, 64x64, no cluster": Launched(ADDING, "64x64-c1x1"),
    "1d1d, 128x64, cluster of two": Launched(replace(ADDING, scaling=Scaling.ROW), "128x64-c2x1"),
    "64x64 amid swapped": Launched(ADDING, "64x64-c1x1", **AMID_SWAPPED),
    "swapped": Launched(ADDING, WHOLE, **AMID_SWAPPED),
    "swapped, cluster of three": Launched(ADDING, SPLIT, **AMID_SWAPPED),
    "swapped amid dense": Launched(ADDING, SPLIT, static_weights=True),
    "swapped, static": Launched(ADDING, WHOLE, static_weights=True, **AMID_SWAPPED),
    "swapped, cluster of three, static": Launched(ADDING, SPLIT, static_weights=True, **AMID_SWAPPED),
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


def sources_of(matrix: Tensor, k: int, seed: int) -> list[Case]:
    """Products, each of which is a matrix of ±1, 1.5, 2, 3 times a power of two; all but 16 columns of them are zeros.

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
        a, b = (pad(values, (0, k - 16)).to(E4M3) for values in (one_hot, sizes[drawn]))
        blocks = -(-k // 128)
        made.append(Case("exact", seed, a, to_mn_major(scale.repeat(1, blocks)), b, ones.repeat(1, blocks)))
    return made


@dataclass
class Chain:
    """One writer, one product and one reader, launched with or without programmatic dependence."""

    case: Case
    matrix: Tensor
    sources: list[Case]
    values: list[Tensor]
    kernels: dict[str, GemmKernel]
    static_weights: bool

    @classmethod
    def build(cls, case: Case, name: str, launched: Launched, *, programmatic: bool) -> Chain:
        operand, matrix = written_as_floats(case, name)
        sources = sources_of(matrix, launched.writer_k, case.seed)
        writer = Kind(F32).problem(*matrix.shape, launched.writer_k, store_kind(matrix))
        product, reader = launched.kind.problem(M, N, K), Kind(F32, c=F32).problem(M, N, 16)
        tiles = ((writer, launched.neighbours), (product, launched.tile), (reader, launched.neighbours))
        wanted = [(problem, config_of(problem, tile)) for problem, tile in tiles]
        made = make_kernels(wanted, matrix.device, programmatic=programmatic)
        kernels = dict(zip(("writer", "product", "reader"), made, strict=True))
        values = []
        for source in sources:
            launch(kernels["writer"], source, matrix)
            source.check(matrix).raise_if_failed("writer")
            values.append(matrix.clone())
        return cls(replace(case, **{name: operand}), matrix, sources, values, kernels, launched.static_weights)

    def multiply(self, out: Tensor) -> None:
        launch(self.kernels["product"], self.case, out, static_weights=self.static_weights)

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
            self.multiply(outputs[i])
            launch(self.kernels["reader"], other, read[i], c=outputs[i])
        torch.cuda.synchronize(device)
        return outputs, read
