"""Layers that are trained under FSDP2: gradients are those of one process that sees what all ranks see."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fp8gemm.nn import Fp8Linear, Fp8TrainingLinear, convert
from tests.distributed.models import HIDDEN, WIDE, inputs, part
from tests.distributed.world import Check, Rank

ROWS = 40
"""Of each rank."""


def trained() -> nn.Sequential:
    """Master weights in float32, the same on each rank."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.ReLU(), nn.Linear(WIDE, HIDDEN, bias=False))
    assert len(convert(model, trainable=True).converted) == 2
    return model


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def a_step_under_fsdp_is_that_of_one_process(world: Rank) -> None:
    """Weights gathered in bfloat16, gradients summed in float32; each rank has rows of its own."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    x = inputs(world.ranks, 4, ROWS // 4)
    model = trained()
    for each in (*(layer for layer in model if isinstance(layer, nn.Linear)), model):
        fully_shard(each, mesh=world.mesh(), mp_policy=policy)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss_of(model, part(x, 0, world.number, world.ranks)).backward()
    assert isinstance(model[0].weight, DTensor) and model[0].weight.dtype == torch.float32

    masters, sums = trained(), {}
    for rank in range(world.ranks):
        alone = trained().to(torch.bfloat16)
        loss_of(alone, part(x, 0, rank, world.ranks)).backward()
        for name, parameter in alone.named_parameters():
            sums[name] = sums.get(name, 0) + parameter.grad.float() / world.ranks
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32
        assert torch.allclose(whole(parameter.grad), sums[name], rtol=1e-5, atol=1e-8), name

    for name, parameter in masters.named_parameters():
        parameter.grad = sums[name]
    torch.optim.SGD(masters.parameters(), lr=1e-2).step()
    optimiser.step()
    for (name, one), (_, other) in zip(model.named_parameters(), masters.named_parameters(), strict=True):
        assert torch.allclose(whole(one.detach()), other.detach(), rtol=1e-6, atol=1e-8), name


def a_checkpoint_of_training_is_served(world: Rank) -> None:
    model = trained()
    fully_shard(model, mesh=world.mesh())
    loss_of(model, inputs(ROWS)).backward()
    path = str(world.kept / f"trained by {world.ranks}")
    dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    plain = nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.ReLU(), nn.Linear(WIDE, HIDDEN, bias=False))
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=path)
    plain.load_state_dict(state["model"])
    convert(plain)
    x = inputs(ROWS)
    with torch.no_grad():
        assert isinstance(plain[0], Fp8Linear) and isinstance(model[0], Fp8TrainingLinear)
        assert torch.equal(plain(x), model(x))


CHECKS: tuple[Check, ...] = (a_step_under_fsdp_is_that_of_one_process, a_checkpoint_of_training_is_served)
