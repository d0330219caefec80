"""Using a cache directory by hand: what a kernel's loader would pass over with a warning is an error here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum

from fp8gemm.cache.store import Layer
from fp8gemm.cache.trust import UnsafeError, is_sealed
from fp8gemm.errors import CacheError


class State(Enum):
    """Whether a cache directory may change."""

    WRITABLE = "writable"
    SEALED = "sealed"  #: its owner took the write permission away
    READ_ONLY = "read-only"  #: this process may not write there


@contextmanager
def opened_layer(layer: Layer) -> Iterator[int]:
    """A descriptor of a cache directory.

    Raises:
        CacheError: it is not there, cannot be opened, or is not safe to load code from.
    """
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(layer.opened())
        except FileNotFoundError as error:
            raise CacheError(f"expected a cache directory at {layer.path}; there is none") from error
        except UnsafeError as error:
            advice = "correct it, or list the directory in FP8GEMM_TRUSTED_DIRS"
            raise CacheError(f"the cache directory {layer.path} is refused: {error}; {advice}") from error
        except OSError as error:
            raise CacheError(f"the cache directory {layer.path} cannot be opened: {error}") from error
        yield descriptor


@contextmanager
def changing(layer: Layer) -> Iterator[None]:
    """Around what changes a cache directory: a failure of the file system becomes a `CacheError`."""
    try:
        yield
    except OSError as error:
        raise CacheError(f"the cache directory {layer.path} cannot be changed: {error}") from error


def require_writable(layer: Layer, state: State) -> None:
    """Refuse to change a directory that is sealed or read-only.

    Raises:
        CacheError: it is one.
    """
    if state is State.SEALED:
        advice = f"it stays as it is; `chmod u+w {layer.path}` would break the seal"
        raise CacheError(f"the cache directory {layer.path} is sealed: {advice}")
    if state is State.READ_ONLY:
        raise CacheError(f"the cache directory {layer.path} is read-only for user {os.geteuid()}")


def state_of(root: int) -> State:
    """Whether an open cache directory may change."""
    if not os.fstat(root).st_mode & stat.S_IWUSR:
        return State.SEALED
    return State.READ_ONLY if is_sealed(root) else State.WRITABLE
