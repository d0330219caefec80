"""The experts of a mixture as a model calls them: bfloat16 in and out, routing included."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fp8gemm.lab.bench.graph import check_result
from fp8gemm.lab.bench.grouped_cases import TOP_K, GroupedCase
from fp8gemm.lab.bench.grouped_operands import FLOOR, Contender, Scaled, Work, reading
from fp8gemm.lab.bench.grouped_peers import BF16
from fp8gemm.lab.bench.operands import Call, normal
from fp8gemm.lab.bench.timing import set_count
from fp8gemm.nn import Fp8Experts

OURS, IN_BF16 = "fp8_experts", "bf16_experts"


@dataclass(frozen=True)
class Tokens:
    """What one call is given.

    Attributes:
        hidden: (T, H) bfloat16.
        expert_ids: (T, top k) int64, all of a token's different.
        weights: (T, top k) float32, which add up to 1.
    """

    hidden: Tensor
    expert_ids: Tensor
    weights: Tensor

    @property
    def touched(self) -> int:
        """Experts that have tokens."""
        return int(self.expert_ids.unique().numel())

    @classmethod
    def random(cls, case: GroupedCase, generator: torch.Generator) -> Tokens:
        """Tokens that a router sends anywhere."""
        logits = torch.randn((case.m, case.groups), device=generator.device, generator=generator)
        weights, ids = functional.softmax(logits, 1).topk(min(TOP_K, case.groups), 1)
        return cls(normal(generator, case.m, case.n), ids, weights / weights.sum(1, keepdim=True))


def layer(case: GroupedCase, generator: torch.Generator, l2_bytes: int, others: Collection[str]) -> Work:
    """`Fp8Experts` beside the same in bfloat16. Weights are one set, tokens and whom they go to others in each call."""
    gate_up, down = (_weights(generator, case.groups, n, k) for n, k in ((2 * case.k, case.n), (case.n, case.k)))
    ours = Fp8Experts.from_bfloat16(gate_up, down)
    of_expert = 3 * case.n * case.k
    touched = min(case.m * TOP_K, case.groups)
    tokens = [Tokens.random(case, generator) for _ in range(set_count(touched * of_expert, l2_bytes))]
    weight_bytes = tokens[0].touched * of_expert

    def check(result: Tensor) -> None:
        expected = one_by_one(tokens[0], gate_up, down)
        check_result(result, expected, "the sum over experts in bfloat16")

    def run_ours(each: Tokens) -> Tensor:
        y: Tensor = ours(each.hidden, each.expert_ids, each.weights)
        return y

    contenders = {
        OURS: Contender(lambda: [partial(run_ours, each) for each in tokens], check),
        FLOOR: Contender(lambda: list(_reading_all(ours.operands(), tokens))),
    }
    if BF16 in others:
        bf16 = Contender(lambda: [partial(bf16_experts, each, gate_up, down) for each in tokens], check)
        contenders[IN_BF16] = bf16
    flops = 2 * tokens[0].expert_ids.numel() * of_expert
    return Work(contenders, len(tokens), flops, weight_bytes)


def _reading_all(weights: tuple[Scaled, Scaled], tokens: list[Tokens]) -> Iterator[Call]:
    """Reads as many experts' weights as each call's tokens go to: those of the one product, then of the other."""
    by_number = {
        touched: [reading([each] * len(tokens), touched) for each in weights]
        for touched in {each.touched for each in tokens}
    }

    def both(calls: list[Call]) -> Tensor:
        first, second = calls
        first()
        return second()

    for index, each in enumerate(tokens):
        yield partial(both, [calls[index] for calls in by_number[each.touched]])


def _weights(generator: torch.Generator, groups: int, n: int, k: int) -> Tensor:
    """(G, N, K) bfloat16 of such a size that outputs are about as large as inputs."""
    return normal(generator, groups, n, k).mul_(k**-0.5)


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, 1)
    return functional.silu(gate) * up


def bf16_experts(tokens: Tokens, gate_up: Tensor, down: Tensor) -> Tensor:
    """The layer with PyTorch's grouped products, as a model in bfloat16 has it; nothing waits for the GPU."""
    ids = tokens.expert_ids.flatten()
    found, order = torch.sort(ids)
    limits = torch.arange(gate_up.shape[0], device=ids.device)
    ends = torch.searchsorted(found, limits, right=True, out_int32=True)
    rows = tokens.hidden[order // tokens.expert_ids.shape[1]]
    inner = _silu_mul(torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends))
    y = torch._grouped_mm(inner, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=ids.device))
    of_token = y[back].view(*tokens.expert_ids.shape, -1) * tokens.weights[:, :, None].to(y.dtype)
    return of_token.sum(1)


def one_by_one(tokens: Tokens, gate_up: Tensor, down: Tensor) -> Tensor:
    """(T, H) float32: the layer expert by expert. The host waits for each."""
    total = torch.zeros(tokens.hidden.shape, dtype=torch.float32, device=tokens.hidden.device)
    for expert in tokens.expert_ids.unique().tolist():
        token, place = (tokens.expert_ids == expert).nonzero(as_tuple=True)
        y = _silu_mul(tokens.hidden[token] @ gate_up[expert].t()) @ down[expert].t()
        total.index_add_(0, token, y.float() * tokens.weights[token, place, None])
    return total
