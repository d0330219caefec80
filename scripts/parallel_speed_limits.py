"""What sets the limits of ``overlap=None``: each way that a layer's rows and sums travel, by rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch.distributed as dist
from parallel_speed_mlps import ALL, MODELS, NARROW, TINY, TOKENS, Mlps
from parallel_speed_timing import Part, bound, ratio
from torch import Tensor

import fp8gemm
from fp8gemm.parallel import chunks, limits, symmetric

ONE_SHOT = {"one_shot": 1 << 40, "two_shot": 0}
"""What `symmetric.ONE_SHOT_BYTES` is changed to so that one of the kernels sums everything."""


def parts_of_layers(part: Part) -> None:
    """Each layer by itself, and sums of few rows by themselves."""
    world = part.world
    for sizes in TINY if world.tiny else (*MODELS, NARROW):
        mlps = Mlps(world, sizes)
        plain, summed = mlps.ours(TOKENS, overlap=False), mlps.ours(ALL, overlap=False)
        shared = None if world.tiny else mlps.ours(TOKENS, overlap=True)
        unasked = mlps.ours(TOKENS).gate_up
        shared_sum = None if world.tiny else mlps.ours(ALL, overlap=True).down
        for m in (64,) if world.tiny else (256, 512, 1024, 2048, 4096, 8192, 16384):
            mine = world.rows(m // world.ranks, sizes.hidden)
            makes = {"off": partial(bound, plain.gate_up, mine)}
            if shared is not None:
                makes["on"] = partial(bound, shared.gate_up, mine)
            found = world.figures(makes, world.us)
            if shared is not None:
                with mock.patch.object(limits, "LIMITS", replace(limits.LIMITS, copied_bytes=1, gathered_rows=1 << 62)):
                    found |= world.figures({"copied": partial(bound, unasked, mine)}, world.us)
            part.add(f"{sizes.name} gather M={m}", found | ratio(found, "off", "on") | ratio(found, "off", "copied"))
            codes = fp8gemm.quantize_silu_mul(world.rows(m, 2 * sizes.wide // world.ranks))
            _scatter(part, f"{sizes.name} scatter M={m}", plain.down, None if shared is None else shared.down, codes)
            _sum(part, f"{sizes.name} sum M={m}", summed.down, shared_sum, codes)
    for m in (4,) if world.tiny else (1, 8, 16, 32, 64, 128, 256, 512, 1024):
        _sums(part, f"all-reduce of ({m}, 8192)", world.rows(m, 8192))


def _scatter(part: Part, name: str, plain: Any, shared: Any, codes: tuple[Tensor, Tensor]) -> None:
    world = part.world
    found = world.figures({"off": partial(bound, plain.forward_quantized, *codes)}, world.us)
    for pieces in (1, 2) if shared is not None else ():
        with mock.patch.object(chunks, "PIECES", pieces):
            kind = "on" if pieces == 1 else f"on_{pieces}_pieces"
            found |= world.figures({kind: partial(bound, shared.forward_quantized, *codes)}, world.us)
    part.add(name, found | ratio(found, "off", "on"))


def _sum(part: Part, name: str, plain: Any, shared: Any, codes: tuple[Tensor, Tensor]) -> None:
    world = part.world
    found = world.figures({"off": partial(bound, plain.forward_quantized, *codes)}, world.us)
    for kind, least in (("whole", 1 << 62), ("by_parts", 1)) if shared is not None else ():
        with mock.patch.object(limits, "BY_PARTS_BYTES", least):
            found |= world.figures({kind: partial(bound, shared.forward_quantized, *codes)}, world.us)
    part.add(name, found | ratio(found, "off", "whole") | ratio(found, "off", "by_parts"))


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
