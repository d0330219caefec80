"""What the device code decides of a CTA's first steps, and tests of traces and of machine code must know."""

from __future__ import annotations

from fp8gemm.tuning.config import TileConfig

_MOST = 4
"""`OperandLoader::kFirstSteps`, of rings that hold as many."""


def first_steps(config: TileConfig, k_blocks: int) -> int:
    """The steps of its first tile that a CTA asks for before there are roles."""
    return min(_MOST, config.stages, steps_of_tile(config, k_blocks))


def steps_of_tile(config: TileConfig, k_blocks: int) -> int:
    """Of one CTA: K blocks over what the warpgroups and the cluster share."""
    return -(-k_blocks // (config.warpgroups_k * config.split_k))
