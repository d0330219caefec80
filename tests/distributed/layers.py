"""Layers that `parallelize_module` has divided: bits, what is sent, where inputs and outputs are, what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

import fp8gemm
from fp8gemm.ahead.models import problems_of_layer
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, gather_quantized
from fp8gemm.tuning.problem import Addend
from tests.calls import same_bits
from tests.distributed.models import HIDDEN, SENT, WIDE, inputs, mlp, part, sent
from tests.distributed.world import Check, Rank
from tests.experts import relative_error


def divided(world: Rank, model: nn.Module, up: Placement | None = None, down: Placement | None = None) -> nn.Module:
    plan = {"up": ColwiseParallel(input_layouts=up), "down": RowwiseParallel(output_layouts=down)}
    return parallelize_module(model, world.mesh(), plan)


def columns_have_the_bits_of_one_process(world: Rank) -> None:
    for bias in (True, False):
        whole, model = mlp(bias=bias), mlp(bias=bias)
        divided(world, model)
        x = inputs(24)
        right = part(whole.up(x), -1, world.number, world.ranks)
        assert torch.equal(model.up(x), right)
        codes = fp8gemm.quantize_activation(x)
        assert torch.equal(model.up.forward_quantized(*codes), right)
        assert model.up.weight.shape == (WIDE, HIDDEN) and model.up.weight.to_local().shape == (
            WIDE // world.ranks,
            HIDDEN,
        )
        assert model.up.weight_scale_inv.to_local().shape == (WIDE // 128 // world.ranks, HIDDEN // 128)
        assert f"out_features divided by {world.ranks}" in repr(model.up)
        # The plan is of what this rank has, and its weight is known to be static.
        weight, *_ = model.up.operands()
        assert model.up._plan.is_settled(weight) and not isinstance(weight, DTensor)


def sums_of_rows_are_as_good_as_their_parts(world: Rank) -> None:
    for bias in (True, False):
        whole, model = mlp(bias=bias), mlp(bias=bias)
        divided(world, model)
        for shape in ((24,), (2, 3), (0,), (2, 0)):
            x = inputs(*shape)
            out = model(x)
            assert out.shape == x.shape and out.dtype == x.dtype
            assert not x.numel() or relative_error(out, whole(x)) < SENT
        hidden = inputs(24, columns=WIDE)
        mine = part(hidden, -1, world.number, world.ranks)
        out = model.down.forward_quantized(*fp8gemm.quantize_activation(mine))
        assert relative_error(out, whole.down(hidden)) < SENT


def little_is_sent(world: Rank) -> None:
    x = inputs(32)
    model = mlp()
    divided(world, model)
    with sent() as found:
        model(x)
    assert found == [("allreduce", 32 * HIDDEN * 2)]
    for dim, shape in ((0, (32,)), (0, (8, 4)), (1, (4, 8))):
        x = inputs(*shape)
        sequence = mlp()
        divided(world, sequence, Shard(dim), Shard(dim))
        mine = part(x, dim, world.number, world.ranks)
        with sent() as found:
            out = sequence(mine)
        rows = x.numel() // HIDDEN
        in_fp8 = rows // world.ranks * (HIDDEN + 4 * HIDDEN // 128)
        assert found == [("allgather_base", in_fp8), ("reduce_scatter_base", rows * HIDDEN * 2)], found
        assert in_fp8 / mine.nbytes == 0.515625
        assert torch.equal(sequence.up(mine), part(mlp().up(x), -1, world.number, world.ranks))
        assert relative_error(out, part(mlp()(x), dim, world.number, world.ranks)) < SENT


def quantised_rows_are_gathered(world: Rank) -> None:
    for columns in (16, 144, 512):
        for shape, dims in (((8 * world.ranks,), (0, -2)), ((4, 4, 2 * world.ranks), (2, -2)), ((4, 4, 3), (0, 1))):
            x = inputs(*shape, columns=columns)
            right = fp8gemm.quantize_activation(x.reshape(-1, columns))
            for dim in dims:
                mine = part(x, dim, world.number, world.ranks)
                found = gather_quantized(mine, world.mesh().get_group(), dim=dim)
                for one, other in zip(found, right, strict=True):
                    assert one.shape[:-1] == x.shape[:-1]
                    assert same_bits(one.reshape(-1, one.shape[-1]), other)
    with pytest.raises(InputError, match=re.escape("dim: expected a dimension of x but its last, 0 to 0, got 1")):
        gather_quantized(inputs(8), world.mesh().get_group(), dim=1)
    with pytest.raises(InputError, match="x: expected shape"):
        gather_quantized(inputs(8)[0], world.mesh().get_group())


def any_placement_comes_and_goes(world: Rank) -> None:
    mesh, whole = world.mesh(), mlp()
    x = inputs(4, 8)
    hidden = inputs(4, 8, columns=WIDE)

    def as_placed(tensor: Tensor, place: Placement) -> Tensor:
        if isinstance(place, Partial):
            return tensor / world.ranks  # exact for a power of two
        return part(tensor, place.dim, world.number, world.ranks) if isinstance(place, Shard) else tensor

    places = (Replicate(), Shard(0), Shard(1), Shard(-1), Partial())
    for style, layer, given in ((ColwiseParallel, "up", x), (RowwiseParallel, "down", hidden)):
        right = getattr(whole, layer)(given)
        for comes in places:
            for goes in places:
                if isinstance(goes, Partial) and style is ColwiseParallel:
                    continue  # of no use, and no work of ours
                for as_dtensor in (False, True):
                    model = mlp()
                    options = {"input_layouts": comes, "output_layouts": goes, "use_local_output": not as_dtensor}
                    parallelize_module(model, mesh, {layer: style(**options)})
                    mine = as_placed(given, comes)
                    if as_dtensor:
                        mine = DTensor.from_local(mine, mesh, [comes], run_check=False)
                    out = getattr(model, layer)(mine)
                    assert isinstance(out, DTensor) == as_dtensor
                    if not as_dtensor:
                        out = DTensor.from_local(out, mesh, [goes], run_check=False)
                    assert relative_error(out.full_tensor(), right) < SENT, (style, comes, goes)


def parts_of_different_sizes(world: Rank) -> None:
    """Rows that ranks do not divide come as a DTensor alone, and go as torch divides them."""
    mesh, x = world.mesh(), inputs(world.ranks + 1)
    model = mlp()
    divided(world, model, Shard(0), Shard(0))
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False).redistribute(placements=[Shard(0)])
    out = model(whole)
    placed = DTensor.from_local(out, mesh, [Shard(0)], run_check=False, shape=x.shape, stride=x.stride())
    assert relative_error(placed.full_tensor(), mlp()(x)) < SENT
    hidden = inputs(world.ranks + 1, columns=WIDE)
    for style, layer, given in ((ColwiseParallel, "up", x), (RowwiseParallel, "down", hidden)):
        options = {"input_layouts": Replicate(), "output_layouts": Shard(0), "use_local_output": False}
        model = parallelize_module(mlp(), mesh, {layer: style(**options)})
        right, out = getattr(mlp(), layer)(given), getattr(model, layer)(given)
        assert out.shape == right.shape and relative_error(out.full_tensor(), right) < SENT


def what_does_not_fit_is_refused_unchanged(world: Rank) -> None:
    mesh, ranks = world.mesh(), world.ranks
    for style, name, sizes, works in (
        (ColwiseParallel(), "out_features", (HIDDEN, 128 * ranks + 64), 1),
        (ColwiseParallel(), "out_features", (HIDDEN, 128 * (ranks - 1)), ranks - 1),
        (RowwiseParallel(), "in_features", (128 * (ranks + 1), HIDDEN), 1),
        (RowwiseParallel(), "in_features", (272, HIDDEN), 1),
    ):
        layer = Fp8Linear(*sizes)
        before = dict(layer.named_parameters())
        plural = "s" * (works > 1)
        message = f"{name}: expected a multiple of 128 for each of {ranks} ranks.*on {works} rank{plural}$"
        with pytest.raises(InputError, match=message):
            parallelize_module(layer, mesh, style)
        assert type(layer) is Fp8Linear and dict(layer.named_parameters()) == before
    layer = parallelize_module(Fp8Linear(HIDDEN, HIDDEN), mesh, ColwiseParallel())
    with pytest.raises(InputError, match="not divided among ranks yet"):
        parallelize_module(layer, mesh, RowwiseParallel())
    with pytest.raises(InputError, match=re.escape("x: expected torch.bfloat16")):
        layer(inputs(3, columns=256))
    with pytest.raises(InputError, match="requires_grad"):
        layer(inputs(3).requires_grad_())
    flat = world.mesh(ranks, names=("other",))
    with pytest.raises(InputError, match="x: expected a DTensor on the layer's mesh"):
        layer(DTensor.from_local(inputs(3), flat, [Replicate()], run_check=False))


def warmups_are_of_what_a_rank_has(world: Rank) -> None:
    model = mlp()
    divided(world, model)
    with_bias = Addend.BFLOAT16 if world.number == 0 else Addend.NONE
    for layer, n, k, bias in (
        (model.up, WIDE // world.ranks, HIDDEN, Addend.BFLOAT16),
        (model.down, HIDDEN, WIDE // world.ranks, with_bias),
    ):
        assert {(each.n, each.k, each.bias) for each in problems_of_layer(layer, 64)} == {(n, k, bias)}


def what_is_wrong_with_an_input_is_said_before_anything_is_sent(world: Rank) -> None:
    """By each rank, so that none waits for another."""
    for style, layer, k in ((ColwiseParallel, "up", HIDDEN), (RowwiseParallel, "down", WIDE)):
        for place in (Replicate(), Shard(0), Shard(-1)):
            model = parallelize_module(mlp(), world.mesh(), {layer: style(input_layouts=place)})
            expected = k // world.ranks if place == Shard(-1) else k
            good = inputs(8, columns=expected)
            for x in (torch.tensor(1.0).bfloat16(), inputs(4, columns=expected - 1), good.double(), None):
                with sent() as found, pytest.raises(InputError, match=rf"x: expected .*({expected}|torch.Tensor)"):
                    getattr(model, layer)(x)
                assert found == []
            with sent() as found, pytest.raises(InputError, match="x: .*requires_grad"):
                getattr(model, layer)(good.requires_grad_())
            assert found == []
    for name in ("input_layouts", "output_layouts"):
        model = parallelize_module(mlp(), world.mesh(), {"up": ColwiseParallel(**{name: Shard(2)})})
        with sent() as found, pytest.raises(InputError, match=f"{name}: expected a dimension of x, which has 2, got"):
            model.up(inputs(8))
        assert found == []
    for options in ({"input_layouts": Partial("avg")}, {"output_layouts": Partial("max")}):
        with pytest.raises(InputError, match="layouts: expected Partial"):
            parallelize_module(mlp(), world.mesh(), {"down": RowwiseParallel(**options)})


def strides_do_not_matter(world: Rank) -> None:
    columns = inputs(HIDDEN, columns=8 * world.ranks).T
    right = mlp().up(columns)
    model = mlp()
    divided(world, model, Shard(0))
    mine = columns.chunk(world.ranks)[world.number]
    assert not mine.is_contiguous() and torch.equal(model.up(mine), part(right, -1, world.number, world.ranks))


def layers_with_a_forward_of_their_own_are_refused(world: Rank) -> None:
    class Doubled(Fp8Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Named(Fp8Linear):
        def named(self) -> str:
            return "mine"

    with pytest.raises(InputError, match="module: expected the forward of Fp8Linear, got a Doubled"):
        parallelize_module(Doubled(HIDDEN, HIDDEN), world.mesh(), ColwiseParallel())
    layer = parallelize_module(Named(HIDDEN, HIDDEN), world.mesh(), ColwiseParallel())
    assert layer.named() == "mine" and "divided by" in repr(layer) and isinstance(layer, Named)


def other_layers_are_torchs(world: Rank) -> None:
    mesh = world.mesh()
    torch.manual_seed(3)
    model = nn.ModuleDict({"table": nn.Embedding(16, 64), "linear": nn.Linear(64, 64), "norm": nn.LayerNorm(64)})
    ids = torch.arange(8)
    right = model["linear"](model["table"](ids))
    plan = {
        "table": RowwiseParallel(input_layouts=Replicate()),
        "linear": ColwiseParallel(output_layouts=Replicate()),
        "norm": SequenceParallel(),
    }
    parallelize_module(model, mesh, plan)
    assert torch.allclose(model["linear"](model["table"](ids)), right, atol=1e-5)


def compiled_layers_have_the_same_bits(world: Rank) -> None:
    x = inputs(4 * world.ranks)
    for place in (Replicate(), Shard(0)):
        model = mlp()
        divided(world, model, place, place)
        mine = part(x, 0, world.number, world.ranks) if isinstance(place, Shard) else x
        with torch.no_grad():
            right = model(mine)
            torch._dynamo.reset()
            assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(mine), right)


CHECKS: tuple[Check, ...] = (
    columns_have_the_bits_of_one_process,
    sums_of_rows_are_as_good_as_their_parts,
    little_is_sent,
    quantised_rows_are_gathered,
    any_placement_comes_and_goes,
    parts_of_different_sizes,
    what_is_wrong_with_an_input_is_said_before_anything_is_sent,
    strides_do_not_matter,
    layers_with_a_forward_of_their_own_are_refused,
    what_does_not_fit_is_refused_unchanged,
    warmups_are_of_what_a_rank_has,
    other_layers_are_torchs,
    compiled_layers_have_the_same_bits,
)
