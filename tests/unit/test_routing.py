"""Tokens to the layouts of grouped products and back: places, bits, what is dropped, and one graph of it all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.routing import Permutation, permute, permute_masked, quantize_permuted, unpermute
from fp8gemm.scales import is_mn_major
from tests import cases
from tests.calls import picked, same_bits

EXPERTS, K = 5, 272
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh_data() -> None:
    seed = cases.fresh_seed()
    print(f"torch.manual_seed({seed})")
    torch.manual_seed(seed)


def tokens(count: int, k: int = K) -> tuple[Tensor, Tensor]:
    return fp8gemm.quantize_activation(torch.randn(count, k))


def drawn_ids(count: int, top_k: int = 3, dtype: torch.dtype = torch.int64) -> Tensor:
    """Some of no group here."""
    return torch.randint(-1, EXPERTS + 2, (count, top_k), dtype=dtype)


def expected_order(ids: Tensor, first: int = 0) -> tuple[list[list[int]], list[int]]:
    """Indices into the flat ids, those of each expert and those of none."""
    found = [int(value) - first for value in ids.flatten()]
    of_experts = [[i for i, value in enumerate(found) if value == expert] for expert in range(EXPERTS)]
    return of_experts, [i for i, value in enumerate(found) if not 0 <= value < EXPERTS]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_tokens_are_sorted_by_expert(count, dtype, first):
    codes, scales = tokens(count)
    ids = drawn_ids(count, dtype=dtype)
    of_experts, rest = expected_order(ids, first)
    order = [index for expert in (*of_experts, rest) for index in expert]
    token = torch.tensor(order[: len(order) - len(rest)], dtype=torch.int64) // 3  # of rows of groups
    found = permute(codes, scales, ids, EXPERTS, first_expert=first)
    assert same_bits(found.codes[: len(token)], picked(codes, token)) and found.codes.is_contiguous()
    assert torch.equal(found.scales[: len(token)], scales[token]) and is_mn_major(found.scales)
    sizes = torch.tensor([0, *map(len, of_experts)])
    assert found.offsets.dtype == torch.int32 and torch.equal(found.offsets.long(), sizes.cumsum(0))
    assert [order[row] for row in found.permutation.rows.flatten()] == list(range(3 * count))
    assert torch.equal(found.permutation.kept, (ids >= first) & (ids < first + EXPERTS))


def test_ids_far_out_of_range_belong_to_no_group():
    codes, scales = tokens(2)
    ids = torch.tensor([[2**32 + 1, -(2**40)], [2**62, 4]])
    found = permute(codes, scales, ids, EXPERTS)
    assert found.offsets.tolist() == [0, 0, 0, 0, 0, 1]
    assert found.permutation.kept.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("top_k", [1, 4])
def test_no_tokens(top_k):
    codes, scales = tokens(0)
    ids = torch.zeros(0, top_k, dtype=torch.int32)
    found, masked = permute(codes, scales, ids, EXPERTS), permute_masked(codes, scales, ids, EXPERTS, 4)
    assert found.codes.shape == (0, K) and found.scales.shape == (0, 3) and not found.offsets.any()
    assert masked.codes.shape == (EXPERTS, 4, K) and not masked.counts.any()
    weights = torch.zeros(0, top_k)
    assert unpermute(torch.zeros(0, 8), found.permutation, weights).shape == (0, 8)
    assert unpermute(torch.zeros(EXPERTS, 4, 8), masked.permutation, weights).shape == (0, 8)


@pytest.mark.parametrize("max_m", [1, 3, 4, 50])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_tokens_in_room_for_each_expert(count, max_m):
    codes, scales = tokens(count)
    ids = drawn_ids(count)
    of_experts, _ = expected_order(ids, first=1)
    found = permute_masked(codes, scales, ids, EXPERTS, max_m, first_expert=1)
    assert found.codes.shape == (EXPERTS, max_m, K) and found.codes.is_contiguous()
    pitch = -(-max_m // 4) * 4
    assert found.scales.shape == (EXPERTS, max_m, 3) and found.scales.stride() == (3 * pitch, 1, pitch)
    assert found.asked.tolist() == [len(indices) for indices in of_experts]
    assert found.counts.tolist() == [min(len(indices), max_m) for indices in of_experts]
    assert found.asked.dtype == found.counts.dtype == torch.int32
    kept = torch.zeros(3 * count, dtype=torch.bool)
    for expert, indices in enumerate(of_experts):
        for place, index in enumerate(indices[:max_m]):
            assert same_bits(found.codes[expert, place], codes[index // 3])
            assert torch.equal(found.scales[expert, place], scales[index // 3])
            assert found.permutation.rows.flatten()[index] == expert * max_m + place
            kept[index] = True
    assert torch.equal(found.permutation.kept.flatten(), kept)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("weights_dtype", [BF16, torch.float32], ids=str)
def test_outputs_are_the_weighted_sums_rounded_once(dtype, weights_dtype):
    codes, scales = tokens(9)
    ids, weights = drawn_ids(9), torch.rand(9, 3).to(weights_dtype)
    found = permute(codes, scales, ids, EXPERTS)
    y = torch.randn(27, 40).to(dtype)
    total = unpermute(y, found.permutation, weights)
    expected, size = torch.zeros(9, 40, dtype=torch.float64), torch.zeros(9, 40, dtype=torch.float64)
    for k in range(3):
        for token in range(9):
            if 0 <= ids[token, k] < EXPERTS:
                term = y[found.permutation.rows[token, k]].double() * weights[token, k].double()
                expected[token] += term
                size[token] += term.abs()
    assert total.dtype == dtype and total.is_contiguous()
    kind = torch.finfo(dtype)
    # A sum may be subnormal in float16, and steps are no smaller there.
    rounding = kind.eps / 2 * expected.abs().clamp(min=kind.smallest_normal) + 2**-21 * size
    assert bool(((total.double() - expected).abs() <= rounding).all())


def test_rows_of_no_group_add_nothing_whatever_they_hold():
    codes, scales = tokens(30)
    ids, weights = drawn_ids(30), torch.rand(30, 3)
    found, masked = permute(codes, scales, ids, EXPERTS), permute_masked(codes, scales, ids, EXPERTS, 4)
    assert (masked.asked > masked.counts).any() and not found.permutation.kept.all()
    y = torch.randn(90, 8)
    expected = unpermute(y, found.permutation, weights)
    y[int(found.offsets[-1]) :] = math.nan
    weights[~found.permutation.kept] = math.inf
    assert same_bits(unpermute(y, found.permutation, weights), expected) and expected.isfinite().all()
    # Of the masked layout these are rows past each count; what was dropped adds nothing either.
    weights = weights.nan_to_num(posinf=1.0)
    room = torch.ones(EXPERTS, 4, 8)
    room[torch.arange(4) >= masked.counts[:, None]] = math.nan
    summed = unpermute(room, masked.permutation, weights)
    kept = (weights * masked.permutation.kept).sum(1)
    torch.testing.assert_close(summed, kept[:, None].expand(30, 8))


def test_both_layouts_give_the_same_bits():
    codes, scales = tokens(30)
    ids, weights = drawn_ids(30), torch.rand(30, 3)
    outputs = []
    for found in (permute(codes, scales, ids, EXPERTS), permute_masked(codes, scales, ids, EXPERTS, 30 * 3)):
        values = found.codes.float() * found.scales.repeat_interleave(128, -1)[..., :K]
        outputs.append(unpermute(values, found.permutation, weights))
    assert same_bits(*outputs)


def test_grouped_products_take_what_they_are_given():
    codes, scales = tokens(12)
    b, scales_b = fp8gemm.quantize_weight(torch.randn(EXPERTS * 128, K))
    b, scales_b = b.view(EXPERTS, 128, K), scales_b.view(EXPERTS, 1, -1)
    ids, weights = drawn_ids(12), torch.rand(12, 3)
    found, masked = permute(codes, scales, ids, EXPERTS), permute_masked(codes, scales, ids, EXPERTS, 36)
    y = fp8gemm.gemm_grouped(found.codes, found.scales, b, scales_b, offsets=found.offsets)
    room = fp8gemm.gemm_masked(masked.codes, masked.scales, b, scales_b, masked.counts)
    total = unpermute(y, found.permutation, weights)
    assert same_bits(total, unpermute(room, masked.permutation, weights))
    expected = torch.zeros(12, 128)
    for expert in range(EXPERTS):
        share = (weights * (ids == expert)).sum(1, keepdim=True)
        expected += share * fp8gemm.gemm(codes, scales, b[expert], scales_b[expert]).float()
    torch.testing.assert_close(total.float(), expected, rtol=2.0**-7, atol=1e-3)


def block(codes: Tensor, scales: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """Both layouts and back, each value times 2."""
    found, masked = permute(codes, scales, ids, EXPERTS), permute_masked(codes, scales, ids, EXPERTS, 4)
    outputs = [each.codes.to(BF16) * each.scales[..., :1].to(BF16) for each in (found, masked)]
    permutations = found.permutation, masked.permutation
    sums = [unpermute(y, at, weights) for y, at in zip(outputs, permutations, strict=True)]
    return *sums, found.offsets, found.scales, masked.counts


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph(dynamic):
    torch._dynamo.reset()
    function = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for count in (7, 30):
        arguments = *tokens(count), drawn_ids(count), torch.rand(count, 3)
        for found, expected in zip(function(*arguments), block(*arguments), strict=True):
            assert same_bits(found, expected) and found.stride() == expected.stride()


def test_codes_at_odd_places_in_memory():
    codes, scales = tokens(6, 144)
    storage = torch.zeros(6, 150, dtype=torch.uint8).view(codes.dtype)
    odd = storage[:, 3:147].copy_(codes)
    ids = drawn_ids(6)
    found, expected = (permute(each, scales, ids, EXPERTS) for each in (odd, codes))
    assert same_bits(found.codes, expected.codes)
    row_major = permute(codes, scales.contiguous(), ids, EXPERTS)
    assert torch.equal(row_major.scales, expected.scales) and is_mn_major(row_major.scales)


CODES, SCALES = torch.zeros(4, K, dtype=torch.float8_e4m3fn), torch.ones(4, 3)
IDS = torch.zeros(4, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CODES.float(), SCALES, IDS, 5), "codes: expected torch.float8_e4m3fn.*got torch.float32"),
        ((CODES.T, SCALES, IDS, 5), r"codes: .*K contiguous, got .* strides \(1, 272\)"),
        ((CODES, SCALES[:, :2], IDS, 5), r"scales: expected torch.float32 of shape \(4, 3\).*got .*\(4, 2\)"),
        ((CODES, SCALES.double(), IDS, 5), "scales: expected torch.float32.*got torch.float64"),
        ((CODES, SCALES, IDS.float(), 5), "expert_ids: expected torch.int32 or torch.int64, got torch.float32"),
        ((CODES, SCALES, IDS[:3], 5), r"expert_ids: expected shape \(T, top_k\) with T = 4.*got \(3, 2\)"),
        ((CODES, SCALES, IDS[:, 0], 5), r"expert_ids: expected shape .*got \(4,\)"),
        ((CODES, SCALES, IDS[:, :0], 5), r"top_k >= 1, got \(4, 0\)"),
        ((CODES, SCALES, IDS, 0), "num_experts: expected at least 1, got 0"),
        ((CODES, SCALES.to("meta"), IDS, 5), "scales: expected on cpu, got meta"),
        ((CODES, SCALES, IDS.to("meta"), 5), "expert_ids: expected on cpu, got meta"),
    ],
)
def test_bad_tokens_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        permute(*arguments)
    with pytest.raises(InputError, match=message):
        permute_masked(*arguments, 4)


def test_no_room_is_an_error():
    with pytest.raises(InputError, match="max_m: expected at least 1, got 0"):
        permute_masked(CODES, SCALES, IDS, 5, 0)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        (torch.zeros(7, 16), torch.ones(4, 2), r"y: expected T \* top_k = 8 rows, got shape \(7, 16\)"),
        (torch.zeros(8), torch.ones(4, 2), r"y: expected bfloat16.*got torch.float32 of shape \(8,\)"),
        (torch.zeros(8, 16).double(), torch.ones(4, 2), "y: expected bfloat16.*got torch.float64"),
        (torch.zeros(8, 16), torch.ones(2, 4), r"weights: expected a floating dtype and shape \(4, 2\).*\(2, 4\)"),
        (torch.zeros(8, 16), torch.ones(4, 2).int(), "weights: expected a floating dtype.*got torch.int32"),
        (torch.zeros(8, 16), torch.ones(4, 2, device="meta"), "weights: expected on cpu, got meta"),
    ],
)
def test_bad_outputs_are_named(y, weights, message):
    permutation = Permutation(torch.arange(8).view(4, 2), torch.ones(4, 2, dtype=torch.bool))
    with pytest.raises(InputError, match=message):
        unpermute(y, permutation, weights)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("count", [1, 40])
def test_tokens_quantised_on_the_way_are_those_that_were_quantised_before(count, dtype):
    x, ids = torch.randn(count, K).to(dtype), drawn_ids(count)
    found = quantize_permuted(x, ids, EXPERTS, first_expert=1)
    expected = permute(*fp8gemm.quantize_activation(x), ids, EXPERTS, first_expert=1)
    kept = int(expected.offsets[-1])
    assert same_bits(found.codes[:kept], expected.codes[:kept]) and found.codes.is_contiguous()
    assert torch.equal(found.scales[:kept], expected.scales[:kept]) and is_mn_major(found.scales)
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.permutation.rows, expected.permutation.rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CODES, IDS, 5), "x: expected one of torch.bfloat16.*got torch.float8_e4m3fn"),
        ((CODES.float()[:, :-1], IDS, 5), "x: expected .*K a positive multiple of 16"),
        ((CODES.float(), IDS[:3], 5), r"expert_ids: expected shape \(T, top_k\) with T = 4.*got \(3, 2\)"),
        ((CODES.float(), IDS.float(), 5), "expert_ids: expected torch.int32 or torch.int64"),
        ((CODES.float(), IDS, 0), "num_experts: expected at least 1, got 0"),
        ((CODES.float(), IDS.to("meta"), 5), "expert_ids: expected on cpu, got meta"),
    ],
)
def test_bad_tokens_that_are_not_quantised_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        quantize_permuted(*arguments)


def test_a_first_expert_that_cannot_be():
    for first in (-1, 2**31):
        with pytest.raises(InputError, match=f"first_expert: expected 0 to 2147483647, got {first}"):
            permute(CODES, SCALES, IDS, 5, first_expert=first)


def test_weights_of_a_router_have_gradients():
    codes, scales = tokens(6)
    found, y = permute(codes, scales, drawn_ids(6), EXPERTS), torch.randn(18, 8)
    weights = torch.rand(6, 3, requires_grad=True)
    unpermute(y, found.permutation, weights).sum().backward()
    sums = y.sum(1)[found.permutation.rows].masked_fill(~found.permutation.kept, 0.0)
    torch.testing.assert_close(weights.grad, sums)
