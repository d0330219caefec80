"""What scripts/parallel_speed.py measures, section by section."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from parallel_speed_limits import ONE_SHOT, parts_of_layers
from parallel_speed_mlps import ALL, MODELS, TINY, TOKENS, Mlp, Mlps, Sizes
from parallel_speed_timing import Call, Figures, Part, Ranks, bound, ratio, ready
from torch import Tensor
from torch.distributed.tensor.parallel import parallelize_module

import fp8gemm
from fp8gemm.nn import Fp8Experts, Fp8Linear
from fp8gemm.parallel import ColwiseParallel, ExpertParallel, RowwiseParallel, gather_quantized, symmetric
from fp8gemm.parallel.collectives import gathered, packed


def models(world: Ranks) -> tuple[Sizes, ...]:
    return TINY if world.tiny else MODELS


def made(make: Callable[..., Mlp], x: Tensor, *given: Any, **options: Any) -> Call:
    """A call of a model that is made for it, and gone behind it."""
    return bound(make(*given, **options), x)


def prefill(part: Part) -> None:
    for sizes in models(part.world):
        _prefill(part, sizes, 64 if part.world.tiny else 8192)


def _prefill(part: Part, sizes: Sizes, m: int) -> None:
    world = part.world
    mlps, x = Mlps(world, sizes), world.rows(m, sizes.hidden)
    mine = world.part(x)
    makes = {
        "one": partial(made, mlps.ours, x),
        "all_reduce": partial(made, mlps.ours, x, ALL, overlap=False),
        "overlapped_sum": partial(made, mlps.ours, x, ALL, overlap=True),
        "fp8_gather": partial(made, mlps.ours, mine, TOKENS, overlap=False),
        "overlapped": partial(made, mlps.ours, mine, TOKENS, overlap=True),
        "unasked": partial(made, mlps.ours, mine, TOKENS, overlap=None),
        "bf16_one": partial(made, mlps.bfloat16, x),
        "bf16_all_reduce": partial(made, mlps.bfloat16, x, ALL),
        "bf16_gather": partial(made, mlps.bfloat16, mine, TOKENS),
    }
    pairs = [("one", each) for each in ("all_reduce", "overlapped_sum", "fp8_gather", "overlapped")]
    pairs += [("bf16_one", "bf16_all_reduce"), ("bf16_all_reduce", "all_reduce"), ("bf16_gather", "overlapped")]
    pairs += [("all_reduce", "overlapped_sum"), ("fp8_gather", "overlapped"), ("fp8_gather", "unasked")]
    _in_both_regimes(part, f"{sizes.name} M={m}", makes, pairs)
    part.add(f"{sizes.name} M={m}, errors in %", _errors(world, mlps, x))


def _in_both_regimes(
    part: Part, name: str, makes: Mapping[str, Callable[[], Call]], pairs: Sequence[tuple[str, str]]
) -> None:
    for regime, time_ in (("bursts", part.world.burst_us), ("sustained", part.world.us)):
        found = part.world.figures(makes, time_, twice=not part.world.tiny)
        part.add(f"{name}, {regime}, us", found)
        speeds: Figures = {}
        for pair in pairs:
            speeds |= ratio(found, *pair)
        part.add(f"{name}, {regime}, times as fast", speeds)


def _errors(world: Ranks, mlps: Mlps, x: Tensor) -> Figures:
    """Of divided MLPs beside one that is not."""
    x = x[: max(world.ranks, len(x) // 8)]
    right = world.part(mlps.ours()(x)).float()

    def error(out: Tensor) -> float:
        return world.most(float((out.float() - right).norm() / right.norm()))

    calls: dict[str, Callable[[], Tensor]] = {
        "all_reduce": lambda: world.part(mlps.ours(ALL, overlap=False)(x)),
        "fp8_gather": lambda: mlps.ours(TOKENS, overlap=False)(world.part(x)),
        "overlapped": lambda: mlps.ours(TOKENS, overlap=True)(world.part(x)),
        "overlapped_sum": lambda: world.part(mlps.ours(ALL, overlap=True)(x)),
    }
    found: Figures = {}
    for name, call in calls.items():
        try:
            found[name] = 100 * error(call())
        except Exception as failed:
            found[name] = str(failed)[:200]
    return found


def decode(part: Part) -> None:
    for sizes in models(part.world):
        mlps = Mlps(part.world, sizes)
        kinds = {"one": mlps.ours(), "nccl": mlps.ours(ALL, overlap=False)}
        if not part.world.tiny:
            kinds["shared"] = mlps.ours(ALL, overlap=True)
        for m in (1, 8) if part.world.tiny else (1, 8, 16, 32, 64):
            _decode(part, f"{sizes.name} M={m}, graph", kinds, part.world.rows(m, sizes.hidden))


def _decode(part: Part, name: str, kinds: dict[str, Mlp], x: Tensor) -> None:
    world = part.world
    found = world.figures({kind: partial(bound, kinds[kind], x) for kind in ("one", "nccl")}, world.graph_us)
    for kernel, most in ONE_SHOT.items() if "shared" in kinds else ():
        with mock.patch.object(symmetric, "ONE_SHOT_BYTES", most):
            found |= world.figures({kernel: partial(bound, kinds["shared"], x)}, world.graph_us)
    speeds: Figures = {}
    for kind in ("nccl", *ONE_SHOT):
        speeds |= ratio(found, "one", kind)
    part.add(name, found | speeds)


def gathers(part: Part) -> None:
    """Rows of 8192, so many MB of bfloat16 a rank, as parts of graphs; and until all ranks have them quantised."""
    world, group = part.world, part.world.mesh.get_group()
    for mb in (1,) if world.tiny else (1, 4, 16, 32, 64, 128):
        x = world.rows((mb << 20) // (2 * 8192), 8192)
        rows = packed(*fp8gemm.quantize_activation(x))
        makes: dict[str, Call] = {
            "bf16": partial(gathered, x, 0, group),
            "bf16_then_quantised": partial(_quantised, x, group),
            "fp8": partial(gather_quantized, x, group, copies=False),
            "fp8_sent": partial(gathered, rows, 0, group),
        }
        if not world.tiny:
            makes["fp8_copied"] = partial(gather_quantized, x, group, copies=True)
        found = world.figures(ready(makes), world.graph_us)
        ratios: Figures = {}
        for kind in ("fp8", "fp8_sent", "fp8_copied"):
            ratios |= ratio(found, kind, "bf16")
        part.add(f"gather of {mb} MB a rank", found | ratios | ratio(found, "fp8", "bf16_then_quantised"))
        del makes["fp8_sent"]
        eager = world.figures(ready(makes), world.us)
        part.add(f"gather of {mb} MB a rank, eager", eager)


def _quantised(x: Tensor, group: dist.ProcessGroup) -> object:
    return fp8gemm.quantize_activation(gathered(x, 0, group))


def experts(part: Part) -> None:
    world = part.world
    count, hidden, wide, top, tokens = (16, 128, 128, 4, 32) if world.tiny else (256, 7168, 2048, 8, 4096)
    weights: list[Tensor] = []
    for n, k in ((2 * wide, hidden), (hidden, wide)):
        each = [fp8gemm.quantize_weight(world.rows(n, k) * k**-0.5) for _ in range(count)]
        for of_kind in zip(*each, strict=True):
            weights.append(torch.stack([one.view(torch.uint8) for one in of_kind]).view(of_kind[0].dtype))
        del each
    x = world.rows(world.ranks * tokens, hidden)
    scores = torch.rand(len(x), count, generator=world.generator, device=world.device)
    routed = x, *reversed(scores.topk(top, dim=-1))
    mine = [world.part(each) for each in routed]

    def divided(exchange: Any, *, beside: bool = False) -> Call:
        share = count // world.ranks
        here = slice(world.number * share, (world.number + 1) * share)
        block = Fp8Experts.from_quantized(*(each[here] for each in weights), num_experts=count, first_expert=here.start)
        parallelize_module(block, world.mesh, ExpertParallel(exchange=exchange, overlap=beside), src_data_rank=None)
        return lambda: block(*mine)

    def whole() -> Call:
        block = Fp8Experts.from_quantized(*weights)
        return lambda: block(*routed)

    makes = {"one": whole, "gather": lambda: divided("gather"), "all_to_all": lambda: divided("all_to_all")}
    if not world.tiny:
        makes["overlapped"] = lambda: divided("gather", beside=True)
    pairs = [("one", kind) for kind in [*makes][1:]]
    _in_both_regimes(part, f"{count} experts, {tokens} tokens a rank", makes, pairs)


def host(part: Part) -> None:
    """A call of one row and small layers, beside a layer of the same size that is not divided."""
    world, size = part.world, 512

    def layer(n: int, k: int, style: Any = None) -> Fp8Linear:
        made = Fp8Linear.from_quantized(*fp8gemm.quantize_weight(world.rows(n, k)))
        if style is not None:
            parallelize_module(made, world.mesh, style, src_data_rank=None)
        return made

    x, wide, whole = world.rows(1, size), size * world.ranks, layer(size, size)
    calls: dict[str, Call] = {
        "not_divided": bound(whole, x),
        "colwise": bound(layer(wide, size, ColwiseParallel()), x),
        "not_divided_and_all_reduce": lambda: dist.all_reduce(whole(x)),
        "rowwise": bound(layer(size, wide, RowwiseParallel(overlap=False)), x),
        "rowwise_unasked": bound(layer(size, wide, RowwiseParallel()), x),
    }
    if not world.tiny:
        calls["rowwise_overlapped"] = bound(layer(size, wide, RowwiseParallel(overlap=True)), x)
    times = world.host_us(calls)
    part.add("a call, of the host", {name: world.most(statistics.median(each)) for name, each in times.items()})
    over: Figures = {}
    for name, of in times.items():
        base = "not_divided" if name == "colwise" else "not_divided_and_all_reduce"
        if name not in (base, "not_divided"):
            more = [one - other for one, other in zip(of, times[base], strict=True)]
            over[f"{name}-{base}"] = world.most(statistics.median(more))
    part.add("a call, of the host, less", over)


SECTIONS: dict[str, Callable[[Part], None]] = {
    "prefill": prefill,
    "decode": decode,
    "gathers": gathers,
    "experts": experts,
    "host": host,
    "limits": parts_of_layers,  # the longest
}
