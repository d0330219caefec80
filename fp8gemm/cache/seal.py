"""Sealing: a cache directory gets a manifest, and is closed to every writer, so that it can be served as it is.

A loader does not read the manifest: the digests in each kernel's sidecar are enough for it. The manifest is for people
who want to know that nothing is missing and nothing was added.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from fp8gemm.cache.access import State, changing, opened_layer
from fp8gemm.cache.entry import SIZE_LIMITS
from fp8gemm.cache.eviction import remove, remove_locks
from fp8gemm.cache.files import publish_file
from fp8gemm.cache.inventory import Inventory, Progress, take_inventory
from fp8gemm.cache.manifest import MANIFEST, Manifest, manifest_of
from fp8gemm.cache.store import Layer
from fp8gemm.errors import CacheError

SEALED_FILE_MODE = 0o444
SEALED_DIRECTORY_MODE = 0o555


@dataclass(frozen=True)
class Sealed:
    """A sealed directory.

    Attributes:
        manifest: of what it holds.
        already: whether it was sealed before, and has been verified.
    """

    manifest: Manifest
    already: bool


def seal_layer(layer: Layer, *, version: str, anew: bool = False, progress: Progress | None = None) -> Sealed:
    """Seal a directory that holds kernels; verify one that is sealed.

    An interrupted call leaves a directory that works as before; calling again finishes the work.

    Args:
        layer: the directory.
        version: of the library, for the manifest.
        anew: seal it although kernels have gone that the manifest of a seal before lists.
        progress: called after each kernel is verified.

    Raises:
        CacheError: it is not there, not to be used or read-only; it holds no kernel, a damaged one, or something
            that is not ours, or lacks what it held when it was sealed before, and nothing was changed; it is sealed,
            and is not as it was then; somebody writes to it.
    """
    inventory = take_inventory(layer, progress=progress)
    if inventory.state is State.SEALED:
        problems = find_problems(inventory)
        if inventory.manifest is None or problems:
            advice = f"to seal it as it is now, `chmod u+w {layer.path}` first, then seal it with --anew"
            raise CacheError(f"{layer.path} is sealed, and is not as it was then ({advice}):{_indented(problems)}")
        return Sealed(inventory.manifest, already=True)
    if not inventory.kernels:
        raise CacheError(f"{layer.path} cannot be sealed: expected at least one kernel; it holds none")
    problems = _damaged(inventory) + tuple(f"{path} is not ours" for path in inventory.foreign)
    if not anew:
        problems += tuple(f"{problem}; --anew seals what there is" for problem in _gone(inventory))
    if problems:
        raise CacheError(f"{layer.path} cannot be sealed, and was not changed:{_indented(problems)}")

    left = [f"{name}: {reason}" for name, reason in remove(inventory, inventory.leftovers).left]
    if left:
        raise CacheError(f"{layer.path} cannot be sealed:{_indented(left)}")
    remove_locks(layer)
    manifest = manifest_of(inventory.kernels, version=version)
    with opened_layer(layer) as root, changing(layer):
        publish_file(MANIFEST, manifest.encode(), inside=root, mode=SEALED_FILE_MODE)
        for name in manifest.entries:
            _close_entry(name, root)
        mode = stat.S_IMODE(os.fstat(root).st_mode)
        os.fchmod(root, SEALED_DIRECTORY_MODE)
        added = sorted(set(os.listdir(root)) - {MANIFEST, *manifest.entries})
        if added:
            os.fchmod(root, mode)
            raise CacheError(f"{layer.path} is not sealed: somebody writes to it:{_indented(added)}")
        os.fsync(root)
    return Sealed(manifest, already=False)


def find_problems(inventory: Inventory) -> tuple[str, ...]:
    """What is wrong in a directory, one line each: kernels that do not verify, whatever is not as its manifest says,
    whether or not it can be written, and, if it is sealed, everything else that is not as it was then."""
    sealed = inventory.state is State.SEALED
    return _damaged(inventory) + tuple(_differences(inventory)) + (tuple(_loosened(inventory)) if sealed else ())


def _damaged(inventory: Inventory) -> tuple[str, ...]:
    return tuple(f"{kernel.name} is damaged: {kernel.problem}" for kernel in inventory.damaged)


def _gone(inventory: Inventory) -> tuple[str, ...]:
    """The kernels that a manifest lists, and that are not there."""
    listed = inventory.manifest.entries.keys() if inventory.manifest is not None else ()
    present = {kernel.name for kernel in inventory.kernels}
    return tuple(f"{name} is missing: {MANIFEST} lists it" for name in sorted(listed) if name not in present)


def _differences(inventory: Inventory) -> Iterator[str]:
    """What the manifest says otherwise, or why it says nothing."""
    if inventory.manifest is None:
        if inventory.manifest_problem:
            yield inventory.manifest_problem
        return
    yield from _gone(inventory)
    entries = inventory.manifest.entries
    for kernel in inventory.kernels:
        if kernel.name not in entries:
            yield f"{kernel.name} is extra: {MANIFEST} does not list it"
        elif not kernel.problem:
            changed = [file for file, digest in entries[kernel.name].items() if kernel.digests.get(file) != digest]
            if changed:
                yield f"{kernel.name} was changed: {' and '.join(changed)}, going by the SHA-256 in {MANIFEST}"


def _loosened(inventory: Inventory) -> Iterator[str]:
    """What a sealed directory has, or lacks, beside its kernels."""
    if inventory.manifest is None:
        if not inventory.manifest_problem:
            yield f"{MANIFEST} is missing"
        return
    extra = [leftover.name for leftover in inventory.leftovers] + list(inventory.foreign)
    yield from (f"{path} is extra: it was not there" for path in extra)
    yield from _open_modes(inventory)


def _open_modes(inventory: Inventory) -> Iterator[str]:
    """What another user cannot read, or somebody could write."""
    with opened_layer(inventory.layer) as root:
        paths = [MANIFEST]
        for kernel in inventory.kernels:
            paths += [kernel.name, *(f"{kernel.name}/{file}" for file in SIZE_LIMITS)]
        for path in paths:
            with suppress(OSError):
                status = os.stat(path, dir_fd=root, follow_symlinks=False)
                expected = SEALED_DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else SEALED_FILE_MODE
                mode = stat.S_IMODE(status.st_mode)
                if mode != expected:
                    yield f"{path} has mode {mode:04o}, not {expected:04o}"


def _close_entry(name: str, root: int) -> None:
    for path, mode in (*((f"{name}/{file}", SEALED_FILE_MODE) for file in SIZE_LIMITS), (name, SEALED_DIRECTORY_MODE)):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)
