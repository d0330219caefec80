"""Models of transformers that its own plans have divided: what one process says, and blocks that are not cut."""

from __future__ import annotations

import dataclasses
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fp8gemm.errors import InputError
from fp8gemm.nn import ConvertedLayer, Fp8Linear
from tests.distributed.models import SENT
from tests.distributed.world import Check, Rank
from tests.experts import relative_error

SIZES = {"intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 128}
"""Whole blocks for each of four ranks, with the four heads that there are."""


def library() -> Any:
    """transformers and our models of it, from within a check, which is skipped where they are missing."""
    from fp8gemm.integrations.transformers.library import OLDEST
    from tests import transformers_models as models

    found = tuple(map(int, models.transformers.__version__.split(".")[:2]))
    if found < OLDEST:
        pytest.skip(f"transformers is {models.transformers.__version__}, older than {'.'.join(map(str, OLDEST))}")
    return models


def dense(models: Any, **changes: Any) -> Any:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True}
    sizes = {"vocab_size": models.VOCABULARY, "hidden_size": 256, **heads, **SIZES, **changes}
    return models.transformers.LlamaConfig(**sizes)


def mixture(models: Any) -> Any:
    """One dense layer, one of eight experts; a projection that ranks do not share, of 144 rows."""
    sizes = {"v_head_dim": 128, "qk_nope_head_dim": 112, "intermediate_size": 512, "moe_intermediate_size": 512}
    return models.deepseek_v3(first_k_dense_replace=1, n_routed_experts=8, **sizes)


def checkpoint(world: Rank, models: Any, name: str, config: Any) -> Path:
    path = world.kept / f"{name} of transformers"
    if not world.number and not path.exists():
        path.mkdir()
        models.write_checkpoint(path, models.new_model(config), edit=with_biases)
    dist.barrier()
    return path


def with_biases(tensors: dict[str, Tensor]) -> None:
    """Of values that show when all ranks add them to a sum, or none does: a new model's are zero."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))


def divided(world: Rank, models: Any, path: Path, **plan: Any) -> nn.Module:
    """As the library loads it where there is a GPU; its tensors are on the CPU."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer releases have other words for a plan of experts alone
        patch.setenv("WORLD_SIZE", str(world.ranks))
        for name in ("RANK", "LOCAL_RANK"):
            patch.setenv(name, str(world.number))
        models.ask_for_no_gpu(patch)
        load = models.transformers.AutoModelForCausalLM.from_pretrained
        model: nn.Module = load(path, dtype=torch.float32, distributed_config={"tp_size": world.ranks, **plan})
        return model


@cache
def of_one_process(path: Path) -> tuple[tuple[ConvertedLayer, ...], Tensor]:
    """What became of a checkpoint's layers, and the logits of the model."""
    from fp8gemm.integrations.transformers import load_quantized

    models = library()
    model, report = load_quantized(path, dtype=torch.float32)
    return report.converted, models.logits(model, models.tokens())


def says_what_one_process_says(world: Rank, name: str, config: Any, **plan: Any) -> tuple[nn.Module, Any]:
    """The model and the report, with all that is FP8 on our kernels, in this rank's own memory."""
    from fp8gemm.integrations.transformers import use_fp8gemm

    models = library()
    path = checkpoint(world, models, name, config)
    model = divided(world, models, path, **plan)
    parts = {name: each.to_local() for name, each in model.named_parameters() if isinstance(each, DTensor)}
    report = use_fp8gemm(model)
    after = dict(model.named_parameters())
    assert not report.skipped and parts
    for key, part in parts.items():
        assert after[key].to_local().data_ptr() == part.data_ptr() and after[key].device_mesh.size() == world.ranks
    converted, wanted = of_one_process(path)
    assert report.converted == converted
    error = relative_error(models.logits(model, models.tokens()), wanted)
    assert error < SENT, f"{name}: {error}"
    again = use_fp8gemm(model)
    assert not again.converted and not again.skipped
    return model, report


def layers_that_transformers_divides_are_ours(world: Rank) -> None:
    model, report = says_what_one_process_says(world, "dense", dense(library()))
    found = {name: module for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert found.keys() == {each.name for each in report.converted} and len(found) == 7
    assert all(f"divided by {world.ranks}" in repr(module) for module in found.values())


def experts_whose_rows_transformers_divides_are_ours(world: Rank) -> None:
    models = library()
    if tuple(map(int, models.transformers.__version__.split(".")[:2])) < (5, 23):
        pytest.skip("older releases of transformers divide the rows of experts, and not their scales")
    model, report = says_what_one_process_says(world, "mixture", mixture(models))
    names = {each.name for each in report.converted if ".experts." in each.name}
    assert names == {f"model.layers.1.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")}
    assert f"divided by {world.ranks}" not in repr(model.get_submodule("model.layers.1.self_attn.kv_a_proj_with_mqa"))


def experts_that_transformers_divides_are_ours(world: Rank) -> None:
    models = library()
    fields = {each.name for each in dataclasses.fields(models.transformers.distributed.DistributedConfig)}
    plans: list[dict[str, Any]] = [{"enable_expert_parallel": True}]
    if "ep_implementation" in fields:
        plans = [{"ep_size": world.ranks, "ep_implementation": each} for each in ("all_reduce", "all_to_all")]
    for plan in plans:
        model, _ = says_what_one_process_says(world, "mixture", mixture(models), **plan)
        experts = model.get_submodule("model.layers.1.mlp.experts")
        assert experts.down_proj.to_local().shape[0] == 8 // world.ranks


def blocks_that_would_be_cut_are_refused(world: Rank) -> None:
    from fp8gemm.integrations.transformers import use_fp8gemm

    models = library()
    size = 192 * world.ranks
    path = checkpoint(world, models, f"of {size} rows", dense(models, intermediate_size=size))
    model = divided(world, models, path)
    before = dict(model.named_modules())
    message = rf"layers\.0\.mlp\.gate_proj\.out_features: expected .* {world.ranks} ranks.*, got {size}; it can be on "
    with pytest.raises(InputError, match=f"{message}{world.ranks // 2} rank"):
        use_fp8gemm(model)
    assert dict(model.named_modules()) == before


CHECKS: tuple[Check, ...] = (
    layers_that_transformers_divides_are_ours,
    experts_whose_rows_transformers_divides_are_ours,
    experts_that_transformers_divides_are_ours,
    blocks_that_would_be_cut_are_refused,
)
