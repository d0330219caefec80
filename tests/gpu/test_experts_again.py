"""The second product of experts reads weights and groups while the kernel ahead of it runs: none of them too early."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.nn import Fp8Experts
from tests.experts import BF16, Tokens, block, tokens

G, H, INNER, TOP_K = 32, 1024, 384, 4


@pytest.mark.parametrize("count", [1, 4, 40])
def test_each_call_multiplies_what_was_written_just_before_it(count: int, generator: torch.Generator) -> None:
    """Tokens, where they go and both weights are written anew where they were, right ahead of each call: what the
    second product reads before the kernel ahead of it has ended is there, and what that one writes is waited for."""
    blocks = [block(G, H, INNER, generator) for _ in range(3)]
    given = [tokens(count, H, G, TOP_K, generator) for _ in blocks]
    options: Any = {"generator": generator, "device": generator.device}
    rows = [torch.randn(G, 5, H, **options).to(BF16) for _ in blocks]
    counts = [torch.randint(0, 6, (G,), **options, dtype=torch.int32) for _ in blocks]
    is_there = [torch.arange(5, device=generator.device) < each[:, None] for each in counts]

    def both(experts: Fp8Experts, which: int, arguments: Tokens, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        masked = experts.forward_masked(x, valid, expected_m=2)
        return experts(*arguments), masked.masked_fill(~is_there[which][..., None], 0)

    with settings.scope(pdl=False):
        wanted = [both(blocks[i], i, given[i], rows[i], counts[i]) for i in range(3)]
    experts, held = copy.deepcopy(blocks[0]), Tokens(*(torch.zeros_like(each) for each in given[0]))
    x, valid = torch.zeros_like(rows[0]), torch.zeros_like(counts[0])
    wrong = torch.zeros((), dtype=torch.int64, device=generator.device)
    for i in range(300):
        if i % 20 == 0:
            torch.cuda._sleep(1_000_000)
        which = i % 3
        for mine, others in zip(experts.parameters(), blocks[which].parameters(), strict=True):
            mine.data.copy_(others.data)
        for mine, others in zip((*held, x, valid), (*given[which], rows[which], counts[which]), strict=True):
            mine.copy_(others)
        for found, right in zip(both(experts, which, held, x, valid), wanted[which], strict=True):
            wrong += (found != right).sum()
    assert int(wrong) == 0
