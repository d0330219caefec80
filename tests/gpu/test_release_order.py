"""What a consumer reads of a ring's stage by ordinary loads it has read before the stage is overwritten.

That a load comes first in the program is not enough: it may queue behind stores, while the stage is handed back. The
first test is the call on which it was seen: one call of 500 to 1000 was wrong. The others bring every family into that
state. FP8GEMM_TEST_LAUNCHES says how many launches of each family there are, 100000 by default, and of each variant of
that call a fifth as many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

import pytest
import torch

from tests.clogged import FAMILIES, graphs_of
from tests.launches import check_played, play
from tests.reused_stages import VARIANTS, Calls, Operands, Variant, make_operands

DEFAULT_LAUNCHES = 100_000
SHARE = 5
LIMIT_S = 240.0

MakeOperands = Callable[[int, torch.device], Operands]


def wanted() -> int:
    return int(os.environ.get("FP8GEMM_TEST_LAUNCHES") or DEFAULT_LAUNCHES)


@pytest.fixture(scope="module")
def made() -> MakeOperands:
    """Large operands, made once."""
    return lru_cache(maxsize=1)(make_operands)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_rows_have_the_scales_of_their_own_tile(
    variant: Variant,
    made: MakeOperands,
    device: torch.device,
    seed: int,
    no_progress: Callable[..., NoReturn],
    say: Callable[[str], None],
) -> None:
    calls = Calls(variant, made(seed, device))
    played = play([calls], wanted() // SHARE, limit_s=LIMIT_S)
    say(f"release order, {variant}: {played.launches} calls in {played.seconds:.1f} s, {played.wrong}, seed {seed}")
    check_played(played, wanted() // SHARE, seed, lambda message: no_progress(message, calls))


@pytest.mark.parametrize("family", FAMILIES)
def test_launches_behind_many_stores_are_right(
    family: str,
    device: torch.device,
    seed: int,
    no_progress: Callable[..., NoReturn],
    say: Callable[[str], None],
) -> None:
    graphs = graphs_of(family, seed, device)
    torch.cuda.synchronize(device)
    played = play(graphs, wanted(), limit_s=LIMIT_S)
    said = f"{played.launches} launches of {len(graphs)} kernels in {played.seconds:.1f} s"
    say(f"release order, {family}: {said}, {played.wrong}, seed {seed}")
    check_played(played, wanted(), seed, lambda message: no_progress(message, *graphs))
