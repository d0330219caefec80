"""One cache entry: a cubin, the source it came from, and a sidecar that says what they are and proves them intact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8gemm.jit.fingerprint import SCHEMA_VERSION

SOURCE, CUBIN, SIDECAR = "kernel.cu", "kernel.cubin", "kernel.json"

SIZE_LIMITS = {SIDECAR: 1 << 20, SOURCE: 1 << 20, CUBIN: 256 << 20}
"""Bytes beyond which a file is not ours; the sidecar is read first."""


class DamagedError(Exception):
    """An entry does not verify; the message says what is wrong with it."""


@dataclass(frozen=True)
class Entry:
    """A kernel as it is kept on disk.

    Attributes:
        key: its cache key, 64 hexadecimal digits.
        label: its name for people.
        cubin: what the driver loads.
        metadata: what the sidecar says beside key, label and digests: options, versions, config, resources.
        directory: where it was read from, None if it has not been.
    """

    key: str
    label: str
    cubin: bytes
    metadata: Mapping[str, Any]
    directory: Path | None = None


def directory_name(label: str, key: str) -> str:
    """The name of an entry's directory within a cache layer."""
    return f"{label}.{key}"


def pack(entry: Entry, source: str) -> dict[str, bytes]:
    """The files of an entry: a pure function of its arguments."""
    files = {SOURCE: source.encode(), CUBIN: entry.cubin}
    sidecar = {
        **entry.metadata,
        "schema": SCHEMA_VERSION,
        "key": entry.key,
        "label": entry.label,
        "sha256": {name: _sha256(content) for name, content in files.items()},
    }
    return {**files, SIDECAR: _encode(sidecar)}


def unpack(files: Mapping[str, bytes], *, label: str, key: str, directory: Path) -> Entry:
    """The entry that these files hold, if they hold the one asked for, whole and unchanged.

    Raises:
        DamagedError: they do not.
    """
    sidecar = _decode(files[SIDECAR])
    for field, expected in (("schema", SCHEMA_VERSION), ("key", key), ("label", label)):
        if sidecar.get(field) != expected:
            raise DamagedError(
                f"{SIDECAR} is of another kernel: expected {field} {expected}; found {sidecar.get(field)}"
            )
    for name in (SOURCE, CUBIN):
        if sidecar["sha256"].get(name) != _sha256(files[name]):
            raise DamagedError(f"{name} does not have the SHA-256 that {SIDECAR} gives")
    return Entry(key=key, label=label, cubin=files[CUBIN], metadata=sidecar, directory=directory)


def _encode(sidecar: Mapping[str, Any]) -> bytes:
    """Canonical JSON that carries its own checksum, so that no flipped bit in it goes unnoticed."""
    body = {name: value for name, value in sidecar.items() if name != "checksum"}
    checksum = _sha256(json.dumps(body, sort_keys=True).encode())
    return json.dumps({**body, "checksum": checksum}, sort_keys=True, indent=2).encode() + b"\n"


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        sidecar = json.loads(raw)
    except ValueError as error:
        raise DamagedError(f"{SIDECAR} is not JSON: {error}") from error
    # Comparing the canonical form, rather than the checksum alone, also notices a change that JSON does not care about.
    if not isinstance(sidecar, dict) or _encode(sidecar) != raw:
        raise DamagedError(f"{SIDECAR} does not have the checksum that it gives")
    return sidecar


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
