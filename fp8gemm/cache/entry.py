"""One cache entry: a cubin, the source it came from, and a sidecar that says what they are and proves them intact."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.frozen import dataclass
from fp8gemm.quoting import quoted
from fp8gemm.reading import parse_json

SOURCE, CUBIN, SIDECAR = "kernel.cu", "kernel.cubin", "kernel.json"

SCHEMA_VERSION = 1
"""Raised whenever the meaning of a cache entry changes; entries of other versions are then never found."""
SIZE_LIMITS = {SIDECAR: 1 << 20, SOURCE: 1 << 20, CUBIN: 32 << 20}
"""Bytes beyond which a file is not ours; the sidecar is read first."""


_NAME = re.compile(r"([^./][^/]*)\.([0-9a-f]{64})")


class DamagedError(Exception):
    """An entry does not verify; the message says what is wrong with it."""


class IncompleteError(DamagedError):
    """A file of an entry is missing. Entries appear whole, so that this one is damaged or is just being removed."""


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


def label_and_key(name: str) -> tuple[str, str] | None:
    """What a name made by ``directory_name`` was made from; None if it is no such name."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2]) if match else None


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
    return {**files, SIDECAR: encode_document(sidecar)}


def unpack(files: Mapping[str, bytes], *, label: str, key: str, directory: Path) -> Entry:
    """The entry that these files hold, if they hold the one asked for, whole and unchanged.

    Raises:
        DamagedError: they do not.
    """
    sidecar = decode_document(files[SIDECAR], SIDECAR)
    for field, expected in (("schema", SCHEMA_VERSION), ("key", key), ("label", label)):
        if sidecar.get(field) != expected:
            raise DamagedError(
                f"{SIDECAR} is of another kernel: expected {field} {expected}; found {quoted(sidecar.get(field))}"
            )
    digests = sidecar.get("sha256")
    for name in (SOURCE, CUBIN):
        if not isinstance(digests, dict) or digests.get(name) != _sha256(files[name]):
            raise DamagedError(f"{name} does not have the SHA-256 that {SIDECAR} gives")
    return Entry(key=key, label=label, cubin=files[CUBIN], metadata=sidecar, directory=directory)


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Canonical JSON that carries its own checksum, so that no flipped bit in it goes unnoticed."""
    body = {name: value for name, value in document.items() if name != "checksum"}
    checksum = _sha256(json.dumps(body, sort_keys=True).encode())
    return json.dumps({**body, "checksum": checksum}, sort_keys=True, indent=2).encode() + b"\n"


def decode_document(raw: bytes, name: str) -> dict[str, Any]:
    """What ``encode_document`` encoded, with its checksum; ``name`` is the file's, for the message.

    Raises:
        DamagedError: these bytes are not what it made.
    """
    try:
        document = parse_json(raw)
    except ValueError as error:
        raise DamagedError(f"{name} is not JSON: {error}") from error
    # Comparing the canonical form, rather than the checksum alone, also notices a change that JSON does not care about.
    if not isinstance(document, dict) or encode_document(document) != raw:
        raise DamagedError(f"{name} does not have the checksum that it gives")
    return document


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
