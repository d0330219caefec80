"""What each of several ranks on GPUs checks of experts; `tests.gpu.parallel_ranks` runs it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

from fp8gemm.parallel import ExpertParallel
from tests import experts
from tests.gpu.parallel_world import REPLAYS, Rank, same_sums, uses


def experts_have_the_sums_of_a_reduce_scatter(rank: Rank) -> None:
    """Tokens of several numbers, behind each other and replayed; and tokens that all ranks have."""
    count, hidden, top = 8 * rank.ranks, 1024, 4
    block = partial(experts.block, count, hidden, 512, batch_invariant=True)
    model, plain, of_all, plain_of_all = (
        parallelize_module(block(torch.Generator("cuda").manual_seed(3)), rank.mesh, ExpertParallel(**options))
        for options in (
            {"overlap": True},
            {"overlap": False},
            {"overlap": True, "input_layouts": Replicate()},
            {"overlap": False, "input_layouts": Replicate()},
        )
    )

    def routed(tokens: int) -> experts.Tokens:
        given = experts.tokens(tokens * rank.ranks, hidden, count, top, rank.generator)
        given.expert_ids[::5, 1] = -1
        return given

    def mine(given: experts.Tokens) -> list[Tensor]:
        return [rank.part(each) for each in given]

    kept = []
    for turn in range(30):
        given = routed((1, 7, 64, 300, 1024)[turn % 5])
        rank.late()
        with uses() as found:
            kept.append((model(*mine(given)), given))
        assert found == ["barrier", *["copied"] * (rank.ranks - 1), "barrier"] * 2
        if turn < 10:
            assert same_sums(rank, of_all(*given), plain_of_all(*given))
    static = mine(routed(256))
    model(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(*static)
    for _ in range(REPLAYS // 4):
        given = routed(256)
        for to, each in zip(static, mine(given), strict=True):
            to.copy_(each)
        rank.late()
        graph.replay()
        kept.append((out.clone(), given))
    for out, given in kept:
        assert same_sums(rank, out, plain(*mine(given))), len(given.hidden)
