"""Layers that send while they multiply, over memory that ranks share: bits, order and lifetime, what is refused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel, chunks, limits, symmetric
from fp8gemm.scales import quantized_bytes
from tests.distributed.models import HIDDEN, SENT, WIDE, Mlp, inputs, mlp, part
from tests.distributed.shared import Uses, shared_memory
from tests.distributed.world import Check, Rank
from tests.experts import relative_error

TOKENS = Shard(0)


def reached(world: Rank) -> AbstractContextManager[Uses]:
    return shared_memory(world.kept / f"memory of {world.ranks}")


def divided(
    world: Rank, model: nn.Module, place: Placement, *, overlap: bool | None, out: Placement | None = None
) -> Any:
    up = ColwiseParallel(input_layouts=place, overlap=overlap)
    down = RowwiseParallel(output_layouts=place if out is None else out, overlap=overlap)
    return parallelize_module(model, world.mesh(), {"up": up, "down": down})


def overlapped_columns_have_the_same_bits(world: Rank) -> None:
    with reached(world) as uses:
        for bias, shape, dim in ((True, (6,), 0), (False, (1, 5), 1), (True, (3, 2), 0), (True, (1, 1, 2), -2)):
            model = divided(world, mlp(bias=bias), Shard(dim), overlap=True)
            leading = list(shape)
            leading[dim if dim >= 0 else len(shape) + 1 + dim] *= world.ranks
            for dtype in (torch.bfloat16, torch.float32):
                x = inputs(*leading).to(dtype)
                right = part(mlp(bias=bias).up(x), -1, world.number, world.ranks)
                mine = part(x, dim, world.number, world.ranks)
                uses.since()
                out = model.up(mine)
                assert uses.since() == ["barrier", *["copy"] * (world.ranks - 1), "barrier"]
                assert torch.equal(out, right) and out.is_contiguous()
        columns = inputs(HIDDEN, columns=8 * world.ranks).T  # whose rows do not lie one by one
        assert torch.equal(
            model.up(columns.chunk(world.ranks)[world.number][None, None])[0, 0], mlp_part(world, columns)
        )


def mlp_part(world: Rank, x: Tensor) -> Tensor:
    return part(mlp().up(x), -1, world.number, world.ranks)


def overlapped_sums_are_those_of_collectives(world: Rank) -> None:
    """Of two ranks to the bit."""
    hidden = inputs(1, 8 * world.ranks, columns=WIDE)
    mine = part(hidden, -1, world.number, world.ranks)
    right = mlp().down(hidden)
    with reached(world) as uses:
        for place in (Shard(1), Replicate()):
            plain = divided(world, mlp(), place, overlap=False).down(mine)
            model = divided(world, mlp(), place, overlap=True)
            uses.since()
            out = model.down(mine)
            copies = ["copy"] * (world.ranks - 1)
            assert uses.since() == (
                ["barrier", *copies, "barrier"] if place == Shard(1) else ["sum", "barrier", "barrier"]
            )
            expected = part(right, 1, world.number, world.ranks) if place == Shard(1) else right
            assert out.shape == expected.shape and relative_error(out, expected) < SENT
            assert torch.equal(out, plain) or world.ranks > 2
            assert torch.equal(out, model.down(mine))
            codes = fp8gemm.quantize_activation(mine[0])
            flat = divided(world, mlp(), Shard(0) if place == Shard(1) else place, overlap=True).down
            assert torch.equal(flat.forward_quantized(*codes), out[0])
            assert divided(world, mlp(), place, overlap=True).down(mine[:, :0]).shape == (1, 0, HIDDEN)


def many_rows_are_added_up_by_parts(world: Rank) -> None:
    """Of any dtype, and all ranks get the same bits; rows that ranks do not divide are summed as few are."""
    before_after = ["barrier", *["copy"] * (world.ranks - 1), "barrier"]
    with reached(world) as uses, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BY_PARTS_BYTES", 1)
        plain = divided(world, mlp(), Replicate(), overlap=False).down
        model = divided(world, mlp(), Replicate(), overlap=True).down
        for dtype in (torch.bfloat16, torch.float16):
            for turn in range(4):
                x = inputs(1, 8 * world.ranks, columns=WIDE).to(dtype) * (turn + 1)
                mine = part(x, -1, world.number, world.ranks)
                uses.since()
                out = model(mine)
                assert uses.since() == before_after * 2
                of_all = [torch.empty_like(out) for _ in range(world.ranks)]
                dist.all_gather(of_all, out, group=world.mesh().get_group())
                assert all(torch.equal(each, out) for each in of_all)
                assert torch.equal(out, plain(mine)) or world.ranks > 2
                assert relative_error(out, mlp().down(x)) < SENT
        model(hidden(world, world.ranks + 1))
        assert uses.since() == ["sum", "barrier", "barrier"]
        patch.setattr(limits, "LIMITS", limited(by_parts_bytes=x.nbytes))
        unasked = divided(world, mlp(), Replicate(), overlap=None).down
        few, many = hidden(world, world.ranks), hidden(world, 32 * world.ranks)
        unasked(few)
        assert uses.since() == []
        assert torch.equal(unasked(many), model(many)) and uses.since() == before_after * 4


def calls_that_share_memory_do_not_disturb_each_other(world: Rank) -> None:
    """Of several layers, kinds and sizes, one after the other; what they gave stays as it was."""
    ranks, number = world.ranks, world.number
    generator = torch.Generator().manual_seed(5)
    with reached(world) as uses:
        sequence = [divided(world, mlp(bias=bias), TOKENS, overlap=True) for bias in (True, False)]
        whole = divided(world, mlp(), Replicate(), overlap=True)
        plain = divided(world, mlp(), TOKENS, overlap=False), divided(world, mlp(bias=False), TOKENS, overlap=False)
        with torch.inference_mode():  # which makes the memory, and not for itself alone
            sequence[0](inputs(4))
        kept: list[tuple[Tensor, Tensor]] = []
        for turn in range(12):
            rows = (4, 8, 4, 12)[turn % 4]
            x = torch.randn(rows * ranks, HIDDEN, generator=generator).bfloat16()
            mine = part(x, 0, number, ranks)
            for model, right in zip(sequence, plain, strict=True):
                with torch.no_grad():
                    kept.append((model(mine), right(mine)))
            kept.append((part(whole(x), 0, number, ranks), kept[-2][1]))
            # Each kind behind itself, where nothing else makes ranks wait for each other.
            for layer, each in (("up", mine), ("down", part(x.repeat(1, WIDE // HIDDEN), -1, number, ranks))):
                others = [factor * each for factor in (1.0, -2.0, 3.0)]
                outs = [getattr(sequence[1], layer)(other) for other in others]
                kept += zip(outs, [getattr(plain[1], layer)(other) for other in others], strict=True)
        for out, right in kept:
            assert relative_error(out, right) < SENT
            assert torch.equal(out, right) or ranks > 2
        assert uses.made == [symmetric.LEAST_BYTES]
        symmetric.memory_of(world.mesh().get_group(), torch.device("cpu"), symmetric.LEAST_BYTES + 1)
        assert uses.made == [symmetric.LEAST_BYTES, 2 * symmetric.LEAST_BYTES]


def limited(**changes: int) -> limits.Limits:
    """Sums of few rows are overlapped, but for changes."""
    never = 1 << 62
    return replace(limits.Limits(never, never, never, never, never, 2 << 20, 0, 0), **changes)


def a_rank_that_fails_stays_in_step_with_others(world: Rank) -> None:
    """While rows are gathered, of which others have its own; and copies end before their memory is given back."""
    rows, group = 4, world.mesh().get_group()
    x = inputs(rows * world.ranks)
    mine = part(x, 0, world.number, world.ranks)
    of_all = fp8gemm.quantize_activation(x)
    right = (of_all[0].float()[:, :3] * of_all[1][:, :1]).to(x.dtype)
    with reached(world) as uses:
        memory = symmetric.memory_of(group, torch.device("cpu"), quantized_bytes(rows, HIDDEN))
        assert isinstance(memory, symmetric.Memory)
        for fails_at in range(world.ranks):
            calls = iter(range(world.ranks))

            def multiply(codes: Tensor, scales: Tensor, out: Tensor) -> None:
                if world.number == 0 and next(calls) == fails_at:  # noqa: B023  # called at once
                    raise ValueError("of one rank alone")
                out.copy_(codes.float()[:, :3] * scales[:, :1])

            uses.since()
            if world.number == 0:
                with pytest.raises(ValueError, match="of one rank alone"):
                    chunks.product_of_gathered(memory, mine, 3, multiply)
            else:
                out = chunks.product_of_gathered(memory, mine, 3, multiply)
                assert torch.equal(out, right)
            assert uses.since().count("barrier") == 2
        assert torch.equal(divided(world, mlp(), TOKENS, overlap=True).up(mine), mlp_part(world, x))


def what_cannot_be_overlapped_is_refused(world: Rank) -> None:
    for style in (ColwiseParallel, RowwiseParallel):
        layer = Fp8Linear(WIDE, WIDE)
        before = dict(layer.named_parameters())
        with pytest.raises(InputError, match="overlap: expected None or False, because its ranks are on cpu.*got True"):
            parallelize_module(layer, world.mesh(), style(overlap=True))
        assert type(layer) is Fp8Linear and dict(layer.named_parameters()) == before
        with pytest.raises(InputError, match="overlap: expected True, False or None, got 1"):
            style(overlap=1)
    with reached(world) as uses:
        batches = divided(world, mlp(), Shard(1), overlap=True)
        whole = divided(world, mlp(), Replicate(), overlap=True)
        for call, why in (
            (lambda: batches.up(inputs(2, 4)), "x, of shape .* is sharded along dimension 1, behind others than 1"),
            (lambda: batches.down(hidden(world, 2, world.ranks)), "the output, of shape .* along dimension 1, behind"),
            (lambda: batches.down(hidden(world, 1, world.ranks + 1)), "ranks do not divide .* rows"),
            (lambda: whole.down(hidden(world, 4).half()), "sums bfloat16 and float32, not torch.float16"),
        ):
            with pytest.raises(InputError, match=f"overlap: .*{why}"):
                call()
        # What is wrong with an input is said as ever, before anything is sent.
        for model in (batches, whole):
            for layer, x in ((model.up, inputs(1, 4, columns=HIDDEN - 1)), (model.down, inputs(1, 4, columns=3))):
                with pytest.raises(InputError, match="x: expected"):
                    layer(x)
        with pytest.raises(InputError, match="scales_a: expected"):
            whole.down.forward_quantized(hidden(world, 4).to(torch.float8_e4m3fn), torch.ones(4, 9))
        assert uses.since() == []


def hidden(world: Rank, *leading: int) -> Tensor:
    return inputs(*leading, columns=WIDE // world.ranks)


def a_rank_by_itself_sends_nothing(world: Rank) -> None:
    mesh = world.mesh(world.ranks, 1, names=("others", "alone"))["alone"]
    model = mlp()
    parallelize_module(model, mesh, {"up": ColwiseParallel(overlap=True), "down": RowwiseParallel(overlap=True)})
    x = inputs(4)
    assert torch.equal(model(x), mlp()(x))
    assert isinstance(model, Mlp) and dist.is_initialized()


CHECKS: tuple[Check, ...] = (
    overlapped_columns_have_the_same_bits,
    overlapped_sums_are_those_of_collectives,
    many_rows_are_added_up_by_parts,
    calls_that_share_memory_do_not_disturb_each_other,
    a_rank_that_fails_stays_in_step_with_others,
    what_cannot_be_overlapped_is_refused,
    a_rank_by_itself_sends_nothing,
)
