"""DeepGEMM's grouped products, by `fp8gemm.gemm_grouped`, `gemm_masked` and `gemm_k_grouped`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm import runtime
from fp8gemm.integrations.deep_gemm.arguments import (
    FOR_SM100,
    OperandRecipe,
    Pair,
    Recipe,
    RefusedError,
    block_scales,
    check_addend,
    check_layout,
    check_output,
    of_transposed,
    pair,
    refuse,
    scaled_by_rows,
)
from fp8gemm.integrations.deep_gemm.runtime import run
from fp8gemm.products.grouped import gemm_grouped, gemm_k_grouped, gemm_masked
from fp8gemm.sizes import SCALE_BLOCK

_NO_OVERLAP = "no kernel here signals its tiles to communication"


def m_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    grouped_layout: Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: OperandRecipe | None = None,
    recipe_b: OperandRecipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: object = None,
    *,
    m_indices: Tensor | None = None,
) -> None:
    """``D[m] = A[m] @ B[g].T``, where g is the group of row m, the rows of all groups one behind the other.

    As on SM90 rows that pad a group to a multiple of `get_mk_alignment_for_contiguous_layout()` are computed with it:
    where A is zero D becomes zero. Rows of blocks without any group are not touched.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous, and (M, ceil(K/128)) float32 scales.
        b: (G, N, K) float8_e4m3fn, K contiguous, packed, and (G, ceil(N/128), ceil(K/128)) float32 scales.
        d: (M, N) bfloat16 to write to, N contiguous.
        grouped_layout: int32, contiguous: (M,), the group of each row or -1 for none; with ``use_psum_layout`` (G,),
            the row past the last of each group, which begins where the one before ends, rounded up to the alignment.
        recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast: as in `fp8_gemm_nt`, without (1, 1, 128).
        ensure_zero_padding: with ``use_psum_layout``, False leaves rows that pad a group untouched, which is faster
            where groups are small.
        expected_m_for_psum_layout: rows of a typical group, with ``use_psum_layout`` alone.
        epilogue: None; DeepGEMM has them for SM100.
        m_indices: what older versions call ``grouped_layout``.

    Raises:
        RefusedError, UnsupportedError and others: as `fp8_gemm_nt`.
    """
    refuse("epilogue", epilogue, why=FOR_SM100)
    if (grouped_layout is None) == (m_indices is None):
        raise RefusedError("grouped_layout: expected a tensor, as grouped_layout or as m_indices, got none or both")
    layout = m_indices if grouped_layout is None else grouped_layout
    assert layout is not None
    codes_a, scales_a = pair("a", a)
    codes_b, scales_b = _weights(b, recipe, recipe_a, recipe_b)
    check_output(d, 2, torch.bfloat16)
    if use_psum_layout:
        check_layout("grouped_layout", layout, (codes_b.shape[0],))
    else:
        check_layout("grouped_layout", layout, tuple(codes_a.shape[:1]))
        if expected_m_for_psum_layout is not None:
            raise RefusedError(
                f"expected_m_for_psum_layout: expected use_psum_layout, got {expected_m_for_psum_layout}"
            )
    if layout.numel() == 0 or codes_a.shape[0] == 0:
        return
    operands = codes_a, scales_a, codes_b, scales_b
    if not use_psum_layout:
        run(gemm_grouped, *operands, indices=_with_padding(layout), out=d)
        return
    expected = expected_m_for_psum_layout
    if ensure_zero_padding and expected is not None:
        expected = -(-expected // runtime.get_mk_alignment_for_contiguous_layout())
        expected *= runtime.get_mk_alignment_for_contiguous_layout()
    run(gemm_grouped, *operands, offsets=_psum_offsets(layout, ensure_zero_padding), out=d, expected_m=expected)


m_grouped_fp8_gemm_nn_contiguous = of_transposed(
    m_grouped_fp8_gemm_nt_contiguous,
    "m_grouped_fp8_gemm_nn_contiguous",
    "B is given as (G, K, N)",
    "b",
    without="expected_m_for_psum_layout",
)


def m_grouped_fp8_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: Recipe | None = None,
    recipe_a: OperandRecipe | None = None,
    recipe_b: OperandRecipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: object = None,
    *,
    enable_overlap: bool = False,
    max_block_n: int = 256,
    signal: Tensor | None = None,
) -> None:
    """``D[g, m] = A[g, m] @ B[g].T`` for the first ``masked_m[g]`` rows of each group; others are not touched.

    Args:
        a: (G, max_m, K) float8_e4m3fn, K contiguous, packed, and (G, max_m, ceil(K/128)) float32 scales. Those of
            `get_mn_major_tma_aligned_tensor` are read in place, others copied first.
        b: (G, N, K) float8_e4m3fn, K contiguous, packed, and (G, ceil(N/128), ceil(K/128)) float32 scales.
        d: (G, max_m, N) bfloat16 to write to, packed.
        masked_m: int32, contiguous, G elements.
        expected_m: rows of a typical group, at least 1.
        recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast: as in `fp8_gemm_nt`, without (1, 1, 128).
        epilogue: None; DeepGEMM has them for SM100.
        enable_overlap, max_block_n, signal: the defaults. With others some of SGLang's versions let communication read
            tiles while later ones are computed.

    Raises:
        RefusedError, UnsupportedError and others: as `fp8_gemm_nt`.
    """
    refuse("epilogue", epilogue, why=FOR_SM100)
    refuse("enable_overlap", enable_overlap, without=False, why=_NO_OVERLAP)
    refuse("max_block_n", max_block_n, without=256, why=_NO_OVERLAP)
    refuse("signal", signal, why=_NO_OVERLAP)
    codes_a, scales_a = pair("a", a)
    codes_b, scales_b = _weights(b, recipe, recipe_a, recipe_b)
    check_output(d, 3, torch.bfloat16)
    counts = masked_m.view(-1) if masked_m.is_contiguous() else masked_m
    check_layout("masked_m", counts, (codes_b.shape[0],))
    if d.numel() == 0:
        raise RefusedError(f"d: expected G, max_m and N of at least 1, got shape {tuple(d.shape)}")
    run(gemm_masked, codes_a, scales_a, codes_b, scales_b, counts, out=d, expected_m=expected_m)


def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    ks_cpu: Sequence[int] | None,
    grouped_layout: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: object = None,
) -> None:
    """``D[g] = C[g] + A[g] @ B[g].T``, where the groups differ in K: weight gradients.

    The codes of a group are a matrix of its own here, and `fp8gemm.gemm_k_grouped` reads columns of one matrix: with
    more than one group both are copied, which ``gemm_k_grouped`` on its own does without.

    Args:
        a: (M * sum of ks,) float8_e4m3fn, contiguous: an (M, k) matrix of each group, one behind the other; and
            (M, sum of ks / 128) float32 scales of 1x128 blocks, the columns of all groups side by side.
        b: the same of (N, k) matrices.
        d: (G, M, N) float32 to write to, contiguous.
        ks_cpu: the K of each group, multiples of 128, 0 among them.
        grouped_layout: the same as int32 on the device. (Older versions call the two ``ks`` and ``ks_tensor``.)
        c: (G, M, N) float32 to add, contiguous; it may be ``d``. Required, as in DeepGEMM.
        recipe: (1, 1, 128), and no other.
        compiled_dims: without meaning here.
        use_psum_layout: False: there is no such layout of FP8 on SM90.
        epilogue: None; DeepGEMM has them for SM100.

    Raises:
        RefusedError, UnsupportedError and others: as `fp8_gemm_nt`.
    """
    refuse("epilogue", epilogue, why=FOR_SM100)
    if tuple(recipe) != (1, 1, 128):
        raise RefusedError(f"recipe: expected (1, 1, 128), got {recipe}")
    if use_psum_layout or not ks_cpu:
        raise RefusedError(f"ks_cpu: expected K of each group, without use_psum_layout, got {ks_cpu}")
    codes_a, scales_a = pair("a", a)
    codes_b, scales_b = pair("b", b)
    check_output(d, 3, torch.float32)
    groups, m, n = d.shape
    check_layout("grouped_layout", grouped_layout, (groups,))
    if len(ks_cpu) != groups or any(k % SCALE_BLOCK or k < 0 for k in ks_cpu):
        raise RefusedError(f"ks_cpu: expected {groups} multiples of {SCALE_BLOCK}, got {list(ks_cpu)}")
    total = sum(ks_cpu)
    for name, codes, rows in (("a[0]", codes_a, m), ("b[0]", codes_b, n)):
        if codes.dtype != torch.float8_e4m3fn or codes.numel() != rows * total or not codes.is_contiguous():
            raise RefusedError(
                f"{name}: expected {rows} * {total} contiguous elements of torch.float8_e4m3fn, all groups' rows, got "
                f"{codes.dtype} of shape {tuple(codes.shape)}, strides {codes.stride()}"
            )
    if c is None or not c.is_contiguous() or not d.is_contiguous():
        raise RefusedError(f"c, d: expected contiguous tensors, got {'no c' if c is None else f'strides {c.stride()}'}")
    check_addend(c, d)
    if d.numel() == 0 or total == 0:
        d.copy_(c)
        return
    offsets = grouped_layout.cumsum(0, dtype=torch.int32)
    side_by_side = _side_by_side(codes_a, m, ks_cpu), scales_a, _side_by_side(codes_b, n, ks_cpu), scales_b
    run(gemm_k_grouped, *side_by_side, offsets, c=c, out=d)


@wraps(k_grouped_fp8_gemm_nt_contiguous, assigned=("__module__", "__annotations__"))
def k_grouped_fp8_gemm_tn_contiguous(*_: object, **__: object) -> None:
    """Refused, as by DeepGEMM on SM90, whose tensor cores read FP8 with K contiguous alone.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "k_grouped_fp8_gemm_tn_contiguous: expected an SM100 GPU, SM90 reads FP8 operands with K contiguous alone; "
        "k_grouped_fp8_gemm_nt_contiguous takes them so"
    )


def _weights(
    b: Pair, recipe: Recipe | None, recipe_a: OperandRecipe | None, recipe_b: OperandRecipe | None
) -> tuple[Tensor, Tensor]:
    """The groups' B with one scale per 128x128 block."""
    codes, scales = pair("b", b)
    if codes.dim() != 3:
        raise RefusedError(f"b[0]: expected shape (G, N, K), got {tuple(codes.shape)}")
    if scaled_by_rows(recipe, recipe_a, recipe_b):
        raise UnsupportedError(
            "recipe: expected (1, 128, 128) of a grouped product, got one scale per row of B: not on SM90"
        )
    return codes, block_scales(scales, codes)


def _with_padding(indices: Tensor) -> Tensor:
    """(M,) indices, where rows that pad a group up to the alignment belong to it.

    DeepGEMM takes the group of a whole block from its first row. The running maximum says the same, and leaves groups
    that begin within a block alone where they are in ascending order.
    """
    alignment = runtime.get_mk_alignment_for_contiguous_layout()
    if alignment == 1:
        return indices
    rows = indices.shape[0]
    blocks = (pad(indices, (0, -rows % alignment), value=-1) if rows % alignment else indices).view(-1, alignment)
    return blocks.cummax(dim=1).values.view(-1)[:rows]


def _psum_offsets(ends: Tensor, with_padding: bool) -> Tensor:
    """The rows of groups that end before ``ends`` and begin at multiples of the alignment, for `gemm_grouped`."""
    alignment = runtime.get_mk_alignment_for_contiguous_layout()
    if alignment == 1:
        return ends
    aligned = ends.add(alignment - 1).floor_divide_(alignment).mul_(alignment)
    return aligned if with_padding else torch.stack((pad(aligned[:-1], (1, 0)), ends))


def _side_by_side(codes: Tensor, rows: int, ks: Sequence[int]) -> Tensor:
    """(rows, sum of ks) of the (rows, k) matrices that lie one behind the other."""
    pieces = codes.view(-1).view(torch.uint8).split([rows * k for k in ks])
    matrices = [piece.view(rows, -1) for piece in pieces if piece.numel()]
    return (matrices[0] if len(matrices) == 1 else torch.cat(matrices, dim=1)).view(codes.dtype)
