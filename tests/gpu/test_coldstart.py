"""The first call of a process: under 1 s with an empty cache, under 50 ms with a warm one and no compiler opened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "coldstart.py"


def test_the_first_call_is_quick() -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--repeats", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not result["nvrtc_opened_when_warm"]
    assert result["cold_ms"] < 1000, result
    assert result["warm_ms"] < 50, result
