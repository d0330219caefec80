"""Kernels of routing without a GPU: their device code, run on an emulated Hopper whose warps take turns at random,
gives the reference's bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.quantize import quantizer_to_rows
from fp8gemm.kernels.routing import (
    CHUNK,
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    are_few,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.reference import quantize_rows
from fp8gemm.reference import routing as reference
from fp8gemm.scales import to_mn_major
from tests.calls import same_bits
from tests.emulated.routing import Run, emulated_routing
from tests.routed import E4M3, drawn, is_copied, is_quantized, is_routed, is_routed_and_quantized, is_summed


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    wanted = {"count": COUNT_ROUTES, "route": ROUTE_TOKENS, "copy": COPY_TO_ROWS}
    of_dtypes = {f"unpermute {dtype}": unpermute_request(kind) for dtype, kind in INPUTS.items()}
    quantizers = {f"quantize {dtype}": quantizer_to_rows(kind) for dtype, kind in INPUTS.items()}
    both = {f"route and quantize {dtype}": route_and_quantize_request(kind) for dtype, kind in INPUTS.items()}
    every = {**wanted, **of_dtypes, **quantizers, **both}
    return dict(zip(every, emulated_routing(list(every.values()), tmp_path_factory.mktemp("routing")), strict=True))


# Where tokens go.


def assert_routed(kernels: dict[str, Run], ids: Tensor, groups: int, first: int = 0, seed: int = 1) -> None:
    assert is_routed(kernels, ids, groups, first, seed), (ids.shape, groups, first, seed)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("groups", [1, 5, 256, 300, 1024])
@pytest.mark.parametrize("tokens", [0, 1, 4, 33, 150])
def test_rows_are_those_of_a_stable_sort(kernels: dict[str, Run], tokens: int, groups: int, dtype: torch.dtype) -> None:
    for top_k, seed in ((1, 1), (8, 2)):
        assert_routed(kernels, drawn(tokens, top_k, groups, seed, dtype), groups, 3, seed)


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 777])
def test_chunks_meet_at_their_ends(kernels: dict[str, Run], count: int) -> None:
    for groups in (7, 256):
        assert_routed(kernels, drawn(count, 1, groups, count), groups, 3)


@pytest.mark.parametrize("seed", range(10))
def test_whoever_comes_first(kernels: dict[str, Run], seed: int) -> None:
    """Of random sizes, in an order of warps that each seed draws anew."""
    generator = torch.Generator().manual_seed(seed)

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    top_k, groups = number(1, 9), number(1, 400)
    assert_routed(kernels, drawn(number(1, 1500 // top_k), top_k, groups, seed), groups, number(0, 3), seed)


@pytest.mark.parametrize("only", [-1, 0, 4, 5, 2**31 - 1, -(2**31)])
def test_all_tokens_to_one_expert(kernels: dict[str, Run], only: int) -> None:
    for count in (5, 1000, CHUNK + 40):
        assert_routed(kernels, torch.full((count, 1), only, dtype=torch.int32), 5)


def test_ids_of_64_bits_are_read_as_such(kernels: dict[str, Run]) -> None:
    extremes = [2**32 + 1, -(2**40), 2**62, 4, -(2**63), 2**63 - 1, 2**32 - 1, 3]
    for first in (0, 3, 2**31 - 1):
        assert_routed(kernels, torch.tensor(extremes)[:, None], 5, first)


# What lies there.


@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize(("tokens", "top_k", "k"), [(1, 8, 272), (7, 3, 16), (5, 1, 400), (3, 70, 144), (40, 2, 128)])
def test_each_token_is_quantised_into_its_rows(
    kernels: dict[str, Run], tokens: int, top_k: int, k: int, dtype: torch.dtype
) -> None:
    for size in (1.0, 1e-37):
        x = (torch.randn(tokens, k, generator=torch.Generator().manual_seed(k)) * size).to(dtype)
        assert is_quantized(kernels, x, drawn(tokens, top_k, 4, k), 4)


def test_tokens_may_be_any_pitch_apart_and_nothing_but_them_is_read(kernels: dict[str, Run]) -> None:
    storage = torch.full((9, 192), math.nan).bfloat16()
    x = storage[:7, 16:160].copy_(torch.randn(7, 144))
    assert is_quantized(kernels, x, drawn(7, 2, 4, 1), 4)


# Both at once.


@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize(
    ("tokens", "top_k", "k"), [(1, 8, 272), (7, 3, 16), (5, 1, 400), (8, 32, 144), (32, 8, 128), (256, 1, 16)]
)
def test_few_tokens_are_routed_and_quantised_at_once(
    kernels: dict[str, Run], tokens: int, top_k: int, k: int, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, k, generator=torch.Generator().manual_seed(k)).to(dtype)
    for groups, ids_dtype in ((1, torch.int32), (4, torch.int64), (256, torch.int64), (1024, torch.int32)):
        ids = drawn(tokens, top_k, groups, k, ids_dtype)
        assert are_few(ids, groups) and is_routed_and_quantized(kernels, x, ids, groups), groups


@pytest.mark.parametrize("seed", range(10))
def test_at_once_whoever_comes_first(kernels: dict[str, Run], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens, top_k, groups = (int(torch.randint(1, most, (), generator=generator)) for most in (30, 9, 400))
    x = torch.full((tokens + 1, 192), math.nan).bfloat16()[:tokens, 16:160].copy_(torch.randn(tokens, 144))
    assert is_routed_and_quantized(kernels, x, drawn(tokens, top_k, groups, seed), groups, seed)


@pytest.mark.parametrize("only", [-1, 3, 4, 7, 8, 2**31 - 1])
def test_at_once_all_tokens_to_one_expert(kernels: dict[str, Run], only: int) -> None:
    for tokens, top_k in ((1, 8), (9, 3)):
        ids = torch.full((tokens, top_k), only)
        assert is_routed_and_quantized(kernels, torch.randn(tokens, 144).bfloat16(), ids, 5)


def test_which_are_few() -> None:
    def found(tokens: int, top_k: int, groups: int = 256) -> bool:
        return are_few(torch.zeros(tokens, top_k, dtype=torch.int64), groups)

    assert found(1, 8) and found(32, 8) and found(8, 32) and found(256, 1) and found(1, 1, 1024)
    assert not (found(33, 8) or found(1, 33) or found(257, 1) or found(0, 8) or found(1, 8, 1025))


@pytest.mark.parametrize(("tokens", "top_k", "k"), [(1, 8, 272), (7, 3, 16), (5, 1, 1040), (3, 70, 144), (40, 2, 512)])
def test_codes_and_scales_are_copied(kernels: dict[str, Run], tokens: int, top_k: int, k: int) -> None:
    routes = reference.route(drawn(tokens, top_k, 4, k), 4, 3)
    codes, scales = quantize_rows(torch.randn(tokens, k))
    storage = torch.zeros(tokens, k + 48, dtype=torch.uint8).view(E4M3)
    apart = storage[:, 16 : k + 16].copy_(codes)
    for given in (scales, to_mn_major(scales), scales.repeat_interleave(3, 1)[:, ::3]):
        assert is_copied(kernels, codes, given, routes) and is_copied(kernels, apart, given, routes)


# Sums.


@pytest.mark.parametrize("weights_dtype", INPUTS)
@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize(("tokens", "top_k", "n"), [(1, 8, 272), (7, 3, 8), (5, 1, 400), (9, 21, 264)])
def test_sums_have_the_references_bits(
    kernels: dict[str, Run], tokens: int, top_k: int, n: int, dtype: torch.dtype, weights_dtype: torch.dtype
) -> None:
    routes = reference.route(drawn(tokens, top_k, 4, n), 4, 3)
    y, weights = torch.randn(tokens * top_k, n).to(dtype), torch.randn(tokens, top_k).to(weights_dtype)
    assert is_summed(kernels, y, routes, weights)


def test_rows_of_sums_may_be_any_pitch_apart(kernels: dict[str, Run]) -> None:
    routes, weights = reference.route(drawn(6, 2, 4, 1), 4, 3), torch.randn(6, 2)
    y = torch.full((12, 80), math.nan).bfloat16()[:, 8:48].copy_(torch.randn(12, 40))
    assert is_summed(kernels, y, routes, weights)


def test_the_reference_adds_as_pytorch_does() -> None:
    """Fewer than 16 terms one after the other: what is documented is what was computed before there were kernels."""
    routes, weights = reference.route(drawn(9, 8, 4, 1), 4, 3), torch.randn(9, 8)
    y = torch.randn(72, 64)
    chosen = y[routes[1].flatten()].view(9, 8, 64).masked_fill(~routes[2][..., None], 0.0)
    expected = (chosen * weights.masked_fill(~routes[2], 0.0)[..., None]).sum(1)
    assert same_bits(reference.unpermute(y, *routes[1:], weights), expected)
