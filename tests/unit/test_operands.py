"""What TMA can address: which outputs it may store, and which scales of rows must be copied for it first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8gemm.checks.dtypes import addend, output_type
from fp8gemm.checks.operands import check_b
from fp8gemm.errors import InputError
from fp8gemm.products.operands import rows_of_groups, store_kind, tma_scales, tma_scales_of_groups
from fp8gemm.scales import empty_mn_major, empty_mn_major_groups, is_mn_major, mn_major_pitch
from fp8gemm.tuning.problem import Addend, OutputType, Scaling, StoreKind

TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED


def strided(shape: tuple[int, int], strides: tuple[int, int], *, base: int = 0, dtype: torch.dtype) -> Tensor:
    """A matrix that starts ``base`` elements past a 16-byte boundary."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    memory = torch.arange(base + reach + 16, dtype=torch.float32).to(dtype)
    skip = -memory.data_ptr() % 16 // memory.element_size()
    return memory.as_strided(shape, strides, skip + base)


@pytest.mark.parametrize(
    ("shape", "strides", "base", "kind"),
    [
        ((5, 64), (64, 1), 0, TMA),
        ((5, 8), (8, 1), 0, TMA),
        ((5, 100), (100, 1), 0, PREDICATED),  # a pitch of 200 bytes
        ((5, 100), (104, 1), 0, PREDICATED),  # TMA would write four elements past the end of each row
        ((5, 104), (112, 1), 0, TMA),
        ((5, 64), (72, 1), 0, TMA),
        ((5, 64), (65, 1), 0, PREDICATED),
        ((5, 64), (68, 1), 0, PREDICATED),
        ((5, 64), (64, 1), 8, TMA),
        ((5, 64), (64, 1), 1, PREDICATED),
        ((5, 64), (64, 1), 4, PREDICATED),
        ((5, 64), (1, 5), 0, PREDICATED),
        ((8, 64), (1, 8), 0, PREDICATED),
        ((5, 64), (128, 2), 0, PREDICATED),
        ((1, 104), (3, 1), 0, TMA),  # of one row the pitch means nothing: its length counts, as in a taller output
        ((1, 100), (104, 1), 0, PREDICATED),
        ((1, 100), (100, 1), 1, PREDICATED),
        ((1, 64), (128, 2), 0, PREDICATED),
        ((5, 1), (8, 1), 0, PREDICATED),
        ((5, 8), (8, 77), 0, PREDICATED),
        ((5, 1), (1, 1), 0, PREDICATED),
        ((1, 8), (3, 1), 0, TMA),
        ((1, 1), (3, 5), 0, PREDICATED),
        ((1, 1), (3, 5), 1, PREDICATED),
    ],
)
def test_store_kind(shape: tuple[int, int], strides: tuple[int, int], base: int, kind: StoreKind) -> None:
    assert store_kind(strided(shape, strides, base=base, dtype=torch.bfloat16)) is kind


def test_store_kind_counts_bytes_and_not_elements() -> None:
    for pitch, kind in ((4, TMA), (6, PREDICATED), (8, TMA), (10, PREDICATED)):
        assert store_kind(strided((3, 4), (pitch, 1), dtype=torch.float32)) is kind


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "strides", "base", "kind"),
    [
        ((5, 64), (64, 1), 0, TMA),
        ((5, 64), (66, 1), 0, TMA),
        ((5, 64), (64, 1), 2, TMA),
        ((5, 64), (0, 1), 0, TMA),
        ((5, 64), (65, 1), 0, PREDICATED),
        ((5, 64), (64, 1), 1, PREDICATED),
        ((5, 64), (128, 2), 0, PREDICATED),
        ((5, 64), (64, 0), 0, PREDICATED),
        ((64, 64), (1, 64), 0, PREDICATED),
        ((1, 64), (65, 1), 0, TMA),  # of one row the pitch means nothing
        ((1, 64), (64, 1), 3, PREDICATED),
    ],
)
def test_a_store_by_tma_needs_a_c_that_can_be_read_in_pairs(
    shape: tuple[int, int], strides: tuple[int, int], base: int, kind: StoreKind, dtype: torch.dtype
) -> None:
    c = strided(shape, strides, base=base, dtype=dtype)
    out = strided(shape, (64, 1), dtype=torch.float32)
    assert store_kind(out) is TMA
    assert store_kind(out, c) is kind
    assert store_kind(strided(shape, (64, 1), base=1, dtype=torch.float32), c) is PREDICATED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_packed_c_never_keeps_tma_from_a_new_output(dtype: torch.dtype) -> None:
    """What plans rely on when they bind kernels."""
    for rows in (1, 3):
        for columns in range(1, 40):
            out = torch.empty(rows, columns, dtype=dtype)
            for c_dtype in (torch.bfloat16, torch.float32):
                assert store_kind(out, torch.empty(rows, columns, dtype=c_dtype)) is store_kind(out)


def readable_by_tma(scales: Tensor) -> bool:
    """Rows adjacent, columns a multiple of 16 bytes apart and not overlapping, the first on such a boundary."""
    m, k_blocks = scales.shape
    rows = m == 1 or scales.stride(0) == 1
    columns = k_blocks == 1 or (scales.stride(1) * 4 % 16 == 0 and scales.stride(1) >= m)
    return rows and columns and scales.data_ptr() % 16 == 0


READ_IN_PLACE: dict[str, Callable[[], Tensor]] = {
    "MN-major": lambda: strided((7, 3), (1, 8), dtype=torch.float32),
    "MN-major, no padding": lambda: strided((8, 3), (1, 8), dtype=torch.float32),
    "a slice of the rows of larger ones": lambda: empty_mn_major(100, 3, device=torch.device("cpu"))[8:16],
    "a slice of the columns of larger ones": lambda: strided((7, 9), (1, 8), dtype=torch.float32)[:, 2:5],
    "a wider pitch": lambda: strided((7, 3), (1, 20), dtype=torch.float32),
    "one column": lambda: strided((7, 1), (1, 1), dtype=torch.float32),
    "one row, columns 16 bytes apart": lambda: strided((1, 3), (77, 4), dtype=torch.float32),
    "one scale": lambda: strided((1, 1), (3, 5), dtype=torch.float32),
}

COPIED: dict[str, Callable[[], Tensor]] = {
    "row-major": lambda: strided((7, 3), (3, 1), dtype=torch.float32),
    "row-major, four columns": lambda: strided((7, 4), (4, 1), dtype=torch.float32),
    "one row, packed": lambda: strided((1, 3), (3, 1), dtype=torch.float32),
    "packed columns of seven": lambda: strided((7, 3), (1, 7), dtype=torch.float32),
    "every other row": lambda: strided((7, 3), (2, 16), dtype=torch.float32),
    "rows all the same": lambda: strided((1, 3), (3, 1), dtype=torch.float32).expand(7, 3),
    "columns all the same": lambda: strided((7, 1), (1, 8), dtype=torch.float32).expand(7, 3),
    "overlapping columns": lambda: strided((7, 3), (1, 4), dtype=torch.float32),
    "MN-major, odd base": lambda: strided((7, 3), (1, 8), base=1, dtype=torch.float32),
    "MN-major, no padding, odd base": lambda: strided((8, 3), (1, 8), base=3, dtype=torch.float32),
    "one column, odd base": lambda: strided((7, 1), (1, 1), base=2, dtype=torch.float32),
    "one column of eight, odd base": lambda: strided((8, 1), (1, 8), base=2, dtype=torch.float32),
    "one scale, odd base": lambda: strided((1, 1), (1, 4), base=1, dtype=torch.float32),
    "an odd slice of the rows of larger ones": lambda: strided((100, 3), (1, 100), dtype=torch.float32)[9:17],
}


@pytest.mark.parametrize("make", READ_IN_PLACE.values(), ids=READ_IN_PLACE)
def test_scales_that_tma_can_read_are_not_copied(make: Callable[[], Tensor]) -> None:
    scales = make()
    assert readable_by_tma(scales)
    assert tma_scales(scales) is scales


@pytest.mark.parametrize("make", COPIED.values(), ids=COPIED)
def test_other_scales_are_copied_mn_major(make: Callable[[], Tensor]) -> None:
    scales = make()
    assert not readable_by_tma(scales)
    copy = tma_scales(scales)
    assert torch.equal(copy, scales)
    assert copy.untyped_storage().data_ptr() != scales.untyped_storage().data_ptr()
    assert readable_by_tma(copy)
    assert is_mn_major(copy) and copy.stride() == (1, mn_major_pitch(scales.shape[0]))


@settings(max_examples=300, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 10), st.integers(1, 5)),
    strides=st.tuples(st.integers(0, 12), st.integers(0, 24)),
    base=st.integers(0, 7),
)
def test_any_scales_come_out_readable_and_unchanged(
    shape: tuple[int, int], strides: tuple[int, int], base: int
) -> None:
    scales = strided(shape, strides, base=base, dtype=torch.float32)
    result = tma_scales(scales)
    assert readable_by_tma(result) and torch.equal(result, scales)
    assert (result is scales) == readable_by_tma(scales)


def test_no_rows_of_scales() -> None:
    assert tma_scales(torch.empty(0, 3)).shape == (0, 3)


def test_output_types() -> None:
    for kernel in OutputType:
        assert output_type(getattr(torch, kernel.value)) is kernel
    for dtype in (torch.int8, torch.float64, torch.float8_e4m3fn):
        with pytest.raises(
            InputError, match=f"expected one of torch.bfloat16, torch.float16, torch.float32, got {dtype}"
        ):
            output_type(dtype)


def test_addends() -> None:
    assert addend("c_dtype", None) is Addend.NONE
    assert addend("c_dtype", torch.bfloat16) is Addend.BFLOAT16 and addend("c_dtype", torch.float32) is Addend.FLOAT32
    for dtype in (torch.int8, torch.float16, torch.float64):
        with pytest.raises(InputError, match=f"c_dtype: expected one of torch.bfloat16, torch.float32, got {dtype}"):
            addend("c_dtype", dtype)


@pytest.mark.parametrize(
    ("n", "shape", "strides", "scaling"),
    [
        (300, (3, 2), (2, 1), Scaling.BLOCK),
        (300, (300, 2), (2, 1), Scaling.ROW),
        (300, (300, 2), (1, 300), Scaling.ROW),
        (300, (300, 2), (0, 0), Scaling.ROW),
        (2, (1, 2), (2, 1), Scaling.BLOCK),
        (2, (2, 2), (2, 1), Scaling.ROW),
        (1, (1, 2), (2, 1), Scaling.BLOCK),
        (1, (1, 2), (1, 4), Scaling.ROW),  # a weight of one row, quantised as activations are
    ],
)
def test_the_scales_of_b_tell_the_scaling(
    n: int, shape: tuple[int, int], strides: tuple[int, int], scaling: Scaling
) -> None:
    b = torch.zeros(n, 144).to(torch.float8_e4m3fn)
    assert check_b(b, strided(shape, strides, dtype=torch.float32)) is scaling


def groups_at(shape: tuple[int, int, int], strides: tuple[int, int, int], base: int = 0) -> Tensor:
    """Scales of groups that start ``base`` elements past a 16-byte boundary, each another number."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    memory = torch.arange(base + reach + 4, dtype=torch.float32)
    return memory.as_strided(shape, strides, -memory.data_ptr() % 16 // 4 + base)


@pytest.mark.parametrize(
    ("shape", "strides", "pitch"),
    [
        ((2, 7, 3), (24, 1, 8), 8),
        ((2, 8, 3), (24, 1, 8), 8),
        ((2, 7, 3), (60, 1, 20), 20),
        ((2, 1, 3), (12, 77, 4), 4),  # of one row its stride means nothing
        ((1, 7, 3), (999, 1, 8), 8),  # nor that of one group
        ((2, 7, 1), (8, 1, 999), 8),  # nor that of one block: the pitch is the least
        ((2, 4, 1), (4, 1, 4), 4),
        ((2, 7, 2), (40, 1, 20), 20),
    ],
)
def test_scales_of_groups_that_tma_can_read_are_not_copied(
    shape: tuple[int, int, int], strides: tuple[int, int, int], pitch: int
) -> None:
    scales = groups_at(shape, strides)
    read = tma_scales_of_groups(scales)
    assert read.data_ptr() == scales.data_ptr() and read.stride() == (shape[2] * pitch, 1, pitch)
    assert read.shape == scales.shape and torch.equal(read, scales)


@pytest.mark.parametrize(
    ("shape", "strides", "base"),
    [
        ((2, 7, 3), (21, 3, 1), 0),
        ((2, 4, 3), (12, 3, 1), 0),
        ((2, 7, 3), (48, 2, 16), 0),  # every other row
        ((2, 7, 3), (30, 1, 10), 0),  # a pitch of 40 bytes
        ((2, 7, 3), (12, 1, 4), 0),  # columns that overlap
        ((2, 7, 3), (32, 1, 8), 0),  # room between groups
        ((2, 7, 1), (7, 1, 1), 0),
        ((2, 7, 3), (24, 1, 8), 1),  # off 16 bytes
        ((1, 7, 3), (24, 1, 8), 1),
        ((1, 7, 3), (21, 3, 1), 0),
    ],
)
def test_other_scales_of_groups_are_copied(
    shape: tuple[int, int, int], strides: tuple[int, int, int], base: int
) -> None:
    scales = groups_at(shape, strides, base)
    read = tma_scales_of_groups(scales)
    assert read.data_ptr() != scales.data_ptr() and read.data_ptr() % 16 == 0
    assert read.stride() == empty_mn_major_groups(*shape, device=scales.device).stride() and torch.equal(read, scales)


def test_rows_of_groups_are_those_of_all_at_their_own_pitch() -> None:
    x = torch.arange(96.0).view(2, 3, 16)[:, :, :5]
    rows = rows_of_groups(x)
    assert rows.data_ptr() == x.data_ptr() and rows.stride() == (16, 1) and torch.equal(rows, x.reshape(6, 5))
    assert rows_of_groups(torch.zeros(2, 3, 8)[..., ::2]).stride() == (8, 2)


def test_copies_of_scales_lie_where_the_scales_do() -> None:
    scales = torch.empty(2, 7, 3, device="meta")
    assert tma_scales_of_groups(scales).device == tma_scales(scales[0]).device == scales.device
