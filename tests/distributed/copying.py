"""Rows that ranks copy from where others have quantised them: those of a gather, and where None copies."""

from __future__ import annotations

import pytest
import torch

from fp8gemm.errors import InputError
from fp8gemm.parallel import gather_quantized, limits, symmetric
from fp8gemm.scales import is_mn_major, quantized_bytes
from tests.calls import same_bits
from tests.distributed.models import HIDDEN, inputs, mlp
from tests.distributed.overlapping import TOKENS, divided, limited, reached
from tests.distributed.world import Check, Rank


def copied_rows_are_those_of_a_gather(world: Rank) -> None:
    """What was given stays as it was while other calls follow."""
    group, copies = world.mesh().get_group(), ["barrier", *["copy"] * 2 * (world.ranks - 1), "barrier"]
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        kept = []
        for shape, dim in (((6,), 0), ((1, 5), 1), ((3, 2), 0), ((1, 1, 2), -2), ((1,), 0)) * 2:
            x = inputs(*shape) * (world.number + len(kept) + 1)
            kept.append((gather_quantized(x, group, dim=dim, copies=True), x, dim))
            assert uses.since() == copies
        for (codes, scales), x, dim in kept:
            right = gather_quantized(x, group, dim=dim, copies=False)
            assert same_bits(codes, right[0]) and torch.equal(scales, right[1])
            assert codes.is_contiguous() and is_mn_major(scales.flatten(0, -2))
        mine = inputs(8)
        size = quantized_bytes(8, HIDDEN)
        for least, captured, does in ((size, False, False), (size, True, True), (size + 1, True, False)):
            patch.setattr(limits, "LIMITS", limited(copied_bytes=least))
            patch.setattr(symmetric, "is_capturing", lambda device, captured=captured: captured)
            gather_quantized(mine, group)
            divided(world, mlp(), TOKENS, overlap=None).up(mine)
            divided(world, mlp(), TOKENS, overlap=False).up(mine)
            gather_quantized(inputs(2, 8), group, dim=1)
            gather_quantized(mine[:0], group)
            assert uses.since() == (copies * 2 if does else [])
        with pytest.raises(InputError, match="copies: expected None or False, because x, of shape .* behind others"):
            gather_quantized(inputs(2, 8), group, dim=1, copies=True)
        assert uses.since() == []
    with pytest.raises(InputError, match="copies: expected None or False, because its ranks are on cpu"):
        gather_quantized(mine, group, copies=True)


CHECKS: tuple[Check, ...] = (copied_rows_are_those_of_a_gather,)
