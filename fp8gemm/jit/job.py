"""A request with its source and its cache key: what building a kernel and looking for one on disk begin with."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fp8gemm.cache.entry import Entry
from fp8gemm.frozen import dataclass
from fp8gemm.jit import headers
from fp8gemm.jit.artifact import Artifact, Source, artifact_of
from fp8gemm.jit.compiler import compile_options
from fp8gemm.jit.fingerprint import Headers, header_closure, key_of
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest


@dataclass(frozen=True)
class Job:
    """A request, with all that its key and its compilation depend on."""

    request: KernelRequest
    source: str
    headers: Headers
    options: tuple[str, ...]
    key: str
    started: float

    @classmethod
    def of(cls, request: KernelRequest, include_dir: Path | None) -> Job:
        """The job of a request; InputError if it cannot be rendered."""
        # Read anew each time, a millisecond or less: headers that were edited while we run make a new kernel.
        started = time.perf_counter()
        source = render_source(request)
        options = compile_options(request.arch)
        files = header_closure(source, include_dir or headers.include_dir())
        return cls(request, source, files, options, key_of(source, files, options=options, arch=request.arch), started)

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.request.label

    def artifact(self, entry: Entry, source: Source) -> Artifact:
        """What the caller gets from an entry."""
        return artifact_of(entry, self.request, source=source, seconds=time.perf_counter() - self.started)

    def again(self, artifact: Artifact) -> Artifact:
        """What the caller gets from an artifact that is in memory."""
        return replace(artifact, source="memory", seconds=time.perf_counter() - self.started)
