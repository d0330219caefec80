"""Divided layers that move, that FSDP2 divides further, and that other numbers of ranks load than have saved them."""

from __future__ import annotations

import copy
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from fp8gemm.ahead.models import problems_of_layer
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel
from tests.calls import same_bits
from tests.distributed.models import HIDDEN, SENT, WIDE, Mlp, fsdp_of_several_dtypes, inputs, mlp
from tests.distributed.world import Check, Rank
from tests.experts import relative_error
from tests.folding import weight


def divided(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def same_values(model: Mlp, right: Mlp) -> None:
    """Each rank's parts are those of ``right``, to the bit."""
    for (name, one), (_, other) in zip(model.named_parameters(), right.named_parameters(), strict=True):
        found, whole = (each.detach() for each in (one, other))
        if isinstance(found, DTensor):
            wanted = [whole]
            for size, rank, place in zip(
                found.device_mesh.shape, found.device_mesh.get_coordinate(), found.placements, strict=True
            ):
                wanted = [each.chunk(size, place.dim)[rank] if place.is_shard() else each for each in wanted]
            found, whole = found.to_local(), wanted[0]
        assert same_bits(found, whole), name


def layers_move_and_keep_their_values(world: Rank) -> None:
    model, x = mlp(), inputs(4)
    divided(model, world.mesh())
    right = model(x)
    for _ in range(2):
        model.half().to(torch.bfloat16)
    same_values(model, mlp())
    assert torch.equal(model(x), right)
    model.load_state_dict(model.state_dict())
    assert torch.equal(model(x), right)
    model.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(model(x), right)


def whole_tensors_are_loaded_by_each_rank_its_own(world: Rank) -> None:
    right, x = mlp(), inputs(4)
    for assign in (False, True):
        with torch.device("meta"):
            model = Mlp()
        divided(model, world.mesh())
        if not assign:
            model.to_empty(device="cpu")
        model.load_state_dict(right.state_dict(), assign=assign)
        same_values(model, mlp())
        assert relative_error(model(x), right(x)) < SENT
        assert model.up.weight.to_local().untyped_storage().nbytes() == model.up.weight.to_local().nbytes


def scales_of_32x32_blocks_are_folded_before_they_are_divided(world: Rank) -> None:
    right, state = mlp(), {}
    for number, (name, layer) in enumerate(right.named_children()):
        state[f"{name}.weight"], state[f"{name}.weight_scale_inv"] = weight(*layer.weight.shape, 3, seed=number)
        if layer.bias is not None:
            state[f"{name}.bias"] = layer.bias.detach().clone()
    right.load_state_dict(state)
    model = divided(mlp(), world.mesh())
    model.load_state_dict(state)
    assert isinstance(model, Mlp)
    same_values(model, right)
    parts = {name: DTensor.from_local(each, world.mesh(), run_check=False) for name, each in state.items()}
    with pytest.raises(InputError, match=r"weight: expected a tensor with all its values here, .* got DTensor"):
        divided(mlp(), world.mesh()).load_state_dict(parts)


def nothing_of_the_whole_is_kept_or_written(world: Rank) -> None:
    """Neither the weight nor its plans; and the values of another rank go to this one's layer alone."""
    whole = mlp()
    bias = torch.full((HIDDEN,), float(world.number), dtype=torch.bfloat16)
    codes = whole.down.weight.detach(), whole.down.weight_scale_inv.detach()
    layer = Fp8Linear.from_quantized(*codes, bias)
    plan, weight = layer._plan, weakref.ref(layer.weight)
    parallelize_module(layer, world.mesh(), RowwiseParallel())
    assert layer._plan is not plan and weight() is None
    assert torch.equal(bias, torch.full_like(bias, world.number)) and not layer.bias.to_local().any()


def copies_are_layers_of_their_own(world: Rank) -> None:
    model, x = mlp(), inputs(4)
    divided(model, world.mesh())
    right, other = model(x), copy.deepcopy(model)
    same_values(other, mlp())
    for parameter in model.parameters():
        parameter._local_tensor.view(torch.uint8).zero_()
    assert torch.equal(other(x), right) and not model(x).any()


def whole_layers_are_sharded_by_fsdp(world: Rank) -> None:
    right, model, x = mlp(), mlp(), inputs(4)
    for each in (model.up, model.down, model):
        fully_shard(each, mesh=world.mesh())
    settled = []
    model.up.register_forward_hook(lambda up, *_: settled.append(up._plan.is_settled(up.weight)))
    for _ in range(2):
        with fsdp_of_several_dtypes():
            assert torch.equal(model(x), right(x))
    assert settled == [False, False]  # its memory is written by each gather
    model = mlp()
    fully_shard(model.up, mesh=world.mesh(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(InputError, match="param_dtype"):
        model.up(x)


def divided_layers_are_sharded_by_fsdp(world: Rank) -> None:
    right, model, x = mlp(), mlp(), inputs(4)
    mesh = world.mesh(2, world.ranks // 2, names=("dp", "tp"))
    divided(model, mesh["tp"])
    for each in (model.up, model.down, model):
        fully_shard(each, mesh=mesh["dp"])
    for _ in range(2):
        with fsdp_of_several_dtypes():
            assert relative_error(model(x), right(x)) < SENT
    assert model.up.weight.device_mesh.ndim == 2
    for layer, n, k in ((model.up, WIDE // mesh["tp"].size(), HIDDEN), (model.down, HIDDEN, WIDE // mesh["tp"].size())):
        assert {(each.n, each.k, each.static_weights) for each in problems_of_layer(layer, 64)} == {(n, k, False)}


def _saved(world: Rank, mesh: DeviceMesh, name: str) -> None:
    model = mlp()
    divided(model, mesh)
    dcp.save({"model": model.state_dict()}, checkpoint_id=str(world.kept / name))


def load(path: Path, model: Mlp) -> None:
    """Into what ``model`` has, wherever its parts are."""
    state: dict[str, Any] = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=str(path))
    model.load_state_dict(state["model"])


def saved_by_two(world: Rank) -> None:
    _saved(world, world.mesh(), "of two")


def loaded_by_four(world: Rank) -> None:
    with torch.device("meta"):
        model = Mlp()
    divided(model, world.mesh())
    model.to_empty(device="cpu")
    load(world.kept / "of two", model)
    same_values(model, mlp())
    assert relative_error(model(inputs(4)), mlp()(inputs(4))) < SENT
    dcp.save({"model": model.state_dict()}, checkpoint_id=str(world.kept / "of four"))


def a_rank_that_dies_is_an_error(world: Rank) -> None:
    """Of the others, and soon. By itself in its world, which it ends."""
    model = mlp()
    divided(model, world.mesh())
    if world.number == 1:
        (world.kept / "died").touch()
        os._exit(3)
    with pytest.raises(RuntimeError, match="(?i)connection|peer|timed out"):
        model(inputs(4))
    (world.kept / "noticed").touch()
    os._exit(0)  # a group of which a rank is gone would not be left


CHECKS: tuple[Check, ...] = (
    layers_move_and_keep_their_values,
    whole_tensors_are_loaded_by_each_rank_its_own,
    scales_of_32x32_blocks_are_folded_before_they_are_divided,
    nothing_of_the_whole_is_kept_or_written,
    copies_are_layers_of_their_own,
    whole_layers_are_sharded_by_fsdp,
)
OF_TWO: tuple[Check, ...] = (saved_by_two,)
OF_FOUR: tuple[Check, ...] = (divided_layers_are_sharded_by_fsdp, loaded_by_four)
