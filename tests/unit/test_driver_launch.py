"""Launches: what the driver reads when it is called, seen through cuda.bindings' own view of its structures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as header

from fp8gemm.driver import device, launch
from fp8gemm.driver.arguments import ArgumentBlock, KernelParams
from fp8gemm.driver.launch import LaunchConfig
from fp8gemm.errors import DriverError, InputError
from tests.fake_driver import FakeDriver

FUNCTION = 0x5555_0000_3000
STREAM = 0x7F00_0000_00AA
INVALID_CONTEXT = 201

OFFSETS = {
    "tensor_map_a": 0,
    "tensor_map_b": 128,
    "tensor_map_scales_a": 256,
    "tensor_map_scales_b": 384,
    "tensor_map_d": 512,
    "tensor_map_a_tail": 640,
    "tensor_map_b_tail": 768,
    "scales_b": 896,
    "d": 904,
    "d_stride_m": 912,
    "d_stride_n": 920,
    "c": 928,
    "c_stride_m": 936,
    "c_stride_n": 944,
    "bias": 952,
    "m": 960,
    "static_weights": 964,
    "b": 968,
    "scales_a": 976,
    "scales_a_stride_m": 984,
    "scales_a_stride_k": 992,
    "scales_a_stride_group": 1000,
    "group_begins": 1008,
    "group_ends": 1016,
    "k": 1024,
}


class Driver(FakeDriver):
    """Keeps what it reads through the pointers it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []
        self.codes: list[int] = []
        self.capture = 0, 0

    def on_cuLaunchKernelEx(self, config: int, function: int, kernel_params: int, extra: int | None) -> int:
        block = ctypes.c_void_p.from_address(kernel_params).value
        assert block is not None
        params = ctypes.string_at(block, ctypes.sizeof(KernelParams))
        self.seen.append(
            {**read_config(config), "function": function, "params": params, "block": block, "extra": extra}
        )
        return self.codes.pop(0) if self.codes else 0

    def on_cuOccupancyMaxActiveClusters(self, count: Any, function: int, config: int) -> None:
        self.seen.append({**read_config(config), "function": function})
        count[0] = 66

    def on_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, *asked: int) -> None:
        assert asked == (FUNCTION, 384, 1000)
        count[0] = 2

    def on_cuStreamIsCapturing(self, stream: int, status: Any) -> int:
        assert stream == STREAM
        code, status[0] = self.capture
        return code


def read_config(address: int) -> dict[str, Any]:
    """Read a CUlaunchConfig with the bindings, which are compiled from cuda.h; only the list of attributes is not
    to be had from a structure that they did not fill themselves."""
    config = header.CUlaunchConfig(address)
    ids = header.CUlaunchAttributeID
    attributes: dict[str, Any] = {}
    for index in range(config.numAttrs):
        array = ctypes.c_void_p.from_address(address + 40).value
        assert array is not None
        attribute = header.CUlaunchAttribute(array + 72 * index)
        if attribute.id == ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            dims = attribute.value.clusterDim
            attributes["cluster"] = (dims.x, dims.y, dims.z)
        elif attribute.id == ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            attributes["programmatic"] = attribute.value.programmaticStreamSerializationAllowed
        else:
            attributes["unknown"] = attribute.id
    return {
        "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
        "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
        "threads": config.blockDimX,
        "shared": config.sharedMemBytes,
        "stream": int(config.hStream),
        "attributes": attributes,
    }


@pytest.fixture
def driver() -> Iterator[Driver]:
    fake = Driver()
    with fake.installed():
        yield fake
    assert set(fake.since.values()) <= {12000}


def config(**changes: Any) -> LaunchConfig:
    return LaunchConfig(**{"function": FUNCTION, "device_index": 0, "grid_x": 132, "threads": 384, **changes})


def test_the_argument_block_is_laid_out_as_the_kernel_reads_it() -> None:
    assert {name: getattr(KernelParams, name).offset for name in OFFSETS} == OFFSETS
    assert ctypes.sizeof(KernelParams) == 1088


def test_argument_blocks_are_aligned_zeroed_and_apart() -> None:
    blocks = [ArgumentBlock() for _ in range(20)]
    for block in blocks:
        address = ctypes.addressof(block.params)
        assert address % 64 == 0
        assert bytes(block.params) == bytes(1088)
        maps = (block.tensor_map_a, block.tensor_map_b, block.tensor_map_scales_a, block.tensor_map_scales_b)
        others = (block.tensor_map_d, block.tensor_map_a_tail, block.tensor_map_b_tail)
        assert [place - address for place in (*maps, *others)] == [0, 128, 256, 384, 512, 640, 768]
        block.params.m = 2**32 - 1
    assert len({ctypes.addressof(block.params) // 1088 for block in blocks}) >= 19


def test_the_driver_reads_what_was_set(driver: Driver) -> None:
    block = ArgumentBlock()
    block.params.scales_b = 0x7F00_1111_2220
    block.params.d = 0x7F00_3333_4440
    block.params.d_stride_m, block.params.d_stride_n, block.params.m = 2**40, -1, 4097
    ctypes.memset(block.tensor_map_d, 0xEE, 128)
    launch.launch(config(cluster_x=2, dynamic_shared_bytes=232448, programmatic=True), block, STREAM)
    (seen,) = driver.seen
    assert (seen["grid"], seen["threads"], seen["shared"]) == ((132, 1, 1), 384, 232448)
    assert (seen["stream"], seen["function"], seen["extra"]) == (STREAM, FUNCTION, None)
    assert seen["attributes"] == {"cluster": (2, 1, 1), "programmatic": 1}
    params = seen["params"]
    assert params == bytes(block.params)
    assert params[512:640] == b"\xee" * 128
    read = [int.from_bytes(params[at : at + 8], "little", signed=True) for at in range(896, 928, 8)]
    assert read == [0x7F00_1111_2220, 0x7F00_3333_4440, 2**40, -1]
    assert int.from_bytes(params[960:964], "little") == 4097


@pytest.mark.parametrize(
    ("changes", "attributes"),
    [
        ({}, {}),
        ({"cluster_x": 4}, {"cluster": (4, 1, 1)}),
        ({"programmatic": True}, {"programmatic": 1}),
    ],
)
def test_only_the_attributes_that_are_asked_for_are_given(
    driver: Driver, changes: dict[str, Any], attributes: dict[str, Any]
) -> None:
    launch.launch(config(**changes), ArgumentBlock(), 0)
    assert driver.seen[0]["attributes"] == attributes
    assert driver.seen[0]["stream"] == 0


def test_grid_and_stream_of_one_launch_do_not_stay_for_the_next(driver: Driver) -> None:
    one, block = config(), ArgumentBlock()
    launch.launch(one, block, STREAM, 6)
    launch.launch(one, block, 0)
    assert [(seen["grid"][0], seen["stream"]) for seen in driver.seen] == [(6, STREAM), (132, 0)]


def test_threads_share_a_config_but_not_what_a_launch_changes(driver: Driver) -> None:
    one = config(cluster_x=2)
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        block = ArgumentBlock()
        block.params.m = number
        for _ in range(50):
            barrier.wait()
            launch.launch(one, block, number * 16, number * 2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = sorted((seen["stream"], seen["grid"][0], seen["params"][960]) for seen in driver.seen)
    assert got == sorted((n * 16, n * 2, n) for n in range(1, 5) for _ in range(50))
    assert all(seen["attributes"] == {"cluster": (2, 1, 1)} for seen in driver.seen)


def test_a_thread_without_a_context_is_given_one_and_the_launch_is_made_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[int] = []
    monkeypatch.setattr(launch, "ensure_context", bound.append)
    driver.codes = [INVALID_CONTEXT]
    launch.launch(config(device_index=3), ArgumentBlock(), STREAM)
    assert (bound, len(driver.seen)) == ([3], 2)
    driver.codes = [INVALID_CONTEXT, INVALID_CONTEXT]
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_CONTEXT"):
        launch.launch(config(device_index=3), ArgumentBlock(), STREAM)
    assert len(driver.seen) == 4


def test_a_failed_launch_is_an_error_that_describes_it(driver: Driver) -> None:
    driver.codes = [912]
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_CLUSTER_SIZE.*grid 6, cluster 2, 384 threads.*77 bytes"):
        launch.launch(config(cluster_x=2, dynamic_shared_bytes=77), ArgumentBlock(), STREAM, 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_x": 0}, r"cluster_x: expected 1 to 8 CTAs, got 0"),
        ({"cluster_x": 16, "grid_x": 16}, r"cluster_x: expected 1 to 8 CTAs, got 16"),
        ({"grid_x": 0}, r"grid_x.*got 0"),
        ({"grid_x": 131, "cluster_x": 2}, r"grid_x.*multiple of cluster_x 2, got 131"),
        ({"threads": 100}, r"threads.*multiple of 32.*got 100"),
        ({"threads": 1056}, r"threads.*up to 1024, got 1056"),
        ({"dynamic_shared_bytes": -1}, r"dynamic_shared_bytes.*got -1"),
    ],
)
def test_an_impossible_shape_is_refused(driver: Driver, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config(**changes)


def test_configs_compare_by_what_they_launch(driver: Driver) -> None:
    assert config() == config()
    assert config() != config(grid_x=1)
    assert len({config(), config(), config(threads=128)}) == 2


def test_the_clusters_that_fit_are_asked_of_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_probe_torch", lambda: ("2.11.0+cu130", (13, 0)))
    clustered, plain = config(cluster_x=2), config(dynamic_shared_bytes=1000)
    assert launch.max_active_clusters(clustered) == 66
    assert driver.seen[0]["attributes"] == {"cluster": (2, 1, 1)}
    assert launch.max_active_clusters(plain) == 2 * 132


def test_a_capture_is_recognised_whatever_its_state(driver: Driver) -> None:
    states = header.CUstreamCaptureStatus
    for code, state, capturing in (
        (0, states.CU_STREAM_CAPTURE_STATUS_NONE, False),
        (0, states.CU_STREAM_CAPTURE_STATUS_ACTIVE, True),
        (0, states.CU_STREAM_CAPTURE_STATUS_INVALIDATED, True),
        (906, states.CU_STREAM_CAPTURE_STATUS_NONE, True),
    ):
        driver.capture = code, int(state)
        assert launch.is_capturing(STREAM) is capturing
    driver.capture = 900, 0
    with pytest.raises(DriverError, match="cuStreamIsCapturing failed with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        launch.is_capturing(STREAM)
