"""Configs of small models of every architecture that is known, drawn at random, as their config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from fp8gemm.ahead.architectures import ARCHITECTURES

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 80}


def maybe(values: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, and any of them left out."""
    return st.fixed_dictionaries({}, optional=dict(values))


@st.composite
def configs(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """Fields of a small model of this type, as its config.json has them."""
    heads, key_value_heads = draw(st.sampled_from([(4, 4), (4, 2), (8, 1), (32, 32), (64, 16)]))
    found: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 64 * draw(st.integers(1, 4)),
        "intermediate_size": 16 * draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "vocab_size": 48,
    }
    if model_type.startswith("deepseek"):
        found |= {
            "q_lora_rank": draw(st.sampled_from([None, 32, 48])),
            "kv_lora_rank": 16 * draw(st.integers(1, 4)),
            "qk_nope_head_dim": 8 * draw(st.integers(1, 4)),
            "qk_rope_head_dim": 8 * draw(st.integers(1, 2)),
            "v_head_dim": 4 * draw(st.integers(1, 8)),
            "moe_intermediate_size": 16 * draw(st.integers(1, 4)),
            "n_shared_experts": draw(st.integers(1, 3)),
            "n_routed_experts": 4,
            "first_k_dense_replace": draw(st.integers(0, 5)),
        } | draw(maybe({"attention_bias": st.booleans()}))
        return found | (draw(maybe({"mlp_bias": st.booleans()})) if model_type == "deepseek_v2" else {})
    found["num_key_value_heads"] = key_value_heads
    found |= draw(maybe({"head_dim": st.sampled_from([4, 12, 32])}))
    switches = {"llama": ("attention_bias", "mlp_bias"), "qwen2_moe": ("qkv_bias",)}
    switches |= dict.fromkeys(("qwen3", "qwen3_moe"), ("attention_bias",))
    found |= draw(maybe({name: st.booleans() for name in switches.get(model_type, ())}))
    if model_type in ("qwen2_moe", "qwen3_moe"):
        found |= EXPERTS | draw(
            maybe(
                {
                    "num_experts": st.sampled_from([0, 4]),
                    "decoder_sparse_step": st.integers(1, 3),
                    "mlp_only_layers": st.lists(st.integers(0, 4), max_size=3),
                }
            )
        )
    if model_type == "qwen2_moe":
        found["shared_expert_intermediate_size"] = 16 * draw(st.integers(1, 8))
    return found


@st.composite
def divisible_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a model that divides over up to 8 ranks, key-value heads aside."""
    fields = draw(configs(draw(st.sampled_from(ARCHITECTURES))))
    names = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "v_head_dim")
    fields |= {name: 8 * fields[name] for name in names if name in fields}
    heads = {"num_attention_heads": 32, "num_key_value_heads": draw(st.sampled_from([1, 2, 4, 8, 32])), "head_dim": 12}
    return fields | heads
