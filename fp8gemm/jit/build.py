"""From a request to a cubin: out of this process's memory, else from disk, else from the compiler, once for everybody.

build() ── memory ──hit──▶ Artifact
             │ miss: one thread goes on, others asking for the same kernel wait for it
           disk ────hit──▶ Artifact
             │ miss: policy; then the lock that other processes respect, and a second look
          compile ─▶ publish ─▶ Artifact
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from fp8gemm import settings
from fp8gemm.cache.entry import Entry
from fp8gemm.cache.store import Damage, Store
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.artifact import Artifact, metadata
from fp8gemm.jit.compiler import compile_program
from fp8gemm.jit.job import Job
from fp8gemm.jit.request import KernelRequest


def build(request: KernelRequest, *, allow_compile: bool = True, include_dir: Path | None = None) -> Artifact:
    """The compiled kernel for a request. Threads and processes that ask together compile it once.

    Args:
        request: which kernel.
        allow_compile: whether a kernel that is neither in memory nor on disk may be compiled.
        include_dir: the device headers to compile; those of this installation by default.

    Raises:
        CacheMissError: it would have to be compiled, and ``allow_compile`` or the miss policy forbids that.
        CompileError: it had to be compiled and could not be.
        InputError: the request cannot be rendered.
    """
    return _builder().build(Job.of(request, include_dir), allow_compile=allow_compile)


def is_ready(request: KernelRequest, *, include_dir: Path | None = None) -> bool:
    """Whether ``build`` would return at once: the kernel is in memory, or on disk and verified."""
    try:
        build(request, allow_compile=False, include_dir=include_dir)
    except CacheMissError:
        return False
    return True


def contents_stamp() -> Hashable:
    """Compares unequal to what it was before another kernel became ready, in this process or on disk. Takes as long as
    asking for the age of each cache directory.

    NOTE: a directory's age is as fine as its file system keeps it.
    """
    builder = _builder()
    return builder.compiled, builder.store.ages()


def rebuild(artifact: Artifact, *, reason: str, include_dir: Path | None = None) -> Artifact:
    """Compile a kernel again whose cubin turned out to be unusable although it verifies; its entry is quarantined.

    If another process has replaced the entry meanwhile, its replacement is returned instead.

    Args:
        artifact: what cannot be used.
        reason: why, for the warning.
        include_dir: as for ``build``.

    Raises:
        CacheMissError, CompileError: as ``build``.
    """
    return _builder().rebuild(Job.of(artifact.request, include_dir), artifact, reason)


def recompile(request: KernelRequest, *, include_dir: Path | None = None) -> Artifact:
    """Compile a kernel although it may be ready, and put it in the place of the one that is there: for another NVRTC.

    Raises:
        CacheMissError, CompileError, InputError: as ``build``; what was ready stays so.
    """
    return _builder().recompile(Job.of(request, include_dir))


def forget(keys: Iterable[str]) -> None:
    """Have no kernels of these keys in memory any more, so that the next ``build`` of each looks for it on disk, and
    puts it there if it can."""
    _builder().forget(keys)


def current_store() -> Store:
    """The store of the current settings, which knows what was rejected, and what has been said."""
    return _builder().store


def quarantine(artifact: Artifact, *, reason: str) -> None:
    """Never use these bytes again: forget them, and move their entry out of the way if it still holds them.

    The next ``build`` of the request finds another process's replacement, or compiles.
    """
    _builder().quarantine(artifact, reason)


class _Builder:
    """Memory and single flight in front of one store.

    Attributes:
        store: what is behind it.
        compiled: how many kernels were added to it here.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.compiled = 0
        self._lock = threading.Lock()
        self._memory: dict[str, Artifact] = {}
        self._flights: dict[tuple[str, bool], Future[Artifact]] = {}

    def build(self, job: Job, *, allow_compile: bool) -> Artifact:
        allow_compile = allow_compile and settings.current().jit != "error"
        with self._lock:
            known = self._memory.get(job.key)
            if known is not None:
                return job.again(known)
            flight = self._flights.get((job.key, allow_compile))
            leads = flight is None
            if flight is None:
                flight = self._flights[job.key, allow_compile] = Future()
        if not leads:
            return job.again(flight.result())
        try:
            artifact = self._find_or_compile(job, allow_compile=allow_compile)
        except BaseException as error:
            self._land(job.key, allow_compile)
            flight.set_exception(error)
            raise
        self._land(job.key, allow_compile, artifact)
        flight.set_result(artifact)
        return artifact

    def recompile(self, job: Job) -> Artifact:
        if settings.current().jit == "error":
            raise _miss(job, self.store, ())
        with self.store.lock(job.label, job.key):
            artifact = self._compile(job, replace_entry=True)
        with self._lock:
            self._remember(artifact)
        return artifact

    def rebuild(self, job: Job, artifact: Artifact, reason: str) -> Artifact:
        self.quarantine(artifact, reason)
        return self.build(job, allow_compile=True)

    def quarantine(self, artifact: Artifact, reason: str) -> None:
        label, key = artifact.request.label, artifact.key
        with self._lock:
            known = self._memory.get(key)
            if known is not None and known.cubin == artifact.cubin:
                del self._memory[key]
        self.store.reject(key, artifact.cubin, reason)
        with self.store.lock(label, key):
            for damage in self.store.find(label, key).damaged:
                self.store.quarantine(label, key, damage)

    def forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._memory.pop(key, None)

    def _land(self, key: str, allow_compile: bool, artifact: Artifact | None = None) -> None:
        with self._lock:
            del self._flights[key, allow_compile]
            if artifact is not None:
                self._remember(artifact)

    def _remember(self, artifact: Artifact) -> None:
        self._memory[artifact.key] = artifact
        self.compiled += artifact.source == "compiled"

    def _find_or_compile(self, job: Job, *, allow_compile: bool) -> Artifact:
        found = self.store.find(job.label, job.key)
        if found.entry is not None:
            return job.artifact(found.entry, "disk")
        if not allow_compile:
            raise _miss(job, self.store, found.damaged)
        with self.store.lock(job.label, job.key):
            found = self.store.find(job.label, job.key)  # whoever held the lock before us has probably published it
            if found.entry is not None:
                return job.artifact(found.entry, "disk")
            return self._compile(job, damaged=found.damaged)

    def _compile(self, job: Job, *, damaged: Sequence[Damage] = (), replace_entry: bool = False) -> Artifact:
        """Compile and publish, whatever is there; the caller holds the kernel's lock."""
        from fp8gemm.cache.refused import keep_source  # here, because a kernel that is ready needs it not

        result = compile_program(
            job.source,
            job.headers,
            label=job.label,
            options=job.options,
            arch=job.request.arch,
            keep=lambda: keep_source(self.store, job.label, job.key, job.source),
        )
        for damage in damaged:
            self.store.quarantine(job.label, job.key, damage)
        entry = Entry(job.key, job.label, result.cubin, metadata(job.request, job.options, result))
        directory = self.store.publish(entry, job.source, replace=replace_entry)
        return job.artifact(replace(entry, directory=directory), "compiled")


_builders_lock = threading.Lock()
_builders: dict[tuple[tuple[Path, ...], tuple[Path, ...]], _Builder] = {}


def _builder() -> _Builder:
    """The builder of the current cache: what is in memory counts as ready only for the directories it is also in."""
    now = settings.current()
    place = (now.cache_dirs, now.trusted_dirs)
    with _builders_lock:
        if place not in _builders:
            _builders[place] = _Builder(Store.from_settings(now))
        return _builders[place]


def _forget_after_fork() -> None:
    # A child has no thread that would end a flight or release a lock of its parent's. Kernels are found on disk again.
    global _builders_lock
    _builders_lock = threading.Lock()
    _builders.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _miss(job: Job, store: Store, damaged: Sequence[Damage]) -> CacheMissError:
    met = "".join(f"\npassed over in {damage.layer.path}: {damage.reason}" for damage in damaged)
    return CacheMissError(
        f"kernel {job.label} is not ready, and it may not be compiled now "
        f"(FP8GEMM_JIT={settings.current().jit}; error and nearest leave compiling to a warmup)\n"
        f"key: {job.key}\nsearched: {store.describe()} (FP8GEMM_CACHE_DIR){met}",
        key=job.key,
    )
