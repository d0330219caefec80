"""One exception family. Each message says what was expected and what came.

Every class also derives from the built-in type a caller would catch, so that code that knows nothing of fp8gemm
handles its errors as it handles any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Fp8GemmError(Exception):
    """Base of every error that fp8gemm raises on purpose."""


class InputError(Fp8GemmError, ValueError):
    """An argument, tensor or setting is not what the call takes; nothing was launched or written."""


class UnsupportedError(Fp8GemmError, NotImplementedError):
    """The request is well formed, but this version, or what is installed beside it, cannot serve it."""


class UnsupportedDeviceError(Fp8GemmError, RuntimeError):
    """There is no Hopper GPU to run on: no GPU, no driver, an old driver, a CPU-only torch or another architecture; or
    this process cannot use it, because it was forked from one that had started CUDA."""


class DriverError(Fp8GemmError, RuntimeError):
    """A CUDA driver call failed.

    Attributes:
        call: the driver function's name.
        code: the CUresult as an integer.
    """

    def __init__(self, message: str, *, call: str, code: int) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class CompileError(Fp8GemmError, RuntimeError):
    """NVRTC is missing or broken, or it refused a source.

    Attributes:
        log: the compiler's whole log, empty if it never ran.
        source_path: where in the cache directory the rendered source was written for a closer look; the newest few are
            kept. None where no directory can be written, or where the caller compiled a source of its own.
        options: the options that the compiler was given.
    """

    def __init__(
        self, message: str, *, log: str = "", source_path: Path | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.log = log
        self.source_path = source_path
        self.options = tuple(options)


class CacheError(Fp8GemmError, RuntimeError):
    """The kernel cache cannot be used as asked, for instance because its directory is not safe to load code from."""


class IncompleteWarmupError(CacheError):
    """A warmup ended, and not all that was asked for lies in the cache directories, as on a disk that is full.

    Attributes:
        missing: the names of the entries that are not there, ``<kernel>.<key>``.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class CacheMissError(CacheError):
    """A kernel is not ready and the miss policy, or a CUDA graph capture under way, forbids compiling or loading it.

    Attributes:
        key: of the entry that no cache has; None where a kernel may be ready, but could not be loaded now.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
