"""What sets the limits of ``overlap=None``: each way that a layer's rows and sums travel, by rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch.distributed as dist
from parallel_speed_mlps import ALL, MODELS, NARROW, TINY, TOKENS, Mlp, Mlps
from parallel_speed_timing import Call, Part, bound, ratio, ready
from torch import Tensor

import fp8gemm
from fp8gemm.parallel import symmetric

ONE_SHOT = {"one_shot": 1 << 40, "two_shot": 0}
"""What `symmetric.ONE_SHOT_BYTES` is changed to so that one of the kernels sums everything."""


def parts_of_layers(part: Part) -> None:
    """Each layer by itself, and sums of few rows by themselves."""
    world = part.world
    kinds: dict[str, bool | None] = {"off": False, "unasked": None} | ({} if world.tiny else {"on": True})
    for sizes in TINY if world.tiny else (*MODELS, NARROW):
        mlps = Mlps(world, sizes)
        of_tokens = {kind: mlps.ours(TOKENS, overlap=overlap) for kind, overlap in kinds.items()}
        of_all = {kind: mlps.ours(ALL, overlap=overlap) for kind, overlap in kinds.items()}
        for m in (64,) if world.tiny else (512, 2048, 4096, 8192, 16384):
            mine = world.rows(m // world.ranks, sizes.hidden)
            codes = fp8gemm.quantize_silu_mul(world.rows(m, 2 * sizes.wide // world.ranks))
            ways: dict[str, dict[str, Call]] = {
                "gather": {kind: bound(model.gate_up, mine) for kind, model in of_tokens.items()},
                "scatter": {kind: bound(_down(model), *codes) for kind, model in of_tokens.items()},
                "sum": {kind: bound(_down(model), *codes) for kind, model in of_all.items()},
            }
            for way, calls in ways.items():
                found = world.figures(ready(calls), world.us)
                ratios = ratio(found, "off", "unasked") | ratio(found, "off", "on")
                part.add(f"{sizes.name} {way} M={m}", found | ratios)
    for m in (4,) if world.tiny else (1, 8, 16, 32, 64, 128, 256, 512, 1024):
        _sums(part, f"all-reduce of ({m}, 8192)", world.rows(m, 8192))


def _down(model: Mlp) -> Callable[..., Tensor]:
    layer: Any = model.down
    product: Callable[..., Tensor] = layer.forward_quantized
    return product


def _sums(part: Part, name: str, x: Tensor) -> None:
    """As parts of graphs. What is summed in place grows up to Inf, which takes as long."""
    world, group = part.world, part.world.mesh.get_group()
    found = world.figures({"nccl": partial(bound, dist.all_reduce, x.clone())}, world.graph_us)
    memory = symmetric.memory_of(group, world.device, x.nbytes)
    if isinstance(memory, symmetric.Memory):
        mine = memory.at(world.number, tuple(x.shape), x.dtype)
        mine.copy_(x)
        for kernel, most in ONE_SHOT.items():
            with mock.patch.object(symmetric, "ONE_SHOT_BYTES", most):
                found |= world.figures({kernel: partial(bound, memory.summed, mine)}, world.graph_us)
    speeds = [ratio(found, "nccl", kernel) for kernel in ONE_SHOT]
    part.add(name, found | speeds[0] | speeds[1])
