"""Which code a result is of: what every result file carries beside its figures."""

from __future__ import annotations

import datetime
import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fp8gemm.jit.headers import include_dir

if TYPE_CHECKING:
    from fp8gemm.driver.device import DeviceInfo

UNKNOWN = "unknown"
CHANGED = "+changes"
_DIGITS = 16
_CHECKOUT = Path(__file__).resolve().parents[2]
_CODE = ("fp8gemm", "include", "scripts", "tests")


def circumstances(device: DeviceInfo) -> dict[str, str]:
    """The day, and what is measured with on a GPU, for the heading of a result file."""
    import torch

    today = datetime.date.today().isoformat()
    return {"date": today, "torch": torch.__version__, "driver_cuda": device.driver_version, **provenance()}


def provenance(commit: str | None = None, *, include: Path | None = None) -> dict[str, str]:
    """``commit`` and ``headers``, for the heading of a result file.

    Args:
        commit: what a person says it is, where git cannot tell; git's answer by default.
        include: the headers that were compiled, by default those of this installation.

    Raises:
        CompileError: the installation holds no device headers.
    """
    return {"commit": commit or commit_of(_CHECKOUT), "headers": headers_hash(include or include_dir())}


def headers_hash(include: Path) -> str:
    """The first 16 digits of a SHA-256 over the device headers: relative paths and bytes, in the order of paths.

    Args:
        include: the directory that holds ``fp8gemm/``.
    """
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(include).as_posix(), path) for path in include.rglob("*.cuh")):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:_DIGITS]


@cache
def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with "+changes" where its code has some since; "unknown" without git, or elsewhere.

    What was measured is written into the same tree, so that changes of docs do not count.
    """
    told = _git(checkout, "rev-parse", "--show-toplevel", "--short", "HEAD").splitlines()
    if len(told) != 2 or Path(told[0]) != checkout:  # an installation may lie inside a repository of somebody else's
        return UNKNOWN
    return told[1] + (CHANGED if _git(checkout, "status", "--porcelain", "--", *_CODE) else "")


def _git(checkout: Path, *arguments: str) -> str:
    """What git prints; nothing if it fails or is not there."""
    command = ["git", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
