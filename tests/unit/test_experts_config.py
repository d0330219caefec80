"""The weights of a model's routed experts, read off its config: by hand, beside transformers' own, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from fp8gemm.ahead.architectures import ARCHITECTURES, read_config
from fp8gemm.ahead.experts import experts_of_config
from fp8gemm.errors import InputError, UnsupportedError
from tests.model_configs import configs

DEEPSEEK_V3 = Path(__file__).resolve().parents[1] / "data" / "configs" / "deepseek-v3.json"
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_hidden_layers": 48,
}
MIXTRAL_8X7B = {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8}


def sizes(config: dict[str, Any], **ranks: int) -> list[tuple[int, int, int]]:
    found = experts_of_config(config, **ranks)
    assert [each.name for each in found] in ([], ["experts.gate_up_proj", "experts.down_proj"])
    return [(each.groups, each.n, each.k) for each in found]


@pytest.mark.parametrize(
    ("ranks", "experts", "intermediate"),
    [
        ({}, 256, 2048),
        ({"tp": 8}, 256, 256),
        ({"ep": 8}, 32, 2048),
        ({"tp": 8, "ep": 8}, 32, 2048),
        ({"tp": 16, "ep": 8}, 32, 1024),
        ({"tp": 2, "ep": 64}, 4, 2048),
    ],
)
def test_deepseek_v3_on_ranks(ranks: dict[str, int], experts: int, intermediate: int) -> None:
    assert sizes(read_config(DEEPSEEK_V3), **ranks) == [
        (experts, 2 * intermediate, 7168),
        (experts, 7168, intermediate),
    ]


def test_qwen3_and_mixtral() -> None:
    assert sizes(QWEN3_30B_A3B) == [(128, 1536, 2048), (128, 2048, 768)]
    renamed = {"num_local_experts" if name == "num_experts" else name: value for name, value in QWEN3_30B_A3B.items()}
    assert sizes(renamed) == sizes(QWEN3_30B_A3B)
    assert sizes(MIXTRAL_8X7B, tp=2) == [(8, 14336, 4096), (8, 4096, 7168)]
    assert sizes({"text_config": MIXTRAL_8X7B}) == sizes(MIXTRAL_8X7B)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_they_are_those_of_the_model_that_transformers_builds(model_type: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    @settings(max_examples=6, deadline=None)
    @given(configs(model_type))
    def check(fields: dict[str, Any]) -> None:
        fields = {**fields, **({"num_local_experts": 4} if model_type == "mixtral" else {})}
        rest = {name: value for name, value in fields.items() if name != "model_type"}
        config = transformers.AutoConfig.for_model(model_type, **rest)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        expected = Counter(
            (path.rpartition(".")[2], *weight.shape)
            for path, weight in model.named_parameters()
            if path.endswith(("experts.gate_up_proj", "experts.down_proj"))
        )
        for source in (fields, config.to_dict()):
            found = experts_of_config(source)
            names = [(each.name.partition(".")[2], each.groups, each.n, each.k) for each in found]
            assert dict(zip(names, (each.layers for each in found), strict=True)) == expected
            assert all(each.experts == each.groups for each in found)
            per_token = [each.experts_per_token for each in experts_of_config(config.to_dict(), ep=2)]
            assert not found or per_token == [config.num_experts_per_tok] * len(found)

    check()


@pytest.mark.parametrize(
    ("change", "ranks", "complaint"),
    [
        ({}, {"tp": 0}, "tp: expected a whole number, 1 to"),
        ({}, {"ep": True}, "ep: expected a whole number, 1 to"),
        ({}, {"ep": 3}, "divides over ep = 3 ranks, got 128"),
        ({}, {"tp": 6, "ep": 4}, "tp to be a multiple of ep where it is larger, got tp = 6, ep = 4"),
        ({}, {"tp": 32}, "on each of 32 ranks, intermediate features that are multiples of 16, got 2048 and 768"),
        ({}, {"tp": 5}, "on each of 5 ranks"),
        ({"hidden_size": 2040}, {}, "got 2040 and 768"),
        ({"num_experts": -8}, {}, "num_experts: expected a whole number"),
        ({"moe_intermediate_size": "768"}, {}, "moe_intermediate_size: expected a whole number"),
    ],
)
def test_what_ranks_cannot_share_is_refused(change: dict[str, Any], ranks: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        experts_of_config(QWEN3_30B_A3B | change, **ranks)


def test_a_field_that_is_missing_is_named() -> None:
    for config in (QWEN3_30B_A3B, MIXTRAL_8X7B):
        for name in config.keys() - {"model_type"}:
            with pytest.raises(InputError, match=name):
                experts_of_config({key: value for key, value in config.items() if key != name})


def test_a_model_without_experts_has_none_and_an_unknown_one_is_refused() -> None:
    for config in (
        {"model_type": "llama"},
        QWEN3_30B_A3B | {"num_experts": 0},
        QWEN3_30B_A3B | {"num_hidden_layers": 1, "mlp_only_layers": [0]},
        MIXTRAL_8X7B | {"num_local_experts": 0},
        read_config(DEEPSEEK_V3) | {"first_k_dense_replace": 61},
    ):
        assert experts_of_config(config, tp=2, ep=2) == ()
    with pytest.raises(UnsupportedError, match="gpt2"):
        experts_of_config({"model_type": "gpt2"})
