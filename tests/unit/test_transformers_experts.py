"""Experts of transformers on fp8gemm, on the CPU: as our own block computes them, and which are left."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from fp8gemm.errors import InputError
from fp8gemm.integrations.transformers import load_quantized, use_fp8gemm
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.nn import Fp8Experts, Fp8Linear
from tests import transformers_models as models  # skips where transformers is missing

LOGIT_ERROR = 0.1


@pytest.fixture
def mixture(tmp_path):
    """The config of a model of which one layer has experts, and its checkpoint."""
    config = models.deepseek_v3(first_k_dense_replace=1)
    models.write_checkpoint(tmp_path, models.new_model(config))
    return config, tmp_path


BLOCK = "model.layers.1.mlp.experts"


def test_experts_are_ours(mixture):
    config, path = mixture
    model, report = load_quantized(path)
    assert not report.skipped
    sizes = {each.name: (each.out_features, each.in_features) for each in report.converted if BLOCK in each.name}
    assert sizes == {f"{BLOCK}.gate_up_proj": (256, 256), f"{BLOCK}.down_proj": (256, 128)}
    assert isinstance(model.model.layers[1].mlp.shared_experts.up_proj, Fp8Linear)
    theirs = model.get_submodule(BLOCK)
    ours = Fp8Experts.from_quantized(*theirs.parameters())
    hidden, ids = torch.randn(7, 256), torch.randint(5, (7, 2))  # 4 is that library's mark for experts elsewhere
    with torch.no_grad():
        weights = torch.rand(7, 2)
        assert torch.equal(theirs(hidden, ids, weights), ours(hidden, ids, weights))
    with pytest.raises(InputError, match="hidden_states: expected a tensor that needs no gradient"):
        theirs(hidden.requires_grad_(), ids, weights)
    assert not use_fp8gemm(model).converted
    assert model.config._experts_implementation != theirs.config._experts_implementation == "fp8gemm"


def test_scales_of_experts_are_widened(mixture):
    _, path = mixture
    model, _ = load_quantized(path)
    narrow, before = model.get_submodule(BLOCK), models.logits(model, models.tokens())
    del narrow._fp8gemm
    for name in ("gate_up_proj_scale_inv", "down_proj_scale_inv"):
        scales = getattr(narrow, name)
        setattr(narrow, name, nn.Parameter(scales.bfloat16(), requires_grad=False))
    report = use_fp8gemm(model)
    assert {each.bytes_after - each.bytes_before for each in report.converted} == {4 * 2 * 4, 4 * 2 * 2}
    assert narrow.down_proj_scale_inv.dtype == torch.float32
    assert 0 < relative_error(models.logits(model, models.tokens()), before) < LOGIT_ERROR


EXPERTS_LEFT = {
    "gate": (lambda block: setattr(block, "has_gate", False), "not gated by SiLU"),
    "activation": (lambda block: setattr(block, "act_fn", nn.GELU()), "not gated by SiLU"),
    "limit": (lambda block: setattr(block, "limit", 7.0), "gate is limited"),
    "blocks": (lambda block: setattr(block, "block_size", (48, 48)), r"blocks of \(48, 48\)"),
    "static": (lambda block: setattr(block, "activation_scheme", "static"), "activation scales are static"),
    "mega": (lambda block: setattr(block.config, "_experts_implementation", "deepgemm_megamoe"), "laid out"),
    "rows": (lambda block: cut(block, 64), "experts have 64 rows"),
    "K": (lambda block: cut(block, 128, 248), "K is not"),
}


def cut(block, inner, hidden=256):
    """A block of experts made smaller."""
    block.down_proj = nn.Parameter(block.down_proj.data[:, :hidden, :inner], requires_grad=False)


@pytest.mark.parametrize("kind", EXPERTS_LEFT)
def test_experts_that_are_left_and_why(kind, mixture):
    change, reason = EXPERTS_LEFT[kind]
    model, _ = load_quantized(mixture[1])
    block = model.get_submodule(BLOCK)
    del block._fp8gemm
    change(block)
    (left,) = use_fp8gemm(model).skipped
    assert left.name == BLOCK and re.search(reason, left.reason)


@pytest.mark.parametrize("spoilt", ["gate_up_proj_scale_inv", "down_proj_scale_inv"])
def test_scales_of_experts_that_cannot_be_right_change_nothing(spoilt, mixture):
    model, _ = load_quantized(mixture[1])
    block = model.get_submodule(BLOCK)
    del block._fp8gemm
    getattr(block, spoilt).data[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match=rf"{re.escape(BLOCK)}\.{spoilt}: expected finite multipliers"):
        use_fp8gemm(model)
    assert not hasattr(block, "_fp8gemm")
