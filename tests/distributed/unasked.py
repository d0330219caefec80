"""What layers overlap unasked, and that ranks stay in step whatever one of them was asked before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.parallel import limits, symmetric
from fp8gemm.scales import quantized_bytes
from tests.distributed.models import HIDDEN, SENT, inputs, mlp, part, sent
from tests.distributed.overlapping import TOKENS, divided, hidden, limited, mlp_part, reached
from tests.distributed.shared import Uses
from tests.distributed.world import Check, Rank
from tests.experts import relative_error

SUMMED = ["sum", "barrier", "barrier"]


def none_overlaps_where_it_wins(world: Rank) -> None:
    x = inputs(8 * world.ranks)
    mine = part(x, 0, world.number, world.ranks)
    copy = ["barrier", *["copy"] * (world.ranks - 1), "barrier"]
    models = divided(world, mlp(), TOKENS, overlap=None), divided(world, mlp(), Replicate(), overlap=None)
    with sent() as found:
        models[0](mine)
        models[1](x)
    assert [name for name, _ in found] == ["allgather_base", "reduce_scatter_base", "allreduce"]  # nothing is shared
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        quantized, of_output = quantized_bytes(8, HIDDEN), mine.nbytes
        for least, expected in (
            (limited(), []),
            (limited(gathered_bytes=quantized, scattered_bytes=of_output), [*copy, *copy]),
            (limited(gathered_bytes=quantized + 1, scattered_bytes=of_output), copy),
            (limited(gathered_bytes=quantized, scattered_bytes=of_output + 1), copy),
            (limited(gathered_bytes=quantized, scattered_bytes=of_output, gathered_products=1 << 62), copy),
            (limited(gathered_bytes=quantized, scattered_bytes=of_output, summed_products=1 << 62), copy),
        ):
            patch.setattr(limits, "LIMITS", least)
            divided(world, mlp(), TOKENS, overlap=None)(mine)
            divided(world, mlp(), Replicate(), overlap=None)(x)
            assert uses.since() == expected
        summed_rows_are_overlapped_in_graphs(world, uses)
        patch.setattr(limits, "LIMITS", limited(gathered_bytes=1))
        divided(world, mlp(), TOKENS, overlap=False)(mine)
        # What cannot be overlapped is not, and a graph that is traced has collectives.
        half = divided(world, mlp(), Replicate(), overlap=None)(x.half())
        assert relative_error(half, mlp()(x.half())) < SENT
        batches = divided(world, mlp(), Shard(1), overlap=None)(part(inputs(2, 8), 1, world.number, world.ranks))
        assert relative_error(batches, part(mlp()(inputs(2, 8)), 1, world.number, world.ranks)) < SENT
        up = divided(world, mlp(), TOKENS, overlap=True).up
        with torch.no_grad():
            torch._dynamo.reset()
            out = torch.compile(up, fullgraph=True, backend="eager")(mine)
        assert torch.equal(out, mlp_part(world, x))
        assert uses.since() == []


def summed_rows_are_overlapped_in_graphs(world: Rank, uses: Uses) -> None:
    """Those that had a call before, by which there is a workspace."""
    x, codes = inputs(8), fp8gemm.quantize_activation(hidden(world, 8))
    with pytest.MonkeyPatch.context() as patch:
        for least, expected in ((limited(), SUMMED), (limited(summed_bytes=x.nbytes - 1), [])):
            patch.setattr(limits, "LIMITS", least)
            model = divided(world, mlp(), Replicate(), overlap=None)
            right = model(x), model.down.forward_quantized(*codes)
            assert uses.since() == []
            with patch.context() as captured:
                captured.setattr(symmetric, "is_capturing", lambda device: True)
                found = model(x), model.down.forward_quantized(*codes)
            assert uses.since() == expected * 2
            again = model(x), model(x[:3]), model.down.forward_quantized(*codes)
            assert uses.since() == [] and torch.equal(again[0], right[0]) and torch.equal(again[2], right[1])
            for out, of_collective in zip(found, right, strict=True):
                assert torch.equal(out, of_collective) or world.ranks > 2


def calls_of_any_order_make_what_graphs_need(world: Rank) -> None:
    """Of more rows before fewer; and copies of a layer in other processes begin anew."""
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LIMITS", limited(summed_bytes=64 * 2 * HIDDEN))
        model = divided(world, mlp(), Replicate(), overlap=None).down
        for rows in (256, 64, 8, 8):
            model(hidden(world, rows))
        assert uses.since() == []
        captured = pytest.MonkeyPatch()
        captured.setattr(symmetric, "is_capturing", lambda device: True)
        for rows, expected in ((8, SUMMED), (64, SUMMED), (256, [])):
            model(hidden(world, rows))
            assert uses.since() == expected
        captured.undo()
        assert model._known and not copy.deepcopy(model)._known
        assert "_known" in model.__getstate__() and not model.__getstate__()["_known"]


def a_refused_call_leaves_ranks_in_step(world: Rank) -> None:
    """Of one rank alone: the next one, of the same size, is made by all."""
    x = hidden(world, 4)
    with reached(world), pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LIMITS", limited())
        plain = divided(world, mlp(), Replicate(), overlap=False).down(x)
        for overlap in (None, True):
            model = divided(world, mlp(), Replicate(), overlap=overlap).down
            if world.number == 0:
                with pytest.raises(InputError, match="x: expected"):
                    model(x.int())
                with torch.enable_grad(), pytest.raises(InputError, match="x: .*gradient"):
                    model(x.clone().requires_grad_())
            for _ in range(2):
                assert torch.equal(model(x), plain) or world.ranks > 2


def sums_are_exported(world: Rank) -> None:
    """By a mode that watches calls, not by reading Python."""
    x = hidden(world, 4)
    for overlap in (None, False):
        model = divided(world, mlp(bias=False), Replicate(), overlap=overlap).down
        with torch.no_grad():
            right = model(x)
            exported = torch.export.export(model, (x,), strict=False).module()
            assert torch.equal(exported(x), right)


CHECKS: tuple[Check, ...] = (
    none_overlaps_where_it_wins,
    calls_of_any_order_make_what_graphs_need,
    a_refused_call_leaves_ranks_in_step,
    sums_are_exported,
)
