"""DeepGEMM's recipe (1, 32, 32): both operands have powers of two for scales of 32 columns, and are folded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm.products.quantize import quantize_weight
from fp8gemm.scales import E8M0
from tests.folding import ROWS, apart, values, weight
from tests.numerics import check

RECIPES: dict[str, dict[str, Any]] = {
    "one": {"recipe": (1, 32, 32)},
    "two": {"recipe_a": (1, 32), "recipe_b": (32, 32)},
}


def operands(m: int, n: int, k: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(m + n + k)
    sizes = torch.randint(-2, 3, (m, -(-k // 32)), generator=draw).float().exp2().repeat_interleave(32, 1)[:, :k]
    return quantize_weight(torch.randn(m, k, generator=draw) * sizes, block_size=(1, 32)), weight(n, k, 3, seed=1)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 200, 272), (1, 64, 512), (130, 32, 144)])
def test_the_product_is_that_of_the_operands_as_they_are(m: int, n: int, k: int, recipe: dict[str, Any]) -> None:
    a, b = operands(m, n, k)
    d = torch.full((m, n), torch.nan, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(a, b, d, **recipe)
    check(d, *apart(*a, 32), *apart(b[0], b[1].repeat_interleave(32, 0)[:n], 32)).raise_if_failed()
    lying = torch.full_like(d, torch.nan)
    deep_gemm.fp8_gemm_nt((a[0], a[1].t().contiguous().t()), (b[0], b[1].t().contiguous().t()), lying, **recipe)
    assert torch.equal(lying, d)
    if E8M0 is not None:
        again = torch.full_like(d, torch.nan)
        deep_gemm.fp8_gemm_nt((a[0], a[1].to(E8M0)), (b[0], b[1].to(E8M0)), again, **recipe)
        assert torch.equal(again, d)
    folded = fp8gemm.fold_scales(*b)
    once = fp8gemm.fold_scales(*a, block_size=(1, 32))
    ahead = torch.full_like(d, torch.nan)
    deep_gemm.fp8_gemm_nt((once.codes, once.scales), (folded.codes, folded.scales), ahead)
    assert torch.equal(ahead, d)


def test_the_folded_activations_are_the_given_ones() -> None:
    a, _ = operands(70, 32, 272)
    once = fp8gemm.fold_scales(*a, block_size=(1, 32))
    exact = values(*a, ROWS)
    assert 0 < (values(once.codes, once.scales, ROWS.wide) - exact).norm() < 1e-5 * exact.norm()


def test_what_cannot_be_folded_or_was_never_asked_for() -> None:
    a, b = operands(5, 64, 256)
    d = torch.zeros(5, 64, dtype=torch.bfloat16)
    recipe = {"recipe": (1, 32, 32)}
    with pytest.raises(RuntimeError, match=r"^b\[1\]: expected positive powers of two, .* block \(0, 0\)"):
        deep_gemm.fp8_gemm_nt(a, (b[0], b[1] * 1.5), d, **recipe)
    with pytest.raises(fp8gemm.InputError, match=r"^a\[1\]: expected .* of shape \(5, 8\), one for each block of 1x32"):
        deep_gemm.fp8_gemm_nt((a[0], a[1][:, :2]), b, d, **recipe)
    with pytest.raises(deep_gemm.RefusedError, match=r"^d, c: expected bfloat16 d and no c with recipe \(1, 32, 32\)"):
        deep_gemm.fp8_gemm_nt(a, b, d.float(), d.float(), **recipe)
    far = a[1].clone()
    far[3, 2] *= 2.0**-20
    with pytest.raises(deep_gemm.RefusedError, match=r"^a\[1\]: expected blocks of 1x32 .* block \(3, 2\)"):
        deep_gemm.fp8_gemm_nt((a[0], far), b, d, **recipe)
    with pytest.raises(
        fp8gemm.UnsupportedError, match=r"^recipe: expected \(1, 128, 128\) or \(1, 1, 128\) or \(1, 32, 32\)"
    ):
        deep_gemm.fp8_gemm_nt(a, b, d, recipe=(1, 1, 32))
    grouped = (a[0], a[1]), (b[0][None], b[1][None])
    with pytest.raises(fp8gemm.UnsupportedError, match=r"^recipe: expected \(1, 128, 128\) or \(1, 1, 128\), or"):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*grouped, d, torch.zeros(5, dtype=torch.int32), **recipe)
    assert not d.any()
