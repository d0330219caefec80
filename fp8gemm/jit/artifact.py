"""A compiled kernel as callers get it, and how it is told and read back in a cache entry's sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from fp8gemm.cache.entry import Entry
from fp8gemm.frozen import dataclass
from fp8gemm.jit.compiler import CompileResult, Resources
from fp8gemm.jit.request import ConfigValue, KernelRequest

Source = Literal["memory", "disk", "compiled"]


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel, not yet loaded.

    Attributes:
        request: what was asked for.
        key: its cache key, 64 hexadecimal digits.
        cubin: what the driver loads.
        resources: registers, spills and shared memory.
        warnings: codes of the assembler's performance warnings; empty for a sound kernel.
        nvrtc_version: of the NVRTC that compiled it, maybe on another machine, as "12.9".
        compile_seconds: that this took.
        source: where this call got it from.
        seconds: that this call took.
        directory: where it lies on disk, None if in memory alone.
    """

    request: KernelRequest
    key: str
    cubin: bytes
    resources: Resources
    warnings: tuple[str, ...]
    nvrtc_version: str
    compile_seconds: float
    source: Source
    seconds: float
    directory: Path | None


def metadata(request: KernelRequest, options: Sequence[str], result: CompileResult) -> dict[str, Any]:
    """What the sidecar says beside key, label and digests. No time stamp: it would tell nothing of the kernel."""
    return {
        "arch": request.arch,
        "compile_seconds": round(result.seconds, 6),
        "config": {field: _plain(value) for field, value in request.config},
        "family": request.family,
        "header": request.header,
        "min_ctas": request.min_ctas,
        "nvrtc_version": result.nvrtc_version,
        "options": list(options),
        "resources": asdict(result.resources),
        "warnings": list(result.warnings),
    }


def artifact_of(entry: Entry, request: KernelRequest, *, source: Source, seconds: float) -> Artifact:
    """The artifact that an entry holds, whether just compiled or read back."""
    return Artifact(
        request=request,
        key=entry.key,
        cubin=entry.cubin,
        resources=Resources(**entry.metadata["resources"]),
        warnings=tuple(entry.metadata["warnings"]),
        nvrtc_version=entry.metadata["nvrtc_version"],
        compile_seconds=entry.metadata["compile_seconds"],
        source=source,
        seconds=seconds,
        directory=entry.directory,
    )


def _plain(value: ConfigValue) -> int | bool | str:
    return value.value if isinstance(value, Enum) else value
