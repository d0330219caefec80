"""Sources that the compiler refused, for a closer look: the newest few, in a directory of their own beside the entries.

They are no entries, and nothing reads them: the next process that asks for such a kernel compiles it.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from fp8gemm.cache.entry import directory_name, label_and_key
from fp8gemm.cache.files import make_directories, publish_file, retrying
from fp8gemm.cache.store import Store
from fp8gemm.cache.trust import UnsafeError, opened_directory

REFUSED = ".refused"
"""Directory of a layer that holds them, as ``<entry>.cu``."""

MOST_KEPT = 8
"""Of a layer: a server that goes on asking for what cannot be compiled must not fill the disk with it."""

_SUFFIX = ".cu"
_TEMPORARY = re.compile(r"\.tmp-(.*)-[0-9a-f]{8}", re.DOTALL)


def keep_source(store: Store, label: str, key: str, source: str) -> Path | None:
    """Write a source where new kernels are put, and remove the oldest beyond `MOST_KEPT`.

    Returns:
        Where it is; None if nothing can be written.
    """
    layer = store.writable_layer()
    if layer is None:
        return None
    name = directory_name(label, key) + _SUFFIX
    try:
        with layer.opened() as root:
            make_directories(layer.path / REFUSED)
            with opened_directory(REFUSED, inside=root, trusted=layer.trusted) as directory:
                retrying(publish_file, name, source.encode(), inside=directory)
                _remove_oldest(directory)
    except (OSError, UnsafeError):
        return None
    return layer.path / REFUSED / name


def is_refused_source(name: str, status: os.stat_result) -> bool:
    """Whether a file among the refused sources is one that `keep_source` wrote, or was killed while it did."""
    match = _TEMPORARY.fullmatch(name)
    whole = match[1] if match else name
    entry = whole.removesuffix(_SUFFIX)
    return entry != whole and label_and_key(entry) is not None and stat.S_ISREG(status.st_mode)


def _remove_oldest(directory: int) -> None:
    ages: dict[str, int] = {}
    for name in os.listdir(directory):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if is_refused_source(name, status):
                ages[name] = status.st_mtime_ns
    for name in sorted(ages, key=ages.__getitem__, reverse=True)[MOST_KEPT:]:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
