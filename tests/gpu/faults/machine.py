"""Other tools and other machines: compute-sanitizer over every kernel family, and a GPU that is not Hopper."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fp8gemm
from fp8gemm import settings
from fp8gemm.driver import device as driver_device
from fp8gemm.errors import UnsupportedDeviceError
from fp8gemm.products import dense
from fp8gemm.products.calls import RepeatedCalls
from tests import cases
from tests.gpu.faults.support import every_kind, multiply

SANITIZE = Path(__file__).resolve().parents[3] / "scripts" / "sanitize.py"
TOOLS = {"memcheck", "racecheck", "synccheck", "initcheck"}
CANNOT_RUN = 2


def test_fault_19_every_tool_is_clean_on_every_family(tmp_path):
    report = tmp_path / "sanitize.json"
    command = [sys.executable, str(SANITIZE), "--quick", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    if done.returncode == CANNOT_RUN:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert {finding["tool"] for finding in found["findings"]} == TOOLS
    kernels = {finding["kernel"] for finding in found["findings"]}
    assert all(any(kernel.startswith(family) for kernel in kernels) for family in ("dense_1d2d", "dense_1d1d"))
    assert "TMA" in found["limits"]


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The GPU says that its compute capability is 8.0."""
    real = driver_device._attribute
    forged = {driver_device.COMPUTE_CAPABILITY_MAJOR: 8, driver_device.COMPUTE_CAPABILITY_MINOR: 0}
    caches = (driver_device.device_info, driver_device.hopper_info)

    def attribute(index: int, number: int) -> int:
        return forged[number] if number in forged else real(index, number)

    with monkeypatch.context() as changed:
        changed.setattr(driver_device, "_attribute", attribute)
        changed.setattr(dense, "_calls", RepeatedCalls(1))  # a call that is repeated is not checked again
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


@every_kind
def test_fault_20_a_gpu_that_is_not_hopper(kind, device, seed, ampere):
    with settings.scope(backend="reference"):  # to make operands takes a Hopper GPU too
        case = cases.signed(65, 576, 272, seed=seed, device=device, **kind.options)
    expected = "compute capability 8.0.*Hopper.*9.0.*sm_90a.*FP8GEMM_BACKEND=reference"
    with pytest.raises(UnsupportedDeviceError, match=expected):
        multiply(case, kind)
    with pytest.raises(UnsupportedDeviceError, match=expected):
        fp8gemm.plan(case.b, case.scales_b, max_m=64)
    with settings.scope(backend="reference"):
        case.check(multiply(case, kind)).raise_if_failed(case)
        assert fp8gemm.plan(case.b, case.scales_b, max_m=65)(case.a, case.scales_a).isfinite().all()
