"""Headers with a part of the main loop left out: what a kernel takes without it says how much of its time that part is.

A part that costs nothing is hidden behind the others. What is left out changes the result, and little else: waits,
arrivals and the order of waves stay, and tensor cores get operands of the product at hand, since zeros take less power.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.mutations import tree
from tests.mutations.mutant import PROMOTE, Edit

_COPIES, _MULTIPLY = "mainloop/operand_copies.cuh", "mainloop/multiply.cuh"
_FEEDS = (
    Edit(
        _COPIES,
        "ptx::mbarrier_arrive_expect_tx(full, operands.stage_bytes());",
        "ptx::mbarrier_arrive_expect_tx(full, step < Config::kStages ? operands.stage_bytes() : 0);",
    ),
    Edit(
        _COPIES,
        "            load_block<kOfB>(tile, operands, first + share,",
        "            if (step < Config::kStages) load_block<kOfB>(tile, operands, first + share,",
    ),
)
_PROMOTES = (
    Edit(
        _MULTIPLY,
        PROMOTE,
        "        accumulators[m][n][0] += flight.products.upper[0] * flight.block_sums[0];\n",
    ),
)
_MULTIPLIES = (
    Edit(
        _MULTIPLY,
        "        operands_.multiply(flight.stage, m, n, flight.block_sums);\n",
        "        for (uint32_t i = 0; i < Shape::kWaveRegisters; ++i) { flight.block_sums[i] = scales_a[i % 2]; }\n",
    ),
)

ABLATIONS: dict[str, tuple[Edit, ...]] = {
    "loads": _FEEDS,  # but for a tile's first turn of the ring, over which it then goes again
    "promotion": _PROMOTES,  # one sum of a wave is still promoted: that the wave is waited for shows in machine code
    "loads-and-promotion": _FEEDS + _PROMOTES,
    "multiplication": _MULTIPLIES,
}
"""What is left out, and the edits of the headers that do so."""


def headers_without(part: str, directory: Path) -> Path:
    """Write headers without this one of `ABLATIONS` below a directory, and return their include directory."""
    include = directory / part / "include"
    shutil.copytree(tree.INCLUDE, include)
    tree.apply(ABLATIONS[part], include)
    return include
