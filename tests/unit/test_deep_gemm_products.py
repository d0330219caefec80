"""DeepGEMM's products on the CPU, by the reference: what its documents say that they compute, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm import settings
from fp8gemm.integrations.deep_gemm import dense, runtime
from fp8gemm.reference import gemm_reference
from fp8gemm.tuning.problem import Scaling
from tests import cases

M, N, K, GROUPS = 70, 136, 272, 3
UNTOUCHED = 7.0


@pytest.fixture(autouse=True)
def own_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What one test sets for the process no other test sees."""
    for name in ("_num_sms", "_pdl", "_mk_alignment", "_made"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    with settings.scope(num_sms=132):
        yield


def filled(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, UNTOUCHED, dtype=dtype)


def row_major(scales: Tensor) -> Tensor:
    return scales.contiguous()


def deep_gemm_layout(scales: Tensor) -> Tensor:
    return deep_gemm.get_mn_major_tma_aligned_tensor(scales)


def weights(n: int = N, k: int = K) -> tuple[Tensor, Tensor]:
    """Codes (GROUPS, N, K) and block scales of as many different weights."""
    made = [cases.signed(1, n, k, seed=seed) for seed in range(GROUPS)]
    codes = torch.stack([case.b.view(torch.uint8) for case in made]).view(torch.float8_e4m3fn)
    return codes, torch.stack([case.scales_b for case in made])


def product(a: Tensor, scales_a: Tensor, b: tuple[Tensor, Tensor], group: int) -> Tensor:
    return gemm_reference(a, scales_a, b[0][group], b[1][group])


@pytest.mark.parametrize("layout", [row_major, deep_gemm_layout])
@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"recipe": (1, 128, 128)},
        {"recipe": [1, 128, 128], "compiled_dims": "", "disable_ue8m0_cast": True},
        {"recipe_a": (1, 128), "recipe_b": (128, 128)},
    ],
)
def test_a_dense_product(layout: Callable[[Tensor], Tensor], recipe: dict[str, Any]) -> None:
    case = cases.signed(M, N, K, seed=1)
    d = filled(M, N)
    assert deep_gemm.fp8_gemm_nt((case.a, layout(case.scales_a)), (case.b, case.scales_b), d, **recipe) is None
    case.check(d).raise_if_failed(case)
    assert torch.equal(d, gemm_reference(*case.operands))


def test_transposed_operands_are_views_of_ones_with_k_contiguous() -> None:
    case = cases.signed(M, N, K, seed=2)
    a, b = (case.a, case.scales_a), (case.b, case.scales_b)
    a_t, b_t = (case.a.T, case.scales_a.T), (case.b.T, case.scales_b.T)
    for function, operands in (
        (deep_gemm.fp8_gemm_nn, (a, b_t)),
        (deep_gemm.fp8_gemm_tn, (a_t, b_t)),
        (deep_gemm.fp8_gemm_tt, (a_t, b)),
        (deep_gemm.fp8_gemm_nt, (a, (case.b, case.scales_b.T.contiguous().T))),
    ):
        d = filled(M, N)
        function(*operands, d)
        assert torch.equal(d, gemm_reference(*case.operands)), function


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("recipe", [{"recipe": (1, 1, 128)}, {"recipe_a": (1, 128), "recipe_b": (1, 128)}])
def test_a_dense_product_with_scales_of_rows_adds_c(in_place: bool, recipe: dict[str, Any]) -> None:
    case = cases.signed(M, N, K, seed=3, scaling=Scaling.ROW)
    c = torch.randn(M, N)
    expected = gemm_reference(*case.operands, c=c, out_dtype=torch.float32)
    d = c if in_place else filled(M, N, dtype=torch.float32)
    deep_gemm.fp8_gemm_nt((case.a, case.scales_a), (case.b, case.scales_b), d, c=c, **recipe)
    assert torch.equal(d, expected)


def test_products_without_elements() -> None:
    case = cases.signed(M, N, K, seed=4)
    a, b = (case.a, case.scales_a), (case.b, case.scales_b)
    deep_gemm.fp8_gemm_nt((case.a[:0], case.scales_a[:0]), b, filled(0, N))
    deep_gemm.fp8_gemm_nt(a, (case.b[:0], case.scales_b[:0]), filled(M, 0))
    nothing = (case.a[:, :0], case.scales_a[:, :0]), (case.b[:, :0], case.scales_b[:, :0])
    d = filled(M, N)
    deep_gemm.fp8_gemm_nt(*nothing, d)
    assert not d.any()
    c = torch.randn(M, N)
    d = filled(M, N, dtype=torch.float32)
    deep_gemm.fp8_gemm_nt(*nothing, d, c)
    assert torch.equal(d, c)


def contiguous(sizes: list[int], alignment: int) -> tuple[Tensor, Tensor, Tensor, list[tuple[int, int, int]]]:
    """A that is zero in the padding, its scales, the group of each row; begin, end and padded end of each group."""
    ranges, begin = [], 0
    for size in sizes:
        ranges.append((begin, begin + size, begin + deep_gemm.align(size, alignment)))
        begin = ranges[-1][2]
    case = cases.signed(begin + alignment, N, K, seed=5)
    codes = case.a.clone()
    indices = torch.full((begin + alignment,), -1, dtype=torch.int32)
    for group, (begin, end, padded) in enumerate(ranges):
        codes.view(torch.uint8)[end:padded] = 0
        indices[begin:end] = group
    return codes, case.scales_a, indices, ranges


@pytest.mark.parametrize("sizes", [[100, 128, 3], [0, 130, 0], [1, 1, 1]])
@pytest.mark.parametrize("keyword", ["grouped_layout", "m_indices"])
def test_rows_of_groups_are_multiplied_and_their_padding_becomes_zero(sizes: list[int], keyword: str) -> None:
    codes, scales, indices, ranges = contiguous(sizes, 128)
    b, d = weights(), filled(len(indices), N)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((codes, scales), b, d, **{keyword: indices})
    for group, (begin, end, padded) in enumerate(ranges):
        assert torch.equal(d[begin:end], product(codes[begin:end], scales[begin:end], b, group))
        assert not d[end:padded].any()
    assert bool((d[ranges[-1][2] :] == UNTOUCHED).all())


def test_groups_without_padding() -> None:
    """With an alignment of 1 groups may lie anywhere, and rows marked -1 are not touched."""
    case, b = cases.signed(M, N, K, seed=6), weights()
    indices = torch.full((M,), -1, dtype=torch.int32)
    indices[3:10], indices[10:41], indices[60:] = 2, 0, 1
    d, spread = filled(M, N), [(2, 3, 10), (0, 10, 41), (1, 60, M)]
    deep_gemm.set_mk_alignment_for_contiguous_layout(1)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((case.a, case.scales_a), b, d, indices)
    for group, begin, end in spread:
        assert torch.equal(d[begin:end], product(case.a[begin:end], case.scales_a[begin:end], b, group))
    assert bool((d[:3] == UNTOUCHED).all()) and bool((d[41:60] == UNTOUCHED).all())


def test_groups_in_ascending_order_may_begin_within_a_block() -> None:
    case, b = cases.signed(M, N, K, seed=7), weights()
    indices = torch.tensor([0] * 20 + [1] * 20 + [2] * 20 + [-1] * 10, dtype=torch.int32)
    d = filled(M, N)
    deep_gemm.m_grouped_gemm_fp8_fp8_bf16_nt_contiguous((case.a, case.scales_a), b, d, indices)
    for group, (begin, end) in enumerate([(0, 20), (20, 40), (40, M)]):
        assert torch.equal(d[begin:end], product(case.a[begin:end], case.scales_a[begin:end], b, group))


@pytest.mark.parametrize("sizes", [[100, 128, 3], [0, 130, 0]])
@pytest.mark.parametrize("alignment", [128, 64, 1])
@pytest.mark.parametrize("zero_padding", [True, False])
def test_sums_of_sizes(sizes: list[int], alignment: int, zero_padding: bool) -> None:
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    codes, scales, _, ranges = contiguous(sizes, alignment)
    ends = torch.tensor([end for _, end, _ in ranges], dtype=torch.int32)
    b, d = weights(), filled(len(codes), N)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        *((codes, scales), b, d, ends),
        use_psum_layout=True,
        ensure_zero_padding=zero_padding,
        expected_m_for_psum_layout=50,
    )
    for group, (begin, end, padded) in enumerate(ranges):
        assert torch.equal(d[begin:end], product(codes[begin:end], scales[begin:end], b, group))
        assert bool((d[end:padded] == (0 if zero_padding else UNTOUCHED)).all())


def test_a_transposed_weight_of_groups() -> None:
    case, b = cases.signed(M, N, K, seed=8), weights()
    indices = torch.zeros(M, dtype=torch.int32)
    d = filled(M, N)
    deep_gemm.m_grouped_fp8_gemm_nn_contiguous((case.a, case.scales_a), (b[0].mT, b[1].mT), d, indices)
    assert torch.equal(d, product(case.a, case.scales_a, b, 0))
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((case.a[:0], case.scales_a[:0]), b, d[:0], indices[:0])


@pytest.mark.parametrize("layout", [row_major, deep_gemm_layout])
def test_masked_groups(layout: Callable[[Tensor], Tensor]) -> None:
    max_m, counts = 40, [0, 17, 40]
    made = [cases.signed(max_m, N, K, seed=20 + group) for group in range(GROUPS)]
    codes = torch.stack([case.a.view(torch.uint8) for case in made]).view(torch.float8_e4m3fn)
    scales = layout(torch.stack([case.scales_a for case in made]))
    b, d = weights(), filled(GROUPS, max_m, N)
    masked_m = torch.tensor(counts, dtype=torch.int32)
    deep_gemm.fp8_m_grouped_gemm_nt_masked((codes, scales), b, d, masked_m=masked_m, expected_m=20)
    for group, count in enumerate(counts):
        assert torch.equal(d[group, :count], product(codes[group, :count], scales[group, :count], b, group))
        assert bool((d[group, count:] == UNTOUCHED).all())
    again = filled(GROUPS, max_m, N)
    deep_gemm.m_grouped_gemm_fp8_fp8_bf16_nt_masked((codes, scales), b, again, masked_m, 20)
    assert torch.equal(again, d)


@pytest.mark.parametrize("ks", [[256, 0, 128], [0, 384, 0], [128, 128, 128], [0, 0, 0]])
@pytest.mark.parametrize("in_place", [True, False])
def test_groups_along_k(ks: list[int], in_place: bool) -> None:
    made = [cases.signed(M, N, max(k, 128), seed=k + group, scaling=Scaling.ROW) for group, k in enumerate(ks)]
    a = torch.cat([case.a.view(torch.uint8)[:, :k].reshape(-1) for case, k in zip(made, ks, strict=True)])
    b = torch.cat([case.b.view(torch.uint8)[:, :k].reshape(-1) for case, k in zip(made, ks, strict=True)])
    scales_a = torch.cat([case.scales_a[:, : k // 128] for case, k in zip(made, ks, strict=True)], dim=1)
    scales_b = torch.cat([case.scales_b[:, : k // 128] for case, k in zip(made, ks, strict=True)], dim=1)
    c = torch.randn(GROUPS, M, N)
    before = c.clone()
    d = c if in_place else filled(GROUPS, M, N, dtype=torch.float32)
    pairs = (a.view(torch.float8_e4m3fn), scales_a), (b.view(torch.float8_e4m3fn), scales_b.T.contiguous().T)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*pairs, d, ks, torch.tensor(ks, dtype=torch.int32), c)
    for group, (case, k) in enumerate(zip(made, ks, strict=True)):
        whole = gemm_reference(*case.operands, c=before[group], out_dtype=torch.float32)
        assert torch.equal(d[group], whole if k else before[group])


def test_a_weight_gradient_by_its_older_name() -> None:
    case = cases.signed(M, N, K, seed=9, scaling=Scaling.ROW)
    out = torch.randn(M, N)
    expected = gemm_reference(*case.operands, c=out, out_dtype=torch.float32)
    deep_gemm.wgrad_gemm_fp8_fp8_fp32_nt((case.a, case.scales_a), (case.b, case.scales_b), out)
    assert torch.equal(out, expected)
    d = filled(M, N)
    blocks = cases.signed(M, N, K, seed=9)
    deep_gemm.gemm_fp8_fp8_bf16_nt((blocks.a, blocks.scales_a), (blocks.b, blocks.scales_b), d)
    assert torch.equal(d, gemm_reference(*blocks.operands)) and not math.isnan(float(d.sum()))


def test_sms_and_early_launches_hold_for_these_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.signed(M, N, K, seed=10)
    seen: list[settings.Settings] = []
    monkeypatch.setattr(dense, "gemm", lambda *operands, **options: seen.append(settings.current()))

    def call() -> settings.Settings:
        deep_gemm.fp8_gemm_nt((case.a, case.scales_a), (case.b, case.scales_b), filled(M, N))
        return seen[-1]

    outside = settings.current()
    assert call() is outside and deep_gemm.get_num_sms() == 132 and deep_gemm.get_pdl() is outside.pdl
    deep_gemm.set_num_sms(100)
    deep_gemm.set_pdl(not outside.pdl)
    inside = call()
    assert (inside.num_sms, inside.pdl) == (100, not outside.pdl) and settings.current() is outside
    assert call() is inside  # products know a call again under the very same settings alone
    assert deep_gemm.get_num_sms() == 100 and deep_gemm.get_pdl() is not outside.pdl
    with settings.scope(num_sms=50, batch_invariant=True):
        assert (call().num_sms, call().batch_invariant) == (100, True)
    deep_gemm.set_num_sms(132)
    deep_gemm.set_pdl(outside.pdl)
    assert call() is outside
    deep_gemm.set_num_sms(64)
    deep_gemm.set_num_sms(0)
    assert call() is outside and deep_gemm.get_num_sms() == 132


def test_calls_are_traced_without_a_break() -> None:
    case, b = cases.signed(M, N, K, seed=11), weights()
    indices = torch.zeros(M, dtype=torch.int32)

    def call(d: Tensor, of_group: Tensor) -> Tensor:
        deep_gemm.fp8_gemm_nt((case.a, case.scales_a), (case.b, case.scales_b), d)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous((case.a, case.scales_a), b, of_group, indices)
        return d - of_group

    deep_gemm.set_num_sms(100)
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    difference = compiled(filled(M, N), filled(M, N))
    assert torch.equal(difference, gemm_reference(*case.operands) - product(case.a, case.scales_a, b, 0))
