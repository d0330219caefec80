"""``python -m tests [options of pytest]``: all tests that this machine can run.

They share its processors where pytest-xdist is installed. Those of a GPU come after the others, one by one, so that
nobody else's work is in what they time. Paths among the options name all that is to be run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sharing import GPU, HERE, why_no_gpu


def run(*arguments: str) -> int:
    """pytest's exit code."""
    # Else each of some hundred processes compiles all our modules anew, and two of them all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run([sys.executable, "-m", "pytest", "-rs", *arguments], check=False).returncode


def main(options: list[str]) -> int:
    """Run them, and return an exit code that is 0 if all passed."""
    paths = [Path(option.split("::")[0]).resolve() for option in options]
    named = [path for path in paths if path.exists() and path.is_relative_to(HERE)]
    if any(path.is_relative_to(GPU) for path in named):
        return run(*options)
    shared = ["-n", "auto"] if find_spec("xdist") else []
    if named or why_no_gpu():
        return run(*shared, *options)
    codes = run(*shared, f"--ignore={GPU}", *options), run(str(GPU), *options)
    # Options may select tests of one part alone.
    return next((code for code in codes if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)), min(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
