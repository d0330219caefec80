"""The README shows what was measured, not what somebody typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_shows_the_results_in_the_repository() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "results.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
