"""Configs of the swapped orientation for tests: every kind of tile, of share and of ring, each somewhere."""

from __future__ import annotations

from fp8gemm.tuning.swap_ab import SwapAbConfig

MANY_ROWS = 128
"""M up to which products of every config are also made under these."""

SPREAD = (
    SwapAbConfig(8, 16, 2),
    SwapAbConfig(8, 16, 3, warpgroups_k=2),
    SwapAbConfig(8, 16, 4, split_k=2),
    SwapAbConfig(16, 16, 2, warpgroups_k=2, split_k=8),
    SwapAbConfig(16, 16, 5, split_k=3),
    SwapAbConfig(24, 16, 3, split_k=7),
    SwapAbConfig(32, 16, 2, split_k=4),
    SwapAbConfig(8, 32, 6),
    SwapAbConfig(16, 32, 3, split_k=4),
    SwapAbConfig(24, 32, 2, warpgroups_k=2, split_k=3),
    SwapAbConfig(32, 32, 4, warpgroups_k=2),
    SwapAbConfig(48, 32, 3, split_k=7),
    SwapAbConfig(64, 32, 2, split_k=2),
    SwapAbConfig(8, 64, 8, split_k=8),
    SwapAbConfig(16, 64, 2, warpgroups_k=2, split_k=4),
    SwapAbConfig(32, 64, 3),
    SwapAbConfig(64, 64, 2, warpgroups_k=2, split_k=2),
    SwapAbConfig(64, 64, 4, split_k=3),
    SwapAbConfig(112, 64, 2),
)
"""Legal for every K up to 16384. Of seven CTAs one owns no columns of a tile of 16 rows."""


def k_of_steps(config: SwapAbConfig, steps: int, *, full: bool) -> int:
    """A K of so many steps; not full, it ends in the first K block of the last step, which most shares then lack."""
    blocks_per_step = config.blocks_per_stage * config.split_k
    return 128 * steps * blocks_per_step if full else 128 * (steps - 1) * blocks_per_step + 16
