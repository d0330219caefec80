"""Products of routing as on a GPU, from their checks to what kernels write, with kernels that run on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.quantize import Quantizer, quantizer_to_rows
from fp8gemm.kernels.routing import (
    CHUNK,
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.nn import Fp8Experts
from fp8gemm.products import routing as products
from fp8gemm.reference import routing as reference
from fp8gemm.routing import permute, quantize_permuted, unpermute
from tests.calls import same_bits
from tests.emulated.routing import Run, emulated_routing
from tests.experts import block, tokens
from tests.routed import drawn

BF16 = torch.bfloat16
G = 5


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    wanted: list[KernelRequest | Quantizer] = [ROUTE_TOKENS, COUNT_ROUTES, COPY_TO_ROWS]
    wanted += [unpermute_request(kind) for kind in INPUTS.values()]
    wanted += [quantizer_to_rows(kind) for kind in INPUTS.values()]
    wanted += [route_and_quantize_request(kind) for kind in INPUTS.values()]
    runs = emulated_routing(wanted, tmp_path_factory.mktemp("products"))
    return {label_of(each): run for each, run in zip(wanted, runs, strict=True)}


def label_of(each: KernelRequest | Quantizer) -> str:
    return each.request.label if isinstance(each, Quantizer) else each.label


class Loaded:
    """Stands where a loaded kernel is; what is bound runs on the host, and its label is noted."""

    def __init__(self, label: str, run: Run, launched: list[str]) -> None:
        self._label, self._run, self._launched = label, run, launched

    def __getattr__(self, bind: str) -> Callable[..., Callable[[], None]]:
        assert bind.startswith("bind_")

        def bound(*operands: Any, stream: int) -> Callable[[], None]:
            def launch() -> None:
                self._launched.append(self._label)
                assert self._run(bind, *operands, seed=stream) == ""

            return launch

        return bound


@pytest.fixture
def launched(kernels: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels that were launched, in order."""
    found: list[str] = []

    def loaded(each: KernelRequest | Quantizer, device_index: int | None) -> Loaded:
        return Loaded(label_of(each), kernels[label_of(each)], found)

    for name, value in {
        "uses_reference": lambda tensor: False,
        "routing_kernel_for": loaded,
        "quantizer_for": loaded,
        "on_device": lambda index: nullcontext(),
        "current_stream": lambda index: 7,
    }.items():
        monkeypatch.setattr(products, name, value)
    yield found


def first_rows(codes: Tensor, kept: Tensor) -> Tensor:
    return codes.view(torch.uint8)[: int(kept)]


@pytest.mark.parametrize("count", [9, 90])
@pytest.mark.parametrize("change", ["as it is", "transposed", "int32"])
def test_tokens_go_to_their_rows_and_come_back(change: str, count: int, launched: list[str]) -> None:
    """Few are routed and quantised at once."""
    ids, weights, x = drawn(count, 3, G, 1), torch.randn(count, 3), torch.randn(count, 272).to(BF16)
    if change == "transposed":
        ids, weights = (each.t().contiguous().t() for each in (ids, weights))
    ids = ids.int() if change == "int32" else ids
    expected = reference.route(ids, G, 3)
    found = quantize_permuted(x, ids, G, first_expert=3)
    kept = expected[0][-1]
    assert all(map(torch.equal, (found.offsets, found.permutation.rows, found.permutation.kept), expected))
    codes, scales = reference.quantize_to_rows(x, expected[1])
    assert torch.equal(first_rows(found.codes, kept), first_rows(codes, kept))
    assert torch.equal(found.scales[:kept], scales[:kept]) and found.scales.stride() == scales.stride()
    permuted = permute(*fp8gemm.quantize_activation(x), ids, G, first_expert=3)
    assert torch.equal(first_rows(permuted.codes, kept), first_rows(codes, kept))
    assert torch.equal(permuted.scales[:kept], scales[:kept]) and permuted.scales.stride() == scales.stride()
    y = torch.randn(3 * count, 40)
    for given in (weights, weights.double(), weights.to(BF16)):
        assert same_bits(unpermute(y, found.permutation, given), reference.unpermute(y, *expected[1:], given))
    quantized = ["route-and-quantize-bf16"] if count == 9 else ["route-tokens", "quantize-to-rows-bf16"]
    assert launched == [*quantized, "route-tokens", "copy-to-rows", *["unpermute-f32"] * 3]


@pytest.mark.parametrize("tokens", [2, 9])
def test_tokens_in_parts_go_to_one_place_and_come_back_in_parts(tokens: int, launched: list[str]) -> None:
    """With the bits of one call; what is of no group, or behind what a call writes, stays as it is."""
    offsets, rows, kept = reference.route(drawn(tokens, 3, G, 1), G, 3)
    codes, scales = fp8gemm.quantize_activation(torch.randn(tokens, 272))
    right = products.copy_to_rows(codes, scales, rows, offsets)
    out = products.empty_rows(rows.numel(), 272, rows.device)
    out[0].view(torch.uint8).fill_(0x55)
    out[1].fill_(-7.0)
    y, weights = torch.randn(rows.numel(), 40), torch.randn(tokens, 3)
    sums = torch.full((tokens + 1, 40), -7.0)
    for part in (slice(1, tokens), slice(0, 1)):
        products.copy_to_rows_into(codes[part], scales[part], rows[part], offsets, out)
        products.unpermute_into(y, rows[part], kept[part], weights[part], sums[part])
    count = int(offsets[-1])
    assert 0 < count < rows.numel()
    assert same_bits(out[0][:count], right[0][:count]) and same_bits(out[1][:count], right[1][:count])
    assert (out[0][count:].view(torch.uint8) == 0x55).all() and (out[1][count:] == -7.0).all()
    assert same_bits(sums[:-1], products.unpermute(y, rows, kept, weights)) and (sums[-1] == -7.0).all()
    products.copy_to_rows_into(codes[:0], scales[:0], rows[:0], offsets, out)
    products.unpermute_into(y, rows[:0], kept[:0], weights[:0], sums[:0])
    assert launched == ["copy-to-rows", *["copy-to-rows", "unpermute-f32"] * 2, "unpermute-f32"]


def test_rows_that_no_thread_can_load_are_copied_first(launched: list[str]) -> None:
    ids, x = drawn(6, 2, G, 1), torch.randn(6, 150).to(BF16)[:, 3:147]
    found, expected = quantize_permuted(x, ids, G, first_expert=3), reference.route(ids, G, 3)
    assert torch.equal(
        *(first_rows(each, expected[0][-1]) for each in (found.codes, reference.quantize_to_rows(x, expected[1])[0]))
    )
    y = torch.randn(12, 45)[:, 1:41]
    weights = torch.randn(6, 2)
    assert same_bits(unpermute(y, found.permutation, weights), reference.unpermute(y, *expected[1:], weights))
    assert launched == ["route-and-quantize-bf16", "unpermute-f32"]


def test_several_chunks_are_counted_first(launched: list[str]) -> None:
    ids = drawn(CHUNK + 1, 1, G, 1)
    assert all(map(torch.equal, products.route(ids, G, 3), reference.route(ids, G, 3)))
    assert launched == ["count-routes", "route-tokens"]


def test_what_no_kernel_takes_is_pytorchs(launched: list[str]) -> None:
    ids, weights = drawn(6, 2, 2000, 1), torch.randn(6, 2)
    routes = products.route(ids, 2000, 3)
    assert all(map(torch.equal, routes, reference.route(ids, 2000, 3)))
    codes, scales = fp8gemm.quantize_activation(torch.randn(6, 144))
    cut = codes[:, :40]
    assert same_bits(
        products.copy_to_rows(cut, scales[:, :1], routes[1], routes[0])[0],
        reference.copy_to_rows(cut, scales[:, :1], routes[1])[0],
    )
    for y in (torch.randn(12, 39), torch.randn(40, 12).t()):
        assert same_bits(products.unpermute(y, *routes[1:], weights), reference.unpermute(y, *routes[1:], weights))
    assert launched == []


def test_without_tokens_there_are_offsets_alone(launched: list[str]) -> None:
    found = quantize_permuted(torch.zeros(0, 272), torch.zeros(0, 2, dtype=torch.int32), G)
    assert found.codes.shape == (0, 272) and found.offsets.tolist() == [0] * (G + 1)
    assert unpermute(torch.zeros(0, 40), found.permutation, torch.zeros(0, 2)).shape == (0, 40)
    assert launched == ["route-tokens"]


def test_gradients_flow_through_pytorchs_own_sum(launched: list[str]) -> None:
    """Of a router's weights, say, which the products themselves have none for."""
    routes = reference.route(drawn(6, 2, G, 1), G, 3)
    y, weights = torch.randn(12, 40), torch.randn(6, 2, requires_grad=True)
    products.unpermute(y, *routes[1:], weights).sum().backward()
    rows = y[routes[1].flatten()].view(6, 2, 40).sum(2)
    torch.testing.assert_close(weights.grad, rows.masked_fill(~routes[2], 0.0))
    assert launched == []
    with torch.no_grad():
        products.unpermute(y, *routes[1:], weights)
    assert launched == ["unpermute-f32"]


def test_a_whole_block_has_the_bits_that_it_has_by_pytorch(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(5)
    experts: Fp8Experts = block(6, 272, 128, generator)
    given = tokens(7, 272, 6, 2, generator)
    found = experts(*given)
    assert launched == ["route-and-quantize-bf16", "unpermute-bf16"]
    monkeypatch.setattr(products, "uses_reference", lambda tensor: True)
    assert same_bits(found, experts(*given)) and len(launched) == 2
