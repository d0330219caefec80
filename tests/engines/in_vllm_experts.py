"""vLLM's wrapper of DeepGEMM's grouped products, and its experts for DeepGEMM, on fp8gemm: what comes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as kernels
import vllm.utils.deep_gemm as wrapper
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.experts import batched_deep_gemm_moe, deep_gemm_moe
from vllm.model_executor.layers.fused_moe.experts.batched_deep_gemm_moe import BatchedDeepGemmExperts
from vllm.model_executor.layers.fused_moe.experts.deep_gemm_moe import DeepGemmExperts
from vllm.model_executor.layers.fused_moe.prepare_finalize.batched import BatchedPrepareAndFinalize

import fp8gemm
import fp8gemm.integrations.deep_gemm as ours
from tests.kernels.moe.utils import make_dummy_moe_config  # vLLM's

Pair = tuple[torch.Tensor, torch.Tensor]


def rows(*shape: int) -> tuple[torch.Tensor, Pair]:
    x = torch.randn(shape, dtype=torch.bfloat16)
    codes, scales = fp8gemm.quantize_activation(x.view(-1, shape[-1]))
    return x, (codes.view(shape), scales.view(*shape[:-1], -1))


def weights(groups: int, n: int, k: int) -> tuple[torch.Tensor, Pair]:
    weight = torch.randn(groups, n, k, dtype=torch.bfloat16) * 0.1
    codes, scales = zip(*map(fp8gemm.quantize_weight, weight), strict=True)
    return weight, (torch.stack(codes), torch.stack(scales))


def close(out: torch.Tensor, wanted: torch.Tensor, most: float = 2e-3) -> bool:
    return bool(ours.calc_diff(out.float(), wanted.float()) < most)


@pytest.mark.parametrize("by_ends", [False, True])
def test_the_wrappers_contiguous_product(by_ends: bool) -> None:
    groups, n, k, alignment = 3, 192, 256, 128
    x, a = rows(4 * alignment, k)
    w, b = weights(groups, n, k)
    out = torch.full((len(x), n), 7, dtype=torch.bfloat16)
    lengths, begins = (130, 0, 1), (0, 256, 256)
    layout = torch.full((len(x),), -1, dtype=torch.int32)
    for group, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        layout[begin : begin + length] = group
    ends = torch.tensor([130, 256, 257], dtype=torch.int32)
    with wrapper.mk_alignment_scope(alignment):
        wrapper.m_grouped_fp8_gemm_nt_contiguous(a, b, out, ends if by_ends else layout, use_psum_layout=by_ends)
    assert wrapper._grouped_impl.__wrapped__ is ours.m_grouped_fp8_gemm_nt_contiguous
    for group in range(groups):
        there = layout == group
        assert not there.any() or close(out[there], x[there].float() @ w[group].float().T)
        assert torch.equal(out[there], fp8gemm.gemm(a[0][there], a[1][there], b[0][group], b[1][group]))
    assert (out[3 * alignment :] == 7).all() and wrapper.get_mk_alignment_for_contiguous_layout() == [128, 128]


def test_the_wrappers_masked_product() -> None:
    groups, m, n, k = 3, 8, 192, 256
    x, a = rows(groups, m, k)
    w, b = weights(groups, n, k)
    counts, out = torch.tensor([5, 0, 8], dtype=torch.int32), torch.full((groups, m, n), 7, dtype=torch.bfloat16)
    wrapper.fp8_m_grouped_gemm_nt_masked(a, b, out, counts, 4)
    assert wrapper._grouped_masked_impl.__wrapped__ is ours.m_grouped_fp8_gemm_nt_masked
    for group, count in enumerate(counts.tolist()):
        assert not count or close(out[group, :count], x[group, :count].float() @ w[group].float().T)
        assert (out[group, count:] == 7).all()
        assert torch.equal(out[group, :count], fp8gemm.gemm_masked(*a, *b, counts)[group, :count])


class Block:
    """Experts of one rank with their weights, tokens, and what comes out in bfloat16 weights."""

    def __init__(self, experts: int, hidden: int, inner: int, top_k: int, tokens: int) -> None:
        torch.manual_seed(0)
        self.experts, self.top_k = experts, top_k
        first, self.first = weights(experts, 2 * inner, hidden)
        second, self.second = weights(experts, hidden, inner)
        self.x = torch.randn(tokens, hidden, dtype=torch.bfloat16)
        self.ids = torch.stack([torch.randperm(experts - 1)[:top_k] for _ in range(tokens)])  # one has no tokens
        self.weights = torch.rand(tokens, top_k)
        self.config = fp8_w8a8_moe_quant_config(w1_scale=self.first[1], w2_scale=self.second[1], block_shape=[128, 128])
        self.wanted = torch.zeros(tokens, hidden)
        for token, of_token in enumerate(self.ids.tolist()):
            for expert, weight in zip(of_token, self.weights[token], strict=True):
                gate, up = (first[expert].float() @ self.x[token].float()).chunk(2)
                self.wanted[token] += weight * (second[expert].float() @ (torch.nn.functional.silu(gate) * up))

    def compute(self, prepare: Any, experts: Any) -> torch.Tensor:
        out: torch.Tensor = kernels.FusedMoEKernel(prepare, experts).apply(
            hidden_states=self.x,
            w1=self.first[0],
            w2=self.second[0],
            topk_weights=self.weights,
            topk_ids=self.ids,
            activation=MoEActivation.SILU,
            global_num_experts=self.experts,
            expert_map=None,
            apply_router_weight_on_input=False,
        )
        return out


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Calls of a wrapper's function from a module of experts."""
    calls: list[Any] = []
    function = getattr(module, name)
    monkeypatch.setattr(
        module, name, lambda *operands, **options: calls.append(options) or function(*operands, **options)
    )
    return calls


@pytest.mark.parametrize("tokens", [1, 40])
def test_experts_for_contiguous_products(tokens: int, monkeypatch: pytest.MonkeyPatch, workspace_init: None) -> None:
    calls = counted(monkeypatch, deep_gemm_moe, "m_grouped_fp8_gemm_nt_contiguous")
    block, moe = Block(4, 256, 384, 2, tokens), make_dummy_moe_config()
    prepare = maybe_make_prepare_finalize(
        moe=moe, quant_config=block.config, allow_new_interface=True, use_monolithic=False
    )
    out = block.compute(prepare, DeepGemmExperts(moe_config=moe, quant_config=block.config))
    assert out.dtype is torch.bfloat16 and close(out, block.wanted, 4e-3)
    assert calls == [{"use_psum_layout": True}] * 2


def test_experts_for_masked_products(monkeypatch: pytest.MonkeyPatch, workspace_init: None) -> None:
    calls = counted(monkeypatch, batched_deep_gemm_moe, "fp8_m_grouped_gemm_nt_masked")
    block, moe = Block(4, 256, 384, 2, 40), make_dummy_moe_config()
    sizes = {"max_num_tokens": 40, "num_dispatchers": 1}
    experts = BatchedDeepGemmExperts(moe_config=moe, quant_config=block.config, **sizes)
    out = block.compute(BatchedPrepareAndFinalize(num_local_experts=4, rank=0, **sizes), experts)
    assert out.dtype is torch.bfloat16 and close(out, block.wanted, 4e-3)
    assert len(calls) == 2
