"""The quantisers that run under compute-sanitizer: each on a small shape with tails. See sanitize.py."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm import reference  # noqa: E402
from fp8gemm.checks.dtypes import INPUTS  # noqa: E402
from fp8gemm.jit.request import KernelRequest  # noqa: E402
from fp8gemm.kernels.quantize import (  # noqa: E402
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    QuantizeKernel,
    Quantizer,
    QuantizeSource,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
    quantizer_with_transpose,
)
from fp8gemm.lab.bench.operands import relative_error  # noqa: E402
from fp8gemm.scales import block_count, mn_major_pitch  # noqa: E402
from fp8gemm.sizes import SCALE_BLOCK  # noqa: E402

Upload = Callable[[Tensor], Tensor]

MAX_RELATIVE_ERROR = 0.04
"""Of dequantised values: above e4m3's own on normal data, which is 0.026."""
_EPS = 1e-6


@dataclass(frozen=True)
class Quantising:
    """A quantiser, and the input that it gets.

    Attributes:
        kind: "plain", "silu-mul", "blocks", "norm" or "add-norm".
        m, k: of the codes.
        dtype: of all inputs.
    """

    quantizer: Quantizer
    kind: str
    m: int
    k: int
    dtype: torch.dtype

    @property
    def request(self) -> KernelRequest:
        """What must be built for it."""
        return self.quantizer.request

    @property
    def label(self) -> str:
        """As in the cache."""
        return self.request.label

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.k}"

    @property
    def limit(self) -> float:
        """Largest relative error of a right result."""
        return MAX_RELATIVE_ERROR

    def run(self, upload: Upload) -> float:
        """One launch, and the relative error of what its codes and scales stand for.

        Args:
            upload: brings a tensor to the GPU, strides and all.
        """
        inputs = self._inputs()
        wanted = self._wanted(inputs)
        blocks = block_count(self.k)
        of_blocks = self.kind == "blocks"
        codes = upload(torch.full((self.m, self.k), 0x7F, dtype=torch.uint8)).view(torch.float8_e4m3fn)
        columns = blocks if of_blocks else mn_major_pitch(self.m)
        memory = upload(torch.full((block_count(self.m) if of_blocks else blocks, columns), math.nan))
        scales = memory if of_blocks else memory.t()[: self.m]
        terms: dict[str, Any] = {name: upload(values) for name, values in inputs.items() if name != "x"}
        if self.kind == "add-norm":
            terms["summed"] = upload(torch.full((self.m, self.k), math.nan, dtype=self.dtype))
        if self.kind.endswith("norm"):
            terms["eps"] = _EPS
        kernel = QuantizeKernel(self.quantizer, device_index=0)
        x = upload(inputs["x"])  # which must outlive the launch
        kernel.bind(x, codes, scales, stream=torch.cuda.current_stream().cuda_stream, **terms)()
        torch.cuda.synchronize()
        # NOTE: whole, because torch would first make a packed copy of a part, and to initcheck a kernel writes nothing.
        read = memory.cpu()
        of_rows = read.repeat_interleave(128, 0)[: self.m] if of_blocks else read.t()[: self.m]
        found = codes.cpu().double() * of_rows.repeat_interleave(128, 1)[:, : self.k].double()
        return relative_error(found, wanted)

    def _inputs(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.m * self.k)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        inputs = {"x": normal(self.m, self.k * (2 if self.kind == "silu-mul" else 1))}
        if self.kind.endswith("norm"):
            inputs["weight"] = normal(self.k)
        if self.kind == "add-norm":
            inputs["residual"] = normal(self.m, self.k)
        return inputs

    def _wanted(self, inputs: dict[str, Tensor]) -> Tensor:
        x = inputs["x"]
        if self.kind == "silu-mul":
            return reference.silu_mul(x).double()
        if self.kind == "norm":
            return reference.rms_norm(x, inputs["weight"], _EPS).double()
        if self.kind == "add-norm":
            return reference.add_rms_norm(x, inputs["residual"], inputs["weight"], _EPS)[0].double()
        return x.double()


@dataclass(frozen=True)
class MaskedQuantising(Quantising):
    """One of groups, of M rows at most each; ``kind`` is "masked-plain" or "masked-silu-mul".

    Attributes:
        counts: how many rows of each group there are.
    """

    counts: tuple[int, ...] = ()

    @property
    def shape(self) -> str:
        return f"{'+'.join(map(str, self.counts))} of {self.m}x{self.k}"

    def run(self, upload: Upload) -> float:
        """One launch, and the relative error of the rows that there are; infinite if it writes others.

        Args:
            upload: brings a tensor to the GPU, strides and all.
        """
        groups, blocks, pitch = len(self.counts), block_count(self.k), mn_major_pitch(self.m)
        silu = self.kind == "masked-silu-mul"
        generator = torch.Generator().manual_seed(self.m * self.k)
        x = torch.randn(groups, self.m, self.k * (2 if silu else 1), generator=generator).to(self.dtype)
        codes = upload(torch.full((groups, self.m, self.k), 0x7F, dtype=torch.uint8)).view(torch.float8_e4m3fn)
        memory = upload(torch.full((groups, blocks, pitch), math.nan))
        inputs = upload(x), upload(torch.tensor(self.counts, dtype=torch.int32))  # which must outlive the launch
        kernel = QuantizeKernel(self.quantizer, device_index=0)
        stream = torch.cuda.current_stream().cuda_stream
        kernel.bind_masked(inputs[0], codes, memory.mT[:, : self.m], inputs[1], stream=stream)()
        torch.cuda.synchronize()
        scales = memory.cpu().mT.repeat_interleave(128, 2)[:, : self.m, : self.k].double()
        found, there = codes.cpu().double() * scales, torch.arange(self.m) < torch.tensor(self.counts)[:, None]
        if not found[~there].isnan().all():
            return math.inf
        rows = x[there]
        return relative_error(found[there], (reference.silu_mul(rows) if silu else rows).double())


@dataclass(frozen=True)
class TransposingQuantising(Quantising):
    """One of a matrix and its transpose; ``kind`` is "with-transpose"."""

    def run(self, upload: Upload) -> float:
        """One launch, and the larger of both relative errors.

        Args:
            upload: brings a tensor to the GPU, strides and all.
        """
        (values,) = self._inputs().values()
        width = block_count(self.m) * SCALE_BLOCK
        outputs = [
            (upload(torch.full((rows, columns), 0x7F, dtype=torch.uint8)), upload(_poisoned_scales(rows, columns)))
            for rows, columns in ((self.m, self.k), (self.k, width))
        ]
        (codes, scales), transpose = (
            (codes.view(torch.float8_e4m3fn), memory.t()[: len(codes)]) for codes, memory in outputs
        )
        kernel, x = QuantizeKernel(self.quantizer, device_index=0), upload(values)  # which must outlive the launch
        kernel.bind(x, codes, scales, stream=torch.cuda.current_stream().cuda_stream, transpose=transpose)()
        torch.cuda.synchronize()
        wanted = values.double(), torch.nn.functional.pad(values.double().t(), (0, width - self.m))
        return max(
            relative_error(_values(codes.cpu(), memory.cpu()), right)
            for (codes, memory), right in zip(outputs, wanted, strict=True)
        )


def _poisoned_scales(rows: int, columns: int) -> Tensor:
    return torch.full((block_count(columns), mn_major_pitch(rows)), math.nan)


def _values(codes: Tensor, memory: Tensor) -> Tensor:
    """What codes, as bytes, and MN-major scales, as they lie, stand for."""
    rows, columns = codes.shape
    of_columns = memory.t()[:rows].repeat_interleave(128, 1)[:, :columns]
    return codes.view(torch.float8_e4m3fn).double() * of_columns.double()


def quantisings() -> Iterator[Quantising]:
    """Every kind, with each number of rows, warps or pieces of a row, and every dtype somewhere; tails everywhere."""
    dtypes = list(INPUTS)
    for i, (rows, source) in enumerate(product(ROWS_OF_WARP, QuantizeSource)):
        dtype = dtypes[i % 3]
        yield Quantising(quantizer_of_rows(source, INPUTS[dtype], rows), source.value, 4 * rows + 3, 400, dtype)
    for i, source in enumerate(QuantizeSource):
        # Few rows, each with a warp of its own; and more than there are warps.
        for dtype, m, counts in ((dtypes[i], 11, (3, 0, 11, 1)), (dtypes[i + 1], 1003, (1003, 7, 0, 998))):
            yield MaskedQuantising(
                quantizer_of_masked(source, INPUTS[dtype]), f"masked-{source.value}", m, 400, dtype, counts
            )
    for i, warps in enumerate(WARPS_OF_BLOCK):
        yield Quantising(quantizer_of_blocks(INPUTS[dtypes[2 * i % 3]], warps), "blocks", 130, 272, dtypes[2 * i % 3])
    for dtype in dtypes:
        yield TransposingQuantising(quantizer_with_transpose(INPUTS[dtype]), "with-transpose", 131, 272, dtype)
    for i, (threads, residual) in enumerate(product((32, 96), (False, True))):
        dtype = dtypes[i % 3]
        quantizer = quantizer_of_norm(528, INPUTS[dtype], INPUTS[dtype], residual=residual, threads=threads)
        yield Quantising(quantizer, "add-norm" if residual else "norm", 5, 528, dtype)
