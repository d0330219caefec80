"""The host's side of ``include/fp8gemm/kernels/grouped*.cuh``: what to compile, how to fill in its arguments.

Operands reach this module checked (see `fp8gemm.checks.groups`).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.frozen import dataclass
from fp8gemm.jit.request import ConfigValue, KernelRequest
from fp8gemm.kernels.dense import encode_output
from fp8gemm.kernels.gemm import GemmKernel, countable, encode_codes, encode_scales, fill_output
from fp8gemm.kernels.swap_ab import encode_blocks
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.candidates import PIECE_ROWS
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.dependent_launch import PLAIN_PRODUCTS
from fp8gemm.tuning.grouped_config import grouped_shared_bytes, scales_of_box
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.l2 import raster_band
from fp8gemm.tuning.problem import Addend, Grouping, Scaling, StoreKind
from fp8gemm.tuning.select import Config
from fp8gemm.tuning.swap_ab import SwapAbConfig

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE_BAND = 2**16
"""More rows of tiles than a group has: all tokens of a weight's tile follow each other, and find it in L2."""


@dataclass(frozen=True)
class GroupedOperands:
    """What a grouped kernel is launched with.

    Attributes:
        a: (rows, K) codes: with masked groups those of all groups, (G max_m, K).
        scales_a: float32 (rows, K blocks), or with masked groups (G, max_m, K blocks); MN-major, each group's, if the
            kernel reads them by TMA.
        b: (G N, K) codes, or with groups of columns (N, K).
        scales_b: float32 (G, ceil(N/128), K blocks), contiguous, or with groups of columns (N, K blocks), MN-major.
        out: (rows, N), or with groups of columns (G M, N).
        begins, ends: device addresses of int32s, see ``scheduler/group_table.cuh``; ``begins`` may be 0.
        rows: of A, or with masked groups of each group.
        products: multiplications, about.
        static_weights: whether a kernel may read B, its scales and the groups while the one ahead of it in the stream
            is running: nothing wrote them but what had ended when that one began, or what a kernel of ours that lets it
            begin had waited for.
    """

    a: Tensor
    scales_a: Tensor
    b: Tensor
    scales_b: Tensor
    out: Tensor
    begins: int
    ends: int
    rows: int
    products: int
    static_weights: bool = False


class GroupedKernel(GemmKernel):
    """A kernel of products of groups, in either orientation; arguments and errors are those of `GemmKernel`."""

    problem: GroupedProblem
    config: Config

    @staticmethod
    def request(problem: GroupedProblem, config: Config) -> KernelRequest:
        """What the JIT must build for a problem under a config. Sizes of groups do not matter."""
        parts = [f"grouped-{problem.grouping.value}-g{problem.groups}-n{problem.n}"]
        parts += [] if problem.grouping is Grouping.COLUMNS else [f"k{problem.k}"]
        parts += [config.label, problem.output.value, problem.store.value]
        parts += [] if problem.c is Addend.NONE else [f"c-{problem.c.value}"]
        of_orientation: tuple[tuple[str, ConfigValue], ...]
        if isinstance(config, SwapAbConfig):
            header, family, band = "grouped_swap_ab", "GroupedSwapAb", _WHOLE_BAND
            of_orientation = ("cluster_m", 1), ("cluster_n", 1), ("halves", False), ("half_columns", False)
        else:
            header, family, band = "grouped", "Grouped", raster_band(config, problem.n)
            of_a, of_b = _pieces(problem, config)
            pieces = ("piece_of_a", of_a), ("piece_of_b", of_b)
            halves = ("halves", _has_halves(config, of_a))
            of_orientation = (
                ("scaling", problem.scaling),
                ("streamed_rows", 0),
                *pieces,
                halves,
                ("half_columns", False),
            )
        return KernelRequest(
            label="-".join(parts),
            header=f"fp8gemm/kernels/{header}.cuh",
            family=family,
            config=(
                ("n", problem.n),
                ("k", SCALE_BLOCK if problem.grouping is Grouping.COLUMNS else problem.k),
                ("groups", problem.groups),
                ("grouping", problem.grouping),
                *asdict(config).items(),
                *of_orientation,
                ("raster_band", band),
                ("shared_bytes", grouped_shared_bytes(problem, config)),
                ("output", problem.output),
                ("store", problem.store),
                ("c", problem.c),
                ("bias", Addend.NONE),
            ),
        )

    @staticmethod
    def shared_bytes(problem: GroupedProblem, config: Config) -> int:
        """Shared memory of a CTA."""
        return grouped_shared_bytes(problem, config)

    def _most_clusters(self, num_sms: int, limited: bool) -> int:
        resident = self.resident_clusters()
        if limited or not isinstance(self.config, SwapAbConfig):
            resident = min(resident, num_sms // self.config.cluster_size)
        return max(resident, 1)

    def grid(self, rows: int) -> int:
        """CTAs of a launch: those that fit the GPU, or fewer when there are fewer tiles whatever the groups are.

        Raises:
            InputError: tiles of groups that do not overlap can be more than kernels can count.
        """
        config, problem = self.config, self.problem
        clusters_m, clusters_n = (1, 1) if isinstance(config, SwapAbConfig) else (config.cluster_m, config.cluster_n)
        tile_rows, tile_cols = config.block_m * clusters_m, config.block_n * clusters_n
        if problem.grouping is Grouping.CONTIGUOUS:
            tiles_m = min(-(-(rows + problem.groups * (tile_rows - 1)) // tile_rows), rows)
        else:
            tiles_m = problem.groups * -(-rows // tile_rows)
        tiles = tiles_m * -(-problem.n // tile_cols)
        return max(min(countable(tiles), self._max_clusters), 1) * config.cluster_size

    def bind(self, operands: GroupedOperands, stream: int) -> BoundLaunch:
        """The launch for checked operands; it holds their addresses, and none of them."""
        block = self.new_block()
        params = block.params
        if isinstance(self.config, SwapAbConfig):
            self._encode_swapped(operands, self.config, block)
        else:
            self._encode(operands, self.config, block)
        fill_output(block, operands.out, None if self.problem.c is Addend.NONE else operands.out)
        params.m, params.k = operands.rows, operands.a.shape[1]
        params.group_begins, params.group_ends = operands.begins, operands.ends
        launch = self.launch_that(starts_ahead=operands.products < PLAIN_PRODUCTS)
        params.static_weights = operands.static_weights and launch.programmatic
        return BoundLaunch(launch, block, stream, self.grid(operands.rows))

    def _encode(self, operands: GroupedOperands, config: Config, block: ArgumentBlock) -> None:
        assert not isinstance(config, SwapAbConfig)
        encode_codes(block.tensor_map_a, operands.a, box_rows=config.block_m // config.cluster_n)
        encode_codes(block.tensor_map_b, operands.b, box_rows=config.block_n // config.cluster_m)
        of_a, of_b = _pieces(self.problem, config)
        if of_a:
            encode_codes(block.tensor_map_a_tail, operands.a, box_rows=of_a)
        if of_b:
            encode_codes(block.tensor_map_b_tail, operands.b, box_rows=of_b)
        box_rows = scales_of_box(self.problem, config)
        encode_scales(block.tensor_map_scales_a, _side_by_side(operands.scales_a), box_rows=box_rows)
        if self.problem.scaling is Scaling.ROW:
            encode_scales(block.tensor_map_scales_b, operands.scales_b, box_rows=config.block_n)
        else:
            block.params.scales_b = operands.scales_b.data_ptr()
        if self.problem.store is StoreKind.TMA:
            encode_output(block.tensor_map_d, operands.out, config, self.problem.output)

    def _encode_swapped(self, operands: GroupedOperands, config: SwapAbConfig, block: ArgumentBlock) -> None:
        encode_blocks(block.tensor_map_a, operands.a, config, config.block_m)
        encode_blocks(block.tensor_map_b, operands.b, config, config.block_n, streams=True)
        params, scales = block.params, operands.scales_a
        params.scales_a, params.scales_b = scales.data_ptr(), operands.scales_b.data_ptr()
        params.scales_a_stride_m, params.scales_a_stride_k = scales.stride()[-2:]
        params.scales_a_stride_group = scales.stride(0) if scales.dim() == 3 else 0


def _pieces(problem: GroupedProblem, config: TileConfig) -> tuple[int, int]:
    """Rows of the pieces of A and B in which the last tiles of a group, and of its weight, are loaded; 0 if they are
    loaded whole, as is what a cluster shares."""
    if problem.grouping is Grouping.COLUMNS or config.block_m <= PIECE_ROWS:
        return 0, 0
    of_b = math.gcd(problem.n, config.block_n)
    usable = of_b < config.block_n and of_b % PIECE_ROWS == 0 and config.cluster_m == 1
    return PIECE_ROWS, of_b if usable else 0


def _has_halves(config: TileConfig, piece_of_a: int) -> bool:
    """Whether two CTAs may divide a tile of the last round: into what each warpgroup has, a piece of A."""
    return (
        piece_of_a * 2 == config.block_m and config.warpgroups_m == config.warpgroups == 2 and config.cluster_size == 1
    )


def _side_by_side(scales: Tensor) -> Tensor:
    """MN-major scales (G, rows, K blocks) as (rows, G * K blocks)."""
    if scales.dim() == 2:
        return scales
    groups, rows, blocks = scales.shape
    return scales.as_strided((rows, groups * blocks), (1, scales.stride(2)))
