"""What is installed, what this machine has, and what is in force: found once, told by `info` and judged by `doctor`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fp8gemm import settings
from fp8gemm.cache.access import State, state_of
from fp8gemm.cache.inventory import whole_kernels
from fp8gemm.cache.store import Layer, Store
from fp8gemm.cache.trust import UnsafeError
from fp8gemm.driver.device import Probe, device_info, dotted, probe
from fp8gemm.errors import CompileError, UnsupportedDeviceError
from fp8gemm.jit.compiler import nvrtc_path, nvrtc_version
from fp8gemm.quoting import counted
from fp8gemm.settings import Settings

ABSENT, REFUSED, UNREADABLE = "absent", "refused", "unreadable"
"""What a cache directory may be beside the values of `fp8gemm.cache.access.State`."""


@dataclass(frozen=True)
class Part:
    """A piece of software: its version, or None and why there is none."""

    version: str | None
    problem: str = ""

    def __str__(self) -> str:
        return self.version or f"none: {self.problem}"


@dataclass(frozen=True)
class GpuFacts:
    """A visible GPU; what only a working driver and a torch with CUDA tell is None without them."""

    index: int
    name: str
    capability: str
    num_sms: int | None = None
    l2_bytes: int | None = None

    def __str__(self) -> str:
        text = f"{self.name}, compute capability {self.capability}"
        if self.num_sms is not None and self.l2_bytes is not None:
            text += f", {self.num_sms} SMs, {self.l2_bytes / 2**20:.0f} MiB of L2"
        return text


@dataclass(frozen=True)
class CacheLayer:
    """One directory of the kernel cache: what it is, how many kernels it holds, their bytes, and what is odd about it.

    Attributes:
        state: a value of `fp8gemm.cache.access.State`, or `ABSENT`, `REFUSED` or `UNREADABLE`.
    """

    path: str
    state: str
    kernels: int = 0
    bytes: int = 0
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {counted(self.kernels, 'kernel')}, {self.bytes / 2**20:.1f} MiB"
        return f"{text} ({self.note})" if self.note else text


@dataclass(frozen=True)
class Findings:
    """What commands tell of a machine.

    Attributes:
        probed: torch, the driver and GPUs, not judged.
        nvrtc_path: the file of the NVRTC that answers; None where there is none, or the system does not tell.
        cache: the directories in force, in their order.
        settings: those in force.
    """

    probed: Probe
    nvrtc: Part
    nvrtc_path: str | None
    gpus: tuple[GpuFacts, ...]
    cache: tuple[CacheLayer, ...]
    settings: Settings


def collect() -> Findings:
    """Gather everything. It starts the driver, creates no context, and writes nothing.

    Raises:
        InputError: a setting has a value that is not allowed.
    """
    now = settings.current()
    facts = probe()
    nvrtc, path = _nvrtc()
    return Findings(
        probed=facts,
        nvrtc=nvrtc,
        nvrtc_path=path,
        gpus=_gpus(facts),
        cache=cache_layers(),
        settings=now,
    )


def cache_layers() -> tuple[CacheLayer, ...]:
    """The directories in force, in their order, as they are now."""
    return tuple(_look(layer) for layer in Store.from_settings(settings.current()).layers)


def setting_text(value: object) -> str:
    """A setting's value for people."""
    if isinstance(value, tuple):
        value = os.pathsep.join(map(str, value))
    return "none" if value in (None, "") else str(value)


def _nvrtc() -> tuple[Part, str | None]:
    try:
        version = nvrtc_version()
    except CompileError as error:
        return Part(None, str(error)), None
    path = nvrtc_path()
    return Part(version), None if path is None else str(path)


def _gpus(facts: Probe) -> tuple[GpuFacts, ...]:
    found = []
    for index, gpu in enumerate(facts.gpus):
        known = GpuFacts(index, gpu.name, dotted(gpu.capability))
        try:
            more = device_info(index)
        except UnsupportedDeviceError:  # the status says what is the matter
            found.append(known)
        else:
            found.append(GpuFacts(index, known.name, known.capability, more.num_sms, more.l2_bytes))
    return tuple(found)


def _look(layer: Layer) -> CacheLayer:
    """Count the entries of a layer without verifying them, and without creating or changing anything."""
    path = str(layer.path)
    try:
        with layer.opened() as descriptor:
            sizes = whole_kernels(descriptor)
            state = state_of(descriptor)
    except FileNotFoundError:
        return CacheLayer(path, ABSENT, note="not there yet")
    except UnsafeError as error:
        return CacheLayer(path, REFUSED, note=f"refused: {error}")
    except OSError as error:
        return CacheLayer(path, UNREADABLE, note=f"unreadable: {error}")
    return CacheLayer(path, state.value, len(sizes), sum(sizes), "" if state is State.WRITABLE else "read-only")
