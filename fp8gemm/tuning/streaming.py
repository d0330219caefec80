"""Which weights pass through L2: those of few rows, read about once, while what the kernels around share stays.

They are asked for with the hint to leave first. Products of 64 to 192 rows whose output is an eighth of the weight at
most are up to 6 % faster by it, 2 % on average, and layers up to 7 and 4 %. With larger outputs, and from 256 rows on,
products lose up to 6 % (128x24576x1536 3, 64x32768x512 6), of 512 rows and more up to 17, though layers of 256 rows
still gain 1 %. Groups lose up to 10 % (H200, 2026-11-27).
"""

from __future__ import annotations

from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Problem, Scaling

STREAMED_FROM = 64
"""Rows from which it was measured; fewer are mostly the swapped orientation's, which does so always. A weight that
could be streamed for fewer alone is not, which leaves its kernel a shorter way to the first load."""
_MOST_ROWS = 255
_OUTPUTS_OF_WEIGHT = 8
"""The weight has as many bytes as so many outputs, or more."""


def streamed_rows(problem: Problem, config: TileConfig) -> int:
    """Up to how many rows B leaves L2 first, whatever the problem's M is; 0 if it never does.

    Not what a cluster shares, which was not measured, nor the operand of a gradient, which others read again. The
    kernel compares its own M with it, the model the M that choices count.
    """
    if problem.scaling is not Scaling.BLOCK or config.cluster_m * config.cluster_n > 1:
        return 0
    rows = min(_MOST_ROWS, problem.k // (_OUTPUTS_OF_WEIGHT * problem.output.bytes))
    return rows if rows >= STREAMED_FROM else 0
