"""The faulty headers: a copy of the include directory, edited, and the library made to compile from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fp8gemm import settings
from fp8gemm.jit import headers, kernel
from tests.mutations.chaos import CHAOS
from tests.mutations.mutant import Edit, Mutant

INCLUDE = Path(__file__).resolve().parents[2] / "include"
"""The headers of this checkout; they are never edited."""


class EditError(Exception):
    """An edit whose old text is not in its header exactly once."""


def apply(edits: Iterable[Edit], include: Path) -> None:
    """Edit the headers below an include directory.

    Raises:
        EditError: an edit does not fit the text that the edits before it have left.
    """
    for edit in edits:
        path = include / "fp8gemm" / edit.header
        if not path.is_file():
            raise EditError(f"there is no header {edit.header}")
        text = path.read_text()
        if (count := text.count(edit.old)) != 1 or edit.old == edit.new:
            raise EditError(
                f"{edit.header} must hold the old text once and change; it holds it {count} times:\n{edit.old}"
            )
        path.write_text(text.replace(edit.old, edit.new))


def make(directory: Path, mutant: Mutant | None, *, chaos: bool = False) -> Path:
    """Write the headers of a mutant to ``directory/include``, which must not exist, and return that path."""
    include = directory.resolve() / "include"
    shutil.copytree(INCLUDE, include)
    # The chaos comes second: it only puts statements at the beginnings of functions, where no mutant's text is.
    apply(mutant.edits if mutant else (), include)
    apply(CHAOS if chaos else (), include)
    return include


def use(include: Path) -> None:
    """Make this process, and those that it starts, compile the headers below ``include`` into a cache beside it."""
    # `include_dir` is bound by name in other modules; it finds the headers by the path of its own.
    headers.__file__ = str(include.parent / "fp8gemm" / "headers.py")
    headers.include_dir.cache_clear()
    if headers.include_dir() != include:
        raise RuntimeError(f"the library takes its headers from {headers.include_dir()}, not from {include}")
    os.environ["FP8GEMM_CACHE_DIR"] = str(include.parent / "cache")
    settings.reload()
    kernel._kernels.clear()  # loaded ones are known by their requests, which are the same
