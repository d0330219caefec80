"""`fp8_einsum`, a product for each head, and scales that are powers of two, on the CPU, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm import settings
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.reference import gemm_reference
from fp8gemm.scales import E8M0
from tests import cases

BATCH, HEADS, D, R = 5, 3, 136, 272
UNTOUCHED = 7.0

Arguments = dict[str, Any]


@pytest.fixture(autouse=True)
def no_gpu_is_asked() -> Iterator[None]:
    with settings.scope(num_sms=132):
        yield


def stacked(codes: list[Tensor], dim: int) -> Tensor:
    return torch.stack([each.view(torch.uint8) for each in codes], dim).view(torch.float8_e4m3fn)


def heads() -> Arguments:
    """Arguments of `fp8_einsum`, a product of its own for each head."""
    made = [cases.signed(BATCH, D, R, seed=seed) for seed in range(HEADS)]
    a = stacked([case.a for case in made], 1), torch.stack([case.scales_a for case in made], 1)
    b = stacked([case.b for case in made], 0), torch.stack([case.scales_b for case in made])
    d = torch.full((BATCH, HEADS, D), UNTOUCHED, dtype=torch.bfloat16)
    return {"expr": "bhr,hdr->bhd", "a": a, "b": b, "d": d}


def expected(given: Arguments) -> Tensor:
    (a, scales_a), (b, scales_b) = given["a"], given["b"]
    return torch.stack([gemm_reference(a[:, h], scales_a[:, h], b[h], scales_b[h]) for h in range(HEADS)], 1)


@pytest.mark.parametrize("recipe", [{}, {"recipe": (1, 128, 128)}, {"recipe": [1, 128, 128]}])
def test_each_head_is_a_product_of_its_own(recipe: Arguments) -> None:
    given = heads()
    assert deep_gemm.fp8_einsum(**given, **recipe) is None
    assert torch.equal(given["d"], expected(given)) and given["d"].unique().numel() > 100


def test_operands_may_be_parts_of_larger_ones() -> None:
    """vLLM's are: groups lie one behind the other there, their scales MN-major, and the output in a wider one."""
    given = heads()
    right = expected(given)
    codes, scales = given["a"]
    by_head = stacked([codes[:, h] for h in range(HEADS)], 0).transpose(0, 1)
    mn_major = deep_gemm.get_mn_major_tma_aligned_tensor(scales.transpose(0, 1)).transpose(0, 1)
    wide = torch.full((BATCH, HEADS, D + 8), UNTOUCHED, dtype=torch.bfloat16)
    transposed_scales = given["b"][1].mT.contiguous().mT
    deep_gemm.fp8_einsum(
        "bhr,hdr->bhd", (by_head, mn_major), (given["b"][0], transposed_scales), d := wide[..., :D], None, (1, 128, 128)
    )
    assert torch.equal(d, right) and bool((wide[..., D:] == UNTOUCHED).all())


def test_no_rows_are_no_product() -> None:
    given = heads()
    (codes, scales), d = given["a"], given["d"]
    deep_gemm.fp8_einsum("bhr,hdr->bhd", (codes[:0], scales[:0]), given["b"], d[:0])
    assert bool((d == UNTOUCHED).all())


def second(change: Callable[[Tensor], Tensor]) -> Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    return lambda operand: (operand[0], change(operand[1]))


REFUSED: list[tuple[str, str, Any]] = [
    ("a", "one head", lambda a: (a[0][:, 0], a[1][:, 0])),
    ("a", "fewer heads", lambda a: (a[0][:, 1:], a[1][:, 1:])),
    ("a", "bfloat16 scales", second(Tensor.bfloat16)),
    ("a", "scales too few", second(lambda scales: scales[..., 1:])),
    ("a", "no pair", lambda a: a[0]),
    ("b", "another R", lambda b: (b[0][..., 16:], b[1])),
    ("b", "scales of rows", second(lambda scales: scales.repeat_interleave(128, 1)[:, :D])),
    ("d", "float32", Tensor.float),
    ("d", "another D", lambda d: d[..., 1:]),
    ("d", "D not contiguous", lambda d: d.mT.contiguous().mT),
    ("d", "nothing", lambda _: None),
]


@pytest.mark.parametrize(("name", "what", "change"), REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(name: str, what: str, change: Any) -> None:
    given = heads()
    d, given[name] = given["d"], change(given[name])
    with pytest.raises(InputError, match=": expected") as raised:
        deep_gemm.fp8_einsum(**given)
    assert isinstance(raised.value, RuntimeError) and bool((d == UNTOUCHED).all())


@pytest.mark.parametrize(
    "changes",
    [
        {"expr": "bhd,hdr->bhr"},
        {"recipe": (1, 1, 128)},
        {"c": torch.zeros(BATCH, HEADS, D)},
        {"epilogue": object()},
        {"use_128x4_sfd_layout": True},
        {"d": (torch.zeros(1), torch.zeros(1))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_sm100_has_is_refused_by_its_name(changes: Arguments) -> None:
    (name,) = changes
    with pytest.raises(UnsupportedError, match=f"^{name}: expected"):
        deep_gemm.fp8_einsum(**{**heads(), **changes})


def powers(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scales near those that were given, as float8_e8m0fnu and as float32."""
    assert E8M0 is not None
    whole = deep_gemm.ceil_to_ue8m0(scales)
    narrow = whole.to(E8M0)
    assert torch.equal(narrow.float(), whole)
    return narrow, whole


needs_e8m0 = pytest.mark.skipif(E8M0 is None, reason="this torch has no float8_e8m0fnu")


@needs_e8m0
def test_every_product_takes_scales_that_are_powers_of_two() -> None:
    given = heads()
    (codes_a, scales_a), (codes_b, scales_b) = given["a"], given["b"]
    (narrow_a, whole_a), (narrow_b, whole_b) = powers(scales_a), powers(scales_b)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", (codes_a, narrow_a), (codes_b, narrow_b), given["d"])
    right = expected({"a": (codes_a, whole_a), "b": (codes_b, whole_b)})
    assert torch.equal(given["d"], right)

    one = torch.empty(BATCH, D, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt((codes_a[:, 1], narrow_a[:, 1]), (codes_b[1], narrow_b[1]), one)
    assert torch.equal(one, right[:, 1])

    rows = torch.ones(BATCH, dtype=torch.int32)
    contiguous = codes_a[:, 1].contiguous(), narrow_a[:, 1]
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(contiguous, (codes_b, narrow_b), one.zero_(), rows)
    assert torch.equal(one, right[:, 1])


@needs_e8m0
def test_layouts_of_powers_of_two_are_of_float32() -> None:
    narrow, whole = powers(torch.rand(6, 3) + 0.1)
    found = deep_gemm.get_mn_major_tma_aligned_tensor(narrow)
    assert found.dtype == torch.float32 and torch.equal(found, whole) and found.stride() == (1, 8)
    for recipe, n in (((1, 128), 6), ((128, 128), 6 * 128)):
        found = deep_gemm.transform_sf_into_required_layout(narrow, n, 3 * 128, recipe)
        assert found.dtype == torch.float32 and torch.equal(found, whole)
