"""``fp8gemm info``: what is installed, what the machine has, and whether kernels can run here, and if not, why."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fp8gemm import __version__, settings
from fp8gemm.cache.inventory import whole_kernels
from fp8gemm.cache.store import Layer, Store
from fp8gemm.cache.trust import UnsafeError, is_sealed
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.interrupts import loading
from fp8gemm.cli.output import add_json, tell, tell_json
from fp8gemm.driver.device import Probe, conclude, device_info, dotted, probe
from fp8gemm.errors import CompileError, UnsupportedDeviceError
from fp8gemm.installed import installed_version
from fp8gemm.jit.compiler import nvrtc_version
from fp8gemm.jit.headers import include_dir
from fp8gemm.quoting import counted

EXAMPLE = "fp8gemm info --json"


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
    """One directory of the kernel cache: how many kernels it holds, their bytes, and what is odd about it."""

    path: str
    kernels: int = 0
    bytes: int = 0
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {counted(self.kernels, 'kernel')}, {self.bytes / 2**20:.1f} MiB"
        return f"{text} ({self.note})" if self.note else text


@dataclass(frozen=True)
class Info:
    """Everything that ``info`` tells."""

    version: str
    python: str
    torch: Part
    torch_cuda: str | None
    cuda_bindings: Part
    nvrtc: Part
    driver: Part
    gpus: tuple[GpuFacts, ...]
    status: str
    message: str
    include_dir: str
    cache: tuple[CacheLayer, ...]
    settings: dict[str, str | int | list[str] | None]

    def lines(self) -> Iterator[str]:
        """One fact a line, for people."""
        torch_cuda = f", built with CUDA {self.torch_cuda}" if self.torch_cuda else ", built without CUDA"
        facts = [
            ("fp8gemm", self.version),
            ("Python", self.python),
            ("torch", f"{self.torch}{torch_cuda}" if self.torch.version else self.torch),
            ("cuda-bindings", self.cuda_bindings),
            ("NVRTC", self.nvrtc),
            ("driver", f"CUDA {self.driver}" if self.driver.version else self.driver),
            *((f"GPU {gpu.index}", gpu) for gpu in self.gpus),
            ("status", f"{self.status}. {self.message}"),
            ("headers", self.include_dir),
            *(("cache", layer) for layer in self.cache or ("this process's memory alone",)),
            *((name, _listed(value)) for name, value in self.settings.items()),
        ]
        for name, value in facts:
            yield f"{name:<15} {value}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print what there is. 0, whatever is missing."""
    with loading():  # of torch, most of all, which is all that it waits for
        info = collect()
    tell(options, "\n".join(info.lines()))
    tell_json(options, asdict(info))
    return Exit.DONE


def collect() -> Info:
    """Gather everything. It starts the driver, creates no context, and writes nothing.

    Raises:
        InputError: a setting has a value that is not allowed.
        CompileError: the installation holds no device headers.
    """
    now = settings.current()
    facts = probe()
    diagnosis = conclude(facts)
    return Info(
        version=__version__,
        python=platform.python_version(),
        torch=Part(facts.torch_version, facts.torch_problem),
        torch_cuda=facts.torch_cuda and dotted(facts.torch_cuda),
        cuda_bindings=_cuda_bindings(),
        nvrtc=_nvrtc(),
        driver=Part(facts.driver_version and dotted(facts.driver_version), facts.driver_problem),
        gpus=_gpus(facts),
        status=diagnosis.status.value,
        message=diagnosis.message,
        include_dir=str(include_dir()),
        cache=tuple(_look(layer) for layer in Store.from_settings(now).layers),
        settings={field.name: _plain(getattr(now, field.name)) for field in fields(now)},
    )


def _cuda_bindings() -> Part:
    version = installed_version("cuda-bindings")
    return Part(version, "" if version else "expected the package cuda-python>=12.9,<14, found no cuda-bindings")


def _nvrtc() -> Part:
    try:
        return Part(nvrtc_version())
    except CompileError as error:
        return Part(None, str(error))


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
            note = "read-only" if is_sealed(descriptor) else ""
    except FileNotFoundError:
        return CacheLayer(path, note="not there yet")
    except UnsafeError as error:
        return CacheLayer(path, note=f"refused: {error}")
    except OSError as error:
        return CacheLayer(path, note=f"unreadable: {error}")
    return CacheLayer(path, len(sizes), sum(sizes), note)


def _plain(value: str | int | tuple[Path, ...] | None) -> str | int | list[str] | None:
    return [str(path) for path in value] if isinstance(value, tuple) else value


def _listed(value: str | int | list[str] | None) -> str | int:
    if isinstance(value, list):
        value = os.pathsep.join(value)
    return "none" if value in (None, "") else value
