"""Small models of real architectures, and checkpoints of them on disk as DeepSeek-V3's and Qwen3-FP8's are."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.products.quantize import quantize_weight
from fp8gemm.scales import Blocks
from tests.folding import values

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

Edit = Callable[[dict[str, Tensor]], None]
VOCABULARY = 64
SCALE = ".weight_scale_inv"


def qwen3(**changes: Any) -> Any:
    """K = 256 and 128, and 272 in the MLP: a partial block."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 272, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return transformers.Qwen3Config(**{"vocab_size": VOCABULARY, **sizes, **heads, **changes})


def deepseek_v3(**changes: Any) -> Any:
    """Multi-head latent attention with its odd sizes: 144 rows in kv_a_proj_with_mqa. All MLPs dense."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 272, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 32}
    ranks: dict[str, Any] = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
    experts: dict[str, Any] = {"first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 2}
    routing: dict[str, Any] = {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 128}
    return transformers.DeepseekV3Config(
        **{"vocab_size": VOCABULARY, **sizes, **heads, **ranks, **experts, **routing, **changes}
    )


def new_model(config: Any, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def ask_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's quantiser as on a machine with a GPU; the tensors stay on the CPU."""
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda self, *args, **kwargs: None)


def is_quantised(name: str) -> bool:
    """Every projection, experts' too; embeddings, norms, routers and the head stay."""
    return name.endswith(("proj.weight", "proj_with_mqa.weight"))


def write_checkpoint(
    path: Path,
    model: Any,
    *,
    scale_dtype: torch.dtype = torch.float32,
    block_size: tuple[int, int] = (128, 128),
    keep: Sequence[str] = ("lm_head",),
    edit: Edit | None = None,
    **quantization: Any,
) -> dict[str, Tensor]:
    """Write ``model`` as a block-FP8 checkpoint; ``keep`` names the modules that stay as they are.

    ``edit`` may spoil the tensors before they are written. Returns what was written.
    """
    from safetensors.torch import load_file, save_file

    plain = path / "plain"
    model.save_pretrained(plain)

    tensors: dict[str, Tensor] = {}
    for name, value in load_file(plain / "model.safetensors").items():
        tensors[name] = value
        if is_quantised(name) and not any(part in name for part in keep):
            tensors[name], scales = quantize_weight(value, block_size=block_size)
            tensors[name.removesuffix(".weight") + SCALE] = scales.to(scale_dtype)
    if edit is not None:
        edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": list(block_size),
        "modules_to_not_convert": list(keep),
        **quantization,
    }
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def dequantised(model: Any, tensors: dict[str, Tensor], block_size: tuple[int, int] = (128, 128)) -> Any:
    """``model`` in float32 with the weights of a checkpoint of it, multiplied by their scales."""
    result = copy.deepcopy(model).float()
    for name, layer in result.named_modules():
        if isinstance(layer, nn.Linear) and name + SCALE in tensors:
            weight = values(tensors[f"{name}.weight"], tensors[name + SCALE].float(), Blocks(*block_size))
            layer.weight = nn.Parameter(weight.float())
    return result


def tokens(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(ids, use_cache=False).logits
    return result
