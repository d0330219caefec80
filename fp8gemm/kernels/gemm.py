"""What the kernels of every family have in common on the host: loading, arguments that are encoded once, the launch.

Operands reach these modules checked (see `fp8gemm.checks`); nothing here validates what a user passed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig, max_active_clusters
from fp8gemm.driver.library import ensure_context
from fp8gemm.driver.tensor_map import encode_2d
from fp8gemm.errors import InputError
from fp8gemm.jit.kernel import LoadedKernel, load
from fp8gemm.jit.request import KernelRequest
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.dependent_launch import starts_ahead
from fp8gemm.tuning.problem import Addend, Problem
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig

if TYPE_CHECKING:
    from torch import Tensor

    from fp8gemm.tuning.grouped_problem import AnyProblem

MAX_TILES = 2**31 - 1
"""Tiles of a launch, and CTAs: kernels count on from tile to tile in 32 bits, and no grid is larger."""


def countable(tiles: int) -> int:
    """``tiles``, as many as a launch may have.

    Raises:
        InputError: they are more than `MAX_TILES`.
    """
    if tiles > MAX_TILES:
        raise InputError(f"expected an output of at most {MAX_TILES} tiles, got {tiles}; divide M or N among calls")
    return tiles


def request_label(family: str, problem: Problem, config_label: str) -> str:
    """Name of a kernel: family, N, K, config, output, store and what is added."""
    parts = [family, f"n{problem.n}", f"k{problem.k}", config_label, problem.output.value, problem.store.value]
    parts += [f"{name}-{addend.value}" for name, addend in addends(problem) if addend is not Addend.NONE]
    return "-".join(parts)


def addends(problem: Problem) -> tuple[tuple[str, Addend], ...]:
    """Constants of the kernel that say what is added to the product."""
    return ("c", problem.c), ("bias", problem.bias)


class GemmKernel(ABC):
    """One kernel, loaded on one GPU and ready to launch; threads may share it.

    Attributes:
        problem: what it multiplies, of any M.
        config: what it was compiled for.
        loaded: the kernel.

    Args:
        problem: what it multiplies; M is ignored.
        config: a legal config.
        device_index: the GPU.
        num_sms: SMs that a persistent launch may occupy.
        limited: whether these are fewer than the GPU has.
        allow_compile: whether a kernel that is in no cache may be compiled.
        programmatic: launch it as a programmatic dependent of the kernel before it in the stream, where that is faster.

    Raises:
        CacheMissError, CompileError, DriverError: as `fp8gemm.jit.kernel.load` does.
    """

    problem: Any
    config: Any

    def __init__(
        self,
        problem: AnyProblem,
        config: Config,
        *,
        device_index: int,
        num_sms: int,
        limited: bool = False,
        allow_compile: bool = True,
        programmatic: bool = False,
    ) -> None:
        self.problem, self.config = problem, config
        shared = self.shared_bytes(problem, config)
        self.loaded: LoadedKernel = load(
            self.request(problem, config), device_index, shared, allow_compile=allow_compile
        )
        make_launch = partial(
            LaunchConfig,
            function=self.loaded.function,
            device_index=device_index,
            grid_x=config.cluster_size,
            threads=config.threads,
            cluster_x=config.cluster_size,
            dynamic_shared_bytes=shared,
        )
        self._num_sms = num_sms
        self._launch, self._plain_launch = make_launch(programmatic=programmatic), make_launch(programmatic=False)
        self._max_clusters = self._most_clusters(num_sms, limited)

    @property
    def reads_scales_by_tma(self) -> bool:
        """Whether scales of rows must lie as TMA reads them; else they may have any strides."""
        return not isinstance(self.config, SwapAbConfig)

    @staticmethod
    @abstractmethod
    def request(problem: Any, config: Any) -> KernelRequest:
        """What the JIT must build for a problem under a config. M does not matter: it is a run-time argument."""

    @staticmethod
    @abstractmethod
    def shared_bytes(problem: Any, config: Any) -> int:
        """Shared memory of a CTA."""

    def _most_clusters(self, num_sms: int, limited: bool) -> int:
        """Clusters of a launch; a kernel that is not persistent has no bound of its own.

        More than are resident at once would wait for others to end instead of sharing the work.
        """
        of_sms: int = num_sms // self.config.cluster_size
        return max(min(of_sms, self.resident_clusters()), 1)

    def resident_clusters(self) -> int:
        """Clusters that the GPU holds at once."""
        return max_active_clusters(self._launch)

    @abstractmethod
    def grid(self, m: int) -> int:
        """CTAs that a launch for M rows has.

        Raises:
            InputError: its tiles are more than kernels can count.
        """

    def launch_that(self, *, starts_ahead: bool) -> LaunchConfig:
        """How it is launched: ahead of the end of the kernel before it, if it may be, or behind it."""
        return self._launch if starts_ahead else self._plain_launch

    def new_block(self) -> ArgumentBlock:
        """Arguments to fill in."""
        ensure_context(self._launch.device_index)  # a thread that has not used torch.cuda has none; maps need one
        return ArgumentBlock()


class SingleKernel(GemmKernel):
    """A kernel of products of one weight; arguments and errors are those of `GemmKernel`."""

    problem: Problem

    @abstractmethod
    def _encode(
        self,
        a: Tensor,
        scales_a: Tensor,
        b: Tensor,
        scales_b: Tensor,
        out: Tensor,
        block: ArgumentBlock,
    ) -> None:
        """Write the tensor maps, and what else depends on the family, to an argument block."""

    @abstractmethod
    def _move(self, block: ArgumentBlock, a: int, scales_a: int, out: int) -> None:
        """Put other addresses where `_encode` put those of A, its scales and the output."""

    def bind(
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
        static_weights: bool = False,
    ) -> BoundLaunch:
        """The launch for checked operands; it holds their addresses, and none of them.

        Args are those of `fp8gemm.gemm` with M > 0, row scales MN-major if the kernel reads them by TMA, ``out`` and
        ``c`` such that this kernel's store kind can serve them, ``c`` and ``bias`` given if and only if the problem has
        them; the CUstream; and whether no kernel that may still be running writes ``b`` or ``scales_b``.
        """
        block = self.new_block()
        self._encode(a, scales_a, b, scales_b, out, block)
        fill_output(block, out, c)
        m, params = a.shape[0], block.params
        launch = self.launch_that(
            starts_ahead=starts_ahead(m, self.problem.n, self.problem.k, self.config, self._num_sms)
        )
        params.m = m
        if bias is not None:
            params.bias = bias.data_ptr()
        # Where nothing runs ahead of the kernel before, weights that are asked for first only make the rest late.
        params.static_weights = static_weights and launch.programmatic
        return BoundLaunch(launch, block, stream, self.grid(m))

    def rebind(self, bound: BoundLaunch, *, a: int, scales_a: int, out: int, stream: int) -> BoundLaunch:
        """A launch like ``bound``, of this kernel, for operands like its own at other device addresses.

        Args:
            bound: from `bind`, without C.
            a, scales_a, out: addresses, aligned as those of ``bound`` were.
            stream: the CUstream.
        """
        block = self.new_block()
        block.read_from(bound.arguments)
        self._move(block, a, scales_a, out)
        block.params.d = out
        return BoundLaunch(bound.config, block, stream, bound.grid_x)

    def __call__(self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, **others: Any) -> None:
        """Bind and launch; arguments are those of `bind`."""
        self.bind(a, scales_a, b, scales_b, **others)()


def fill_output(block: ArgumentBlock, out: Tensor, c: Tensor | None) -> None:
    """Where D of (rows, N) lies, and the C that is added to it."""
    params = block.params
    params.d = out.data_ptr()
    params.d_stride_m, params.d_stride_n = out.stride()
    if c is not None:
        params.c = c.data_ptr()
        params.c_stride_m, params.c_stride_n = c.stride()


def encode_codes(destination: int, codes: Tensor, *, box_rows: int, fetch_bytes: int = 256) -> None:
    """Of (rows, K): a box is ``box_rows`` rows of one K block."""
    rows, k = codes.shape
    encode_2d(
        destination,
        address=codes.data_ptr(),
        dtype="uint8",
        inner=k,
        outer=rows,
        outer_stride_bytes=pitch(codes, multiple=16),
        box_inner=SCALE_BLOCK,
        box_outer=box_rows,
        swizzle="128B",
        fetch_bytes=fetch_bytes,
    )


def encode_scales(destination: int, scales: Tensor, *, box_rows: int) -> None:
    """Of (rows, K blocks), MN-major: a box is the scales of ``box_rows`` rows in one K block."""
    rows, k_blocks = scales.shape
    encode_2d(
        destination,
        address=scales.data_ptr(),
        dtype="float32",
        inner=rows,
        outer=k_blocks,
        outer_stride_bytes=pitch(scales.t(), multiple=4) * 4,
        box_inner=box_rows,
        box_outer=1,
    )


def pitch(matrix: Tensor, *, multiple: int) -> int:
    """Elements from row to row; of a single row, whose stride means nothing, its length rounded up to ``multiple``."""
    rows, cols = matrix.shape
    return matrix.stride(0) if rows > 1 else -(-cols // multiple) * multiple
