"""What each of two ranks on GPUs checks, one after the other: overlapped layers beside those that are not.

``python -m tests.gpu.parallel_ranks RANK RANKS DIRECTORY SEED`` is one of them; tests/gpu/test_parallel.py starts them.
All layers are batch-invariant, so that chunks of rows have the bits of all rows.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel, gather_quantized, limits, symmetric
from tests.calls import same_bits
from tests.distributed.world import held
from tests.gpu import parallel_ranks_experts
from tests.gpu.parallel_world import REPLAYS, Rank, same_sums, uses

HIDDEN, WIDE = 2048, 4096
TOKENS = Shard(0)


class Mlp(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        options: dict[str, Any] = {"bias": bias, "device": "cuda", "dtype": torch.bfloat16}
        self.up, self.down = (
            Fp8Linear.from_linear(nn.Linear(*sizes, **options), batch_invariant=True)
            for sizes in ((HIDDEN, WIDE), (WIDE, HIDDEN))
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def divided(rank: Rank, place: Placement, *, overlap: bool | None, bias: bool = True) -> Any:
    plan = {
        "up": ColwiseParallel(input_layouts=place, overlap=overlap),
        "down": RowwiseParallel(output_layouts=place, overlap=overlap),
    }
    return parallelize_module(Mlp(bias=bias), rank.mesh, plan)


def columns_have_the_bits_of_a_gather(rank: Rank) -> None:
    for bias in (True, False):
        plain, model = (divided(rank, TOKENS, overlap=each, bias=bias).up for each in (False, True))
        for m in (1, 5, 128, 333, 1024):
            for turn in range(5):
                mine = rank.part(rank.rows(m * rank.ranks, HIDDEN))
                rank.late()
                with uses() as found:
                    out = model(mine)
                assert found == ["barrier", *["copied"] * (rank.ranks - 1), "barrier"]
                assert torch.equal(out, plain(mine)), (m, turn)


def copied_rows_have_the_bits_of_a_gather(rank: Rank) -> None:
    """Behind each other and replayed."""
    group, kept = rank.mesh.get_group(), []
    for turn in range(40):
        x = rank.rows((1, 5, 128, 333, 2048)[turn % 5], HIDDEN) * (rank.number + 1)
        rank.late()
        kept.append((gather_quantized(x, group, copies=True), x))
    graph, x = torch.cuda.CUDAGraph(), rank.rows(256, HIDDEN)
    gather_quantized(x, group, copies=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = gather_quantized(x, group, copies=True)
    for _ in range(REPLAYS // 4):
        x.copy_(rank.rows(*x.shape) * (rank.number + 1))
        rank.late()
        graph.replay()
        kept.append(((out[0].clone(), out[1].clone()), x.clone()))
    for (codes, scales), x in kept:
        right = gather_quantized(x, group, copies=False)
        assert same_bits(codes, right[0]) and same_bits(scales, right[1]), len(x)


def sums_have_the_bits_of_a_reduce_scatter(rank: Rank) -> None:
    """Of two ranks; of more they are added in float32."""
    plain, model = (divided(rank, TOKENS, overlap=each).down for each in (False, True))
    for m in (1, 5, 128, 333, 1024):
        for turn in range(3):
            mine = rank.part(rank.rows(m * rank.ranks, WIDE), -1)
            rank.late()
            right, out = plain(mine), model(mine)
            assert same_sums(rank, out, right), (turn, m)
            assert torch.equal(out, model(mine)), (turn, m)
            codes = fp8gemm.quantize_activation(mine)
            assert same_sums(rank, model.forward_quantized(*codes), right), (turn, m)


def sums_of_few_rows_are_those_of_an_all_reduce(rank: Rank) -> None:
    """By either kernel; what they gave stays as it was."""
    plain, model = (divided(rank, Replicate(), overlap=each) for each in (False, True))
    with pytest.MonkeyPatch.context() as patch:
        for one_shot in (0, 1 << 30):
            patch.setattr(symmetric, "ONE_SHOT_BYTES", one_shot)
            kept = []
            for turn in range(50):
                x = rank.rows((1, 8, 16, 64, 256)[turn % 5], HIDDEN)
                rank.late()
                kept.append((model(x), x))
            for out, x in kept:
                assert same_sums(rank, out, plain(x)), (one_shot, len(x))


def sums_by_parts_are_those_of_an_all_reduce(rank: Rank) -> None:
    """Behind each other and replayed; all ranks have the same bits."""
    plain, model = (divided(rank, Replicate(), overlap=each) for each in (False, True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BY_PARTS_BYTES", 1)
        kept = []
        for turn in range(50):
            x = rank.rows((1, 8, 33, 128, 1024)[turn % 5] * rank.ranks, HIDDEN)
            rank.late()
            with uses() as found:
                kept.append((model(x), x))
            assert found.count("copied") == 2 * (rank.ranks - 1) and found.count("barrier") == 4
        graph, x = torch.cuda.CUDAGraph(), rank.rows(256 * rank.ranks, HIDDEN)
        model(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = model(x)
        for _ in range(REPLAYS // 4):
            x.copy_(rank.rows(*x.shape))
            rank.late()
            graph.replay()
            kept.append((out.clone(), x.clone()))
    for out, x in kept:
        assert same_sums(rank, out, plain(x)), len(x)
        of_all = [torch.empty_like(out) for _ in range(rank.ranks)]
        dist.all_gather(of_all, out)
        assert all(torch.equal(each, out) for each in of_all), len(x)


def layers_share_memory(rank: Rank) -> None:
    """Two in a row, and kinds by turns; results are looked at when all calls were made."""
    models = [divided(rank, TOKENS, overlap=True, bias=bias) for bias in (True, False)]
    plains = [divided(rank, TOKENS, overlap=False, bias=bias) for bias in (True, False)]
    few = divided(rank, Replicate(), overlap=True)
    kept = []
    for turn in range(60):
        mine = rank.part(rank.rows((256, 64, 512)[turn % 3] * rank.ranks, HIDDEN))
        rank.late()
        first = models[0](mine)
        kept.append((mine, first, models[1](first)))
        few(first[:8])
        if turn % 4 == 0:  # each kind behind itself
            kept.append((mine, models[0].down(models[0].up(mine).relu()), models[1](first)))
            models[0].up(mine), models[1].up(mine)
    for mine, first, second in kept:
        right = plains[0](mine)
        assert same_sums(rank, first, right) and (rank.ranks > 2 or torch.equal(second, plains[1](right)))


def graphs_are_replayed_with_other_inputs(rank: Rank) -> None:
    """Decode: two layers of one size in a row; prefill: gather, product, scatter."""
    for place, m in ((Replicate(), 8), (TOKENS, 256)):
        models = [divided(rank, place, overlap=True, bias=bias) for bias in (True, False)]
        plains = [divided(rank, place, overlap=False, bias=bias) for bias in (True, False)]
        x = rank.rows(m, HIDDEN)
        models[1](models[0](x))  # makes workspaces and kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = models[0](x)
            second = models[1](first)
        kept = []
        for turn in range(REPLAYS):
            new = rank.rows(m * rank.ranks, HIDDEN)
            x.copy_(new[:m] if place == Replicate() else rank.part(new))
            rank.late()
            graph.replay()
            if turn % 10 == 0:
                models[0](x)  # calls between replays
            kept.append((x.clone(), first.clone(), second.clone()))
        for x_then, first_then, second_then in kept:
            right = plains[0](x_then)
            assert same_sums(rank, first_then, right)
            assert rank.ranks > 2 or torch.equal(second_then, plains[1](right))


def a_graph_makes_no_workspace(rank: Rank) -> None:
    """Of a size that no call had: plain collectives take its place, or an error says so."""
    rows = (symmetric.LEAST_BYTES << 4) // (2 * HIDDEN)
    never = 1 << 62
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BY_PARTS_BYTES", never)
        patch.setattr(limits, "LIMITS", limits.Limits(never, never, never, never, never, 1 << 40, 0, 0))
        plain, model, asked = (divided(rank, Replicate(), overlap=each) for each in (False, None, True))
        x = rank.rows(rows, HIDDEN)
        right = plain(x)
        model.up(x), plain.down(plain.up(x))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with uses() as found, torch.cuda.graph(graph):
            out = model(x)
            with pytest.raises(InputError, match="overlap: .*before a CUDA graph"):
                asked(x)
        graph.replay()
        assert found == [] and same_sums(rank, out, right)
        with uses() as found:
            assert same_sums(rank, asked(x), right) and found == ["summed"]


def calls_on_other_streams_wait_for_each_other(rank: Rank) -> None:
    plain, model = (divided(rank, TOKENS, overlap=each) for each in (False, True))
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [rank.part(rank.rows(256 * rank.ranks, HIDDEN)) for _ in range(20)]
    torch.cuda.synchronize()
    outs = []
    for turn, mine in enumerate(inputs):
        with torch.cuda.stream(streams[turn % 2]):
            rank.late()
            outs.append(model(mine))
    torch.cuda.synchronize()
    for mine, out in zip(inputs, outs, strict=True):
        assert same_sums(rank, out, plain(mine))


CHECKS: tuple[Callable[[Rank], None], ...] = (
    columns_have_the_bits_of_a_gather,
    copied_rows_have_the_bits_of_a_gather,
    sums_have_the_bits_of_a_reduce_scatter,
    sums_of_few_rows_are_those_of_an_all_reduce,
    sums_by_parts_are_those_of_an_all_reduce,
    parallel_ranks_experts.experts_have_the_sums_of_a_reduce_scatter,
    layers_share_memory,
    graphs_are_replayed_with_other_inputs,
    a_graph_makes_no_workspace,
    calls_on_other_streams_wait_for_each_other,
)


def main(number: int, ranks: int, directory: Path, seed: int) -> None:
    """Run all checks, and write what went wrong in each."""
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    store = dist.FileStore(str(directory / "store"), ranks)
    limit = timedelta(seconds=60)
    dist.init_process_group("nccl", store=store, rank=number, world_size=ranks, timeout=limit, device_id=device)
    mesh = init_device_mesh("cuda", (ranks,))

    def call(check: Callable[[Rank], None]) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        with torch.no_grad():
            check(Rank(number, ranks, mesh, generator, random.Random(seed)))
        torch.cuda.synchronize()

    calls = {check.__name__: partial(call, check) for check in CHECKS}
    # What a broken group has still queued is not waited for.
    os._exit(0 if held(calls, number, ranks, directory, store) else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
