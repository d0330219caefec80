"""`Fp8Experts` moved, copied and saved, and those that cannot be."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts
from tests import cases
from tests.calls import same_bits
from tests.experts import BF16, same_block, tokens, weights

FP16, FP8 = torch.float16, torch.float8_e4m3fn
G, H, INNER = 4, 272, 128


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(cases.fresh_seed())


@pytest.fixture
def plain(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return weights(G, H, INNER, generator)


@pytest.fixture
def experts(plain: tuple[Tensor, Tensor]) -> Fp8Experts:
    return Fp8Experts.from_bfloat16(*plain)


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half": nn.Module.half,
    "float": nn.Module.float,
    "to": lambda model: model.to("cpu", BF16),
    "type": lambda model: model.type(FP16),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_dtype_leave_codes_and_scales_alone(
    change: Callable[[nn.Module], nn.Module], experts: Fp8Experts
) -> None:
    before = copy.deepcopy(experts)
    model = nn.ModuleList([experts, nn.Linear(16, 16, dtype=torch.float64)])
    change(model)
    assert model[1].weight.dtype != torch.float64 and same_block(experts, before)


def test_to_meta_and_back(experts: Fp8Experts) -> None:
    before = copy.deepcopy(experts)
    experts.to("meta").to_empty(device="cpu")
    experts.load_state_dict(before.state_dict())
    assert same_block(experts, before)


def through_torch_save(experts: Fp8Experts) -> Any:
    file = io.BytesIO()
    torch.save(experts, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [lambda x: pickle.loads(pickle.dumps(x)), through_torch_save], ids=["pickle", "save"]
)
def test_copies(copied: Callable[[Fp8Experts], Fp8Experts], plain: tuple[Tensor, Tensor]) -> None:
    experts = Fp8Experts.from_bfloat16(*plain, num_experts=9, first_expert=5, batch_invariant=True)
    other = copied(experts)
    assert same_block(other, experts) and repr(other) == repr(experts)
    assert repr(other).endswith("first_expert=5, num_local_experts=4, batch_invariant=True)")
    given = tokens(3, H, 9, 2, torch.Generator().manual_seed(1))
    assert same_bits(other(*given), experts(*given))


def test_safetensors(experts: Fp8Experts, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    safetensors.save_file(experts.state_dict(), tmp_path / "experts.safetensors")
    other = Fp8Experts(G, H, INNER, device="meta")
    other.load_state_dict(safetensors.load_file(tmp_path / "experts.safetensors"), assign=True)
    assert same_block(other, experts)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "H": (lambda: Fp8Experts(G, 24, INNER), "hidden_size: expected a multiple of 16, at least 16, got 24"),
    "I": (lambda: Fp8Experts(G, H, 0), "intermediate_size: .* got 0"),
    "no experts": (lambda: Fp8Experts(0, H, INNER), "expected one expert or more"),
    "experts past the last": (
        lambda: Fp8Experts(G, H, INNER, first_expert=2, num_local_experts=3),
        "first_expert and num_local_experts: expected one expert or more of 0 to 3, got 3 from 2 on",
    ),
    "negative": (lambda: Fp8Experts(G, H, INNER, first_expert=-1, num_local_experts=1), "got 1 from -1 on"),
    "codes as bfloat16": (
        lambda: Fp8Experts.from_bfloat16(torch.zeros(G, 2 * INNER, H).to(FP8), torch.zeros(G, H, INNER)),
        "gate_up_proj: expected one of .*, got torch.float8_e4m3fn",
    ),
    "bfloat16 as codes": (
        lambda: Fp8Experts.from_quantized(torch.zeros(G, 256, H), torch.ones(G, 2, 3), torch.zeros(G, H, 128), *ONES),
        "gate_up_proj.*: expected torch.float8_e4m3fn .*; quantise it first",
    ),
    "gate alone": (
        lambda: Fp8Experts.from_bfloat16(torch.zeros(G, INNER, H), torch.zeros(G, H, INNER)),
        "gate_up_proj",
    ),
    "other experts": (
        lambda: Fp8Experts.from_bfloat16(torch.zeros(3, 2 * INNER, H), torch.zeros(G, H, INNER)),
        r"gate_up_proj: expected 3 dimensions, .* got shape \(3, 256, 272\)",
    ),
    "matrices": (lambda: Fp8Experts.from_bfloat16(torch.zeros(H, H), torch.zeros(H, H)), "expected 3 dimensions"),
    "another device": (
        lambda: Fp8Experts.from_bfloat16(torch.zeros(G, 256, H), torch.zeros(G, H, 128, device="meta")),
        "down_proj: expected the device of gate_up_proj, cpu, got meta",
    ),
}
ONES = (torch.ones(G, 3, 1),)


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_blocks_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
