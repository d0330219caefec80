"""The host's side of ``include/fp8gemm/kernels/dense_1d2d.cuh``: what to compile, how to fill in its arguments, launch.

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
from fp8gemm.tuning.config import TileConfig, shared_bytes
from fp8gemm.tuning.problem import OutputType, Problem, StoreKind

_HEADER = "fp8gemm/kernels/dense_1d2d.cuh"
_FAMILY = "Dense1d2d"
_CACHED_CALLS = 64
_SWIZZLES: dict[int, Swizzle] = {32: "32B", 64: "64B", 128: "128B"}


def kernel_request(problem: Problem, config: TileConfig) -> KernelRequest:
    """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""
    return KernelRequest(
        label=f"dense_1d2d-n{problem.n}-k{problem.k}-{config.label}-{problem.output.value}-{problem.store.value}",
        header=_HEADER,
        family=_FAMILY,
        config=(
            ("n", problem.n),
            ("k", problem.k),
            *asdict(config).items(),
            ("shared_bytes", shared_bytes(config, problem.store, problem.output)),
            ("output", problem.output),
            ("store", problem.store),
        ),
    )


class _Calls(threading.local):
    """One thread's recent argument blocks, by all that went into them. A loop over the same tensors encodes nothing."""

    def __init__(self, device_index: int) -> None:
        ensure_context(device_index)  # a thread that has not used torch.cuda has none, and encoding a map needs one
        self.recent: dict[tuple[int, ...], tuple[ArgumentBlock, int]] = {}


class DenseKernel:
    """One kernel of the family, loaded on one GPU and ready to launch; threads may share it.

    Args:
        problem: N, K, output type and store kind; M is ignored.
        config: a legal tile config.
        device_index: the GPU.
        num_sms: SMs that a launch may occupy.
        allow_compile: whether a kernel that is in no cache may be compiled.

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
    ) -> None:
        dynamic_shared_bytes = shared_bytes(config, problem.store, problem.output)
        self.config = config
        self.store = problem.store
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
        )
        # More clusters than are resident at once would wait for others to end instead of sharing the work.
        self._max_clusters = max(min(num_sms // config.cluster_size, max_active_clusters(self._launch)), 1)
        self._cluster_cols = -(-problem.n // (config.block_n * config.cluster_n))
        self._output: OutputType = problem.output
        self._calls = _Calls(device_index)

    def grid(self, m: int) -> int:
        """CTAs that a launch for M rows has: one per SM, or fewer when there are fewer tiles."""
        cluster_rows = -(-m // (self.config.block_m * self.config.cluster_m))
        return min(cluster_rows * self._cluster_cols, self._max_clusters) * self.config.cluster_size

    def __call__(self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, *, out: Tensor, stream: int) -> None:
        """Launch for checked operands: M > 0, MN-major ``scales_a``, an ``out`` that this kernel's store can write."""
        # All that the argument block is made from; N and K are the kernel's own.
        key = (
            a.shape[0],
            a.data_ptr(),
            a.stride(0),
            scales_a.data_ptr(),
            scales_a.stride(1),
            b.data_ptr(),
            b.stride(0),
            scales_b.data_ptr(),
            out.data_ptr(),
            *out.stride(),
        )
        recent = self._calls.recent
        call = recent.get(key)
        if call is None:
            call = self._encode(a, scales_a, b, scales_b, out), self.grid(a.shape[0])
            if len(recent) == _CACHED_CALLS:
                del recent[next(iter(recent))]
            recent[key] = call
        launch(self._launch, call[0], stream, call[1])

    def _encode(self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, out: Tensor) -> ArgumentBlock:
        config = self.config
        (m, k), n = a.shape, b.shape[0]
        block = ArgumentBlock()
        for destination, operand, rows, box_rows in (
            (block.tensor_map_a, a, m, config.block_m // config.cluster_n),
            (block.tensor_map_b, b, n, config.block_n // config.cluster_m),
        ):
            encode_2d(
                destination,
                address=operand.data_ptr(),
                dtype="uint8",
                inner=k,
                outer=rows,
                outer_stride_bytes=_pitch(operand, multiple=16),
                box_inner=config.block_k,
                box_outer=box_rows,
                swizzle="128B",
            )
        encode_2d(
            block.tensor_map_scales_a,
            address=scales_a.data_ptr(),
            dtype="float32",
            inner=m,
            outer=scales_a.shape[1],
            outer_stride_bytes=_pitch(scales_a.t(), multiple=4) * 4,
            box_inner=config.block_m,
            box_outer=1,
        )
        params = block.params
        params.scales_b = scales_b.data_ptr()
        params.d = out.data_ptr()
        params.d_stride_m, params.d_stride_n = out.stride()
        params.m = m
        if self.store is StoreKind.TMA:
            self._encode_output(block, out)
        return block

    def _encode_output(self, block: ArgumentBlock, out: Tensor) -> None:
        warpgroup_cols = self.config.block_n // self.config.warpgroups_n
        box_cols = min(warpgroup_cols, 128 // self._output.bytes)
        encode_2d(
            block.tensor_map_d,
            address=out.data_ptr(),
            dtype=self._output.value,
            inner=out.shape[1],
            outer=out.shape[0],
            outer_stride_bytes=_pitch(out, multiple=16 // self._output.bytes) * self._output.bytes,
            box_inner=box_cols,
            box_outer=self.config.block_m // self.config.warpgroups_m,
            swizzle=_SWIZZLES[box_cols * self._output.bytes],
        )


def _pitch(matrix: Tensor, *, multiple: int) -> int:
    """Elements from row to row; of a single row, whose stride means nothing, its length rounded up to ``multiple``."""
    rows, cols = matrix.shape
    return matrix.stride(0) if rows > 1 else -(-cols // multiple) * multiple
