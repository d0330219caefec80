"""The host's side of ``include/fp8gemm/kernels/dense.cuh``: what to compile, how to fill in its arguments, launch.

Operands reach this module checked (see `fp8gemm.operands`); nothing here validates what a user passed.
"""

from __future__ import annotations

import threading
from dataclasses import asdict

from torch import Tensor

from fp8gemm.driver.launch import ArgumentBlock, LaunchConfig, launch, max_active_clusters
from fp8gemm.driver.library import ensure_context
from fp8gemm.driver.tensor_map import Swizzle, encode_2d
from fp8gemm.jit.kernel import LoadedKernel, load
from fp8gemm.jit.request import KernelRequest
from fp8gemm.tuning.config import TileConfig, shared_bytes, staged_part
from fp8gemm.tuning.problem import SCALE_BLOCK, Addend, Problem, Scaling, StoreKind

_HEADER = "fp8gemm/kernels/dense.cuh"
_FAMILY = "Dense"
_CACHED_CALLS = 64
_SWIZZLES: dict[int, Swizzle] = {32: "32B", 64: "64B", 128: "128B"}


def kernel_request(problem: Problem, config: TileConfig) -> KernelRequest:
    """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""
    parts = [f"dense_{problem.scaling.value}", f"n{problem.n}", f"k{problem.k}", config.label, problem.output.value]
    parts.append(problem.store.value)
    parts += [f"{name}-{addend.value}" for name, addend in _addends(problem) if addend is not Addend.NONE]
    return KernelRequest(
        label="-".join(parts),
        header=_HEADER,
        family=_FAMILY,
        config=(
            ("n", problem.n),
            ("k", problem.k),
            *asdict(config).items(),
            ("shared_bytes", _shared_bytes(problem, config)),
            ("scaling", problem.scaling),
            ("output", problem.output),
            ("store", problem.store),
            *_addends(problem),
        ),
    )


def _addends(problem: Problem) -> tuple[tuple[str, Addend], ...]:
    return ("c", problem.c), ("bias", problem.bias)


def _shared_bytes(problem: Problem, config: TileConfig) -> int:
    return shared_bytes(config, problem.store, problem.output, problem.scaling)


class _Calls(threading.local):
    """One thread's recent argument blocks, by all that went into them. A loop over the same tensors encodes nothing."""

    def __init__(self, device_index: int) -> None:
        ensure_context(device_index)  # a thread that has not used torch.cuda has none, and encoding a map needs one
        self.recent: dict[tuple[int, ...], tuple[ArgumentBlock, int]] = {}


class DenseKernel:
    """One kernel of the family, loaded on one GPU and ready to launch; threads may share it.

    Args:
        problem: N, K, types and store kind; M is ignored.
        config: a legal tile config.
        device_index: the GPU.
        num_sms: SMs that a launch may occupy.
        allow_compile: whether a kernel that is in no cache may be compiled.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream.

    Raises:
        CacheMissError, CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
    """

    def __init__(
        self,
        problem: Problem,
        config: TileConfig,
        *,
        device_index: int,
        num_sms: int,
        allow_compile: bool = True,
        programmatic: bool = False,
    ) -> None:
        dynamic_shared_bytes = _shared_bytes(problem, config)
        self.config = config
        self.problem = problem
        self.loaded: LoadedKernel = load(
            kernel_request(problem, config), device_index, dynamic_shared_bytes, allow_compile=allow_compile
        )
        self._launch = LaunchConfig(
            function=self.loaded.function,
            device_index=device_index,
            grid_x=config.cluster_size,
            threads=config.threads,
            cluster_x=config.cluster_size,
            dynamic_shared_bytes=dynamic_shared_bytes,
            programmatic=programmatic,
        )
        # More clusters than are resident at once would wait for others to end instead of sharing the work.
        self._max_clusters = max(min(num_sms // config.cluster_size, max_active_clusters(self._launch)), 1)
        self._cluster_cols = -(-problem.n // (config.block_n * config.cluster_n))
        self._calls = _Calls(device_index)

    def grid(self, m: int) -> int:
        """CTAs that a launch for M rows has: one per SM, or fewer when there are fewer tiles."""
        cluster_rows = -(-m // (self.config.block_m * self.config.cluster_m))
        return min(cluster_rows * self._cluster_cols, self._max_clusters) * self.config.cluster_size

    def __call__(
        self,
        a: Tensor,
        scales_a: Tensor,
        b: Tensor,
        scales_b: Tensor,
        *,
        out: Tensor,
        stream: int,
        c: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Launch for checked operands.

        Args are those of `fp8gemm.gemm` with M > 0, row scales MN-major, ``out`` and ``c`` such that this kernel's
        store kind can serve them, ``c`` and ``bias`` given if and only if the problem has them; and the CUstream.
        """
        # All that the argument block is made from; N and K are the kernel's own.
        key: tuple[int, ...] = (
            a.shape[0],
            a.data_ptr(),
            a.stride(0),
            scales_a.data_ptr(),
            scales_a.stride(1),
            b.data_ptr(),
            b.stride(0),
            scales_b.data_ptr(),
            scales_b.stride(1),
            out.data_ptr(),
            *out.stride(),
        )
        if c is not None:
            key += (c.data_ptr(), *c.stride())
        if bias is not None:
            key += (bias.data_ptr(),)
        recent = self._calls.recent
        call = recent.get(key)
        if call is None:
            call = self._encode(a, scales_a, b, scales_b, out, c, bias), self.grid(a.shape[0])
            if len(recent) == _CACHED_CALLS:
                del recent[next(iter(recent))]
            recent[key] = call
        launch(self._launch, call[0], stream, call[1])

    def _encode(
        self,
        a: Tensor,
        scales_a: Tensor,
        b: Tensor,
        scales_b: Tensor,
        out: Tensor,
        c: Tensor | None,
        bias: Tensor | None,
    ) -> ArgumentBlock:
        config = self.config
        block = ArgumentBlock()
        _encode_codes(block.tensor_map_a, a, box_rows=config.block_m // config.cluster_n)
        _encode_codes(block.tensor_map_b, b, box_rows=config.block_n // config.cluster_m)
        _encode_scales(block.tensor_map_scales_a, scales_a, box_rows=config.block_m)
        params = block.params
        if self.problem.scaling is Scaling.ROW:
            _encode_scales(block.tensor_map_scales_b, scales_b, box_rows=config.block_n)
        else:
            params.scales_b = scales_b.data_ptr()
        params.d = out.data_ptr()
        params.d_stride_m, params.d_stride_n = out.stride()
        if self.problem.store is StoreKind.TMA:
            self._encode_output(block.tensor_map_d, out)
        if c is not None:
            params.c = c.data_ptr()
            params.c_stride_m, params.c_stride_n = c.stride()
        if bias is not None:
            params.bias = bias.data_ptr()
        params.m = a.shape[0]
        return block

    def _encode_output(self, destination: int, out: Tensor) -> None:
        output = self.problem.output
        box_rows, box_cols = staged_part(self.config)
        encode_2d(
            destination,
            address=out.data_ptr(),
            dtype=output.value,
            inner=out.shape[1],
            outer=out.shape[0],
            outer_stride_bytes=_pitch(out, multiple=16 // output.bytes) * output.bytes,
            box_inner=box_cols,
            box_outer=box_rows,
            swizzle=_SWIZZLES[box_cols * output.bytes],
        )


def _encode_codes(destination: int, codes: Tensor, *, box_rows: int) -> None:
    rows, k = codes.shape
    encode_2d(
        destination,
        address=codes.data_ptr(),
        dtype="uint8",
        inner=k,
        outer=rows,
        outer_stride_bytes=_pitch(codes, multiple=16),
        box_inner=SCALE_BLOCK,
        box_outer=box_rows,
        swizzle="128B",
    )


def _encode_scales(destination: int, scales: Tensor, *, box_rows: int) -> None:
    """Of (rows, K blocks), MN-major: a box is the scales of ``box_rows`` rows in one K block."""
    rows, k_blocks = scales.shape
    encode_2d(
        destination,
        address=scales.data_ptr(),
        dtype="float32",
        inner=rows,
        outer=k_blocks,
        outer_stride_bytes=_pitch(scales.t(), multiple=4) * 4,
        box_inner=box_rows,
        box_outer=1,
    )


def _pitch(matrix: Tensor, *, multiple: int) -> int:
    """Elements from row to row; of a single row, whose stride means nothing, its length rounded up to ``multiple``."""
    rows, cols = matrix.shape
    return matrix.stride(0) if rows > 1 else -(-cols // multiple) * multiple
