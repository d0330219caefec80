"""DeepGEMM's dense products, by `fp8gemm.gemm`."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.integrations.deep_gemm.arguments import (
    FOLDED,
    FOR_SM100,
    ROWS,
    OperandRecipe,
    Pair,
    Recipe,
    RefusedError,
    block_scales,
    check_addend,
    check_matrix,
    check_output,
    check_shapes,
    folded,
    of_transposed,
    operand_recipes,
    pair,
    refuse,
    whole_recipe,
)
from fp8gemm.integrations.deep_gemm.runtime import run
from fp8gemm.products.dense import gemm


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: OperandRecipe | None = None,
    recipe_b: OperandRecipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: object = None,
) -> None:
    """``D = A @ B.T``, or ``D = C + A @ B.T`` where B too has one scale per row and 128 columns.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous, and (M, ceil(K/128)) float32 scales, or float8_e8m0fnu
            ones, which are widened first, here and below. MN-major ones, as
            `get_mn_major_tma_aligned_tensor` makes them, are read in place, others copied first.
        b: (N, K) float8_e4m3fn, K contiguous, and float32 scales: (ceil(N/128), ceil(K/128)) with the default recipe,
            (N, ceil(K/128)) with (1, 1, 128).
        d: (M, N) to write to, N contiguous: bfloat16 with the default recipe, float32 with (1, 1, 128).
        c: (M, N) float32 with the recipe (1, 1, 128), which needs it; it may be ``d``. None with the default one.
        recipe: (1, 128, 128), the default, or (1, 1, 128). Or (1, 32, 32), with (M, ceil(K/32)) and
            (ceil(N/32), ceil(K/32)) scales that are powers of two, else as the default: both operands are folded
            (`fp8gemm.fold_scales`) at each call, which waits for the GPU and takes longer than the product. Who
            multiplies by a weight again folds it once.
        recipe_a, recipe_b: instead of ``recipe``: (1, 128), and (128, 128) or (1, 128); or (1, 32) and (32, 32).
        compiled_dims, disable_ue8m0_cast: without meaning here; scales are never rounded.
        alpha, epilogue: None; DeepGEMM has them for SM100.

    Raises:
        RefusedError: an argument that SM90 DeepGEMM refuses too, or scales that cannot be folded; it is an
            `fp8gemm.InputError` and a `RuntimeError`.
        UnsupportedError: what is for SM100 alone: packed UE8M0 scales, FP4, other recipes, epilogues.
        UnsupportedDeviceError, CompileError, CacheMissError, DriverError: as `fp8gemm.gemm`.
    """
    refuse("alpha", alpha, why=FOR_SM100)
    refuse("epilogue", epilogue, why=FOR_SM100)
    codes_a, scales_a = pair("a", a)
    codes_b, scales_b = pair("b", b)
    check_output(d, 2, torch.bfloat16, torch.float32)
    check_matrix("a[0]", codes_a)
    check_matrix("b[0]", codes_b)
    if d.numel() == 0 or codes_a.shape[1] == 0:
        _write_no_product(codes_a, codes_b, d, c)
        return
    recipes = operand_recipes(recipe, recipe_a, recipe_b, FOLDED)
    by_rows = recipes[1] == ROWS
    if (c is not None) != by_rows or d.dtype != (torch.float32 if by_rows else torch.bfloat16):
        expected = "float32 d, and c to add, with recipe (1, 1, 128)"
        if not by_rows:
            expected = f"bfloat16 d and no c with recipe {whole_recipe(*recipes)}"
        found = f"{d.dtype} d and {'no c' if c is None else f'{c.dtype} c'}"
        raise RefusedError(f"d, c: expected {expected}, got {found}")
    if recipes == FOLDED:
        codes_a, scales_a = folded("a", codes_a, scales_a, FOLDED[0])
        codes_b, scales_b = folded("b", codes_b, scales_b, FOLDED[1])
    elif c is None:
        scales_b = block_scales(scales_b, codes_b)
    else:
        check_addend(c, d)
        if scales_b.shape[:1] != codes_b.shape[:1]:
            raise RefusedError(
                f"b[1]: expected one scale per row with recipe (1, 1, 128), got shape {tuple(scales_b.shape)} for "
                f"{tuple(codes_b.shape)}"
            )
    run(gemm, codes_a, scales_a, codes_b, scales_b, c=c, out=d)


fp8_gemm_nn = of_transposed(fp8_gemm_nt, "fp8_gemm_nn", "B is given as (K, N)", "b")
fp8_gemm_tn = of_transposed(
    fp8_gemm_nt, "fp8_gemm_tn", "A and B are given as (K, M) and (K, N)", "ab", compiled_dims="mn"
)
fp8_gemm_tt = of_transposed(fp8_gemm_nt, "fp8_gemm_tt", "A is given as (K, M)", "a", compiled_dims="mn")


def _write_no_product(codes_a: Tensor, codes_b: Tensor, d: Tensor, c: Tensor | None) -> None:
    """What is left where M, N or K is 0: C, or zeros."""
    check_shapes(codes_a, codes_b, d)
    if c is not None:
        check_addend(c, d)
        d.copy_(c)
    else:
        d.zero_()
