"""The host's side of ``include/fp8gemm/kernels/quantize_*.cuh``: what to compile, and a launch with its arguments.

Operands reach this module checked (see `fp8gemm.products.quantize`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import Arguments, QuantizeParams
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig
from fp8gemm.frozen import dataclass
from fp8gemm.jit.kernel import load
from fp8gemm.jit.request import KernelRequest
from fp8gemm.sizes import check_norm_depth
from fp8gemm.tuning.problem import InputType

if TYPE_CHECKING:
    from torch import Tensor

_WARPS, _MAX_WARPS = 4, 32
_BLOCK, _WARP, _VECTOR = 128, 32, 8

# By measurement on an H200 (2026-11-22, bf16). Rows of a warp: 1 where they are few, since its latency is all that
# counts (64x7168 2.0 us); 4 where memory is busy (8192x7168 44 us, 48 with 2, 69 with 1).
ROWS_OF_WARP = (1, 2, 4)
_UNITS_OF_ONE_ROW, _UNITS_OF_TWO_ROWS = 2**13, 2**15
# Warps of a weight's block: all there can be where each block has an SM to itself (64x7168 2.7 us, 3.0 with 16 warps).
WARPS_OF_BLOCK = (8, 32)
_FEW_BLOCKS = 132
_WARPS_WITH_TRANSPOSE = 8
"""So that a lane has a square of the block: as many rows as columns."""
_MASKED_ROWS = 4
"""Of a masked quantiser's warp, where there are more rows than warps; else it has one."""
# Vectors of a thread of a norm: one where the latency of few rows counts (64x7168 2.5 us, 2.7 with two), more where
# rows are many and wide (8192x7168 47 us, 69 with two).
_VECTORS, _MANY_VECTORS = 2, 4
_FEW_ROWS, _MANY_ROWS, _WIDE = 128, 384, 4096
NORM_ROWS = _FEW_ROWS + 1
"""The M whose threads serve every M where the order of a row's sum of squares may not depend on it."""


class QuantizeSource(Enum):
    """What a quantiser of rows makes codes of."""

    PLAIN = "plain"
    SILU_MUL = "silu-mul"


MASKED_CTAS_OF_SM = {QuantizeSource.PLAIN: 7, QuantizeSource.SILU_MUL: 5}
"""How many CTAs of a masked quantiser an SM has room for, whatever it reads: registers bound them."""
_SMS = 132


@dataclass(frozen=True)
class Quantizer:
    """A kernel that quantises: what to compile, and how to launch it.

    Attributes:
        request, threads: what the JIT builds, and threads of a CTA.
        grid: from rows and K to the CTAs of a launch.
    """

    request: KernelRequest
    threads: int
    grid: Callable[[int, int], int]


def rows_of_warp(m: int, k: int) -> int:
    """How many rows a warp has at its best for (M, K) codes, one of `ROWS_OF_WARP`."""
    units = m * _ceil_div(k, 2 * _BLOCK)
    return 1 if units <= _UNITS_OF_ONE_ROW else 2 if units <= _UNITS_OF_TWO_ROWS else 4


def quantizer_of_rows(source: QuantizeSource, dtype: InputType, rows: int) -> Quantizer:
    """1x128 scales; a warp has ``rows`` rows of two K blocks. M and K are run-time arguments."""
    request = KernelRequest(
        label=f"quantize-rows-{source.value}-{dtype.value}-r{rows}",
        header="fp8gemm/kernels/quantize_rows.cuh",
        family="QuantizeRows",
        config=(("source", source), ("input", dtype), ("rows", rows), ("warps", _WARPS)),
    )

    def grid(m: int, k: int) -> int:
        return _ceil_div(_ceil_div(m, rows) * _ceil_div(k, 2 * _BLOCK), _WARPS)

    return Quantizer(request, _WARP * _WARPS, grid)


def quantizer_of_masked(source: QuantizeSource, dtype: InputType) -> Quantizer:
    """1x128 scales of as many rows of each group as its count says. M of a grid is all rows that there may be."""
    request = KernelRequest(
        label=f"quantize-masked-{source.value}-{dtype.value}",
        header="fp8gemm/kernels/quantize_masked.cuh",
        family="QuantizeMasked",
        config=(("source", source), ("input", dtype), ("rows", _MASKED_ROWS), ("warps", _WARPS)),
    )

    def grid(m: int, k: int) -> int:
        return min(_ceil_div(m * _ceil_div(k, 2 * _BLOCK), _WARPS), _SMS * MASKED_CTAS_OF_SM[source])

    return Quantizer(request, _WARP * _WARPS, grid)


def quantizer_to_rows(dtype: InputType) -> Quantizer:
    """1x128 scales of rows that each go to several places; a warp has two K blocks of one that is read, as M counts."""
    request = KernelRequest(
        label=f"quantize-to-rows-{dtype.value}",
        header="fp8gemm/kernels/quantize_to_rows.cuh",
        family="QuantizeToRows",
        config=(("input", dtype), ("warps", _WARPS)),
    )
    return Quantizer(request, _WARP * _WARPS, partial(ctas_to_rows, warps=_WARPS))


def ctas_to_rows(m: int, k: int, *, warps: int) -> int:
    """CTAs of so many warps that M rows of K columns take."""
    return _ceil_div(m * _ceil_div(k, 2 * _BLOCK), warps)


def fill_to_rows(params: QuantizeParams, x: Tensor, codes: Tensor, scales: Tensor, top_k: int) -> None:
    """What a kernel that writes rows to several places each is told, but for these places."""
    params.x, params.codes, params.scales = x.data_ptr(), codes.data_ptr(), scales.data_ptr()
    params.x_stride, params.scales_pitch, params.top_k = x.stride(0), scales.stride(1), top_k
    params.rows, params.k = x.shape


def warps_of_block(n: int, k: int) -> int:
    """How many warps a block has at its best, of an (N, K) weight, one of `WARPS_OF_BLOCK`."""
    return 32 if _ceil_div(n, _BLOCK) * _ceil_div(k, _BLOCK) <= _FEW_BLOCKS else 8


def quantizer_of_blocks(dtype: InputType, warps: int) -> Quantizer:
    """128x128 scales; a CTA of so many warps has a block. N and K are run-time arguments."""
    request = KernelRequest(
        label=f"quantize-blocks-{dtype.value}-w{warps}",
        header="fp8gemm/kernels/quantize_blocks.cuh",
        family="QuantizeBlocks",
        config=(("input", dtype), ("warps", warps)),
    )
    return Quantizer(request, _WARP * warps, lambda n, k: _ceil_div(n, _BLOCK) * _ceil_div(k, _BLOCK))


def quantizer_with_transpose(dtype: InputType) -> Quantizer:
    """1x128 scales of a matrix and of its transpose; a CTA has a 128x128 block. M and K are run-time arguments."""
    request = KernelRequest(
        label=f"quantize-with-transpose-{dtype.value}",
        header="fp8gemm/kernels/quantize_with_transpose.cuh",
        family="QuantizeWithTranspose",
        config=(("input", dtype),),
        # With 80 registers instead of 95 a third CTA works while two wait for memory: at 8192x7168 92 % of a copy's
        # speed instead of 82 % (H100, 2026-11-26). A float32 input takes more.
        min_ctas=2 if dtype is InputType.FLOAT32 else 3,
    )
    return Quantizer(request, _WARP * _WARPS_WITH_TRANSPOSE, lambda m, k: _ceil_div(m, _BLOCK) * _ceil_div(k, _BLOCK))


def norm_threads(m: int, k: int) -> int:
    """Threads that a row has at its best: whole warps, with 8, 16 or 32 values each unless that makes too many."""
    vectors = 1 if m <= _FEW_ROWS else _MANY_VECTORS if m > _MANY_ROWS and k > _WIDE else _VECTORS
    return _WARP * min(_ceil_div(k, vectors * _WARP * _VECTOR), _MAX_WARPS)


def all_norm_threads(k: int) -> list[int]:
    """Every `norm_threads` of some M, ascending."""
    return sorted({norm_threads(m, k) for m in (1, _FEW_ROWS + 1, _MANY_ROWS + 1)})


def quantizer_of_norm(k: int, dtype: InputType, weight: InputType, *, residual: bool, threads: int) -> Quantizer:
    """RMS norm, 1x128 scales; a CTA has a row, which its threads keep in registers: K is compiled in.

    Raises:
        InputError: no CTA can have a row of K columns.
    """
    check_norm_depth("a norm", k)
    request = KernelRequest(
        label=f"quantize-norm-k{k}-{dtype.value}-{weight.value}-t{threads}{'-residual' * residual}",
        header="fp8gemm/kernels/quantize_norm.cuh",
        family="QuantizeNorm",
        config=(("k", k), ("input", dtype), ("weight", weight), ("residual", residual), ("threads", threads)),
    )
    return Quantizer(request, threads, lambda m, k: m)


class QuantizeKernel:
    """A quantiser, loaded on one GPU and ready to launch; threads may share it.

    Args:
        quantizer, device_index: which, and the GPU.
        allow_compile: whether it may be compiled if it is in no cache.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream.

    Raises:
        CacheMissError, CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
    """

    def __init__(
        self, quantizer: Quantizer, *, device_index: int, allow_compile: bool = True, programmatic: bool = False
    ) -> None:
        loaded = load(quantizer.request, device_index, 0, allow_compile=allow_compile)
        self._grid = quantizer.grid
        self._launch = LaunchConfig(
            function=loaded.function,
            device_index=device_index,
            grid_x=1,
            threads=quantizer.threads,
            programmatic=programmatic,
        )

    def bind(
        self,
        x: Tensor,
        codes: Tensor,
        scales: Tensor,
        *,
        stream: int,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        summed: Tensor | None = None,
        eps: float = 0.0,
        transpose: tuple[Tensor, Tensor] | None = None,
    ) -> BoundLaunch:
        """The launch for checked operands; it holds their addresses, and none of them.

        Args:
            x, residual, weight: what is read, as `fp8gemm.products.quantize` describes it, on 16-byte boundaries.
            codes: (M, K) e4m3, contiguous, M > 0.
            scales: float32 of rows, MN-major, or of blocks, contiguous.
            stream, eps: the CUstream; of the norm.
            summed: of x's shape and dtype, contiguous, if there is a residual.
            transpose: codes (K, M rounded up to 128), contiguous, and MN-major scales of the transpose.
        """
        arguments = Arguments(QuantizeParams)
        params = arguments.params
        rows, k = codes.shape
        params.x, params.codes, params.scales = x.data_ptr(), codes.data_ptr(), scales.data_ptr()
        params.x_stride, params.rows, params.k, params.scales_pitch = x.stride(0), rows, k, scales.stride(1)
        if residual is not None and summed is not None:
            params.residual, params.residual_stride = residual.data_ptr(), residual.stride(0)
            params.summed = summed.data_ptr()
        if weight is not None:
            params.weight, params.eps = weight.data_ptr(), eps
        if transpose is not None:
            of_codes, of_scales = transpose
            params.transposed, params.transposed_scales = of_codes.data_ptr(), of_scales.data_ptr()
            params.transposed_pitch = of_scales.stride(1)
        return BoundLaunch(self._launch, arguments, stream, self._grid(rows, k))

    def bind_masked(self, x: Tensor, codes: Tensor, scales: Tensor, counts: Tensor, *, stream: int) -> BoundLaunch:
        """As `bind`, for groups of which only some rows are there.

        Args:
            x: (G, max_m, K), or (G, max_m, 2K), its rows on 16-byte boundaries.
            codes: (G, max_m, K) e4m3, contiguous, not empty.
            scales: (G, max_m, ceil(K/128)) float32, MN-major in each group, groups packed.
            counts: (G,) int32, contiguous.
            stream: the CUstream.
        """
        arguments = Arguments(QuantizeParams)
        params = arguments.params
        groups, rows, k = codes.shape
        params.x, params.codes, params.scales = x.data_ptr(), codes.data_ptr(), scales.data_ptr()
        params.x_group_stride, params.x_stride, params.scales_pitch = x.stride(0), x.stride(1), scales.stride(2)
        params.groups, params.rows, params.k, params.counts = groups, rows, k, counts.data_ptr()
        return BoundLaunch(self._launch, arguments, stream, self._grid(groups * rows, k))

    def bind_to_rows(
        self, x: Tensor, codes: Tensor, scales: Tensor, rows: Tensor, offsets: Tensor, *, stream: int
    ) -> BoundLaunch:
        """As `bind`, for rows that each go to several places.

        Args:
            x: (T, K), T > 0, its rows on 16-byte boundaries.
            codes: (T * top_k, K) e4m3, contiguous.
            scales: (T * top_k, ceil(K/128)) float32, MN-major.
            rows: (T, top_k) int64, contiguous: where each row goes.
            offsets: int32, contiguous: rows from the last of them on are not written.
            stream: the CUstream.
        """
        arguments = Arguments(QuantizeParams)
        params = arguments.params
        fill_to_rows(params, x, codes, scales, rows.shape[1])
        params.rows_of_tokens = rows.data_ptr()
        params.kept_rows = offsets.data_ptr() + (offsets.shape[0] - 1) * offsets.element_size()
        return BoundLaunch(self._launch, arguments, stream, self._grid(*x.shape))

    def rebind(self, bound: BoundLaunch, *, x: int, codes: int, scales: int, stream: int) -> BoundLaunch:
        """A launch like ``bound``, of this kernel, for an input and outputs like its own at other device addresses."""
        arguments = Arguments(QuantizeParams)
        arguments.read_from(bound.arguments)
        arguments.params.x, arguments.params.codes, arguments.params.scales = x, codes, scales
        return BoundLaunch(bound.config, arguments, stream, bound.grid_x)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
