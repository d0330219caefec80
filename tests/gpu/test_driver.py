"""The driver layer on a real GPU: maps, launches, loading, refusal and capture, with a kernel small enough to read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.cache.notices import CacheWarning
from fp8gemm.driver import library
from fp8gemm.driver.device import DeviceStatus, diagnose, hopper_info
from fp8gemm.driver.launch import is_capturing, launch, max_active_clusters
from fp8gemm.driver.tensor_map import replace_address
from fp8gemm.errors import CacheMissError, DriverError
from fp8gemm.jit import build, kernel
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_program, compile_source
from tests.driver_probe import (
    DYNAMIC_SHARED,
    Probe,
    check_output,
    make_arguments,
    make_matrix,
    make_output,
    make_probe,
)


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    """A probe kernel that no cache, in memory or on disk, has seen before."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), jit="compile"):
        yield make_probe(tmp_path)


@pytest.fixture
def matrix(device: torch.device, generator: torch.Generator) -> Tensor:
    return make_matrix(device, generator)


@pytest.fixture
def scales(device: torch.device) -> Tensor:
    return torch.tensor([7.0], device=device)


def current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def run_in_thread(work: Callable[[], object]) -> None:
    """Run in a thread that has never used CUDA, under the settings of this one, and raise here what it raises there."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(guarded,))
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_the_device_is_described_as_torch_describes_it(device: torch.device) -> None:
    assert diagnose(device.index).status is DeviceStatus.READY
    info, properties = hopper_info(device.index), torch.cuda.get_device_properties(device)
    assert (info.name, info.num_sms) == (properties.name, properties.multi_processor_count)
    assert info.capability == torch.cuda.get_device_capability(device) == (9, 0)
    assert info.l2_bytes == properties.L2_cache_size
    assert info.shared_bytes_optin == 227 * 1024


@pytest.mark.parametrize(("cluster_x", "programmatic"), [(1, False), (2, False), (1, True), (2, True)])
def test_a_kernel_gets_its_map_its_arguments_and_its_launch_shape(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor, cluster_x: int, programmatic: bool
) -> None:
    output = make_output(device)
    arguments = make_arguments(matrix, scales, output)
    config = probe.config(device, cluster_x=cluster_x, programmatic=programmatic)
    launch(config, arguments, current_stream(device))
    check_output(output, matrix, cluster_x=cluster_x)


def test_a_block_can_be_changed_as_soon_as_the_launch_has_returned(
    probe: Probe, device: torch.device, generator: torch.Generator, scales: Tensor
) -> None:
    matrices = [make_matrix(device, generator) for _ in range(50)]
    outputs = [make_output(device) for _ in matrices]
    config, arguments = probe.config(device), make_arguments(matrices[0], scales, outputs[0])
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    for matrix, output in zip(matrices, outputs, strict=True):
        replace_address(arguments.tensor_map_a, matrix.data_ptr())
        arguments.params.d = output.data_ptr()
        launch(config, arguments, stream.cuda_stream)
    for matrix, output in zip(matrices, outputs, strict=True):
        check_output(output, matrix)


def test_a_thread_that_never_used_cuda_can_load_and_launch(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor
) -> None:
    output = make_output(device)
    arguments = make_arguments(matrix, scales, output)
    torch.cuda.synchronize(device)
    run_in_thread(lambda: launch(probe.config(device), arguments, 0))
    check_output(output, matrix)


def test_a_thread_that_was_given_a_context_can_encode_too(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor
) -> None:
    output = make_output(device)
    torch.cuda.synchronize(device)

    def work() -> None:
        library.ensure_context(device.index)
        launch(probe.config(device), make_arguments(matrix, scales, output), 0)

    run_in_thread(work)
    check_output(output, matrix)


def test_the_clusters_that_fit_are_within_the_gpu(probe: Probe, device: torch.device) -> None:
    num_sms = hopper_info(device.index).num_sms
    single, pairs = (max_active_clusters(probe.config(device, cluster_x=size)) for size in (1, 2))
    assert single >= num_sms
    assert num_sms // 2 <= pairs <= single // 2


def test_bytes_that_are_no_code_for_this_gpu_are_recognised(probe: Probe, device: torch.device) -> None:
    with pytest.raises(DriverError) as garbage:
        library.load_library(b"no cubin at all")
    assert library.refuses_cubin(garbage.value)
    foreign = foreign_cubin(probe)
    with pytest.raises(DriverError) as other:
        loaded = library.load_library(foreign)
        library.get_function(loaded, "fp8gemm_kernel", device.index)
    assert library.refuses_cubin(other.value), str(other.value)


def foreign_cubin(probe: Probe) -> bytes:
    """A sound cubin with the right entry, for Ampere."""
    source = 'extern "C" __global__ void fp8gemm_kernel() {}'
    options = compile_options("sm_80")
    return compile_source(
        source, label="driver-foreign", options=options, arch="sm_80", include_dir=probe.include_dir
    ).cubin


def test_a_library_without_the_entry_is_refused(probe: Probe, device: torch.device) -> None:
    loaded = library.load_library(probe.load(device).artifact.cubin)
    with pytest.raises(DriverError, match="'another_name'") as caught:
        library.get_function(loaded, "another_name", device.index)
    assert library.refuses_cubin(caught.value)
    library.unload(loaded)


def test_a_refused_cubin_is_healed_by_one_compilation(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, results = foreign_cubin(probe), list[CompileResult]()

    def wrong_at_first(*arguments: Any, **options: Any) -> CompileResult:
        result = compile_program(*arguments, **options)
        results.append(result if results else replace(result, cubin=foreign))
        return results[-1]

    monkeypatch.setattr(build, "compile_program", wrong_at_first)
    with pytest.warns(CacheWarning, match="healed"):
        loaded = probe.load(device)
    assert len(results) == 2
    assert loaded.artifact.cubin == results[1].cubin != foreign
    output = make_output(device)
    launch(probe.config(device), make_arguments(matrix, scales, output), current_stream(device))
    check_output(output, matrix)


def test_more_shared_memory_than_there_is_is_refused(probe: Probe, device: torch.device) -> None:
    with pytest.raises(DriverError, match="300000 bytes of dynamic shared memory"):
        probe.load(device, 300000)
    assert probe.load(device).dynamic_shared_bytes == DYNAMIC_SHARED


def test_an_impossible_launch_is_an_error_that_describes_it(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor
) -> None:
    arguments = make_arguments(matrix, scales, make_output(device))
    with pytest.raises(DriverError, match="grid 3, cluster 2"):
        launch(probe.config(device, cluster_x=2), arguments, current_stream(device), 3)


def test_a_loaded_kernel_is_captured_and_replayed(
    probe: Probe, device: torch.device, generator: torch.Generator, matrix: Tensor, scales: Tensor
) -> None:
    output = make_output(device)
    config, arguments = probe.config(device), make_arguments(matrix, scales, output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert is_capturing(current_stream(device))
        launch(config, arguments, current_stream(device))
    assert not is_capturing(current_stream(device))
    for scale in (3, 4, 5):
        matrix.copy_(make_matrix(device, generator))
        scales.fill_(scale)
        output.fill_(0xA5)
        graph.replay()
        check_output(output, matrix, scale=scale)


def test_a_kernel_that_is_not_loaded_is_refused_under_a_capture_which_goes_on_unharmed(
    probe: Probe, device: torch.device
) -> None:
    counter = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter.add_(1)
        with pytest.raises(CacheMissError, match=r"driver-probe is not loaded.*being captured"):
            probe.load(device)
        counter.add_(1)
    assert not kernel.is_loaded(probe.request, device.index, include_dir=probe.include_dir)
    for _ in range(3):
        graph.replay()
    assert counter.item() == 6


def test_one_thread_can_load_while_another_captures(
    probe: Probe, device: torch.device, matrix: Tensor, scales: Tensor
) -> None:
    counter, output = torch.zeros(1, device=device), make_output(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        counter.add_(1)
        run_in_thread(lambda: probe.load(device))
        counter.add_(1)
    graph.replay()
    assert counter.item() == 2
    launch(probe.config(device), make_arguments(matrix, scales, output), current_stream(device))
    check_output(output, matrix)
