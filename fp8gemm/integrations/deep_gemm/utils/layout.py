"""How scales lie in memory: on SM90 float32, those of A MN-major, those of B's 128x128 blocks contiguous."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm.arguments import OperandRecipe, Recipe, RefusedError
from fp8gemm.integrations.deep_gemm.runtime import (
    get_mk_alignment_for_contiguous_layout,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_mk_alignment_for_contiguous_layout,
)
from fp8gemm.integrations.deep_gemm.utils.math import align, ceil_div
from fp8gemm.scales import empty_mn_major_groups, mn_major_pitch, widened
from fp8gemm.sizes import SCALE_BLOCK

__all__ = [
    "get_k_alignment_for_contiguous_layout",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "set_mk_alignment_for_contiguous_layout",
    "transform_sf_into_required_layout",
]

get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout

_TMA_BYTES = 16


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` elements rounded up to a multiple of 16 bytes.

    Raises:
        RefusedError: 16 is no multiple of ``element_size``.
    """
    if element_size < 1 or _TMA_BYTES % element_size:
        raise RefusedError(f"element_size: expected a divisor of {_TMA_BYTES}, got {element_size}")
    return align(x, _TMA_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """``sf``, (MN, K) or (G, MN, K) float32, with strides (.., 1, MN rounded up to 4): itself if it has them.

    float8_e8m0fnu scales are widened to float32.

    Raises:
        RefusedError: another dtype or number of dimensions.
    """
    sf = widened(sf)
    if sf.dtype != torch.float32 or sf.dim() not in (2, 3):
        raise RefusedError(f"sf: expected torch.float32 of 2 or 3 dimensions, got {sf.dtype} of {tuple(sf.shape)}")
    rows, columns = sf.shape[-2:]
    pitch = mn_major_pitch(rows)
    if sf.stride()[-2:] == (1, pitch) and (sf.dim() == 2 or sf.stride(0) == pitch * columns):
        return sf
    groups = sf.shape[0] if sf.dim() == 3 else 1
    moved = empty_mn_major_groups(groups, rows, columns, device=sf.device)
    return moved.copy_(sf) if sf.dim() == 3 else moved.squeeze(0).copy_(sf)


def transform_sf_into_required_layout(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: Recipe | OperandRecipe,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
) -> Tensor:
    """Scales as an SM90 product reads them best: those of rows MN-major, those of 128x128 blocks as they are.

    Args:
        sf: (ceil(mn / rows), ceil(k / 128)) float32, or float8_e8m0fnu, which is widened, with ``num_groups`` in front
            where there is one.
        mn, k: rows and columns of the operand.
        recipe: rows of A, rows of B and columns that share a scale, with ``is_sfa``; or rows and columns without.
        is_sfa: whether the scales are those of A.
        disable_ue8m0_cast, psum_layout: without meaning on SM90.

    Raises:
        RefusedError: scales of another shape, or of blocks and neither contiguous nor their transpose.
        UnsupportedError: packed UE8M0 scales, or blocks other than 1x128 and 128x128.
    """
    if len(recipe) not in (2, 3) or (is_sfa is None) != (len(recipe) == 2):
        raise RefusedError(
            f"recipe: expected 3 numbers with is_sfa, or 2 without, got {tuple(recipe)} and is_sfa = {is_sfa}"
        )
    rows = recipe[0] if is_sfa is not False else recipe[1]
    sf = widened(sf)
    if sf.dtype != torch.float32 or recipe[-1] != SCALE_BLOCK or rows not in (1, SCALE_BLOCK):
        raise UnsupportedError(
            f"sf: expected torch.float32 scales of 1x128 or 128x128 blocks on SM90, got {sf.dtype} with {tuple(recipe)}"
        )
    groups = () if num_groups is None else (num_groups,)
    expected = (*groups, ceil_div(mn, rows), ceil_div(k, SCALE_BLOCK))
    if sf.shape != expected:
        raise RefusedError(f"sf: expected shape {expected}, got {tuple(sf.shape)}")
    if rows == 1:
        return get_mn_major_tma_aligned_tensor(sf)
    if not sf.is_contiguous() and not sf.mT.is_contiguous():
        raise RefusedError(f"sf: expected scales that are contiguous or lie transposed, got strides {sf.stride()}")
    return sf


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Tensor, psum_layout: Tensor | None = None) -> NoReturn:
    """Refused: SM90 products read float32 scales.

    Raises:
        UnsupportedError: always.
    """
    _refuse_packed()


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(*_: Any, **__: Any) -> NoReturn:
    """Refused: SM90 products read float32 scales.

    Raises:
        UnsupportedError: always.
    """
    _refuse_packed()


def _refuse_packed() -> NoReturn:
    raise UnsupportedError(
        "expected float32 scales, packed UE8M0 ones are for SM100; see get_mn_major_tma_aligned_tensor"
    )
