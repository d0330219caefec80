"""What the fault tests share: kinds of products, kernels built ahead, guarded outputs and poisoned inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.checks.dtypes import addend, output_type
from fp8gemm.checks.operands import check_b
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request, load_kernel
from fp8gemm.kernels.gemm import GemmKernel
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.products.operands import store_kind
from fp8gemm.scales import mn_major_pitch, to_mn_major
from fp8gemm.tuning.candidates import candidate_configs, deepest_config
from fp8gemm.tuning.config import Tile, TileConfig
from fp8gemm.tuning.problem import Problem, Scaling, StoreKind
from fp8gemm.tuning.select import Config, select_config
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests.cases import Case
from tests.swap_ab import MANY_ROWS, SPREAD

BF16, F16, F32, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
GUARD = 4096
_PATTERN = 0x5A  # 0x5A5A is an ordinary bfloat16, 0x5A5A5A5A an ordinary float32


@dataclass(frozen=True)
class Kind:
    """What besides its sizes makes a product another kernel's; `in_place` accumulates: the output is C itself."""

    output: torch.dtype = BF16
    scaling: Scaling = Scaling.BLOCK
    c: torch.dtype | None = None
    bias: torch.dtype | None = None
    in_place: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """For the makers of `tests.cases`."""
        return {"scaling": self.scaling, "c": self.c, "bias": self.bias}

    def problem(self, m: int, n: int, k: int, store: StoreKind | None = None) -> Problem:
        """The problem with this store or, without one, with that of a new output and a packed C."""
        if store is None:
            in_pairs = self.c is None or n % 2 == 0
            store = StoreKind.TMA if in_pairs and n * self.output.itemsize % 16 == 0 else StoreKind.PREDICATED
        c, bias = addend("c", self.c), addend("bias", self.bias)
        return Problem(m, n, k, output_type(self.output), store, self.scaling, c, bias)

    def __str__(self) -> str:
        c = f"{'in-place' if self.in_place else 'c'}-{_name(self.c)}" if self.c else ""
        bias = f"bias-{_name(self.bias)}" if self.bias else ""
        return "-".join(filter(None, (self.scaling.value, _name(self.output), c, bias)))


KINDS = (
    Kind(),
    Kind(F16, bias=BF16),
    Kind(F32, c=F32),
    Kind(BF16, c=BF16, bias=F32, in_place=True),
    Kind(F16, c=BF16, bias=BF16),
    Kind(F32, Scaling.ROW),
    Kind(BF16, Scaling.ROW, bias=BF16),
    Kind(F32, Scaling.ROW, c=F32, bias=F32, in_place=True),
)
"""Every output, both scalings, and C and bias of every type, each somewhere."""

PLAIN_KINDS = (Kind(), Kind(F16), Kind(F32), Kind(BF16, Scaling.ROW), Kind(F16, Scaling.ROW), Kind(F32, Scaling.ROW))
"""Those without C and bias, for data on which a sum with them would not be exact."""

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
every_plain_kind = pytest.mark.parametrize("kind", PLAIN_KINDS, ids=str)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def problem_of(case: Case, out: Tensor, *, c: Tensor | None = None) -> Problem:
    """The problem that `gemm` makes of a case; `c` where it does not lie as the case's does."""
    c = case.c if c is None else c
    added = (("c", c), ("bias", case.bias))
    terms = [addend(name, None if term is None else term.dtype) for name, term in added]
    scaling = check_b(case.b, case.scales_b)
    store = store_kind(out, c)
    return Problem(*out.shape, case.b.shape[1], output_type(out.dtype), store, scaling, *terms)


def build_chosen(problems: Iterable[Problem], device: torch.device) -> None:
    """Compile the kernels that these problems are computed with, on all processors, so that their calls find them."""
    chip = device_chip(device.index)
    requests = (kernel_request(problem, select_config(problem, chip)) for problem in problems if problem.m)
    build_many(list(dict.fromkeys(requests)))


def configs_of(problem: Problem) -> list[TileConfig]:
    """Every dense config that a problem's kernel may have."""
    return list(candidate_configs(problem.store, problem.output, problem.scaling))


def config_of(problem: Problem, tile: str | SwapAbConfig) -> Config:
    """The config of any tile and cluster for a problem's kernel, a candidate or not; named as in a tuned table."""
    if isinstance(tile, SwapAbConfig):
        return tile
    found = re.fullmatch(r"(\d+)x(\d+)(?:-k(\d))?-c(\d)x(\d)(?:-split(\d))?", tile).groups(default="1")
    config = deepest_config(Tile(*map(int, found)), problem.store, problem.output, problem.scaling)
    assert config is not None, f"{tile}: no legal config"
    return config


def make_kernels(wanted: Iterable[tuple[Problem, Config]], device: torch.device, **options: Any) -> list[GemmKernel]:
    """Kernels under these very configs, compiled on all processors; 132 SMs unless the options say otherwise."""
    pairs = list(wanted)
    build_many(list(dict.fromkeys(kernel_request(problem, config) for problem, config in pairs)))
    options = {"num_sms": 132, **options}
    return [load_kernel(problem, config, device_index=device.index, **options) for problem, config in pairs]


def kernels_of_every_config(problem: Problem, device: torch.device, **options: Any) -> list[GemmKernel]:
    """The problem's kernel under each config that it may have; options are those of `make_kernels`.

    Of few rows, and with B scaled by blocks, these are a spread of swapped ones too.
    """
    swapped = SPREAD if problem.m <= MANY_ROWS and problem.scaling is Scaling.BLOCK else ()
    return make_kernels([(problem, config) for config in (*configs_of(problem), *swapped)], device, **options)


def nans(problem: Problem, device: torch.device) -> Tensor:
    """A packed output of the problem that is full of NaN."""
    dtype = getattr(torch, problem.output.value)
    return torch.full((problem.m, problem.n), math.nan, dtype=dtype, device=device)


def launch(
    kernel: GemmKernel, case: Case, out: Tensor, *, c: Tensor | None = None, static_weights: bool = False
) -> Tensor:
    """Launch a kernel on the current stream; `c` instead of the case's where the output is C."""
    terms = case.epilogue if c is None else {**case.epilogue, "c": c}
    scales_b = to_mn_major(case.scales_b) if kernel.problem.scaling is Scaling.ROW else case.scales_b
    stream = torch.cuda.current_stream(out.device).cuda_stream
    kernel(case.a, case.scales_a, case.b, scales_b, out=out, stream=stream, static_weights=static_weights, **terms)
    return out


def multiply(case: Case, kind: Kind, out: Tensor | None = None) -> Tensor:
    """`fp8gemm.gemm` of a case, into `out` or a new output; in place it is filled with C first, and else with NaN."""
    terms = dict(case.epilogue)
    if kind.in_place:
        out = terms["c"].clone() if out is None else out.copy_(terms["c"])
        terms["c"] = out
    elif out is not None:
        out.fill_(math.nan)
    result = fp8gemm.gemm(*case.operands, **terms, out=out, out_dtype=kind.output)
    assert out is None or result is out
    return result


class Guarded:
    """An (M, N) view of NaNs inside a storage whose every other byte, between its rows too, has one known value."""

    def __init__(
        self,
        m: int,
        n: int,
        dtype: torch.dtype,
        *,
        device: torch.device,
        strides: tuple[int, int] | None = None,
        offset: int = 0,
    ) -> None:
        strides = strides or (n, 1)
        extent = (m - 1) * strides[0] + (n - 1) * strides[1] + 1 if m else 0
        elements, first = GUARD + offset + extent + GUARD, GUARD + offset
        storage = torch.full((elements * dtype.itemsize,), _PATTERN, dtype=torch.uint8, device=device)
        self.view = storage.view(dtype).as_strided((m, n), strides, first).fill_(math.nan)
        self._rows = storage.view(elements, dtype.itemsize)
        self._outside = torch.ones(elements, dtype=torch.bool, device=device)
        self._outside.as_strided((m, n), strides, first).fill_(False)

    def is_intact(self) -> bool:
        """Whether no byte outside the view has changed."""
        return bool((self._rows[self._outside] == _PATTERN).all())


def poisoned_rows(matrix: Tensor, *, pitch_extra: int) -> Tensor:
    """The same matrix in a storage that is NaN after every row's end and for 129 rows after the last."""
    rows, columns = matrix.shape
    storage = torch.full((rows + 129, columns + pitch_extra), math.nan, device=matrix.device).to(matrix.dtype)
    return storage[:rows, :columns].copy_(matrix)


def poisoned_scales(scales: Tensor) -> Tensor:
    """The same scales, MN-major, with NaN in each column's padding and after the last column."""
    rows, columns = scales.shape
    pitch = mn_major_pitch(rows)
    storage = torch.full(((columns + 4) * pitch + 256,), math.nan, device=scales.device)
    return storage.as_strided((rows, columns), (1, pitch)).copy_(scales)


def reach_of(tensor: Tensor) -> int:
    """Elements of memory from the first one of a tensor to its last."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def amid_nans(tensor: Tensor, *, before: int = 0, after: int = 256) -> Tensor:
    """The same values and strides between so many elements of NaN, the first on a 256-byte boundary."""
    storage = torch.full((before + reach_of(tensor) + after,), math.nan, device=tensor.device).to(tensor.dtype)
    return storage.as_strided(tensor.shape, tensor.stride(), before).copy_(tensor)


def poisoned(case: Case, *, pitch_extra: int = 16) -> Case:
    """The same case with NaN past the end of every operand, and after every row of those that have a pitch."""
    by_rows = case.scaling is Scaling.ROW
    return replace(
        case,
        a=poisoned_rows(case.a, pitch_extra=pitch_extra),
        scales_a=poisoned_scales(case.scales_a),
        b=poisoned_rows(case.b, pitch_extra=pitch_extra),
        scales_b=poisoned_scales(case.scales_b) if by_rows else amid_nans(case.scales_b),
        c=None if case.c is None else poisoned_rows(case.c, pitch_extra=pitch_extra),
        bias=None if case.bias is None else amid_nans(case.bias),
    )
