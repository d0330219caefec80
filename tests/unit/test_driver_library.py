"""Contexts, and the order in which a kernel is loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as header

from fp8gemm.driver import library
from fp8gemm.driver.api import driver_error
from fp8gemm.errors import DriverError
from tests.fake_driver import FakeDriver


@pytest.mark.parametrize("garbage", [b"", b"garbage", b".version 8.0", b"\x7fEL"])
def test_bytes_that_are_no_elf_never_reach_the_driver(monkeypatch: pytest.MonkeyPatch, garbage: bytes) -> None:
    monkeypatch.setattr(library, "initialise", lambda: pytest.fail("the driver was started"))
    with pytest.raises(DriverError, match="Expected an ELF image") as caught:
        library.load_library(garbage)
    assert library.refuses_cubin(caught.value)
    assert repr(garbage[:8]) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "name", "refused"),
    [
        ("cuLibraryLoadData", "CUDA_ERROR_INVALID_IMAGE", True),
        ("cuKernelGetFunction", "CUDA_ERROR_NO_BINARY_FOR_GPU", True),
        ("cuLibraryLoadData", "CUDA_ERROR_INVALID_PTX", True),
        ("cuLibraryLoadData", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", True),
        ("cuLibraryLoadData", "CUDA_ERROR_INVALID_SOURCE", True),
        ("cuLibraryGetKernel", "CUDA_ERROR_NOT_FOUND", True),
        ("cuGetProcAddress", "CUDA_ERROR_NOT_FOUND", False),
        ("cuLibraryLoadData", "CUDA_ERROR_OUT_OF_MEMORY", False),
        ("cuFuncSetAttribute", "CUDA_ERROR_INVALID_VALUE", False),
        ("cuLibraryLoadData", "CUDA_ERROR_ILLEGAL_ADDRESS", False),
    ],
)
def test_only_failures_that_another_cubin_could_mend_count_as_refusal(call: str, name: str, refused: bool) -> None:
    code = int(getattr(header.CUresult, name))
    assert library.refuses_cubin(driver_error(call, code)) is refused


LIBRARY, FUNCTION, CONTEXT = 0x7F00_A000_0000, 0x7F00_B000_0000, 0x7F00_C000_0000


class Driver(FakeDriver):
    """With one library, of one kernel and one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.answers |= {"cuLibraryLoadData": LIBRARY, "cuLibraryGetKernel": 0x7F00_0000_1000}
        self.answers |= {"cuKernelGetFunction": FUNCTION, "cuLibraryGetGlobal": 0x7F00_D000_0000}

    def on_cuLibraryGetGlobal(self, address: Any, size: Any, library: int, name: bytes) -> None:
        size[0] = 2**33

    def on_cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        mode[0], self.mode = self.mode, mode[0]

    mode = 0


@pytest.fixture
def driver() -> Iterator[Driver]:
    fake = Driver()
    with fake.installed():
        yield fake


def handle(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def test_a_cubin_is_loaded_without_options(driver: Driver) -> None:
    cubin = b"\x7fELF and so on"
    assert library.load_library(cubin).value == LIBRARY
    ((name, address, *options),) = driver.calls
    assert (name, options) == ("cuLibraryLoadData", [None, None, 0, None, None, 0])
    assert ctypes.string_at(address, len(cubin)) == cubin
    library.unload(handle(LIBRARY))
    assert driver.calls[-1] == ("cuLibraryUnload", LIBRARY)


def test_a_function_is_fetched_and_completely_loaded_in_its_gpu_s_context(driver: Driver) -> None:
    driver.answers["cuDeviceGetCount"] = 3
    assert library.get_function(handle(LIBRARY), "fp8gemm_kernel", 2) == FUNCTION
    assert driver.calls == [
        ("cuLibraryGetKernel", LIBRARY, b"fp8gemm_kernel"),
        ("cuDeviceGet", 2),
        ("cuDevicePrimaryCtxRetain", 2),
        ("cuCtxPushCurrent", CONTEXT + 2),
        ("cuKernelGetFunction", 0x7F00_0000_1000),
        ("cuFuncLoad", FUNCTION),
        ("cuCtxPopCurrent",),
    ]
    assert driver.since["cuFuncLoad"] == 12040


def test_a_driver_before_12_4_is_not_asked_for_what_it_lacks(driver: Driver) -> None:
    driver.answers["cuDriverGetVersion"] = 12030
    driver.lacks.add("cuFuncLoad")
    library.get_function(handle(LIBRARY), "fp8gemm_kernel", 0)
    assert "cuFuncLoad" not in driver.names


def test_a_gpu_that_is_not_there_is_named(driver: Driver) -> None:
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_DEVICE.*The device index was 7\."):
        library.primary_context(7)


def test_the_context_is_put_back_when_loading_fails(driver: Driver) -> None:
    driver.failing["cuKernelGetFunction"] = 209
    with pytest.raises(DriverError):
        library.get_function(handle(LIBRARY), "fp8gemm_kernel", 0)
    assert driver.names[-1] == "cuCtxPopCurrent"


def test_a_kernel_that_a_library_lacks_is_named(driver: Driver) -> None:
    driver.failing["cuLibraryGetKernel"] = 500
    with pytest.raises(DriverError, match=r"CUDA_ERROR_NOT_FOUND.*The kernel was 'other'\.") as caught:
        library.get_function(handle(LIBRARY), "other", 0)
    assert library.refuses_cubin(caught.value)


def test_a_variable_has_an_address_and_a_size(driver: Driver) -> None:
    assert library.get_global(handle(LIBRARY), "fp8gemm_trace", 0) == (0x7F00_D000_0000, 2**33)
    assert driver.calls[-2:] == [("cuLibraryGetGlobal", LIBRARY, b"fp8gemm_trace"), ("cuCtxPopCurrent",)]


def test_shared_memory_that_a_gpu_lacks_is_named(driver: Driver) -> None:
    library.set_max_dynamic_shared(FUNCTION, 1000, 0)
    attribute = header.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert ("cuFuncSetAttribute", FUNCTION, int(attribute), 1000) in driver.calls
    driver.failing["cuFuncSetAttribute"] = 1
    with pytest.raises(DriverError, match=r"in words\. 300000 bytes of dynamic shared memory"):
        library.set_max_dynamic_shared(FUNCTION, 300000, 0)
    assert driver.names[-1] == "cuCtxPopCurrent"


def test_a_thread_is_given_a_context_only_if_it_has_none(driver: Driver) -> None:
    library.ensure_context(0)
    assert driver.names == ["cuCtxGetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert driver.calls[-1] == ("cuCtxSetCurrent", CONTEXT)
    driver.answers["cuCtxGetCurrent"] = CONTEXT
    library.ensure_context(0)
    assert driver.names[4:] == ["cuCtxGetCurrent"]


def test_the_capture_mode_is_put_back(driver: Driver) -> None:
    relaxed = int(header.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    with pytest.raises(KeyError), library.relaxed_capture():
        assert driver.mode == relaxed
        raise KeyError
    assert driver.mode == 0
