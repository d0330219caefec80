"""Experts that are sent their tokens while these are sorted, over memory that ranks share."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts
from fp8gemm.parallel import ExpertParallel, limits
from fp8gemm.scales import quantized_bytes
from tests.distributed.mixtures import EXPERTS, INNER, H, block, divided, mine, routed
from tests.distributed.models import SENT, part
from tests.distributed.overlapping import limited, reached
from tests.distributed.world import Check, Rank
from tests.experts import relative_error


def overlapped_experts_have_the_sums_of_collectives(world: Rank) -> None:
    """Of two ranks to the bit; what was given stays as it was while other calls follow."""
    with reached(world) as uses:
        model, plain = divided(world, block(), overlap=True), divided(world, block(), overlap=False)
        whole, rights, kept = block(), [], []
        for count in (world.ranks, 4 * world.ranks, 64, 0, 12 * world.ranks, 4 * world.ranks):
            given = routed(count)
            uses.since()
            kept.append(model(*mine(world, given)))
            gathered_and_scattered = ["barrier", *["copy"] * (world.ranks - 1), "barrier"] * 2
            assert uses.since() == (gathered_and_scattered if count else [])
            rights.append((plain(*mine(world, given)), part(whole(*given), 0, world.number, world.ranks)))
        for out, (of_collectives, of_one) in zip(kept, rights, strict=True):
            assert out.shape == of_one.shape and (not len(out) or relative_error(out, of_one) < SENT)
            assert torch.equal(out, of_collectives) or world.ranks > 2


def tokens_that_all_have_are_summed_in_shared_memory(world: Rank) -> None:
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        place = {"input_layouts": Replicate()}
        model, plain = (divided(world, block(), overlap=each, **place) for each in (True, False))
        given = routed(4 * world.ranks)
        right, out = plain(*given), model(*given)
        assert uses.since() == ["sum", "barrier", "barrier"]
        patch.setattr(limits, "BY_PARTS_BYTES", 1)
        for each in (out, model(*given)):
            assert relative_error(each, right) < SENT and (torch.equal(each, right) or world.ranks > 2)
        assert uses.since() == ["barrier", *["copy"] * (world.ranks - 1), "barrier"] * 2


def experts_overlap_where_it_wins(world: Rank) -> None:
    given, size = mine(world, routed(8 * world.ranks)), quantized_bytes(8, H)
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        for least, does in (
            (limited(tokens_bytes=size), True),
            (limited(tokens_bytes=size + 1), False),
            (limited(tokens_bytes=size, gathered_products=1 << 62), False),
        ):
            patch.setattr(limits, "LIMITS", least)
            divided(world, block())(*given)
            assert bool(uses.since()) == does
        patch.setattr(limits, "LIMITS", limited(tokens_bytes=1))
        for options in ({"overlap": False}, {"exchange": "all_to_all"}):
            divided(world, block(), **options)(*given)
        module = divided(world, block(), overlap=True)
        with torch.no_grad():
            torch._dynamo.reset()
            out = torch.compile(module, fullgraph=True, backend="eager")(*given)
        assert uses.since() == []
        assert torch.equal(out, module(*given)) or world.ranks > 2
    with pytest.raises(InputError, match="overlap: expected None or False, because an all_to_all is not"):
        ExpertParallel(exchange="all_to_all", overlap=True)
    odd = Fp8Experts(EXPERTS, H, INNER)
    before = dict(odd.named_parameters())
    with pytest.raises(InputError, match="overlap: expected None or False, because its ranks are on cpu.*got True"):
        parallelize_module(odd, world.mesh(), ExpertParallel(overlap=True))
    assert type(odd) is Fp8Experts and dict(odd.named_parameters()) == before


CHECKS: tuple[Check, ...] = (
    overlapped_experts_have_the_sums_of_collectives,
    tokens_that_all_have_are_summed_in_shared_memory,
    experts_overlap_where_it_wins,
)
