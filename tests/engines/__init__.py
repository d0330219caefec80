"""vLLM's and SGLang's own code, run on fp8gemm: where it lies, and why it may not be there.

`make engines` fills the folder; the tests of this package look there, and are skipped where it is empty.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""What is fetched, and what docs/engines.md speaks of."""

FOLDER = Path(os.environ.get("FP8GEMM_TEST_ENGINES") or Path.home() / ".cache" / "fp8gemm-tests" / "engines")


_KEPT = 3
"""Another number where more is kept of what is downloaded: what lies there from before does not do then."""


def place(engine: str) -> Path:
    """Where an engine's packages lie, with its tests beside them."""
    return FOLDER / f"{engine}-{VERSIONS[engine]}"


def compiled() -> Path:
    """Where vLLM's machine code lies, as in its wheel: what its wheel has and its source distribution has not."""
    return FOLDER / f"vllm-{VERSIONS['vllm']}-compiled"


def complete(engine: str) -> Path:
    """A file that is there once all of an engine is."""
    return place(engine) / f"complete-{_KEPT}"


def packages() -> Path:
    """Where those lie that the engines import beside what fp8gemm's own tests have."""
    return FOLDER / f"packages-{_KEPT}"


def why_not(engine: str) -> str:
    """Why an engine's code cannot be run here, and what mends it; empty if it can."""
    if sys.version_info < (3, 11):
        return f"{engine} {VERSIONS[engine]} is for Python from 3.11"
    if not complete(engine).is_file():
        return f"{engine} {VERSIONS[engine]} is not in {FOLDER}: make engines fetches it"
    return ""
