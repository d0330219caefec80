"""Nothing is allocated before everything is checked, and no matrix has more rows than TMA can count. On the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts, Fp8Linear
from fp8gemm.products import calls, dense, grouped_products, plans
from fp8gemm.routing import permute, permute_masked
from fp8gemm.sizes import LIMIT
from fp8gemm.tuning.grouped_problem import MAX_GROUPS

E4M3, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
MANY = 2**40
OPS = torch.ops.fp8gemm


def codes(*shape: int) -> Tensor:
    """Without memory for more than one row."""
    return torch.zeros(16, dtype=torch.uint8).view(E4M3)[:1].expand(shape)


def meta(*shape: int, dtype: torch.dtype = E4M3) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scales(*shape: int) -> Tensor:
    return meta(*shape, dtype=F32)


REAL_CODES, REAL_SCALES = torch.zeros(3, 16).to(E4M3), torch.ones(1, 1)
GROUP = torch.zeros(2, 3, 16).to(E4M3), torch.ones(2, 1, 1)
OFFSETS = torch.zeros(3, dtype=torch.int32)
ROWS = torch.ones(1, 1)

# Each would ask for terabytes, or more, if it were not checked first.
TOO_LARGE: dict[str, tuple[str, Callable[[], Any]]] = {
    "a broadcast a": ("a", lambda: fp8gemm.gemm(codes(MANY, 16), ROWS.expand(MANY, 1), REAL_CODES, REAL_SCALES)),
    "a broadcast a of groups": (
        "a",
        lambda: fp8gemm.gemm_grouped(codes(MANY, 16), ROWS.expand(MANY, 1), *GROUP, offsets=OFFSETS),
    ),
    "many rows, scales of few": (
        "a",
        lambda: fp8gemm.gemm_grouped(codes(MANY, 32), ROWS.expand(MANY, 1), *GROUP, offsets=OFFSETS),
    ),
    "a broadcast a of masked groups": (
        "a",
        lambda: fp8gemm.gemm_masked(codes(2, MANY, 16), ROWS.expand(2, MANY, 1), *GROUP, OFFSETS[:2]),
    ),
    "a broadcast x": ("x", lambda: fp8gemm.quantize_activation(torch.ones(16).expand(MANY, 16))),
    "a broadcast w": ("w", lambda: fp8gemm.quantize_weight(torch.ones(16).expand(MANY, 16))),
    "broadcast halves": ("x", lambda: fp8gemm.quantize_silu_mul(torch.ones(32).expand(MANY, 32))),
    "a broadcast normed x": (
        "x",
        lambda: fp8gemm.quantize_rms_norm(torch.ones(16).expand(MANY, 16), torch.ones(16)),
    ),
    "a broadcast residual": (
        "x",
        lambda: fp8gemm.quantize_add_rms_norm(
            torch.ones(16).expand(MANY, 16), torch.ones(16).expand(MANY, 16), torch.ones(16)
        ),
    ),
    "broadcast groups of x": (
        "x",
        lambda: fp8gemm.quantize_activation(torch.ones(16).expand(2, MANY, 16), counts=OFFSETS[:2]),
    ),
    "a layer's input": ("x", lambda: Fp8Linear(16, 3)(torch.ones(16).expand(MANY, 16))),
    "a layer of many features": ("out_features", lambda: Fp8Linear(16, MANY)),
    "a layer of deep features": ("in_features", lambda: Fp8Linear(MANY, 16)),
    "experts of many features": ("hidden_size", lambda: Fp8Experts(2, MANY, 16)),
    "many experts": ("num_experts", lambda: Fp8Experts(MANY, 16, 16)),
    "room for many tokens": (
        "max_m",
        lambda: permute_masked(REAL_CODES, torch.ones(3, 1), torch.zeros(3, 1).int(), 2, max_m=MANY),
    ),
    "offsets of many experts": (
        "num_experts",
        lambda: permute(REAL_CODES, torch.ones(3, 1), torch.zeros(3, 1).int(), MANY),
    ),
}


@pytest.mark.parametrize(("name", "call"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_too_many_rows_are_refused_before_there_is_memory_for_them(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected .*got "):
        call()


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


def on_gpu(x: Tensor) -> Any:
    return x.as_subclass(OnGpu)


WIDE = on_gpu(torch.zeros(3, 32).to(E4M3))
NARROW = on_gpu(REAL_CODES)
ROOM = on_gpu(torch.zeros(2, 4, 32).to(E4M3))
OF_GROUPS = None, None
UNCHECKED: dict[str, Callable[[], Any]] = {
    "gemm": lambda: dense.multiply((WIDE, ROWS, NARROW, ROWS, None, None, None), (BF16, None, False)),
    "gemm of a dtype by name": lambda: dense.multiply(
        (NARROW, ROWS, NARROW, ROWS, None, None, None), ("half", None, False)
    ),
    "grouped": lambda: grouped_products.multiply_grouped(
        (WIDE, ROWS, on_gpu(GROUP[0]), GROUP[1], None, OFFSETS, None), (BF16, *OF_GROUPS)
    ),
    "masked": lambda: grouped_products.multiply_masked(
        (ROOM, ROWS, on_gpu(GROUP[0]), GROUP[1], OFFSETS[:2], None), (BF16, *OF_GROUPS)
    ),
    "k_grouped": lambda: grouped_products.multiply_k_grouped((WIDE, ROWS, NARROW, ROWS, OFFSETS, None, None)),
}


@pytest.mark.parametrize("call", UNCHECKED.values(), ids=UNCHECKED)
def test_on_a_gpu_too_nothing_is_allocated_for_operands_that_do_not_fit(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "current_stream", lambda index: 17)
    for name in ("empty", "empty_strided", "zeros"):
        monkeypatch.setattr(torch, name, lambda *shape, **options: pytest.fail(f"allocated {shape}"))
    with pytest.raises(InputError, match="expected"):
        call()


def test_a_plan_allocates_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fp8gemm.plan(REAL_CODES, REAL_SCALES, max_m=8)
    monkeypatch.setattr(calls, "current_stream", lambda index: 17)
    monkeypatch.setattr(plans, "goes_to_operator", lambda *operands: False)
    for name in ("empty", "empty_strided", "zeros"):
        monkeypatch.setattr(torch, name, lambda *shape, **options: pytest.fail(f"allocated {shape}"))
    with pytest.raises(InputError, match="^a: expected K = 16 as in b"):
        plan(WIDE, ROWS)


FAR = 2**31
HALF = FAR // MAX_GROUPS
TALL, FLAT = (meta(FAR, 128), scales(FAR, 1)), (meta(3, 128), scales(3, 1))
OVER: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "M": ("a", OPS.gemm, (meta(FAR, 16), scales(FAR, 1), meta(3, 16), scales(1, 1), None, None, BF16, None, False)),
    "N": ("b", OPS.gemm, (meta(3, 16), scales(3, 1), meta(FAR, 16), scales(2**24, 1), None, None, BF16, None, False)),
    "K": (
        "b",
        OPS.gemm,
        (meta(3, FAR), scales(3, 2**24), meta(3, FAR), scales(1, 2**24), None, None, BF16, None, False),
    ),
    "M of columns": (
        "a",
        OPS.gemm_k_grouped,
        (meta(FAR, 128), scales(FAR, 1), meta(3, 128), scales(3, 1), OFFSETS, None),
    ),
    "N of columns": (
        "b",
        OPS.gemm_k_grouped,
        (meta(3, 128), scales(3, 1), meta(FAR, 128), scales(FAR, 1), OFFSETS, None),
    ),
    "K of all": (
        "a",
        OPS.gemm_k_grouped,
        (meta(3, FAR), scales(3, 2**24), meta(3, FAR), scales(3, 2**24), OFFSETS, None),
    ),
    "rows of x": ("x", OPS.quantize_activation, (meta(FAR, 16, dtype=BF16),)),
    "columns of x": ("x", OPS.quantize_activation, (meta(3, FAR, dtype=BF16),)),
    "rows of groups of x": (
        "x",
        OPS.quantize_silu_mul,
        (meta(2, FAR // 2, 32, dtype=BF16), meta(2, dtype=torch.int32)),
    ),
    "rows of w": ("w", OPS.quantize_weight, (meta(FAR, 16, dtype=BF16),)),
}


@pytest.mark.parametrize(("name", "operator", "arguments"), OVER.values(), ids=OVER)
def test_a_matrix_of_2_to_the_31_rows_or_columns_is_refused(
    name: str, operator: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """By the operators' fake kernels, which make the checks of the operators themselves."""
    arguments = tuple(each.to("meta") if isinstance(each, Tensor) else each for each in arguments)
    with pytest.raises(InputError, match=f"^{name}: expected .* < 2.31"):
        operator(*arguments)


sizes = st.tuples(st.integers(1, MAX_GROUPS), st.integers(1, FAR // 2)) | st.integers(1, MAX_GROUPS).flatmap(
    lambda groups: st.tuples(st.just(groups), st.integers(max(FAR // groups - 2, 1), FAR // groups + 2))
)


def accepted(call: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> bool:
    try:
        call(*arguments, **options)
    except InputError as error:
        assert re.match(rf"{name}: expected (G \* )?\w+ < 2\^31", str(error)), error
        return False
    return True


@hypothesis_settings(max_examples=60, deadline=None)
@given(size=sizes)
def test_rows_of_all_groups_are_fewer_than_tma_can_count(size: tuple[int, int]) -> None:
    groups, rows = size
    fits = groups * rows < LIMIT
    blocks = -(-rows // 128)
    b, scales_b = meta(groups, rows, 16), scales(groups, blocks, 1)
    few = meta(4, 16), scales(4, 1)
    offsets, counts = (meta(count, dtype=torch.int32) for count in (groups + 1, groups))
    assert accepted(OPS.gemm_grouped, "b", *few, b, scales_b, None, offsets, BF16, *OF_GROUPS) is fits
    small = meta(groups, 3, 16), scales(groups, 1, 1)
    tall = meta(groups, rows, 16), scales(groups, rows, 1)
    assert accepted(OPS.gemm_masked, "a", *tall, *small, counts, BF16, *OF_GROUPS) is fits
    high, low = (meta(rows, 128), scales(rows, 1)), (meta(3, 128), scales(3, 1))
    assert accepted(OPS.gemm_k_grouped, "a", *high, *low, offsets, None) is fits


def test_the_real_products_make_these_checks() -> None:
    b = meta(MAX_GROUPS, HALF, 16), scales(MAX_GROUPS, HALF // 128, 1)
    a = meta(MAX_GROUPS, HALF, 16), scales(MAX_GROUPS, HALF, 1)
    few = meta(MAX_GROUPS, 3, 16), scales(MAX_GROUPS, 1, 1)
    offsets, counts = (meta(count, dtype=torch.int32) for count in (MAX_GROUPS + 1, MAX_GROUPS))
    rows = meta(4, 16), scales(4, 1)
    assert not accepted(fp8gemm.gemm_grouped, "b", *rows, *b, offsets=offsets)
    assert not accepted(fp8gemm.gemm_masked, "b", *few, *b, counts)
    assert not accepted(fp8gemm.gemm_masked, "a", *a, *few, counts)
    columns = meta(HALF, 128), scales(HALF, 1)
    assert not accepted(fp8gemm.gemm_k_grouped, "a", *columns, meta(3, 128), scales(3, 1), offsets)
