"""Blocks of experts and tokens routed to them, on any device, and what a block must compute of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fp8gemm.nn import Fp8Experts
from fp8gemm.reference import gemm_reference, quantize_rows, silu_mul
from tests.calls import picked, same_bits

BF16 = torch.bfloat16


class Tokens(NamedTuple):
    """Arguments of a block: (T, H), (T, top_k), (T, top_k)."""

    hidden: Tensor
    expert_ids: Tensor
    weights: Tensor

    @property
    def alone(self) -> Tokens:
        """Each token with its first expert alone, whose output then is the block's, bit for bit."""
        return Tokens(self.hidden, self.expert_ids[:, :1], torch.ones_like(self.weights[:, :1]))


def weights(
    experts: int, hidden: int, intermediate: int, generator: torch.Generator, dtype: torch.dtype = BF16
) -> tuple[Tensor, Tensor]:
    """(G, 2I, H) and (G, H, I) whose products keep the size of what they multiply."""

    def normal(rows: int, columns: int) -> Tensor:
        values = torch.randn(experts, rows, columns, generator=generator, device=generator.device)
        return (values * columns**-0.5).to(dtype)

    return normal(2 * intermediate, hidden), normal(hidden, intermediate)


def block(experts: int, hidden: int, intermediate: int, generator: torch.Generator, **options: Any) -> Fp8Experts:
    return Fp8Experts.from_bfloat16(*weights(experts, hidden, intermediate, generator), **options)


def tokens(
    count: int, hidden: int, experts: int, top_k: int, generator: torch.Generator, dtype: torch.dtype = BF16
) -> Tokens:
    """Tokens and what a router with random logits makes of them."""
    options: Any = {"generator": generator, "device": generator.device}
    probabilities, ids = torch.randn(count, experts, **options).softmax(-1).topk(top_k)
    x = torch.randn(count, hidden, **options).to(dtype)
    return Tokens(x, ids, (probabilities / probabilities.sum(-1, keepdim=True)).to(dtype))


def rows_of_experts(experts: Fp8Experts, hidden: Tensor, expert_ids: Tensor) -> Tensor:
    """(T, top_k, H) of hidden's dtype: every expert's output by the reference, 0 for experts that are not here."""
    codes, scales = quantize_rows(hidden)
    out = hidden.new_zeros(*expert_ids.shape, hidden.shape[1])
    for group in range(experts.num_local_experts):
        token, place = (expert_ids == experts.first_expert + group).nonzero(as_tuple=True)
        gate_up = experts.gate_up_proj[group], experts.gate_up_proj_scale_inv[group]
        down = experts.down_proj[group], experts.down_proj_scale_inv[group]
        between = gemm_reference(picked(codes, token), scales[token], *gate_up, out_dtype=hidden.dtype)
        out[token, place] = gemm_reference(*quantize_rows(silu_mul(between)), *down, out_dtype=hidden.dtype)
    return out


def expected(experts: Fp8Experts, given: Tokens) -> Tensor:
    """(T, H) float64: the weighted sum of `rows_of_experts`."""
    rows = rows_of_experts(experts, given.hidden, given.expert_ids)
    return (rows.double() * given.weights.double()[..., None]).sum(1)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference relative to that of what is wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def same_block(left: nn.Module, right: nn.Module) -> bool:
    """Whether two modules have the same state, bit for bit."""
    a, b = left.state_dict(), right.state_dict()
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)
