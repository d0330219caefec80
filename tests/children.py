"""Python processes of tests."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(*first: Path, **changes: str) -> dict[str, str]:
    """This process's with changes, the package importable, and what lies in some directories ahead of all else."""
    path = os.pathsep.join([*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **changes}
