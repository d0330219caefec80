"""What is concluded about a machine from the facts found on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from fp8gemm.driver import api, device
from fp8gemm.driver.device import DeviceStatus, Gpu, Probe, conclude
from fp8gemm.errors import DriverError, UnsupportedDeviceError
from tests.fake_driver import FakeDriver

HOPPER = Gpu("NVIDIA H200", (9, 0))
AMPERE = Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
BLACKWELL = Gpu("NVIDIA B200", (10, 0))
GOOD = Probe(torch_version="2.11.0+cu130", torch_cuda=(13, 0), driver_version=(13, 0), gpus=(HOPPER,))


def facts(**changes: object) -> Probe:
    return Probe(**{**vars(GOOD), **changes})


CASES = [
    (facts(), None, DeviceStatus.READY, ["GPU 0", "H200", "13.0"]),
    (facts(gpus=(AMPERE, HOPPER)), None, DeviceStatus.READY, ["GPU 1", "H200"]),
    (facts(gpus=(AMPERE, HOPPER)), 1, DeviceStatus.READY, ["GPU 1", "H200"]),
    (facts(torch_cuda=(12, 9), driver_version=(12, 2)), None, DeviceStatus.READY, ["12.2"]),
    (facts(gpus=(AMPERE, HOPPER)), 0, DeviceStatus.NOT_HOPPER, ["A100", "8.0", "9.0", "sm_90a"]),
    (facts(gpus=(AMPERE,)), None, DeviceStatus.NOT_HOPPER, ["A100", "8.0", "9.0"]),
    (facts(gpus=(AMPERE, BLACKWELL)), None, DeviceStatus.NOT_HOPPER, ["A100", "8.0", "B200", "10.0", "9.0"]),
    (facts(gpus=()), None, DeviceStatus.NO_GPU, ["shows no GPU", "Hopper"]),
    (facts(gpus=(), visible_devices=""), None, DeviceStatus.NO_GPU, ["CUDA_VISIBLE_DEVICES is ''"]),
    (facts(), 3, DeviceStatus.NO_GPU, ["no GPU 3", "H200"]),
    (facts(), -1, DeviceStatus.NO_GPU, ["no GPU -1", "H200"]),
    (
        facts(driver_version=None, driver_problem="libcuda.so.1: no such file.", gpus=()),
        None,
        DeviceStatus.NO_DRIVER,
        ["libcuda.so.1: no such file. ", "12.0"],
    ),
    (
        facts(driver_problem="cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY", gpus=()),
        None,
        DeviceStatus.NO_DRIVER,
        ["13.0", "does not start", "CUDA_ERROR_SYSTEM_NOT_READY"],
    ),
    (facts(driver_version=(12, 8)), None, DeviceStatus.DRIVER_TOO_OLD, ["12.8", "13.0", "2.11.0+cu130"]),
    (facts(torch_cuda=(11, 8), driver_version=(11, 8)), None, DeviceStatus.DRIVER_TOO_OLD, ["11.8", "12.0"]),
    (
        facts(driver_version=(12, 8), driver_problem="cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", gpus=()),
        None,
        DeviceStatus.DRIVER_TOO_OLD,
        ["12.8", "13.0"],
    ),
    (
        facts(torch_version="2.13.0+cpu", torch_cuda=None),
        None,
        DeviceStatus.CPU_ONLY_TORCH,
        ["2.13.0+cpu", "a driver (CUDA 13.0) and NVIDIA H200"],
    ),
    (facts(torch_cuda=None, gpus=()), None, DeviceStatus.CPU_ONLY_TORCH, ["CUDA 13.0", "no GPU that can be used"]),
    (
        facts(torch_cuda=None, driver_version=None, driver_problem="none", gpus=()),
        None,
        DeviceStatus.CPU_ONLY_TORCH,
        ["no CUDA driver can be loaded here either"],
    ),
]


@pytest.mark.parametrize(("found", "index", "status", "words"), CASES)
def test_each_machine_gets_its_status_and_a_message_that_names_what_was_found(
    found: Probe, index: int | None, status: DeviceStatus, words: list[str]
) -> None:
    diagnosis = conclude(found, index)
    assert diagnosis.status is status
    for word in words:
        assert word in diagnosis.message
    if status is not DeviceStatus.READY:
        assert "FP8GEMM_BACKEND=reference" in diagnosis.message
        assert "need a Hopper GPU" in diagnosis.message or status is DeviceStatus.DRIVER_TOO_OLD


def test_the_kernels_are_ready_in_exactly_the_machines_that_have_everything() -> None:
    versions = [None, (11, 8), (12, 0), (12, 9), (13, 0)]
    gpu_sets = [(), (AMPERE,), (HOPPER,), (AMPERE, HOPPER)]
    for cuda, version, problem, gpus, index in itertools.product(
        versions, versions, ["", "broken"], gpu_sets, [None, 0, 1]
    ):
        found = Probe("2.x", cuda, version, problem, gpus)
        asked = gpus if index is None else gpus[index : index + 1]
        usable = cuda is not None and version is not None and not problem
        new_enough = usable and version >= (12, 0) and version[0] >= cuda[0]  # type: ignore[operator,index]
        ready = new_enough and HOPPER in asked
        assert (conclude(found, index).status is DeviceStatus.READY) == ready, (found, index)


def test_this_machine_can_be_diagnosed_whatever_it_is() -> None:
    diagnosis = device.diagnose()
    assert isinstance(diagnosis.status, DeviceStatus)
    assert diagnosis.message
    if torch.version.cuda is None:
        assert diagnosis.status is DeviceStatus.CPU_ONLY_TORCH
        assert torch.__version__ in diagnosis.message


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    driver = FakeDriver()
    monkeypatch.setattr(device, "_probe_torch", lambda: ("2.11.0+cu130", (13, 0)))
    with driver.installed():
        yield driver


def test_a_hopper_gpu_is_described_by_what_the_driver_says(fake: FakeDriver) -> None:
    info = device.hopper_info(0)
    assert (info.name, info.capability, info.num_sms) == ("NVIDIA H200", (9, 0), 132)
    assert (info.l2_bytes, info.shared_bytes_optin, info.driver_version) == (60 << 20, 232448, "13.0")


def test_another_gpu_is_described_but_refused_for_the_kernels(fake: FakeDriver) -> None:
    fake.attributes[device.COMPUTE_CAPABILITY_MAJOR] = 8
    assert device.device_info(0).capability == (8, 0)
    with pytest.raises(UnsupportedDeviceError, match=r"compute capability 8\.0.*capability 9\.0"):
        device.hopper_info(0)


def test_a_gpu_that_is_not_there_is_refused(fake: FakeDriver) -> None:
    with pytest.raises(UnsupportedDeviceError, match="no GPU 5"):
        device.hopper_info(5)


def test_no_device_is_no_gpu_and_any_other_failure_to_start_is_no_driver(fake: FakeDriver) -> None:
    fake.failing["cuInit"] = 100
    assert device.diagnose().status is DeviceStatus.NO_GPU
    fake.failing["cuInit"] = 802
    diagnosis = device.diagnose()
    assert diagnosis.status is DeviceStatus.NO_DRIVER
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in diagnosis.message


def test_the_probe_turns_every_failure_into_a_fact(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.failing["cuDriverGetVersion"] = 999
    found = device.probe()
    assert found.driver_version is None and "CUDA_ERROR_UNKNOWN" in found.driver_problem

    def fail() -> None:
        raise OSError("no libcuda")

    with monkeypatch.context() as patched:
        patched.setattr(api, "_libcuda", fail)
        found = device.probe()
        assert (found.driver_version, found.driver_problem) == (None, "no libcuda")
        assert device.diagnose().status is DeviceStatus.NO_DRIVER


def test_a_driver_that_fails_halfway_is_no_driver_error_to_the_caller(fake: FakeDriver) -> None:
    fake.failing["cuDeviceGetName"] = 999
    with pytest.raises(DriverError):
        device._gpu(0)
    assert device.diagnose().status is DeviceStatus.NO_DRIVER


def test_a_driver_that_is_too_old_for_its_functions_is_said_to_be(fake: FakeDriver) -> None:
    fake.answers["cuDriverGetVersion"] = 11040
    fake.lacks.add("cuGetProcAddress_v2")
    diagnosis = device.diagnose()
    assert diagnosis.status is DeviceStatus.DRIVER_TOO_OLD
    assert "11.4" in diagnosis.message
