"""Name a kernel by everything that its cubin depends on, and by nothing else.

The key covers the rendered source, the bytes of every header within its reach, the options and the architecture. It
covers no absolute path, no time stamp and no compiler version: the same request has the same key on every machine, so
that a cache can be copied anywhere and a hit needs no compiler installed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fp8gemm.cache.entry import SCHEMA_VERSION
from fp8gemm.errors import CompileError

Headers = tuple[tuple[str, bytes], ...]
"""(include path, content) of each header, sorted by path."""

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def header_closure(source: str, include_dir: Path) -> Headers:
    """Every header that the source can include, directly or through others, conditional ones too.

    Includes are resolved against ``include_dir`` alone. One that is not there is left out, whatever the reason (a
    branch for the host compiler, a mistake): the compiler is given these files and no directory to search, so it cannot
    find what the key does not cover.

    Args:
        source: the rendered source.
        include_dir: the directory that holds ``fp8gemm/``.

    Raises:
        CompileError: an include path is absolute or climbs out of the directory.
    """
    found: dict[str, bytes] = {}
    pending = _included_paths(source.encode())
    seen = set(pending)
    while pending:
        path = pending.pop()
        if path.startswith("/") or ".." in path.split("/"):
            raise CompileError(f"device headers include each other by paths below {include_dir}; found {path!r}")
        try:
            content = Path(include_dir, path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[path] = content
        fresh = [name for name in _included_paths(content) if name not in seen]
        seen.update(fresh)
        pending.extend(fresh)
    return tuple(sorted(found.items()))


def key_of(source: str, headers: Headers, *, options: Sequence[str], arch: str) -> str:
    """The 64 hexadecimal digits that name the kernel compiled from this source, with what it can include."""
    flat_headers = (part for path, content in headers for part in (path.encode(), content))
    return _digest(
        (
            str(SCHEMA_VERSION).encode(),
            source.encode(),
            _digest(flat_headers).encode(),
            _digest(option.encode() for option in options).encode(),
            arch.encode(),
        )
    )


def _included_paths(text: bytes) -> list[str]:
    return [path.decode("utf-8", "surrogateescape") for path in _INCLUDE.findall(text)]


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 over parts with their lengths, so that no two different lists of parts read alike."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()
