"""Copies and sums of tokens that come in parts, into memory that is there: the bits of one call, and nothing else
written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.products import routing
from fp8gemm.scales import is_mn_major
from tests.calls import same_bits
from tests.routed import CODE, E4M3, SCALE, drawn

G, TOP_K = 4, 3


def parts(tokens: int) -> list[slice]:
    return [slice(tokens // 3, tokens), slice(0, tokens // 3)]


def tokens_at(codes: Tensor, offset: int) -> Tensor:
    """Rows that do not begin where several codes can be moved at once."""
    storage = torch.zeros(codes.shape[0], codes.shape[1] + 9, dtype=torch.uint8).view(E4M3)
    return storage[:, offset : offset + codes.shape[1]].copy_(codes)


@pytest.mark.parametrize("offset", [None, 3])
@pytest.mark.parametrize("k", [16, 272])
@pytest.mark.parametrize("tokens", [0, 1, 2, 40])
def test_copies(tokens: int, k: int, offset: int | None) -> None:
    codes, scales = fp8gemm.quantize_activation(torch.randn(tokens, k))
    given = codes if offset is None else tokens_at(codes, offset)
    offsets, rows, _ = routing.route(drawn(tokens, TOP_K, G, 1), G, 3)
    right, count = routing.copy_to_rows(codes, scales, rows, offsets), int(offsets[-1])
    out = routing.empty_rows(rows.numel() + 5, k, codes.device)
    assert out[0].is_contiguous() and out[0].dtype == E4M3 and is_mn_major(out[1])
    out[0].view(torch.uint8).fill_(CODE)
    out[1].fill_(SCALE)
    for part in parts(tokens):
        routing.copy_to_rows_into(given[part], scales[part], rows[part], offsets, out)
    assert all(same_bits(mine[:count], theirs[:count]) for mine, theirs in zip(out, right, strict=True))
    assert bool((out[0][rows.numel() :].view(torch.uint8) == CODE).all() and (out[1][rows.numel() :] == SCALE).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 40])
def test_sums(tokens: int, dtype: torch.dtype) -> None:
    _, rows, kept = routing.route(drawn(tokens, TOP_K, G, 1), G, 3)
    y, weights = torch.randn(rows.numel() + 5, 24).to(dtype), torch.randn(tokens, TOP_K)
    out = torch.full((tokens + 1, 24), SCALE, dtype=dtype)
    for part in parts(tokens):
        routing.unpermute_into(y, rows[part], kept[part], weights[part], out[part])
    assert same_bits(out[:-1], routing.unpermute(y, rows, kept, weights)) and bool((out[-1] == SCALE).all())
