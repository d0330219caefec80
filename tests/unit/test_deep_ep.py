"""Experts between a dispatch and a combine of DeepEP: a stand-in with its signatures and layouts, not DeepEP itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.integrations.deep_ep import expanded_experts, expanded_offsets, low_latency_experts
from fp8gemm.nn import Fp8Experts, experts_routed
from fp8gemm.products.operands import tma_scales, tma_scales_of_groups
from fp8gemm.products.quantize import quantize_activation
from tests.deep_ep import Buffer, ElasticBuffer, World
from tests.experts import Tokens, block, relative_error, tokens

RANKS, EXPERTS, H, INNER, TOP_K, MAX_TOKENS = 2, 6, 256, 128, 3, 16
ROUNDED = 1e-2
"""More than what outputs lose that are bfloat16 before they are weighted and added."""


def given(seed: int, count: int = 12) -> Tokens:
    made = tokens(count, H, EXPERTS, TOP_K, torch.Generator().manual_seed(seed))
    made.expert_ids[::4, 1] = -1
    return Tokens(made.hidden.bfloat16(), made.expert_ids.long(), made.weights.float())


def whole() -> Fp8Experts:
    return block(EXPERTS, H, INNER, torch.Generator().manual_seed(5))


def experts_of(rank: int) -> Fp8Experts:
    share = EXPERTS // RANKS
    mine = Fp8Experts(EXPERTS, H, INNER, first_expert=share * rank, num_local_experts=share)
    mine.load_state_dict(whole().state_dict())
    return mine


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Codes and scales of each grouped product."""
    found: list[tuple[Tensor, Tensor]] = []

    def watch(name: str) -> None:
        product = getattr(experts_routed, name)
        monkeypatch.setattr(
            experts_routed,
            name,
            lambda a, scales, *rest, **options: found.append((a, scales)) or product(a, scales, *rest, **options),
        )

    for name in ("gemm_masked", "gemm_grouped"):
        watch(name)
        watch(f"{name}_again")
    return found


@pytest.mark.parametrize("use_fp8", [True, False])
def test_tokens_of_two_ranks_go_to_their_experts_and_back(
    use_fp8: bool, multiplied: list[tuple[Tensor, Tensor]]
) -> None:
    world, sent = World(RANKS), [given(rank) for rank in range(RANKS)]
    buffers = [Buffer(world, rank) for rank in range(RANKS)]
    dispatched = [
        buffer.low_latency_dispatch(x, ids, MAX_TOKENS, EXPERTS, use_fp8=use_fp8, return_recv_hook=True)
        for buffer, (x, ids, _) in zip(buffers, sent, strict=True)
    ]
    combined = []
    for (*_, hook), rank in zip(dispatched, range(RANKS), strict=True):
        hook()
        received, counts, handle, *_ = dispatched[rank]
        y = low_latency_experts(experts_of(rank), received, counts, expected_m=4)
        assert y.shape == (EXPERTS // RANKS, RANKS * MAX_TOKENS, H) and y.dtype == torch.bfloat16
        combined.append((y, handle))
        if use_fp8:
            codes, scales = multiplied[2 * rank]
            assert codes.data_ptr() == received[0].data_ptr() and scales.data_ptr() == received[1].data_ptr()
            read = tma_scales_of_groups(scales)
            assert read.data_ptr() == received[1].data_ptr() and read.stride() == received[1].stride()
    back = [
        buffer.low_latency_combine(y, mine.expert_ids, mine.weights, handle, return_recv_hook=True)
        for buffer, mine, (y, handle) in zip(buffers, sent, combined, strict=True)
    ]
    for (found, _, hook), mine in zip(back, sent, strict=True):
        hook()
        assert found.isfinite().all() and relative_error(found, whole()(*mine)) < ROUNDED


def test_packed_scales_are_refused() -> None:
    codes = torch.zeros(EXPERTS // RANKS, 32, H, dtype=torch.uint8).view(torch.float8_e4m3fn)
    packed = torch.zeros(EXPERTS // RANKS, 32, 1, dtype=torch.int32)
    with pytest.raises(InputError, match=r"scales_a: expected .*got .*int32"):
        low_latency_experts(experts_of(0), (codes, packed), torch.ones(EXPERTS // RANKS, dtype=torch.int32))


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize("do_cpu_sync", [True, False])
def test_expanded_rows_are_multiplied_where_they_are(
    alignment: int, do_cpu_sync: bool, multiplied: list[tuple[Tensor, Tensor]]
) -> None:
    x, ids, weights = given(3)
    ids[ids == 2] = 1  # one expert has no tokens
    options: dict[str, Any] = {"num_experts": EXPERTS, "expert_alignment": alignment, "do_cpu_sync": do_cpu_sync}
    received, _, of_rows, handle, _ = ElasticBuffer().dispatch(
        quantize_activation(x), ids, weights, do_expand=True, use_tma_aligned_col_major_sf=True, **options
    )
    begins, ends = expanded_offsets(handle)
    assert (begins % alignment == 0).all() and (ends - begins).tolist() == torch.bincount(ids[ids >= 0]).tolist()
    y = expanded_experts(whole(), received, of_rows, handle, expected_m=6)
    assert y.shape == (received[0].shape[0], H) and y.dtype == torch.bfloat16
    codes, scales = multiplied[0]
    assert codes.data_ptr() == received[0].data_ptr() and tma_scales(scales).data_ptr() == received[1].data_ptr()
    found, *_ = ElasticBuffer().combine(y, handle)
    assert relative_error(found, whole()(x, ids, weights)) < ROUNDED
    plain = expanded_experts(whole(), received, None, handle, expected_m=6)
    rows = torch.cat([torch.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
    assert torch.equal((plain * of_rows[:, None]).bfloat16()[rows], y[rows])


def test_what_is_not_expanded_or_not_weights_is_refused() -> None:
    x, ids, weights = given(4)
    received, _, of_rows, handle, _ = ElasticBuffer().dispatch(x, ids, weights, num_experts=EXPERTS, do_expand=True)
    assert expanded_experts(whole(), received, of_rows, handle).dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"weights: expected torch\.float32 of shape .* = \(M,\), got torch\.float64"):
        expanded_experts(whole(), received, of_rows.double(), handle)
    handle.do_expand = False
    with pytest.raises(InputError, match="handle: expected that of a dispatch with do_expand=True"):
        expanded_experts(whole(), received, of_rows, handle)
