"""Checked driver calls, and the order in which a kernel is loaded."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from fp8gemm.driver import library
from fp8gemm.errors import DriverError, UnsupportedDeviceError


def test_check_returns_what_the_driver_returned() -> None:
    assert library.check((0,), "cuInit") is None
    assert library.check((0, 7), "cuDeviceGetCount") == 7
    assert library.check((0, 7, 8), "cuMemGetInfo") == (7, 8)


def test_a_failed_call_is_an_error_that_names_the_call_the_result_and_the_detail() -> None:
    with pytest.raises(
        DriverError, match=r"cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE: .*\. Index 9\."
    ) as caught:
        library.check((101,), "cuDeviceGet", "Index 9.")
    assert (caught.value.call, caught.value.code) == ("cuDeviceGet", 101)


def test_a_result_that_cuda_python_does_not_know_is_named_by_its_number() -> None:
    error = library.driver_error("cuNew", 123456)
    assert "cuNew failed with CUresult 123456" in str(error)


def test_missing_cuda_python_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UnsupportedDeviceError, match=r"cuda-python>=12\.9,<14.*No module named"):
        library.bindings.__wrapped__()


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
    code = int(getattr(library.bindings().CUresult, name))
    assert library.refuses_cubin(library.driver_error(call, code)) is refused


class Recorder:
    """A driver in which every call succeeds, except the one that a test lets fail, and is written down."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max dynamic shared")
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUfunction = int
    CUresult = library.bindings().CUresult
    returns = {  # noqa: RUF012
        "cuDeviceGet": 3,
        "cuDevicePrimaryCtxRetain": "context 3",
        "cuLibraryGetKernel": "kernel",
        "cuKernelGetFunction": 0x3000,
        "cuThreadExchangeStreamCaptureMode": "before",
        "cuCtxGetCurrent": 0,
    }

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, int] = {}

    def cuGetErrorString(self, result: Any) -> tuple[int, bytes]:
        return (0, b"in words")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            code = self.failing.get(name, 0)
            return (code, self.returns[name]) if name in self.returns else (code,)

        return call

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    driver = Recorder()
    monkeypatch.setattr(library, "bindings", lambda: driver)
    monkeypatch.setattr(library, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(library, "primary_context", lambda index: f"context {index}")
    return driver


def test_a_function_is_fetched_and_completely_loaded_in_its_gpu_s_context(recorder: Recorder) -> None:
    assert library.get_function("library", "fp8gemm_kernel", 2) == 0x3000
    assert recorder.calls == [
        ("cuLibraryGetKernel", "library", b"fp8gemm_kernel"),
        ("cuCtxPushCurrent", "context 2"),
        ("cuKernelGetFunction", "kernel"),
        ("cuFuncLoad", 0x3000),
        ("cuCtxPopCurrent",),
    ]


def test_a_driver_before_12_4_is_not_asked_for_what_it_lacks(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "driver_version", lambda: (12, 3))
    library.get_function("library", "fp8gemm_kernel", 0)
    assert "cuFuncLoad" not in recorder.names


def test_the_context_is_put_back_when_loading_fails(recorder: Recorder) -> None:
    recorder.failing["cuKernelGetFunction"] = 209
    with pytest.raises(DriverError):
        library.get_function("library", "fp8gemm_kernel", 0)
    assert recorder.names[-1] == "cuCtxPopCurrent"


def test_shared_memory_that_a_gpu_lacks_is_named(recorder: Recorder) -> None:
    library.set_max_dynamic_shared(0x3000, 1000, 1)
    assert ("cuFuncSetAttribute", 0x3000, "max dynamic shared", 1000) in recorder.calls
    recorder.failing["cuFuncSetAttribute"] = 1
    with pytest.raises(DriverError, match=r"in words\. 300000 bytes of dynamic shared memory"):
        library.set_max_dynamic_shared(0x3000, 300000, 1)
    assert recorder.names[-1] == "cuCtxPopCurrent"


def test_a_thread_is_given_a_context_only_if_it_has_none(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    library.ensure_context(2)
    assert recorder.calls == [("cuCtxGetCurrent",), ("cuCtxSetCurrent", "context 2")]
    monkeypatch.setitem(recorder.returns, "cuCtxGetCurrent", 0x5000)
    library.ensure_context(2)
    assert recorder.calls[2:] == [("cuCtxGetCurrent",)]


def test_the_capture_mode_is_put_back(recorder: Recorder) -> None:
    with pytest.raises(KeyError), library.relaxed_capture():
        raise KeyError
    assert [call[1] for call in recorder.calls] == ["relaxed", "before"]
