"""Blocks with some of a layer's experts: between the products others' rows are not quantised, and bits are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.nn import Fp8Experts, experts_routed
from fp8gemm.nn.experts_routed import of_hidden, of_sorted, of_tokens
from fp8gemm.scales import is_mn_major
from tests.calls import same_bits
from tests.experts import BF16, block, tokens

G, HERE, FIRST, H, INNER, TOP_K = 8, 3, 2, 272, 144, 3
COUNTS = 0, 1, 2, 5, 33


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.fixture
def some(generator: torch.Generator) -> Fp8Experts:
    return block(HERE, H, INNER, generator, num_experts=G, first_expert=FIRST)


@pytest.fixture
def quantised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor | None]]:
    """What is quantised between the products, and the counts."""
    found: list[tuple[Tensor, Tensor | None]] = []
    quantise = experts_routed.quantize_silu_mul

    def noting(x: Tensor, *, counts: Tensor | None = None) -> Any:
        found.append((x, counts))
        return quantise(x, counts=counts)

    monkeypatch.setattr(experts_routed, "quantize_silu_mul", noting)
    return found


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Codes and scales of each product."""
    found: list[tuple[Tensor, Tensor]] = []
    multiply = experts_routed.gemm_grouped

    def noting(codes: Tensor, scales: Tensor, *others: Any, **options: Any) -> Tensor:
        found.append((codes, scales))
        return multiply(codes, scales, *others, **options)

    monkeypatch.setattr(experts_routed, "gemm_grouped", noting)
    return found


def options_of(module: Fp8Experts) -> dict[str, Any]:
    return module._options(BF16, 2)


@pytest.mark.parametrize("count", COUNTS)
def test_rows_that_are_kept_have_the_bits_that_they_have_among_all(
    count: int, some: Fp8Experts, generator: torch.Generator, quantised: list[Any], multiplied: list[Any]
) -> None:
    given, of, options = tokens(count, H, G, TOP_K, generator), some.operands(), options_of(some)
    whole = of_hidden(*given, of, first_expert=FIRST, options=options)
    assert same_bits(of_hidden(*given, of, first_expert=FIRST, some=True, options=options), whole)
    quantized = fp8gemm.quantize_activation(given.hidden)
    assert same_bits(of_tokens(*quantized, *given[1:], of, first_expert=FIRST, some=True, options=options), whole)
    kept = int(((given.expert_ids >= FIRST) & (given.expert_ids < FIRST + HERE)).sum())
    assert [None if counts is None else counts.tolist() for _, counts in quantised] == [None, [kept], [kept]]
    for codes, scales in multiplied:
        assert codes.is_contiguous() and codes.shape[0] == count * TOP_K and (is_mn_major(scales) or not count)


def test_only_a_block_that_has_them_all_quantises_all_rows(
    some: Fp8Experts, generator: torch.Generator, quantised: list[Any]
) -> None:
    whole, given = block(G, H, INNER, generator), tokens(5, H, G, TOP_K, generator)
    for module in (whole, some):
        module(*given)
        module._of_tokens(*fp8gemm.quantize_activation(given.hidden), *given[1:], options_of(module))
        module.forward_sorted(given.hidden, torch.zeros(module.num_local_experts + 1, dtype=torch.int32))
    assert [counts is None for _, counts in quantised] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sorted_rows(dtype: torch.dtype, some: Fp8Experts, generator: torch.Generator, quantised: list[Any]) -> None:
    """Where experts' rows may be anywhere there is no last one: all are quantised."""
    x, offsets = torch.randn(9, H, generator=generator).to(BF16), torch.tensor([0, 3, 3, 7], dtype=dtype)
    codes, scales = fp8gemm.quantize_activation(x)
    wanted = of_sorted(codes, scales, offsets, some.operands(), options_of(some))
    bounds = torch.stack((offsets[:-1], offsets[1:]))
    for given in (offsets, bounds):
        assert same_bits(some.forward_sorted(x, given)[:7], wanted[:7])
    assert [each if each is None else each.tolist() for _, each in quantised] == [None, [7], None]


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph(dynamic: bool, some: Fp8Experts, generator: torch.Generator) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        function = torch.compile(some, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for count in (8, 32):
            given = tokens(count, H, G, TOP_K, generator)
            assert same_bits(function(*given), some(*given))
    torch._dynamo.reset()
