"""DeepGEMM's names on a Hopper GPU, called as DeepGEMM's own tests call it, at a selection of its shapes.

Operands are bfloat16 values cast by its helpers, results are held to products of those values by its measure, below
0.001; in each product a part is also held to the reference by the gates of `tests.numerics`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm.integrations.deep_gemm import runtime
from tests.numerics import check

MAX_DIFF = 0.001
DENSE = [(m, n, k) for n, k in [(2112, 7168), (576, 7168), (24576, 1536), (7168, 2048)] for m in (1, 128, 4096)]
GRADIENT = [(2112, 4096, 1024), (7168, 2048, 4096)]
CONTIGUOUS = [(4, 8192, 4096, 2048), (8, 4096, 4096, 4096), (4, 900, 7168, 3072)]
MASKED = [(32, 192, 4096, 2048), (6, 1024, 4096, 4096), (32, 20, 6144, 7168), (6, 20, 7168, 3072)]
EINSUM = [(4, 8, 1024, 4096), (4096, 4, 1024, 4096)]
K_GROUPED = [(4, 4096, 2048, 8192), (16, 1024, 7168, 2048)]

Pair = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test sets for the process no other test sees."""
    for name in ("_num_sms", "_pdl", "_mk_alignment", "_made"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))


@pytest.fixture
def values(device: torch.device, generator: torch.Generator) -> Callable[..., Tensor]:
    """Normal bfloat16 values of a shape."""

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)

    return make


def around(expected: int, count: int, seed: int) -> list[int]:
    """Sizes of groups as DeepGEMM's tests draw them."""
    draw = random.Random(seed)
    return [int(expected * draw.uniform(0.7, 1.3)) for _ in range(count)]


def cast_groups(x: Tensor, cast: Callable[..., Pair]) -> Pair:
    made = [cast(group, use_ue8m0=False) for group in x]
    codes = torch.stack([codes.view(torch.uint8) for codes, _ in made]).view(torch.float8_e4m3fn)
    return codes, torch.stack([scales for _, scales in made])


def poisoned(*shape: int, device: torch.device) -> Tensor:
    return torch.full(shape, math.nan, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize(("m", "n", "k"), DENSE)
def test_dense(m, n, k, values, device):
    x, w = values(m, k), values(n, k)
    a, b = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False), deep_gemm.per_block_cast_to_fp8(w, use_ue8m0=False)
    expected = x @ w.T
    for scales in (a[1], deep_gemm.get_mn_major_tma_aligned_tensor(a[1])):
        d = poisoned(m, n, device=device)
        deep_gemm.fp8_gemm_nt((a[0], scales), b, d, c=None, disable_ue8m0_cast=True, recipe=None)
        assert deep_gemm.calc_diff(d, expected) < MAX_DIFF
    assert torch.equal(d, fp8gemm.gemm(*a, *b))
    check(d[:256], a[0][:256], a[1][:256], *b).raise_if_failed((m, n, k))


@pytest.mark.parametrize(("m", "heads", "n", "k"), EINSUM)
def test_einsum(m, heads, n, k, values, device):
    """At the sizes of DeepSeek-V4's output projection."""
    x, w = values(m, heads, k), values(heads, n, k)
    codes, scales = deep_gemm.per_token_cast_to_fp8(x.view(-1, k), use_ue8m0=False)
    a, b = (codes.view(x.shape), scales.view(m, heads, -1)), cast_groups(w, deep_gemm.per_block_cast_to_fp8)
    d = poisoned(m, heads, n, device=device)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d)
    assert deep_gemm.calc_diff(d, torch.einsum("bhr,hdr->bhd", x, w)) < MAX_DIFF
    for head in range(heads):
        each = a[0][:256, head], a[1][:256, head], b[0][head], b[1][head]
        check(d[:256, head], *each).raise_if_failed((m, head, n, k))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), GRADIENT)
def test_weight_gradient(m, n, k, in_place, values, device):
    x, w = values(m, k), values(n, k)
    a, b = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False), deep_gemm.per_token_cast_to_fp8(w, use_ue8m0=False)
    c = values(m, n).float() * 32
    before = c.clone()
    d = c if in_place else torch.full_like(c, math.nan)
    deep_gemm.fp8_gemm_nt(a, b, d, c=c, recipe=(1, 1, 128))
    assert deep_gemm.calc_diff(d, before + x.float() @ w.float().T) < MAX_DIFF
    check(d[:256], a[0][:256], a[1][:256], *b, c=before[:256]).raise_if_failed((m, n, k))


@pytest.mark.parametrize("psum", [False, True])
@pytest.mark.parametrize(("groups", "expected_m", "n", "k"), CONTIGUOUS)
def test_contiguous(groups, expected_m, n, k, psum, values, device, seed):
    alignment = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    sizes = around(expected_m, groups, seed)
    m = sum(deep_gemm.align(size, alignment) for size in sizes)
    x, w = values(m, k), values(groups, n, k)
    indices = torch.full((m,), -1, dtype=torch.int32, device=device)
    expected, ends, begin = torch.empty(m, n, dtype=torch.bfloat16, device=device), [], 0
    for group, size in enumerate(sizes):
        end, padded = begin + size, begin + deep_gemm.align(size, alignment)
        x[end:padded] = 0
        indices[begin:end] = group
        expected[begin:padded] = x[begin:padded] @ w[group].T
        ends.append(end)
        begin = padded
    layout = torch.tensor(ends, dtype=torch.int32, device=device) if psum else indices
    a, b = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False), cast_groups(w, deep_gemm.per_block_cast_to_fp8)
    for function, weight in (
        (deep_gemm.m_grouped_fp8_gemm_nt_contiguous, b),
        (deep_gemm.m_grouped_fp8_gemm_nn_contiguous, (b[0].mT, b[1].mT)),
    ):
        d = poisoned(m, n, device=device)
        function(a, weight, d, layout, disable_ue8m0_cast=True, use_psum_layout=psum)
        assert deep_gemm.calc_diff(d, expected) < MAX_DIFF  # padding too, which is zero
    rows = slice(ends[-1] - 256, ends[-1])
    check(d[rows], a[0][rows], a[1][rows], b[0][-1], b[1][-1]).raise_if_failed((sizes, n, k))


def masked_problem(groups: int, max_m: int, n: int, k: int, values: Callable[..., Tensor]) -> tuple[Any, ...]:
    x, w = values(groups, max_m, k), values(groups, n, k)
    a, b = cast_groups(x, deep_gemm.per_token_cast_to_fp8), cast_groups(w, deep_gemm.per_block_cast_to_fp8)
    return (a[0], deep_gemm.get_mn_major_tma_aligned_tensor(a[1])), b, torch.einsum("gmk,gnk->gmn", x, w)


@pytest.mark.parametrize(("groups", "expected_m", "n", "k"), MASKED)
def test_masked(groups, expected_m, n, k, values, device, seed):
    max_m = 4 * expected_m
    a, b, expected = masked_problem(groups, max_m, n, k, values)
    for repeat in range(2):
        sizes = around(expected_m, groups, seed + repeat)
        sizes[-1] *= repeat  # an empty group in the first round
        masked_m = torch.tensor(sizes, dtype=torch.int32, device=device)
        d = poisoned(groups, max_m, n, device=device)
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, int(expected_m * 1.2), disable_ue8m0_cast=True)
        for group, size in enumerate(sizes):
            assert d[group, size:].isnan().all()
            assert deep_gemm.calc_diff(d[group, :size], expected[group, :size]) < MAX_DIFF
        rows = slice(0, min(sizes[0], 256))
        operands = a[0][0, rows], a[1][0, rows], b[0][0], b[1][0]
        check(d[0, rows], *operands).raise_if_failed((sizes, n, k))


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(("groups", "m", "n", "expected_k"), K_GROUPED)
def test_k_grouped(groups, m, n, expected_k, empty, values, device, seed):
    ks = [deep_gemm.align(size, 128) for size in around(expected_k, groups, seed)]
    if empty:
        ks[1] = 0
    x, w = values(sum(ks), m), values(sum(ks), n)
    c = values(groups, m, n).float() * 32
    before = c.clone()
    flat = []
    for operand in (x, w):
        codes, scales = deep_gemm.per_channel_cast_to_fp8(operand, use_ue8m0=False)
        pieces = [piece.T.reshape(-1) for piece in codes.view(torch.uint8).split(ks)]
        flat.append((torch.cat(pieces).view(torch.float8_e4m3fn), scales.T))
    layout = torch.tensor(ks, dtype=torch.int32, device=device)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*flat, c, ks, layout, c, recipe=(1, 1, 128), use_psum_layout=False)
    for group, (of_x, of_w) in enumerate(zip(x.split(ks), w.split(ks), strict=True)):
        if ks[group] == 0:
            assert torch.equal(c[group], before[group])
        else:
            assert deep_gemm.calc_diff(c[group], before[group] + of_x.float().T @ of_w.float()) < MAX_DIFF


def test_a_captured_call_follows_the_groups(values, device, seed):
    """Replays see what lies in the tensors of groups then: counts, indices and sums."""
    groups, max_m, n, k = 8, 64, 4096, 2048
    a, b, expected = masked_problem(groups, max_m, n, k, values)
    masked_m = torch.zeros(groups, dtype=torch.int32, device=device)
    rows = a[0].view(-1, k), deep_gemm.get_mn_major_tma_aligned_tensor(a[1].reshape(groups * max_m, -1))
    indices = torch.zeros(groups * max_m, dtype=torch.int32, device=device)
    ends = torch.zeros(groups, dtype=torch.int32, device=device)
    d_masked, d_rows, d_sums = (torch.empty(groups * max_m, n, dtype=torch.bfloat16, device=device) for _ in range(3))
    deep_gemm.set_mk_alignment_for_contiguous_layout(max_m)

    def call() -> None:
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d_masked.view(groups, max_m, n), masked_m, max_m)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(rows, b, d_rows, indices)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
            rows, b, d_sums, ends, use_psum_layout=True, ensure_zero_padding=False
        )

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for repeat in range(20):
        draw = random.Random(seed + repeat)
        sizes = [draw.randint(1, max_m) for _ in range(groups)]  # an empty group would end where the next begins
        masked_m.copy_(torch.tensor(sizes))
        ends.copy_(torch.tensor([group * max_m + size for group, size in enumerate(sizes)]))
        blocks = torch.arange(max_m).expand(groups, -1) < torch.tensor(sizes)[:, None]
        indices.copy_(torch.where(blocks, torch.arange(groups)[:, None], -1).view(-1))
        for d in (d_masked, d_rows, d_sums):
            d.fill_(math.nan)
        graph.replay()
        for group, size in enumerate(sizes):
            here = slice(group * max_m, group * max_m + size)
            padding = slice(here.stop, (group + 1) * max_m)
            for d in (d_masked, d_rows, d_sums):
                assert deep_gemm.calc_diff(d[here], expected[group, :size]) < MAX_DIFF
            assert d_masked[padding].isnan().all() and d_sums[padding].isnan().all()
            assert deep_gemm.calc_diff(d_rows[padding], expected[group, size:]) < MAX_DIFF


def test_fewer_sms_and_no_early_launches(values, device):
    assert deep_gemm.get_num_sms() == torch.cuda.get_device_properties(device).multi_processor_count
    x, w = values(512, 1024), values(2048, 1024)
    a, b = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False), deep_gemm.per_block_cast_to_fp8(w, use_ue8m0=False)
    for sms, pdl in ((16, True), (100, False), (0, True)):
        deep_gemm.set_num_sms(sms)
        deep_gemm.set_pdl(pdl)
        d = poisoned(512, 2048, device=device)
        deep_gemm.fp8_gemm_nt(a, b, d)
        assert deep_gemm.calc_diff(d, x @ w.T) < MAX_DIFF
    with pytest.raises(RuntimeError, match="num_sms: expected 0 to"):
        deep_gemm.set_num_sms(10_000)


def test_the_yardstick_of_its_tests(values, device):
    a, b = (deep_gemm.per_token_cast_to_fp8(values(256, 1024), use_ue8m0=False)[0] for _ in range(2))
    d = poisoned(256, 256, device=device)
    seconds, nothing = deep_gemm.testing.bench_kineto(lambda: deep_gemm.cublaslt_gemm_nt(a, b, d), ("nvjet", "reduce"))
    assert deep_gemm.calc_diff(d, a.float() @ b.float().T) < MAX_DIFF
    assert 1e-6 < seconds < 1e-2 and nothing == 0
    assert 1e-6 < deep_gemm.testing.bench_kineto(lambda: d.zero_(), "gemm_", num_tests=5, flush_l2=False) < 1e-2
