"""scripts/parallel_speed.py: its words, its lines, and a run of two CPUs that measures nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.world import ROOT, environment
from tests.scripts import SCRIPTS

SECTIONS = {"prefill", "decode", "limits", "gathers", "experts", "host"}


def run(*arguments: str, torchrun: bool = False) -> subprocess.CompletedProcess[str]:
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if torchrun else []
    command = [sys.executable, *start, str(SCRIPTS / "parallel_speed.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)


def test_a_dry_run_goes_through_all_sections(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = run("--dry-run", "--json", str(file), torchrun=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert {row["section"] for row in found["rows"]} == SECTIONS and found["ranks"] == 2
    assert not [row for row in found["rows"] if row["name"] in ("failed", "left out")]
    (errors,) = (row for row in found["rows"] if row["name"].endswith("errors in %"))
    assert 0 < errors["all_reduce"] < 2 and 0 < errors["fp8_gather"] < 2
    # What a CPU cannot do is in its place in words, and printed too; a line for each row.
    assert errors["overlapped"].startswith("overlap: expected None or False") and "overlap: expected" in done.stdout
    printed = [line for line in done.stdout.splitlines() if line.split(" ")[0] in SECTIONS]
    assert len(printed) == len(found["rows"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "start it on several ranks, with torchrun"),
        (
            ("--sections", "prefill,lunch"),
            2,
            "expected some of prefill,decode,gathers,experts,host,limits, got 'lunch'",
        ),
        (("--rounds", "0"), 2, "rounds"),
    ],
)
def test_what_it_refuses(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == code and said in done.stderr
