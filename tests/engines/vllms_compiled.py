"""Operators of vLLM's compiled part that its experts and its tests of them reach, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch

EPS = 1e-10
"""The smallest maximum of a group that is divided by."""


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """SiLU of one half, rounded, times the other."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate.float()).to(x.dtype) * up


def quantise(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    eps: float,
    low: float,
    high: float,
    ue8m0: bool,
    column_major: bool = False,
    tma_aligned: bool = False,
) -> None:
    """As `native_per_token_group_quant_fp8` of vLLM's tests."""
    groups = x.float().unflatten(-1, (-1, group))
    found = groups.abs().amax(-1, keepdim=True).clamp(min=eps) / high
    if ue8m0:
        found = torch.exp2(torch.ceil(torch.log2(found)))
    codes.copy_((groups / found).clamp(low, high).to(codes.dtype).view(codes.shape))
    scales.copy_(found.squeeze(-1))


def quantise_masked(
    x: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, ue8m0: bool
) -> None:
    """`silu_and_mul` without rounding, quantised, of each group's rows that are there."""
    for group, count in enumerate(counts.tolist()):
        product = silu_and_mul(x[group, :count].float())
        quantise(product, codes[group, :count], scales[group, :count], 128, EPS, -448, 448, ue8m0)


def activate(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(silu_and_mul(x))


def activate_masked(
    out: torch.Tensor,
    x: torch.Tensor,
    counts: torch.Tensor,
    activation: str,
    clamp_limit: float,
    alpha: float,
    beta: float,
    situ_beta: float,
    situ_linear_beta: float,
) -> None:
    """`silu_and_mul` of each group's rows that are there."""
    if activation != "silu":
        raise NotImplementedError(f"activation: expected silu, got {activation}")
    for group, count in enumerate(counts.tolist()):
        out[group, :count] = silu_and_mul(x[group, :count])


def align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block: int,
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    total: torch.Tensor,
    expert_map: torch.Tensor | None,
    scatter_idx: torch.Tensor | None,
) -> None:
    """Assignments by expert, each expert's padded to whole blocks."""
    if expert_map is not None or scatter_idx is not None:
        raise NotImplementedError("expert_map, scatter_idx: expected None")
    flat, end = topk_ids.flatten(), 0
    sorted_ids.fill_(flat.numel())
    for expert in range(num_experts):
        (found,) = torch.where(flat == expert)
        blocks = -(-len(found) // block)
        sorted_ids[end : end + len(found)] = found
        expert_ids[end // block : end // block + blocks] = expert
        end += blocks * block
    total.fill_(end)


def sum_of_experts(
    x: torch.Tensor, out: torch.Tensor, topk_ids: torch.Tensor | None, expert_map: torch.Tensor | None
) -> None:
    """(M, top_k, N) to (M, N)."""
    out.copy_(x.sum(1))


def quantise_activated(
    codes: torch.Tensor,
    x: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    upper: torch.Tensor | None,
    transposed: bool,
) -> None:
    """`silu_and_mul` without rounding, quantised by rows."""
    quantise(silu_and_mul(x.float()), codes, scales, group, EPS, -448, 448, ue8m0=False)


OPERATORS: dict[str, Callable[..., None]] = {
    "_C::per_token_group_fp8_quant(Tensor x, Tensor(a!) codes, Tensor(b!) scales, int group, float eps, float low, "
    "float high, bool ue8m0, bool column_major, bool tma_aligned) -> ()": quantise,
    "_C::persistent_masked_m_silu_mul_quant(Tensor x, Tensor counts, Tensor(a!) codes, Tensor(b!) scales, bool ue8m0) "
    "-> ()": quantise_masked,
    "_C::masked_moe_activation(Tensor(a!) out, Tensor x, Tensor counts, str activation, float limit, float alpha, "
    "float beta, float situ_beta, float situ_linear_beta) -> ()": activate_masked,
    "_C::silu_and_mul_per_block_quant(Tensor(a!) codes, Tensor x, Tensor(b!) scales, int group, Tensor? upper, "
    "bool transposed) -> ()": quantise_activated,
    "_C::silu_and_mul(Tensor(a!) out, Tensor x) -> ()": activate,
    "_moe_C::moe_align_block_size(Tensor ids, int experts, int block, Tensor(a!) sorted, Tensor(b!) of_blocks, "
    "Tensor(c!) total, Tensor? map, Tensor? scatter) -> ()": align_block_size,
    "_moe_C::moe_sum(Tensor x, Tensor(a!) out, Tensor? ids, Tensor? map) -> ()": sum_of_experts,
}


def define() -> list[torch.library.Library]:
    """Register them; they last as long as what is returned."""
    libraries = {name: torch.library.Library(name, "FRAGMENT") for name in ("_C", "_moe_C")}
    for schema, function in OPERATORS.items():
        library, _, rest = schema.partition("::")
        libraries[library].define(rest)
        libraries[library].impl(rest.partition("(")[0], function, "CompositeExplicitAutograd")
    return list(libraries.values())
