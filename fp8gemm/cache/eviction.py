"""Removing from a cache directory what we wrote, and nothing else: a loader gets all of a kernel or none of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from fp8gemm.cache.access import changing, opened_layer, require_writable, state_of
from fp8gemm.cache.entry import label_and_key
from fp8gemm.cache.files import DIRECTORY_MODE, LOCK_SUFFIX, remove_directory, remove_whole
from fp8gemm.cache.inventory import Inventory, Kernel, Leftover, Progress, foreign_files, is_lock_file
from fp8gemm.cache.manifest import MANIFEST
from fp8gemm.cache.refused import REFUSED
from fp8gemm.cache.store import LOCKS, Layer, Store
from fp8gemm.cache.trust import UnsafeError, opened_directory

Item = Kernel | Leftover

LOCK_TIMEOUT_S = 1.0
"""How long to wait for a process that compiles the kernel. To remove an entry without its lock is safe as well."""

ABANDONED_AFTER_S = 3600.0
"""From this age on nobody writes a temporary directory any more, even where a lock cannot tell."""


@dataclass(frozen=True)
class Removal:
    """What was done.

    Attributes:
        removed: what is gone.
        left: names of what is still there, and why.
    """

    removed: tuple[Item, ...]
    left: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Bytes that were freed."""
        return sum(item.size for item in self.removed)


def removable(inventory: Inventory) -> list[Item]:
    """All that is ours in a directory, leftovers first, then kernels, the oldest first.

    A kernel among whose files lies one that is not ours is left out.
    """
    kernels = (kernel for kernel in inventory.kernels if not kernel.foreign)
    return [*inventory.leftovers, *sorted(kernels, key=lambda kernel: -kernel.age_s)]


def expendable(inventory: Inventory, *, older_than_s: float | None = None, max_size: int | None = None) -> list[Item]:
    """What must go for a limit: everything that is older, then as much as lets the rest fit, in the order of removal.

    Args:
        inventory: of the directory.
        older_than_s: seconds since it was written; None for no limit.
        max_size: bytes that may stay; None for no limit.
    """
    size = inventory.size
    chosen = []
    for item in removable(inventory):
        too_old = older_than_s is not None and item.age_s > older_than_s
        too_much = max_size is not None and size > max_size
        if too_old or too_much:
            chosen.append(item)
            size -= item.size
    return chosen


def remove(inventory: Inventory, items: Iterable[Item], *, progress: Progress | None = None) -> Removal:
    """Remove kernels and leftovers from a directory. A manifest goes too: it belongs to a seal that is broken.

    Args:
        inventory: of the directory.
        items: of the inventory. One that has gone meanwhile counts as removed; one that holds foreign files by now is
            left, and so is a temporary directory that somebody may be writing.
        progress: called after each.

    Raises:
        CacheError: the directory is sealed, read-only, or not to be used.
    """
    layer = inventory.layer
    store = _store(layer)
    removed, left = list[Item](), list[tuple[str, str]]()
    with opened_layer(layer) as root:
        require_writable(layer, state_of(root))
        if inventory.manifest is not None:
            with changing(layer), suppress(FileNotFoundError):
                os.unlink(MANIFEST, dir_fd=root)
        for item in items:
            try:
                if isinstance(item, Kernel):
                    _remove_kernel(item, store, root)
                else:
                    _remove_leftover(item, store, root)
                removed.append(item)
            except (_Obstacle, OSError) as error:
                left.append((item.name, str(error)))
            if progress is not None:
                progress()
        with suppress(OSError):  # as long as something is in it, it stays
            os.rmdir(REFUSED, dir_fd=root)
    return Removal(tuple(removed), tuple(left))


def remove_locks(layer: Layer) -> None:
    """Remove the lock files that nobody holds, and their directory once it is empty.

    Raises:
        CacheError: the directory is sealed, read-only, or not to be used.
    """
    store = _store(layer)
    with opened_layer(layer) as root, changing(layer):
        require_writable(layer, state_of(root))
        try:
            with opened_directory(LOCKS, inside=root, trusted=True) as locks:
                for name in os.listdir(locks):
                    label_key = label_and_key(name.removesuffix(LOCK_SUFFIX))
                    if label_key and is_lock_file(name, os.stat(name, dir_fd=locks, follow_symlinks=False)):
                        with store.lock(*label_key) as held:
                            if held:
                                os.unlink(name, dir_fd=locks)
            os.rmdir(LOCKS, dir_fd=root)
        except (FileNotFoundError, UnsafeError):
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


class _Obstacle(Exception):
    """Something is not removed; the message says why."""


def _store(layer: Layer) -> Store:
    return Store([layer.path], trusted=[layer.path] if layer.trusted else [], lock_timeout_s=LOCK_TIMEOUT_S)


def _remove_kernel(kernel: Kernel, store: Store, root: int) -> None:
    # Without the lock, too: its holder finds the kernel, or does not and publishes it again.
    with store.lock(kernel.label, kernel.key) as held:
        _remove_ours(kernel.name, root)
        if held:
            # Whoever waits for the lock sees that its file has lost its name, and makes another.
            with suppress(OSError):
                os.unlink(f"{LOCKS}/{kernel.name}{LOCK_SUFFIX}", dir_fd=root)


def _remove_leftover(leftover: Leftover, store: Store, root: int) -> None:
    if leftover.writer is not None:
        with store.lock(*leftover.writer) as held:
            if not held and leftover.age_s < ABANDONED_AFTER_S:
                raise _Obstacle("somebody may be writing it")
            _remove_ours(leftover.name, root)
    elif leftover.is_file:
        with suppress(FileNotFoundError):
            os.unlink(leftover.name, dir_fd=root)
    else:
        _remove_ours(leftover.name, root)


def _remove_ours(name: str, root: int) -> None:
    """Remove a directory that holds nothing but files of a kernel."""
    try:
        if foreign := foreign_files(name, inside=root):
            raise _Obstacle(f"not ours: {', '.join(foreign)}")
        with opened_directory(name, inside=root, trusted=True) as directory:
            if not os.fstat(directory).st_mode & stat.S_IWUSR:  # a seal that was not finished, or that is broken
                os.fchmod(directory, DIRECTORY_MODE)
        try:
            remove_whole(name, inside=root)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            remove_directory(name, inside=root)  # of a lower layer of an overlay, where a rename is not possible
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise _Obstacle("the file system did not let it go")
