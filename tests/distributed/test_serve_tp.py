"""examples/serve_tp.py, as torchrun starts it: two processes say what one says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.distributed.world import ROOT, environment

PROGRAM = """
import os, runpy, sys

runpy.run_path("examples/serve_tp.py", run_name="__main__")
# Once in some forty processes gloo's threads abort while the interpreter ends, when all is said and done.
sys.stdout.flush()
os._exit(0)
"""


def test_two_ranks_say_the_same_as_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    sizes = ["--hidden", "512", "--batch", "2", "--prompt", "8", "--tokens", "8"]
    done = subprocess.run(
        [*command, str(tmp_path / "program.py"), *sizes, "--dtype", "float32", "--check", "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said["ranks"] == 2 and said["same_as_alone"] == said["of"] == 16 and said["tokens_per_second"] > 0
