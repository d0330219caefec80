"""DeepGEMM's batched product of FP8 matrices, by `fp8gemm.gemm` for each of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm.arguments import (
    FOR_SM100,
    Pair,
    Recipe,
    RefusedError,
    block_scales,
    check_is_tensor,
    pair,
    refuse,
)
from fp8gemm.integrations.deep_gemm.runtime import run
from fp8gemm.integrations.deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
from fp8gemm.products.dense import gemm
from fp8gemm.quoting import quoted
from fp8gemm.scales import block_count

EQUATION = "bhr,hdr->bhd"


def fp8_einsum(
    expr: str,
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = (1, 128, 128),
    epilogue: object = None,
    use_128x4_sfd_layout: bool = False,
) -> None:
    """``D[b, h] = A[b, h] @ B[h].T``: for each head h a product of its own, one kernel behind the other.

    It is what DeepSeek-V4's output projection is divided into. The scales of all heads are laid out in one kernel
    before the products, unless they lie so already.

    Args:
        expr: "bhr,hdr->bhd", and no other.
        a: (B, H, R) float8_e4m3fn, R contiguous, and (B, H, ceil(R/128)) float32 scales.
        b: (H, D, R) float8_e4m3fn, R contiguous, packed, and (H, ceil(D/128), ceil(R/128)) float32 scales.
        d: (B, H, D) bfloat16 to write to, D contiguous.
        c: None; DeepGEMM adds it on SM100.
        recipe: (1, 128, 128), and no other.
        epilogue, use_128x4_sfd_layout: the defaults; DeepGEMM has others for SM100.

    Raises:
        RefusedError, UnsupportedError and others: as `fp8_gemm_nt`.
    """
    if expr != EQUATION:
        raise UnsupportedError(f"expr: expected {EQUATION!r}, got {quoted(expr)}: not on SM90")
    if tuple(recipe) != (1, 128, 128):
        raise UnsupportedError(f"recipe: expected (1, 128, 128), got {recipe}: not on SM90")
    refuse("c", c, why=FOR_SM100)
    refuse("epilogue", epilogue, why=FOR_SM100)
    refuse("use_128x4_sfd_layout", use_128x4_sfd_layout, without=False, why=FOR_SM100)
    if isinstance(d, (tuple, list)):
        raise UnsupportedError(f"d: expected a bfloat16 tensor, got a pair, of codes and their scales: {FOR_SM100}")
    codes_a, scales_a = pair("a", a)
    codes_b, scales_b = pair("b", b)
    check_is_tensor("d", d)
    _check_shapes(codes_a, scales_a, codes_b, d)
    scales_b = block_scales(scales_b, codes_b)
    if d.numel() == 0:
        return
    of_heads = get_mn_major_tma_aligned_tensor(scales_a.transpose(0, 1))
    for head in range(codes_b.shape[0]):
        run(gemm, codes_a[:, head], of_heads[head], codes_b[head], scales_b[head], out=d[:, head])


def _check_shapes(codes_a: Tensor, scales_a: Tensor, codes_b: Tensor, d: Tensor) -> None:
    """What a product of one head could not tell, or would tell only when those before it have been written."""
    if codes_a.dim() != 3 or codes_b.dim() != 3:
        raise RefusedError(
            f"a[0], b[0]: expected shapes (B, H, R) and (H, D, R), got {tuple(codes_a.shape)} and "
            f"{tuple(codes_b.shape)}"
        )
    (batch, heads, r), (of_b, n, r_of_b) = codes_a.shape, codes_b.shape
    if (heads, r) != (of_b, r_of_b) or d.shape != (batch, heads, n):
        raise RefusedError(
            f"d: expected (B, H, D) of (B, H, R) and (H, D, R), got {tuple(d.shape)} of {tuple(codes_a.shape)} and "
            f"{tuple(codes_b.shape)}"
        )
    if d.dtype != torch.bfloat16 or d.stride(-1) != 1:
        raise RefusedError(f"d: expected torch.bfloat16, D contiguous, got {d.dtype}, strides {d.stride()}")
    expected = batch, heads, block_count(r)
    if scales_a.dtype != torch.float32 or scales_a.shape != expected:
        raise RefusedError(
            f"a[1]: expected torch.float32 of shape {expected}, got {scales_a.dtype} of {tuple(scales_a.shape)}"
        )
