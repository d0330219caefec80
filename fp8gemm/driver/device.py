"""Which GPU is there, and if none can run the kernels, why not.

Nothing here creates a CUDA context, and nothing runs at import. `probe` gathers facts and never raises, `conclude`
turns facts into a diagnosis without touching a driver.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int
from enum import Enum
from functools import cache

from fp8gemm.driver.api import NO_DEVICE, Version, answer, call, driver_version, exported, initialise
from fp8gemm.errors import DriverError, UnsupportedDeviceError
from fp8gemm.frozen import dataclass

HOPPER = (9, 0)
# The first CUDA with tensor maps, libraries and sm_90a; a newer torch may need more.
OLDEST_DRIVER = (12, 0)

COMPUTE_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_...
COMPUTE_CAPABILITY_MINOR = 76
MULTIPROCESSOR_COUNT = 16
L2_CACHE_SIZE = 38
MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
_NAME_BYTES = 256
_NEEDED = "The kernels need a Hopper GPU (H100, H200, H800, H20, GH200: compute capability 9.0)"
_REFERENCE = "FP8GEMM_BACKEND=reference, or tensors on the CPU, run the reference implementation in PyTorch instead."


class DeviceStatus(Enum):
    """What stands between this process and the kernels."""

    READY = "ready"
    NO_DRIVER = "no driver"
    DRIVER_TOO_OLD = "driver too old"
    NO_TORCH = "no torch"
    NO_GPU = "no GPU"
    CPU_ONLY_TORCH = "CPU-only torch"
    NOT_HOPPER = "not Hopper"


@dataclass(frozen=True)
class Gpu:
    """A GPU by name and compute capability (major, minor)."""

    name: str
    capability: Version

    def __str__(self) -> str:
        return f"{self.name} (compute capability {dotted(self.capability)})"


@dataclass(frozen=True)
class Probe:
    """Facts about a machine, before any conclusion.

    Attributes:
        torch_version: torch's version, for messages; None where it cannot be imported.
        torch_cuda: the CUDA that torch was built with, None for a build without.
        driver_version: what the driver serves, None where it cannot be loaded.
        driver_problem: why the driver cannot be loaded or started, empty when it runs.
        gpus: the visible GPUs by index.
        visible_devices: CUDA_VISIBLE_DEVICES, None when unset.
        torch_problem: why torch cannot be imported, empty where it can.
    """

    torch_version: str | None
    torch_cuda: Version | None
    driver_version: Version | None = None
    driver_problem: str = ""
    gpus: tuple[Gpu, ...] = ()
    visible_devices: str | None = None
    torch_problem: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """A status, and for people what was found, and what is needed or to be done about it; empty where all is well."""

    status: DeviceStatus
    found: str
    advice: str = ""

    @property
    def message(self) -> str:
        """Both in one line."""
        return f"{self.found} {self.advice}".rstrip()


@dataclass(frozen=True)
class DeviceInfo:
    """What the tile choice and the launch need to know of one GPU.

    Attributes:
        index: its index in this process, the same for torch and the driver.
        name: the driver's name for it.
        capability: compute capability (major, minor).
        num_sms: streaming multiprocessors.
        l2_bytes: bytes of L2 cache.
        shared_bytes_optin: most bytes of shared memory, static and dynamic together, for one CTA.
        driver_version: the newest CUDA that the driver serves, as "13.0".
    """

    index: int
    name: str
    capability: Version
    num_sms: int
    l2_bytes: int
    shared_bytes_optin: int
    driver_version: str


def probe() -> Probe:
    """Gather the facts. It starts the driver (``cuInit``) but creates no context, and never raises."""
    torch_version: str | None = None
    torch_cuda: Version | None = None
    torch_problem = ""
    try:
        torch_version, torch_cuda = _probe_torch()
    except (ImportError, OSError) as error:  # OSError: a library that torch loads by itself is missing
        torch_problem = _absence(error)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    version: Version | None = None
    try:
        version = driver_version()
        gpus, problem = _probe_gpus(), ""
    except (OSError, DriverError, UnsupportedDeviceError) as error:
        gpus, problem = (), str(error)
    return Probe(torch_version, torch_cuda, version, problem, gpus, visible, torch_problem)


def _probe_torch() -> tuple[str, Version | None]:
    import torch

    cuda = torch.version.cuda
    return torch.__version__, None if cuda is None else _parse_version(cuda)


def _absence(error: Exception) -> str:
    missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    return "the package torch is not installed" if missing else f"torch cannot be imported: {error}"


def _parse_version(text: str) -> Version:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _probe_gpus() -> tuple[Gpu, ...]:
    if exported("cuInit")(0) == NO_DEVICE:
        return ()
    initialise()
    return tuple(_gpu(index) for index in range(answer(c_int, "cuDeviceGetCount").value))


def _gpu(index: int) -> Gpu:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    call("cuDeviceGetName", name, _NAME_BYTES, answer(c_int, "cuDeviceGet", index))
    capability = (_attribute(index, COMPUTE_CAPABILITY_MAJOR), _attribute(index, COMPUTE_CAPABILITY_MINOR))
    return Gpu(name.value.decode(errors="replace"), capability)


def _attribute(index: int, attribute: int) -> int:
    return answer(c_int, "cuDeviceGetAttribute", attribute, answer(c_int, "cuDeviceGet", index)).value


def conclude(facts: Probe, index: int | None = None) -> Diagnosis:
    """Turn facts into a diagnosis, for the GPU ``index`` or, without one, for the first Hopper GPU there is."""
    return judge_torch(facts) or judge_driver(facts) or judge_gpus(facts, index)


def judge_torch(facts: Probe) -> Diagnosis | None:
    """What is the matter with torch; None if nothing is."""
    if facts.torch_version is None:
        problem = facts.torch_problem.rstrip(".")
        found = f"{problem[:1].upper()}{problem[1:]}."
        return Diagnosis(DeviceStatus.NO_TORCH, found, "Products need it (`pip install 'torch>=2.6'`); warmups do not.")
    if facts.torch_cuda is not None:
        return None
    if facts.driver_version is None:
        beside = "no CUDA driver can be loaded here either"
    elif facts.gpus:
        beside = f"a driver (CUDA {dotted(facts.driver_version)}) and {_listed(facts.gpus)} are there"
    else:
        beside = f"a driver (CUDA {dotted(facts.driver_version)}) is there, but no GPU that can be used"
    return Diagnosis(
        DeviceStatus.CPU_ONLY_TORCH,
        f"torch {facts.torch_version} was built without CUDA; {beside}.",
        f"{_NEEDED}, its driver, and a torch built with CUDA {dotted(OLDEST_DRIVER)} or newer. {_REFERENCE}",
    )


def judge_driver(facts: Probe) -> Diagnosis | None:
    """What is the matter with the driver; None if nothing is."""
    if facts.driver_version is None:
        return Diagnosis(
            DeviceStatus.NO_DRIVER,
            f"The CUDA driver (libcuda.so.1) cannot be loaded: {facts.driver_problem.rstrip('.')}.",
            f"{_NEEDED} and its driver, CUDA {dotted(OLDEST_DRIVER)} or newer; in a container, start it with its GPUs "
            f"exposed. {_REFERENCE}",
        )
    needed = max(OLDEST_DRIVER, (facts.torch_cuda[0], 0)) if facts.torch_cuda else OLDEST_DRIVER
    if facts.driver_version < needed:
        who = f"torch {facts.torch_version} and the kernels" if facts.torch_cuda else "the kernels"
        return Diagnosis(
            DeviceStatus.DRIVER_TOO_OLD,
            f"The NVIDIA driver serves CUDA {dotted(facts.driver_version)} at most; {who} need CUDA {dotted(needed)} "
            "or newer.",
            "Update the driver, or install a torch built for an older CUDA, "
            f"{dotted(OLDEST_DRIVER)} at the least. {_REFERENCE}",
        )
    if facts.driver_problem:
        return Diagnosis(
            DeviceStatus.NO_DRIVER,
            f"The CUDA driver (CUDA {dotted(facts.driver_version)}) is installed but does not start: "
            f"{facts.driver_problem.rstrip('.')}.",
            f"{_NEEDED} and a driver that runs: see whether `nvidia-smi` works, and in a container whether its GPUs "
            f"are exposed. {_REFERENCE}",
        )
    return None


def judge_gpus(facts: Probe, index: int | None = None) -> Diagnosis:
    """Whether the GPU ``index`` or, without one, any is a Hopper GPU, where the driver runs."""
    gpus, advice = facts.gpus, f"{_NEEDED}. {_REFERENCE}"
    if not gpus:
        hidden = "" if facts.visible_devices is None else f" (CUDA_VISIBLE_DEVICES is {facts.visible_devices!r})"
        return Diagnosis(DeviceStatus.NO_GPU, f"The CUDA driver is there, but shows no GPU{hidden}.", advice)
    if index is not None and not 0 <= index < len(gpus):
        return Diagnosis(DeviceStatus.NO_GPU, f"There is no GPU {index}; the driver shows {_listed(gpus)}.", advice)
    if index is None:
        index = next((i for i, gpu in enumerate(gpus) if gpu.capability == HOPPER), None)
    elif gpus[index].capability != HOPPER:
        gpus, index = (gpus[index],), None
    if index is None:
        because = f"{_NEEDED}, because they are compiled for sm_90a. {_REFERENCE}"
        return Diagnosis(DeviceStatus.NOT_HOPPER, f"Found {_listed(gpus)}.", because)
    version = dotted(facts.driver_version or OLDEST_DRIVER)
    return Diagnosis(DeviceStatus.READY, f"GPU {index} is {gpus[index]}; the driver serves CUDA {version}.")


def _listed(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(map(str, gpus))


def dotted(version: Version) -> str:
    """A version as people write it: "13.0"."""
    return f"{version[0]}.{version[1]}"


def diagnose(index: int | None = None) -> Diagnosis:
    """Whether the kernels can run on the GPU ``index``, or without one on any, and if not, why. It never raises."""
    return conclude(probe(), index)


@cache
def device_info(index: int) -> DeviceInfo:
    """Facts about the GPU ``index``, of whatever architecture, read from the driver once.

    Raises:
        UnsupportedDeviceError: there is no such GPU; the message is `diagnose`'s.
    """
    diagnosis = diagnose(index)
    if diagnosis.status not in (DeviceStatus.READY, DeviceStatus.NOT_HOPPER):
        raise UnsupportedDeviceError(diagnosis.message)
    gpu = _gpu(index)
    return DeviceInfo(
        index=index,
        name=gpu.name,
        capability=gpu.capability,
        num_sms=_attribute(index, MULTIPROCESSOR_COUNT),
        l2_bytes=_attribute(index, L2_CACHE_SIZE),
        shared_bytes_optin=_attribute(index, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        driver_version=dotted(driver_version()),
    )


@cache
def hopper_info(index: int) -> DeviceInfo:
    """Facts about the GPU ``index``, which must be able to run the kernels.

    Raises:
        UnsupportedDeviceError: it cannot; the message is `diagnose`'s.
    """
    info = device_info(index)
    if info.capability != HOPPER:
        raise UnsupportedDeviceError(diagnose(index).message)
    return info
