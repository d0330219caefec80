"""Checked calls of the driver: what they are asked for, what they return, and what is said of those that fail."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from cuda.bindings import driver as header

from fp8gemm.driver import api, device, launch, library, tensor_map
from fp8gemm.errors import DriverError
from tests.fake_driver import FakeDriver


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    fake = FakeDriver()
    with fake.installed():
        yield fake


def test_a_call_that_succeeds_returns_what_the_driver_wrote(driver: FakeDriver) -> None:
    api.check(0, "cuInit")
    assert api.answer(ctypes.c_int, "cuDeviceGetCount").value == 1
    assert api.driver_version() == (13, 0)


def test_a_failed_call_is_an_error_that_names_the_call_the_result_and_the_detail(driver: FakeDriver) -> None:
    words = r"cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE: CUDA_ERROR_INVALID_DEVICE in words\. Index 9\."
    with pytest.raises(DriverError, match=words) as caught:
        api.answer(ctypes.c_int, "cuDeviceGet", 9, detail="Index 9.")
    assert (caught.value.call, caught.value.code) == ("cuDeviceGet", 101)


def test_a_result_that_the_driver_does_not_know_is_named_by_its_number(driver: FakeDriver) -> None:
    assert "cuNew failed with CUresult 123456: no description." in str(api.driver_error("cuNew", 123456))


def test_without_a_driver_a_result_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("no libcuda")

    monkeypatch.setattr(api, "_libcuda", missing)
    assert "cuInit failed with CUresult 3" in str(api.driver_error("cuInit", 3))
    with pytest.raises(OSError, match="no libcuda"):
        api.initialise()


def test_functions_are_those_of_the_cuda_that_is_named(driver: FakeDriver) -> None:
    api.call("cuFuncLoad", ctypes.c_void_p(1), since=(12, 4))
    api.call("cuLibraryUnload", ctypes.c_void_p(1))
    assert driver.since == {"cuFuncLoad": 12040, "cuLibraryUnload": 12000}


@pytest.mark.parametrize("says", ["lacks", "finds_nothing"])
def test_a_function_that_a_driver_lacks_is_an_error_that_says_which_driver_has_it(
    driver: FakeDriver, says: str
) -> None:
    getattr(driver, says).add("cuFuncLoad")
    with pytest.raises(DriverError, match=r"cuGetProcAddress\(cuFuncLoad\).*NOT_FOUND.*driver of CUDA 12\.4"):
        api.entry_point("cuFuncLoad", (12, 4))


def test_a_driver_that_does_not_find_functions_by_version_is_too_old(driver: FakeDriver) -> None:
    driver.lacks.add("cuGetProcAddress_v2")
    with pytest.raises(DriverError, match=r"cuGetProcAddress_v2.*needs a driver of CUDA 12\.0"):
        api.entry_point("cuLaunchKernelEx")


NUMBERS = {
    "CUresult.CUDA_ERROR_NO_DEVICE": api.NO_DEVICE,
    "CUresult.CUDA_ERROR_INVALID_IMAGE": api.INVALID_IMAGE,
    "CUresult.CUDA_ERROR_INVALID_CONTEXT": api.INVALID_CONTEXT,
    "CUresult.CUDA_ERROR_NOT_FOUND": api.NOT_FOUND,
    "CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": launch._CAPTURE_IMPLICIT,
    "CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE": launch.NOT_CAPTURING,
    "CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED": library.CAPTURE_MODE_RELAXED,
    "CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": launch.CLUSTER_DIMENSION,
    "CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": launch.PROGRAMMATIC_SERIALIZATION,
    "CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": library.MAX_DYNAMIC_SHARED,
    **{
        f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}": getattr(device, name)
        for name in (
            "COMPUTE_CAPABILITY_MAJOR",
            "COMPUTE_CAPABILITY_MINOR",
            "MULTIPROCESSOR_COUNT",
            "L2_CACHE_SIZE",
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        )
    },
    **{
        f"CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_{name.upper()}": number
        for name, number in tensor_map.DATA_TYPES.items()
    },
    **{
        f"CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_{name.upper()}": number
        for name, number in tensor_map.SWIZZLES.items()
    },
    "CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE": tensor_map.NO_INTERLEAVE,
    **{
        f"CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_{fetched}B": number
        for fetched, number in tensor_map.L2_PROMOTIONS.items()
    },
    "CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": tensor_map.NO_OOB_FILL,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_is_that_of_cuda_h(name: str) -> None:
    enum, _, member = name.partition(".")
    assert NUMBERS[name] == int(getattr(getattr(header, enum), member))
