"""The host's side of ``include/fp8gemm/kernels/dense.cuh``: what to compile, how to fill in its arguments."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.tensor_map import Swizzle, encode_2d, replace_address
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.gemm import SingleKernel, addends, countable, encode_codes, encode_scales, pitch, request_label
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.candidates import divides_last_round
from fp8gemm.tuning.config import TileConfig, shared_bytes, staged_part
from fp8gemm.tuning.l2 import raster_band, streamed_rows
from fp8gemm.tuning.problem import Grouping, OutputType, Problem, Scaling, StoreKind

if TYPE_CHECKING:
    from torch import Tensor

_SHORT_ROWS = ((1024, 384), (1536, 192))
"""Columns of a weight, and rows of A, up to which L2 fetches 128 bytes of it at a time."""
_SWIZZLES: dict[int, Swizzle] = {32: "32B", 64: "64B", 128: "128B"}


class DenseKernel(SingleKernel):
    """One kernel of the family; arguments and errors are those of `GemmKernel`."""

    config: TileConfig

    @staticmethod
    def request(problem: Problem, config: TileConfig) -> KernelRequest:
        """What the JIT must build for a problem under a config."""
        piece_of_b = _piece_of_b(problem, config)
        return KernelRequest(
            label=request_label(f"dense_{problem.scaling.value}", problem, config.label),
            header="fp8gemm/kernels/dense.cuh",
            family="Dense",
            config=(
                ("n", problem.n),
                ("k", problem.k),
                *asdict(config).items(),
                *([("raster_band", raster_band(config, problem.n))] if config.split_k == 1 else []),
                ("streamed_rows", streamed_rows(problem, config)),
                ("piece_of_a", 0),
                ("piece_of_b", piece_of_b),
                ("half_columns", piece_of_b > 0),
                ("shared_bytes", DenseKernel.shared_bytes(problem, config)),
                ("scaling", problem.scaling),
                ("grouping", Grouping.NONE),
                ("output", problem.output),
                ("store", problem.store),
                *addends(problem),
            ),
        )

    @staticmethod
    def shared_bytes(problem: Problem, config: TileConfig) -> int:
        """Shared memory of a CTA."""
        return shared_bytes(config, problem.store, problem.output, problem.scaling)

    def grid(self, m: int) -> int:
        """CTAs that a launch for M rows has: one per SM, or fewer when there are fewer tiles.

        Where clusters divide K, there is one for each tile.
        """
        config = self.config
        cluster_rows = -(-m // (config.block_m * config.cluster_m))
        cluster_cols = -(-self.problem.n // (config.block_n * config.cluster_n))
        tiles = countable(cluster_rows * cluster_cols)
        return (min(tiles, self._max_clusters) if config.split_k == 1 else tiles) * config.cluster_size

    def _encode(
        self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, out: Tensor, block: ArgumentBlock
    ) -> None:
        config = self.config
        _encode_parts(block.tensor_map_a, block.tensor_map_a_tail, a, config.block_m // config.cluster_n)
        fetch_bytes = _fetch_bytes(*a.shape)
        _encode_parts(
            block.tensor_map_b,
            block.tensor_map_b_tail,
            b,
            config.block_n // config.cluster_m,
            piece_rows=_piece_of_b(self.problem, config),
            fetch_bytes=fetch_bytes,
        )
        encode_scales(block.tensor_map_scales_a, scales_a, box_rows=config.block_m)
        if self.problem.scaling is Scaling.ROW:
            encode_scales(block.tensor_map_scales_b, scales_b, box_rows=config.block_n)
        else:
            block.params.scales_b = scales_b.data_ptr()
        if self.problem.store is StoreKind.TMA:
            encode_output(block.tensor_map_d, out, config, self.problem.output)

    def _move(self, block: ArgumentBlock, a: int, scales_a: int, out: int) -> None:
        replace_address(block.tensor_map_a, a)
        if block.params.m % (self.config.block_m // self.config.cluster_n):
            replace_address(block.tensor_map_a_tail, a)
        replace_address(block.tensor_map_scales_a, scales_a)
        if self.problem.store is StoreKind.TMA:
            replace_address(block.tensor_map_d, out)


def _piece_of_b(problem: Problem, config: TileConfig) -> int:
    """Rows of the pieces of B in which tiles are loaded that are not whole; 0 where CTAs do not have half of a tile."""
    return math.gcd(problem.n, config.block_n // 2) if divides_last_round(problem, config) else 0


def _fetch_bytes(m: int, k: int) -> int:
    """What L2 fetches of a weight at least. Where reading a weight of few columns is most of the time, 256 bytes take
    up to 7 % longer, as in `fp8gemm.kernels.swap_ab.encode_blocks`; else 128 are as fast or slower."""
    return SCALE_BLOCK if any(k <= columns and m <= rows for columns, rows in _SHORT_ROWS) else 2 * SCALE_BLOCK


def _encode_parts(
    whole: int, tail: int, codes: Tensor, box_rows: int, *, piece_rows: int = 0, fetch_bytes: int = 2 * SCALE_BLOCK
) -> None:
    """Of (rows, K), by boxes of so many rows; and by pieces, or by a box of the rows that are left over, if any are."""
    encode_codes(whole, codes, box_rows=box_rows, fetch_bytes=fetch_bytes)
    if left := piece_rows or codes.shape[0] % box_rows:
        encode_codes(tail, codes, box_rows=left, fetch_bytes=fetch_bytes)


def encode_output(destination: int, out: Tensor, config: TileConfig, output: OutputType) -> None:
    """Of (rows, N), row-major: a box is a part that a warpgroup stages."""
    box_rows, box_cols = staged_part(config)
    encode_2d(
        destination,
        address=out.data_ptr(),
        dtype=output.value,
        inner=out.shape[1],
        outer=out.shape[0],
        outer_stride_bytes=pitch(out, multiple=16 // output.bytes) * output.bytes,
        box_inner=box_cols,
        box_outer=box_rows,
        swizzle=_SWIZZLES[box_cols * output.bytes],
    )
