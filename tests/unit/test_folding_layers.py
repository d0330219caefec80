"""Layers and experts around weights with scales of 32x32 blocks, and state dicts that have such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fp8gemm
from fp8gemm.ahead.models import demand_of_model
from fp8gemm.nn import Fp8Experts, Fp8Linear
from tests.cases import SCALE_DTYPES
from tests.folding import SMALL, check_folded, values, weight

BLOCK = (32, 32)


def rows(m: int, k: int, seed: int = 1) -> Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", SCALE_DTYPES, ids=str)
def test_a_layer_computes_what_its_weight_stands_for(dtype: torch.dtype) -> None:
    codes, scales = weight(200, 272, 4, seed=1)
    bias = rows(1, 200)[0]
    layer = Fp8Linear.from_quantized(codes, scales.to(dtype), bias, block_size=BLOCK, dtype=torch.float32)
    assert layer.weight_scale_inv.shape == (2, 3) and layer.weight_scale_inv.dtype == torch.float32
    x = rows(70, 272)
    out = layer(x) - bias
    folded = layer.weight, layer.weight_scale_inv
    check_folded(out, fp8gemm.quantize_activation(x), (codes, scales), folded).raise_if_failed()
    with pytest.raises(fp8gemm.InputError, match=r"^weight_scale_inv: .*\(ceil\(N/128\), ceil\(K/128\)\)"):
        Fp8Linear.from_quantized(codes, scales)
    with pytest.raises(fp8gemm.InputError, match="^block_size: expected blocks of several rows"):
        Fp8Linear.from_quantized(codes, scales, block_size=(1, 32))


def test_a_layer_keeps_what_needs_no_folding() -> None:
    codes, scales = weight(200, 272, 0, seed=2)
    layer = Fp8Linear.from_quantized(codes, scales, block_size=BLOCK)
    assert layer.weight.data_ptr() == codes.data_ptr() and (layer.weight_scale_inv == 1).all()


def test_a_layer_of_what_is_not_folded_unasked() -> None:
    codes, scales = weight(64, 64, 1, seed=3)
    with pytest.raises(fp8gemm.InputError, match=r"^weight_scale_inv: expected positive powers of two"):
        Fp8Linear.from_quantized(codes, 1.5 * scales, block_size=BLOCK)
    layer = Fp8Linear.from_quantized(codes, 1.5 * scales, block_size=BLOCK, requantize=True)
    folded = fp8gemm.fold_scales(codes, 1.5 * scales, requantize=True)
    assert torch.equal(layer.weight.float(), folded.codes.float())
    assert torch.equal(layer.weight_scale_inv, folded.scales)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(("n", "k"), [(200, 272), (32, 48), (33, 16)])
def test_a_state_dict_says_by_its_shapes(n: int, k: int, assign: bool) -> None:
    codes, scales = weight(n, k, 3, seed=4)
    layer = nn.ModuleDict({"up": Fp8Linear(k, n, bias=False)})
    given = {"up.weight": codes, "up.weight_scale_inv": scales}
    layer.load_state_dict(given, assign=assign)
    like = Fp8Linear.from_quantized(codes, scales, block_size=BLOCK)
    assert torch.equal(layer["up"](rows(5, k)), like(rows(5, k)))
    state = layer.state_dict()
    assert state["up.weight_scale_inv"].shape == (-(-n // 128), -(-k // 128))
    assert given["up.weight_scale_inv"] is scales and scales.shape == SMALL.counts(n, k)
    again = nn.ModuleDict({"up": Fp8Linear(k, n, bias=False)})
    again.load_state_dict(state)
    assert torch.equal(again["up"](rows(5, k)), like(rows(5, k)))


def test_one_block_of_either_size_is_not_folded() -> None:
    codes, _ = weight(32, 16, 0, seed=4)
    layer = Fp8Linear(16, 32, bias=False)
    layer.load_state_dict({"weight": codes, "weight_scale_inv": torch.tensor([[0.3]])})
    assert layer.weight_scale_inv.item() == torch.tensor(0.3)


def test_a_state_dict_that_cannot_be_folded_changes_nothing() -> None:
    codes, scales = weight(128, 128, 3, seed=5)
    scales[1, 2] = 0.3
    layer = nn.ModuleDict({"up": Fp8Linear(128, 128, bias=False)})
    with pytest.raises(fp8gemm.InputError, match=r"^up.weight_scale_inv: expected positive powers .*block \(1, 2\)"):
        layer.load_state_dict({"up.weight": codes, "up.weight_scale_inv": scales}, strict=False)
    assert not layer["up"].weight.float().any()
    with pytest.raises(fp8gemm.InputError, match=r"^up.weight_scale_inv: expected .* of shape \(1, 1\)"):
        layer.load_state_dict({"up.weight": codes, "up.weight_scale_inv": scales[:3]})


@pytest.mark.parametrize("parts", [(96, 96), (160, 32, 32), (32, 320)], ids=str)
def test_projections_are_joined_before_they_are_folded(parts: tuple[int, ...]) -> None:
    """Of numbers of rows that are multiples of 32 and not of 128, so that 128x128 blocks hold rows of two of them."""
    each = [weight(n, 272, 3, seed=n) for n in parts]
    codes = torch.cat([codes.view(torch.uint8) for codes, _ in each]).view(torch.float8_e4m3fn)
    joined = codes, torch.cat([scales for _, scales in each])
    x = rows(70, 272)
    layer = Fp8Linear.from_quantized(*joined, block_size=BLOCK)
    out = layer(x)
    folded = layer.weight, layer.weight_scale_inv
    check_folded(out, fp8gemm.quantize_activation(x), joined, folded).raise_if_failed()
    exact = x.double() @ torch.cat([values(*part, SMALL) for part in each]).T
    assert (out.double() - exact).norm() < 0.05 * exact.norm()


def test_kernels_are_those_of_other_layers() -> None:
    layer = Fp8Linear.from_quantized(*weight(256, 272, 2, seed=6), block_size=BLOCK)
    plain = Fp8Linear.from_quantized(*fp8gemm.quantize_weight(rows(256, 272)))
    assert demand_of_model(layer, 64, "h100") == demand_of_model(plain, 64, "h100")


# Experts.

G, H, INNER = 3, 144, 96


def experts(most: int = 3) -> dict[str, tuple[Tensor, Tensor]]:
    """By projection, (G, N, K) codes and scales."""
    sizes = {"gate_proj": (INNER, H), "up_proj": (INNER, H), "down_proj": (H, INNER)}
    made = {}
    for number, (name, (n, k)) in enumerate(sizes.items()):
        parts = [weight(n, k, most, seed=10 * number + expert) for expert in range(G)]
        made[name] = tuple(
            torch.stack([part[i].view(torch.uint8) if not i else part[i] for part in parts]) for i in (0, 1)
        )
        made[name] = made[name][0].view(torch.float8_e4m3fn), made[name][1]
    return made


def fused(parts: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    (gate, of_gate), (up, of_up), (down, of_down) = parts.values()
    both = torch.cat([gate.view(torch.uint8), up.view(torch.uint8)], 1).view(gate.dtype)
    return {
        "gate_up_proj": both,
        "gate_up_proj_scale_inv": torch.cat([of_gate, of_up], 1),
        "down_proj": down,
        "down_proj_scale_inv": of_down,
    }


def single(parts: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    state = {}
    for name, (codes, scales) in parts.items():
        for expert in range(G):
            state[f"{expert}.{name}.weight"] = codes[expert]
            state[f"{expert}.{name}.weight_scale_inv"] = scales[expert]
    return state


def call(block: Fp8Experts) -> Tensor:
    ids = torch.arange(14).view(7, 2) % G
    return block(rows(7, H), ids, torch.full((7, 2), 0.5))


def test_experts_compute_what_their_weights_stand_for() -> None:
    parts = experts()
    block = Fp8Experts.from_quantized(*fused(parts).values(), block_size=BLOCK)
    assert block.gate_up_proj_scale_inv.shape == (G, 2, 2) and block.down_proj_scale_inv.shape == (G, 2, 1)
    gate, up, down = (torch.stack([values(c, s, SMALL) for c, s in zip(*part, strict=True)]) for part in parts.values())
    x, wanted = rows(7, H).double(), torch.zeros(7, H).double()
    for token in range(7):
        for slot in range(2):
            e = (2 * token + slot) % G
            between = torch.nn.functional.silu(gate[e] @ x[token]) * (up[e] @ x[token])
            wanted[token] += 0.5 * (down[e] @ between)
    assert (call(block).double() - wanted).norm() < 0.08 * wanted.norm()
    with pytest.raises(fp8gemm.InputError, match=r"^gate_up_proj_scale_inv: expected shape \(3, 2, 2\)"):
        Fp8Experts.from_quantized(*fused(parts).values())


@pytest.mark.parametrize("names", [fused, single])
def test_state_dicts_of_experts_say_by_their_shapes(names: Any) -> None:
    parts = experts()
    block = Fp8Experts(G, H, INNER)
    block.load_state_dict(names(parts))
    assert torch.equal(call(block), call(Fp8Experts.from_quantized(*fused(parts).values(), block_size=BLOCK)))
    some = Fp8Experts(G, H, INNER, first_expert=1, num_local_experts=1)
    some.load_state_dict(names(parts))
    assert torch.equal(some.gate_up_proj[0].float(), block.gate_up_proj[1].float())


def test_experts_that_cannot_be_folded() -> None:
    parts = experts()
    parts["up_proj"][1][2, 1, 1] = 0.3
    block = Fp8Experts(G, H, INNER)
    message = r"^2.gate_proj.weight_scale_inv and 2.up_proj.weight_scale_inv: .* got 0.3.* block \(4, 1\)"
    with pytest.raises(fp8gemm.InputError, match=message):
        block.load_state_dict(single(parts))
    assert not block.gate_up_proj.float().any()
    with pytest.raises(fp8gemm.InputError, match=r"^gate_up_proj_scale_inv: .* got 0.3.* group 2, block \(4, 1\)"):
        Fp8Experts.from_quantized(*fused(parts).values(), block_size=BLOCK)
    Fp8Experts.from_quantized(*fused(parts).values(), block_size=BLOCK, requantize=True)


def test_experts_whose_gate_and_up_would_share_a_block() -> None:
    draw = {"gate_proj": (80, H), "up_proj": (80, H), "down_proj": (H, 80)}
    state = {}
    for name, (n, k) in draw.items():
        state[f"0.{name}.weight"], state[f"0.{name}.weight_scale_inv"] = weight(n, k, 1, seed=1)
    with pytest.raises(fp8gemm.InputError, match=r"^0.gate_proj.weight_scale_inv: .* multiple of 32, .* got 80"):
        Fp8Experts(1, H, 80).load_state_dict(state)
