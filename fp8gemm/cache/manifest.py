"""The list of a set of kernels with their digests: a sealed layer holds one, and so does an exported file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fp8gemm.cache.entry import (
    CUBIN,
    SCHEMA_VERSION,
    SIDECAR,
    DamagedError,
    decode_document,
    encode_document,
    label_and_key,
)
from fp8gemm.quoting import quoted

if TYPE_CHECKING:
    from fp8gemm.cache.inventory import Kernel

MANIFEST = "manifest.json"
"""Its name in a layer and in an exported file."""

MANIFEST_LIMIT = 16 << 20
"""Bytes beyond which a manifest is not ours."""

LISTED = (CUBIN, SIDECAR)
"""The files whose digests it gives. The third, the source, has its digest in the sidecar."""

_DIGEST = re.compile("[0-9a-f]{64}")
_KIND = "fp8gemm kernels"


@dataclass(frozen=True)
class Manifest:
    """A set of kernels.

    Attributes:
        version: of the library that wrote the list.
        entries: by directory name, the SHA-256 of each of the files `LISTED`.
        size: bytes of all files of all entries.
        nvrtc_versions: of the compilers that made the kernels, each once, in order.
    """

    version: str
    entries: Mapping[str, Mapping[str, str]]
    size: int
    nvrtc_versions: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many kernels."""
        return len(self.entries)

    def encode(self) -> bytes:
        """The list as a file: a pure function of its fields, with a checksum of its own."""
        return encode_document({"kind": _KIND, "schema": SCHEMA_VERSION, "count": self.count, **asdict(self)})


def manifest_of(kernels: Iterable[Kernel], *, version: str) -> Manifest:
    """The list of kernels that verify."""
    listed = sorted(kernels, key=lambda kernel: kernel.name)
    return Manifest(
        version=version,
        entries={kernel.name: dict(kernel.digests) for kernel in listed},
        size=sum(kernel.size for kernel in listed),
        nvrtc_versions=tuple(sorted({kernel.nvrtc_version or "unknown" for kernel in listed})),
    )


def decode_manifest(raw: bytes) -> Manifest:
    """The list that a file holds.

    Raises:
        DamagedError: it holds none, or not as it was written.
    """
    document = decode_document(raw, MANIFEST)
    for field, expected in (("kind", _KIND), ("schema", SCHEMA_VERSION)):
        if document.get(field) != expected:
            raise DamagedError(f"{MANIFEST}: expected {field} {expected!r}; found {quoted(document.get(field))}")
    entries = document.get("entries")
    if not isinstance(entries, dict) or not all(_is_entry(name, digests) for name, digests in entries.items()):
        raise DamagedError(f"{MANIFEST}: expected entries with the SHA-256 of {' and '.join(LISTED)}")
    total, versions = document.get("size"), document.get("nvrtc_versions")
    manifest = Manifest(
        version=str(document.get("version")),
        entries=entries,
        size=total if isinstance(total, int) else 0,
        nvrtc_versions=tuple(str(each) for each in versions) if isinstance(versions, list) else (),
    )
    if manifest.encode() != raw:
        raise DamagedError(f"{MANIFEST} is not as this version writes it")
    return manifest


def _is_entry(name: str, digests: object) -> bool:
    if label_and_key(name) is None or not isinstance(digests, dict) or set(digests) != set(LISTED):
        return False
    return all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests.values())
