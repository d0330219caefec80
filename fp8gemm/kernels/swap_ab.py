"""The host's side of ``include/fp8gemm/kernels/swap_ab.cuh``: what to compile, how to fill in its arguments."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.tensor_map import encode_column_blocks, replace_address
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.gemm import MAX_TILES, SingleKernel, addends, countable, encode_codes, pitch, request_label
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.swap_ab import SwapAbConfig, shared_bytes, tiles_of

if TYPE_CHECKING:
    from torch import Tensor


class SwapAbKernel(SingleKernel):
    """One kernel of the family; arguments and errors are those of `GemmKernel`."""

    config: SwapAbConfig

    @staticmethod
    def request(problem: Problem, config: SwapAbConfig) -> KernelRequest:
        """What the JIT must build for a problem under a config."""
        return KernelRequest(
            label=request_label("swap_ab", problem, config.label),
            header="fp8gemm/kernels/swap_ab.cuh",
            family="SwapAb",
            config=(
                ("n", problem.n),
                ("k", problem.k),
                *asdict(config).items(),
                ("shared_bytes", shared_bytes(config, problem.k)),
                ("output", problem.output),
                ("store", problem.store),
                *addends(problem),
            ),
        )

    @staticmethod
    def shared_bytes(problem: Problem, config: SwapAbConfig) -> int:
        """Shared memory of a CTA."""
        return shared_bytes(config, problem.k)

    def _most_clusters(self, num_sms: int, limited: bool) -> int:
        return MAX_TILES  # it has one for each tile

    def grid(self, m: int) -> int:
        """CTAs that a launch for M rows has: a cluster for each tile."""
        return countable(tiles_of(self.config, m, self.problem.n) * self.config.cluster_size)

    def _encode(
        self, a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, out: Tensor, block: ArgumentBlock
    ) -> None:
        config = self.config
        encode_blocks(block.tensor_map_a, a, config, config.block_m)
        streams = a.shape[0] <= config.block_m and config.split_k == 1
        encode_blocks(block.tensor_map_b, b, config, config.block_n, streams=streams)
        params = block.params
        params.scales_a = scales_a.data_ptr()
        params.scales_a_stride_m, params.scales_a_stride_k = scales_a.stride()
        params.scales_b = scales_b.data_ptr()

    def _move(self, block: ArgumentBlock, a: int, scales_a: int, out: int) -> None:
        replace_address(block.tensor_map_a, a)
        block.params.scales_a = scales_a


def encode_blocks(
    destination: int, codes: Tensor, config: SwapAbConfig, box_rows: int, *, streams: bool = False
) -> None:
    """Of (rows, K): a box is ``box_rows`` rows of the K blocks of a stage, or of one if K is not whole blocks.

    Args:
        streams: whether each row is read by one CTA alone, from its first K block to its last. L2 then fetches what is
            asked for, and no K block that the CTA asks for next itself: 1 to 7 % faster where M <= 32, 4 to 5 % where
            groups have a row each; where K is divided or a weight is read twice, up to 4 % slower.
    """
    rows, k = codes.shape
    fetch_bytes = SCALE_BLOCK if streams else 2 * SCALE_BLOCK
    if k % SCALE_BLOCK:
        encode_codes(destination, codes, box_rows=box_rows, fetch_bytes=fetch_bytes)
        return
    encode_column_blocks(
        destination,
        address=codes.data_ptr(),
        dtype="uint8",
        columns=k,
        rows=rows,
        row_stride_bytes=pitch(codes, multiple=16),
        block_columns=SCALE_BLOCK,
        box_rows=box_rows,
        box_blocks=config.blocks_per_stage,
        swizzle="128B",
        fetch_bytes=fetch_bytes,
    )
