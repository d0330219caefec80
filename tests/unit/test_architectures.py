"""The linear layers of a model and of one rank, read off its config: by hand, by property, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8gemm.ahead.architectures import ARCHITECTURES, LinearShape, linears_of_config, qwen_layer_kinds, read_config
from fp8gemm.ahead.model_config import Fields
from fp8gemm.errors import InputError, UnsupportedError
from tests.model_configs import divisible_configs

ROOT = Path(__file__).resolve().parents[2]
DEEPSEEK_V3 = ROOT / "tests" / "data" / "configs" / "deepseek-v3.json"
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
}
many = settings(max_examples=100, deadline=None)


def by_name(config: Mapping[str, Any], **options: Any) -> dict[str, tuple[int, int]]:
    linears = linears_of_config(config, **options)
    assert len({linear.name for linear in linears}) == len(linears)
    return {linear.name: (linear.n, linear.k) for linear in linears}


def test_blocks_of_scales_change_no_kernel() -> None:
    """Scales of 32x32 are folded when a model is loaded, and its products are those of 128x128."""
    quantization = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    for config in (LLAMA_70B, read_config(DEEPSEEK_V3)):
        assert linears_of_config({**config, "quantization_config": quantization}) == linears_of_config(config)


def test_deepseek_v3() -> None:
    config = read_config(DEEPSEEK_V3)
    assert by_name(config) == {
        "q_a_proj": (1536, 7168),
        "kv_a_proj_with_mqa": (576, 7168),
        "q_b_proj": (24576, 1536),
        "kv_b_proj": (32768, 512),
        "o_proj": (7168, 16384),
        "gate_proj": (18432, 7168),
        "up_proj": (18432, 7168),
        "down_proj": (7168, 18432),
        "shared_experts.gate_proj": (2048, 7168),
        "shared_experts.up_proj": (2048, 7168),
        "shared_experts.down_proj": (7168, 2048),
    }
    assert by_name(config, tp=8) == {
        "q_a_proj": (1536, 7168),
        "kv_a_proj_with_mqa": (576, 7168),
        "q_b_proj": (3072, 1536),
        "kv_b_proj": (4096, 512),
        "o_proj": (7168, 2048),
        "gate_proj": (2304, 7168),
        "up_proj": (2304, 7168),
        "down_proj": (7168, 2304),
        "shared_experts.gate_proj": (256, 7168),
        "shared_experts.up_proj": (256, 7168),
        "shared_experts.down_proj": (7168, 256),
    }
    assert by_name(config, tp=8, merged=True) == {
        "fused_qkv_a_proj": (2112, 7168),
        "q_b_proj": (3072, 1536),
        "kv_b_proj": (4096, 512),
        "o_proj": (7168, 2048),
        "gate_up_proj": (4608, 7168),
        "down_proj": (7168, 2304),
        "shared_experts.gate_up_proj": (512, 7168),
        "shared_experts.down_proj": (7168, 256),
    }


def test_llama_70b() -> None:
    mlp = {"gate_up_proj": (7168, 8192), "down_proj": (8192, 3584)}
    attention = {"qkv_proj": ((64 + 2 * 8) * 128 // 8, 8192), "o_proj": (8192, 1024)}
    assert by_name(LLAMA_70B, tp=8, merged=True) == attention | mlp
    # 8 key-value heads on 16 ranks: each of them has one.
    assert by_name(LLAMA_70B, tp=16, merged=True)["qkv_proj"] == ((4 + 2 * 1) * 128, 8192)


def test_qwen3_30b_a3b_has_routed_experts_beside_attention_and_nothing_else() -> None:
    q_and_o = {"q_proj": (4096, 2048), "o_proj": (2048, 4096)}
    assert by_name(QWEN3_30B_A3B) == q_and_o | {"k_proj": (512, 2048), "v_proj": (512, 2048)}
    q_and_o = {"q_proj": (512, 2048), "o_proj": (2048, 512)}
    assert by_name(QWEN3_30B_A3B, tp=8) == q_and_o | {"k_proj": (128, 2048), "v_proj": (128, 2048)}


@many
@given(divisible_configs(), st.sampled_from([2, 4, 8]))
def test_the_ranks_together_have_the_whole_layer(fields: dict[str, Any], tp: int) -> None:
    replicas = max(1, tp // fields["num_key_value_heads"])
    for whole, part in zip(linears_of_config(fields), linears_of_config(fields, tp=tp), strict=True):
        assert (whole.name, whole.bias) == (part.name, part.bias)
        name = whole.name.rpartition(".")[2]
        if name in ("o_proj", "down_proj"):
            assert (part.n, part.k * tp) == (whole.n, whole.k)
        elif name in ("q_a_proj", "kv_a_proj_with_mqa"):
            assert (part.n, part.k) == (whole.n, whole.k)
        else:
            copies = replicas if name in ("k_proj", "v_proj") else 1
            assert (part.n * tp, part.k) == (whole.n * copies, whole.k)


@many
@given(divisible_configs(), st.sampled_from([1, 2, 8]))
def test_merged_layers_are_their_parts_together(fields: dict[str, Any], tp: int) -> None:
    apart, merged = linears_of_config(fields, tp=tp), linears_of_config(fields, tp=tp, merged=True)
    of_parts = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up"), "fused_qkv_a": ("q_a", "kv_a")}

    def parts(linear: LinearShape) -> list[LinearShape]:
        prefix, name = linear.name.rpartition(".")[::2]
        stems = of_parts.get(name.removesuffix("_proj"), ())
        names = {".".join(filter(None, (prefix, stem + "_proj"))) for stem in stems} or {linear.name}
        return [part for part in apart if part.name.removesuffix("_with_mqa") in names or part.name in names]

    assert [part for linear in merged for part in parts(linear)] == list(apart)
    for linear in merged:
        assert {(part.k, part.bias) for part in parts(linear)} == {(linear.k, linear.bias)}
        assert sum(part.n for part in parts(linear)) == linear.n
    names = {linear.name for linear in merged}
    assert not names & {"q_a_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "shared_expert.up_proj"}


@pytest.mark.parametrize(
    ("changes", "tp", "said"),
    [
        ({}, 3, "num_attention_heads: expected a number that divides over tp = 3 ranks, got 64"),
        (
            {"num_attention_heads": 63},
            7,
            "num_key_value_heads: expected a number that divides over tp = 7 ranks, got 8",
        ),
        ({"num_key_value_heads": 3}, 8, "num_key_value_heads: expected a number that divides over tp = 8 ranks, got 3"),
        ({"intermediate_size": 28676}, 8, "down_proj: expected a number that divides over tp = 8 ranks, got 28676"),
        (
            {"intermediate_size": 28680},
            8,
            "down_proj (tp = 8): expected K to be a multiple of 16 and at least 16",
        ),
        ({"hidden_size": 8200}, 1, "q_proj (tp = 1): expected K to be a multiple of 16 and at least 16, got K = 8200"),
        ({"hidden_size": 48}, 1, "q_proj (tp = 1): expected N >= 1, got N = 0"),
        ({}, 0, "tp: expected a whole number, 1 to 2147483647, got 0"),
        ({}, 2.0, "tp: expected a whole number, 1 to 2147483647, got 2.0"),
        ({}, True, "tp: expected a whole number, 1 to 2147483647, got True"),
        ({"hidden_size": "8192"}, 1, "hidden_size: expected a whole number, 1 to 65536, got '8192'"),
        ({"hidden_size": 8192.0}, 1, "hidden_size: expected a whole number, 1 to 65536, got 8192.0"),
        ({"hidden_size": None}, 1, "hidden_size: expected a whole number, 1 to 65536, got None"),
        ({"num_key_value_heads": True}, 1, "num_key_value_heads: expected a whole number, 1 to 2147483647, got True"),
        ({"num_key_value_heads": 0}, 1, "num_key_value_heads: expected a whole number, 1 to 2147483647, got 0"),
        ({"attention_bias": "no"}, 1, "attention_bias: expected true or false, got 'no'"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(changes: dict[str, Any], tp: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        linears_of_config(LLAMA_70B | changes, tp=tp)
    assert said in str(caught.value)


@many
@given(
    layers=st.integers(1, 12),
    step=st.integers(1, 14),
    dense=st.lists(st.integers(0, 14), max_size=8),
    experts=st.sampled_from([0, 8]),
)
def test_layers_are_counted_as_if_they_were_listed(layers: int, step: int, dense: list[int], experts: int) -> None:
    """And as quickly where there are many: a listed billion takes memory without end."""
    config = QWEN3_30B_A3B | {"num_experts": experts, "mlp_only_layers": dense, "decoder_sparse_step": step}
    sparse = [bool(experts) and each not in dense and (each + 1) % step == 0 for each in range(layers)]
    kinds = qwen_layer_kinds(Fields(config | {"num_hidden_layers": layers}, "qwen3_moe"))
    assert kinds == (layers - sum(sparse), sum(sparse))
    kinds = qwen_layer_kinds(Fields(config | {"num_hidden_layers": 10**9}, "qwen3_moe"))
    assert sum(kinds) == 10**9
    assert tuple(map(bool, kinds)) == (not experts or step > 1 or bool(dense), bool(experts))


@pytest.mark.parametrize("layers", [3, "3", {"3": 1}, ["3"], [True], [-1]])
def test_a_list_of_layers_that_is_none_is_refused(layers: Any) -> None:
    with pytest.raises(InputError, match="^mlp_only_layers: expected"):
        linears_of_config(QWEN3_30B_A3B | {"mlp_only_layers": layers})


@pytest.mark.parametrize("model_type", ["gpt2", None, ["llama"]])
def test_an_unknown_model_is_refused_with_what_is_known(model_type: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        linears_of_config({"model_type": model_type})
    for said in (*ARCHITECTURES, repr(model_type), "--nk"):
        assert said in str(caught.value)


@pytest.mark.parametrize("config", [{}, {"model_type": "llava", "text_config": {"hidden_size": 64}}])
def test_a_config_without_a_model_type_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="^model_type: .* missing"):
        linears_of_config(config)


@pytest.mark.parametrize("contents", [b"", b"{", b"[1]", b"null", b"\xff{}", b"[" * 100_000])
def test_a_file_that_is_no_config_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(contents)
    for asked in (path, tmp_path):
        with pytest.raises(
            InputError, match=r"config\.json: expected a config\.json, or a directory that holds one, got"
        ):
            read_config(asked)


def test_a_config_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "missing" / "model"):
        with pytest.raises(
            InputError, match="expected a config.json, or a directory that holds one, got: No such file"
        ):
            read_config(path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match="got: Is a directory"):
        read_config(tmp_path)


def test_neither_torch_nor_transformers_is_needed() -> None:
    program = f"""
import json, sys, types
sys.modules |= dict.fromkeys(("torch", "transformers", "numpy"))
package = types.ModuleType("fp8gemm")  # without the names that the real one offers
package.__path__ = [{str(ROOT / "fp8gemm")!r}]
sys.modules["fp8gemm"] = package
from pathlib import Path
from fp8gemm.ahead.architectures import linears_of_config, read_config
print(json.dumps(len(linears_of_config(read_config(Path({str(DEEPSEEK_V3)!r}))))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == 11
