"""Tensor maps: what reaches the driver, through the same calling convention as the driver's, and what never does."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as header

from fp8gemm.driver import tensor_map
from fp8gemm.errors import DriverError, InputError
from tests.fake_driver import FakeDriver

ADDRESS = 0x7F12_3456_7890
GOOD: dict[str, Any] = {
    "address": ADDRESS,
    "dtype": "uint8",
    "inner": 7168,
    "outer": 4096,
    "outer_stride_bytes": 8192,
    "box_inner": 128,
    "box_outer": 64,
    "swizzle": "128B",
}

BLOCKS: dict[str, Any] = {
    "address": ADDRESS,
    "dtype": "uint8",
    "columns": 7168,
    "rows": 4096,
    "row_stride_bytes": 8192,
    "block_columns": 128,
    "box_rows": 64,
    "box_blocks": 4,
    "swizzle": "128B",
}


class Driver(FakeDriver):
    """Keeps what lies where the pointers point to."""

    def on_cuTensorMapEncodeTiled(self, destination: int, data_type: int, rank: int, address: int, *rest: Any) -> None:
        extents, strides, box, element_strides, *codes = rest
        arrays = (extents[:rank], strides[: rank - 1], box[:rank], element_strides[:rank])
        self.calls[-1] = (destination, data_type, rank, address, *arrays, *codes)

    def on_cuTensorMapReplaceAddress(self, destination: int, address: int) -> None:
        self.calls[-1] = (destination, address)


@pytest.fixture
def driver() -> Iterator[Driver]:
    fake = Driver()
    with fake.installed():
        yield fake
    assert set(fake.since.values()) <= {12000}


@pytest.fixture
def destination() -> Iterator[int]:
    memory = ctypes.create_string_buffer(tensor_map.MAP_BYTES + tensor_map.MAP_ALIGNMENT)
    address = ctypes.addressof(memory)
    yield address + -address % tensor_map.MAP_ALIGNMENT
    del memory


def test_every_argument_reaches_its_place(driver: Driver, destination: int) -> None:
    tensor_map.encode_2d(destination, **GOOD)
    assert driver.calls == [
        (
            destination,
            int(header.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8),
            2,
            ADDRESS,
            [7168, 4096],
            [8192],
            [128, 64],
            [1, 1],
            int(header.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(header.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
            int(header.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
            int(header.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
    ]


def test_numbers_past_32_bits_arrive_whole(driver: Driver, destination: int) -> None:
    large = {"inner": 2**32, "outer": 2**32, "outer_stride_bytes": 2**40 - 16}
    tensor_map.encode_2d(destination, **{**GOOD, **large})
    assert driver.calls[0][4:6] == ([2**32, 2**32], [2**40 - 16])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_each_word_has_the_driver_s_number(driver: Driver, destination: int, dtype: str, swizzle: str) -> None:
    words = {"dtype": dtype, "swizzle": swizzle}
    tensor_map.encode_2d(destination, **{**GOOD, **words, "box_inner": 8 if dtype == "float32" else 16})
    _, data_type, *_, swizzle_code, _, _ = driver.calls[0]
    assert data_type == getattr(header.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}")
    assert swizzle_code == getattr(header.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle.upper()}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": ADDRESS + 8}, ["device address", "16", hex(ADDRESS + 8)]),
        ({"address": 0}, ["device address", "0x0"]),
        ({"inner": 0}, ["elements a row", "got 0"]),
        ({"inner": 2**32 + 1}, ["elements a row", str(2**32 + 1)]),
        ({"outer": 0}, ["rows", "got 0"]),
        ({"outer": -1}, ["rows", "got -1"]),
        ({"outer_stride_bytes": 8200}, ["row stride", "16", "8200"]),
        ({"outer_stride_bytes": 0}, ["row stride", "positive", "got 0"]),
        ({"outer_stride_bytes": 2**40}, ["row stride", "2^40"]),
        ({"box_inner": 257, "swizzle": "none"}, ["box_inner", "256", "257"]),
        ({"box_inner": 0}, ["box_inner", "got 0"]),
        ({"box_outer": 257}, ["box_outer", "256", "257"]),
        ({"box_outer": 0}, ["box_outer", "got 0"]),
        ({"box_inner": 24}, ["box_inner", "16 bytes", "24"]),
        ({"box_inner": 144}, ["box_inner", "128 bytes", "'128B'", "144"]),
        ({"box_inner": 64, "dtype": "float32"}, ["box_inner", "128 bytes", "256 bytes"]),
        ({"box_inner": 128, "swizzle": "64B"}, ["box_inner", "64 bytes", "'64B'"]),
        ({"dtype": "float8_e4m3fn"}, ["dtype", "uint8", "'float8_e4m3fn'"]),
        ({"swizzle": "256B"}, ["swizzle", "128B", "'256B'"]),
    ],
)
def test_what_breaks_a_rule_is_refused_before_the_driver_sees_it(
    driver: Driver, destination: int, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        tensor_map.encode_2d(destination, **{**GOOD, **change})
    for word in words:
        assert word in str(caught.value)
    assert driver.calls == []


def test_several_broken_rules_are_all_named(driver: Driver, destination: int) -> None:
    with pytest.raises(InputError, match=r"aligned to 64 bytes.*aligned to 16 bytes.*row stride"):
        tensor_map.encode_2d(destination + 32, **{**GOOD, "address": ADDRESS + 1, "outer_stride_bytes": 100})


def test_what_the_driver_refuses_is_an_error_that_describes_the_matrix(driver: Driver, destination: int) -> None:
    driver.failing["cuTensorMapEncodeTiled"] = 1
    with pytest.raises(
        DriverError, match=r"CUDA_ERROR_INVALID_VALUE.*4096 x 7168 uint8.*64 x 128, swizzle 128B"
    ) as caught:
        tensor_map.encode_2d(destination, **GOOD)
    assert caught.value.call == "cuTensorMapEncodeTiled"


def test_an_address_is_replaced_in_place(driver: Driver, destination: int) -> None:
    tensor_map.replace_address(destination, ADDRESS)
    assert driver.calls == [(destination, ADDRESS)]
    for where, address in ((destination + 16, ADDRESS), (destination, ADDRESS + 4), (destination, 0)):
        with pytest.raises(InputError):
            tensor_map.replace_address(where, address)
    assert len(driver.calls) == 1
    driver.failing["cuTensorMapReplaceAddress"] = 1
    with pytest.raises(DriverError, match=hex(ADDRESS)):
        tensor_map.replace_address(destination, ADDRESS)


def test_a_map_of_column_blocks_has_a_dimension_of_them(driver: Driver, destination: int) -> None:
    """Each block begins so many bytes after the one before it in the same row."""
    tensor_map.encode_column_blocks(destination, **BLOCKS)
    assert driver.calls == [
        (
            destination,
            int(header.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8),
            3,
            ADDRESS,
            [128, 4096, 56],
            [8192, 128],
            [128, 64, 4],
            [1, 1, 1],
            int(header.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(header.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
            int(header.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
            int(header.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
    ]
    in_floats = {"dtype": "float32", "block_columns": 32, "columns": 64, "fetch_bytes": 128}
    tensor_map.encode_column_blocks(destination, **{**BLOCKS, **in_floats})
    assert driver.calls[1][4:6] == ([32, 4096, 2], [8192, 128])
    assert driver.calls[1][-2] == int(header.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": 7168 + 16}, ["whole blocks of 128 columns", "got 7184"]),
        ({"columns": 0}, ["elements a row", "got 0"]),
        ({"rows": 0}, ["rows", "got 0"]),
        ({"row_stride_bytes": 8200}, ["row stride", "16", "8200"]),
        ({"address": ADDRESS + 8}, ["device address", "16"]),
        ({"block_columns": 24}, ["block_columns", "16 bytes", "24"]),
        ({"block_columns": 256}, ["block_columns", "128 bytes", "256"]),
        ({"box_rows": 257}, ["box_rows", "256", "257"]),
        ({"box_blocks": 0}, ["box_blocks", "got 0"]),
        ({"swizzle": "256B"}, ["swizzle", "128B", "'256B'"]),
        ({"fetch_bytes": 64}, ["fetch_bytes", "128, 256", "64"]),
    ],
)
def test_a_map_of_column_blocks_breaks_no_rule(
    driver: Driver, destination: int, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        tensor_map.encode_column_blocks(destination, **{**BLOCKS, **change})
    for word in words:
        assert word in str(caught.value)
    assert driver.calls == []


def test_column_blocks_that_the_driver_refuses_are_described(driver: Driver, destination: int) -> None:
    driver.failing["cuTensorMapEncodeTiled"] = 1
    with pytest.raises(DriverError, match=r"4096 x 7168 uint8.*box 4 blocks of 64 x 128, 128B") as caught:
        tensor_map.encode_column_blocks(destination, **BLOCKS)
    assert caught.value.call == "cuTensorMapEncodeTiled"
