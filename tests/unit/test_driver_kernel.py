"""Loading a kernel: once per kernel and GPU, never under a capture, and healed once where the driver refuses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm.driver.api import driver_error
from fp8gemm.errors import CacheMissError, DriverError
from fp8gemm.jit import kernel
from fp8gemm.jit.request import KernelRequest
from tests.fake_driver import FakeDriver

NO_BINARY = 209
INVALID_VALUE = 1
OUT_OF_MEMORY = 2


def request(label: str = "probe") -> KernelRequest:
    return KernelRequest(label=label, header="probe.cuh", family="Probe", config=())


@dataclass
class Machine:
    """The parts around the loader, as it sees them: a compiler, a driver that may refuse cubins, a capture."""

    nvrtc_version: str = "12.9"
    driver_version: tuple[int, int] = (13, 0)
    capturing: bool = False
    refused: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: float = 0.0

    def artifact(self, request: KernelRequest, cubin: bytes) -> Any:
        return SimpleNamespace(
            request=request, key="key-" + request.label, cubin=cubin, nvrtc_version=self.nvrtc_version
        )

    def build(self, request: KernelRequest, *, allow_compile: bool, include_dir: Path | None) -> Any:
        self.events.append(("build", request.label, allow_compile))
        return self.artifact(request, b"first")

    def quarantine(self, artifact: Any, *, reason: str) -> None:
        self.events.append(("quarantine", artifact.cubin, reason))

    def rebuild(self, artifact: Any, *, reason: str, include_dir: Path | None) -> Any:
        self.events.append(("rebuild", artifact.cubin, reason))
        return self.artifact(artifact.request, b"second")

    def load_library(self, cubin: bytes) -> str:
        time.sleep(self.seconds)
        self.events.append(("load", cubin))
        self._maybe_refuse("cuLibraryLoadData", cubin)
        return "library of " + cubin.decode()

    def get_function(self, library: str, name: str, device_index: int) -> int:
        assert name == "fp8gemm_kernel"
        self.events.append(("function", library, device_index))
        self._maybe_refuse("cuKernelGetFunction", library.removeprefix("library of ").encode())
        return 0x1000 + device_index

    def set_max_dynamic_shared(self, function: int, size: int, device_index: int) -> None:
        self.events.append(("shared", function, size))
        if size > 232448:
            raise driver_error("cuFuncSetAttribute", INVALID_VALUE)

    def unload(self, library: str) -> None:
        self.events.append(("unload", library))

    def _maybe_refuse(self, call: str, cubin: bytes) -> None:
        refused_call, code = self.refused.get(cubin, ("", 0))
        if refused_call == call:
            raise driver_error(call, code)

    def count(self, name: str) -> int:
        return sum(event[0] == name for event in self.events)


@contextmanager
def nothing(*arguments: Any) -> Iterator[None]:
    yield


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    parts = Machine()
    for name in ("build", "quarantine", "rebuild", "load_library", "get_function", "set_max_dynamic_shared", "unload"):
        monkeypatch.setattr(kernel, name, getattr(parts, name))
    monkeypatch.setattr(kernel, "driver_version", lambda: parts.driver_version)
    monkeypatch.setattr(kernel, "is_capturing", lambda stream: parts.capturing)
    monkeypatch.setattr(kernel, "current_context", nothing)
    monkeypatch.setattr(kernel, "relaxed_capture", nothing)
    monkeypatch.setattr(kernel, "_kernels", {})
    monkeypatch.setattr(kernel, "_libraries", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=7))
    with FakeDriver().installed():  # errors are in its words
        yield parts


def test_a_kernel_is_loaded_once_and_then_remembered(machine: Machine) -> None:
    assert not kernel.is_loaded(request(), 0)
    first = kernel.load(request(), 0, 1000)
    assert (first.function, first.device_index, first.dynamic_shared_bytes) == (0x1000, 0, 1000)
    assert kernel.load(request(), 0, 1000) is first
    assert kernel.is_loaded(request(), 0)
    assert machine.events == [
        ("build", "probe", True),
        ("load", b"first"),
        ("function", "library of first", 0),
        ("shared", 0x1000, 1000),
    ]


def test_two_gpus_share_a_library_and_have_a_function_each(machine: Machine) -> None:
    functions = {kernel.load(request(), index, 1000).function for index in (0, 1)}
    assert functions == {0x1000, 0x1001}
    assert machine.count("load") == 1
    assert not kernel.is_loaded(request(), 2)


def test_two_kernels_are_two_libraries(machine: Machine) -> None:
    kernel.load(request("one"), 0, 1000)
    kernel.load(request("two"), 0, 1000)
    assert machine.count("load") == 2


def test_more_shared_memory_is_granted_and_less_changes_nothing(machine: Machine) -> None:
    kernel.load(request(), 0, 1000)
    assert kernel.load(request(), 0, 2000).dynamic_shared_bytes == 2000
    assert kernel.load(request(), 0, 500).dynamic_shared_bytes == 2000
    assert [event[2] for event in machine.events if event[0] == "shared"] == [1000, 2000]
    assert machine.count("load") == 1


def test_32_threads_asking_together_load_one_library(machine: Machine) -> None:
    machine.seconds = 0.02
    barrier = threading.Barrier(32)
    loaded: list[kernel.LoadedKernel] = []

    def ask() -> None:
        barrier.wait()
        loaded.append(kernel.load(request(), 0, 1000))

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 32
    assert all(one is loaded[0] for one in loaded)
    assert machine.count("load") == 1


def test_nothing_is_built_or_loaded_under_a_capture(machine: Machine) -> None:
    machine.capturing = True
    with pytest.raises(CacheMissError, match=r"probe is not loaded on GPU 0.*being captured.*before the capture"):
        kernel.load(request(), 0, 1000)
    assert machine.events == []
    machine.capturing = False
    loaded = kernel.load(request(), 0, 1000)
    machine.capturing = True
    assert kernel.load(request(), 0, 1000) is loaded


def test_the_word_on_compiling_is_passed_on(machine: Machine) -> None:
    kernel.load(request(), 0, 1000, allow_compile=False)
    assert machine.events[0] == ("build", "probe", False)


def test_kernels_of_two_header_directories_are_kept_apart(machine: Machine, tmp_path: Path) -> None:
    kernel.load(request(), 0, 1000)
    assert not kernel.is_loaded(request(), 0, include_dir=tmp_path)
    kernel.load(request(), 0, 1000, include_dir=tmp_path)
    assert machine.count("build") == 2


def test_a_refused_cubin_that_may_not_be_compiled_again_is_a_miss_and_is_set_aside(machine: Machine) -> None:
    machine.refused[b"first"] = ("cuLibraryLoadData", NO_BINARY)
    with pytest.raises(CacheMissError, match=r"refuses its cubin.*CUDA_ERROR_NO_BINARY_FOR_GPU"):
        kernel.load(request(), 0, 1000, allow_compile=False)
    assert [event[0] for event in machine.events] == ["build", "load", "quarantine"]


@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cuKernelGetFunction"])
def test_a_refused_cubin_is_compiled_again_once_and_used(machine: Machine, call: str) -> None:
    machine.refused[b"first"] = (call, NO_BINARY)
    loaded = kernel.load(request(), 0, 1000)
    assert loaded.artifact.cubin == b"second"
    (event,) = [event for event in machine.events if event[0] == "rebuild"]
    assert event[1] == b"first"
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in event[2]
    assert machine.count("unload") == (1 if call == "cuKernelGetFunction" else 0)
    kernel.load(request(), 1, 1000)
    assert machine.events[-2][1] == "library of second"


def test_a_cubin_refused_twice_is_an_error_that_names_driver_and_compiler(machine: Machine) -> None:
    machine.refused = {b"first": ("cuLibraryLoadData", NO_BINARY), b"second": ("cuLibraryLoadData", NO_BINARY)}
    with pytest.raises(DriverError, match=r"CUDA 13\.0, refuses kernel probe, which NVRTC 12\.9 compiled") as caught:
        kernel.load(request(), 0, 1000)
    assert (caught.value.call, caught.value.code) == ("cuLibraryLoadData", NO_BINARY)
    assert machine.count("rebuild") == 1
    assert machine.count("load") == 2
    assert not kernel.is_loaded(request(), 0)


def test_a_driver_too_old_for_the_cubin_leaves_the_entry_alone(machine: Machine) -> None:
    machine.nvrtc_version, machine.driver_version = "13.0", (12, 8)
    machine.refused[b"first"] = ("cuLibraryLoadData", NO_BINARY)
    with pytest.raises(DriverError, match=r"CUDA 12\.8, refuses.*NVRTC 13\.0 compiled.*update the driver.*--recompile"):
        kernel.load(request(), 0, 1000)
    assert machine.count("rebuild") == 0


def test_a_failure_that_is_not_the_cubin_s_is_passed_on(machine: Machine) -> None:
    machine.refused[b"first"] = ("cuLibraryLoadData", OUT_OF_MEMORY)
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        kernel.load(request(), 0, 1000)
    assert machine.count("rebuild") == 0
    machine.refused.clear()
    with pytest.raises(DriverError, match="cuFuncSetAttribute"):
        kernel.load(request(), 0, 300000)
    assert machine.events[-1] == ("unload", "library of first")
    assert kernel.load(request(), 0, 1000).function == 0x1000


def test_a_library_in_use_survives_a_later_failure(machine: Machine) -> None:
    loaded = kernel.load(request(), 0, 1000)
    with pytest.raises(DriverError, match="cuFuncSetAttribute"):
        kernel.load(request(), 0, 300000)
    assert machine.count("unload") == 0
    assert kernel.load(request(), 0, 1000) is loaded
