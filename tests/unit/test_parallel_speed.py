"""scripts/parallel_speed.py: its words, its lines, and a run of two CPUs that measures nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from fp8gemm.parallel import overlap
from tests.distributed.world import ROOT, environment
from tests.scripts import SCRIPTS

SECTIONS = {"prefill", "decode", "limits", "gathers", "experts", "host"}
SIZES = {"llama-70b": (8192, 28672), "deepseek-v3": (7168, 18432), "narrow": (4096, 4096)}
"""Hidden and wide, of MLPs that were measured."""
PLACES = {"scatter": Shard(0), "sum": Replicate()}
"""Of an output, by the way that sums travel."""


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


@pytest.mark.parametrize("file", ["parallel-speed-h200.json", "parallel-speed-four-h200.json"])
def test_nothing_was_slower_where_layers_overlap_unasked(file: str) -> None:
    found = json.loads((ROOT / "docs" / "results" / file).read_text())
    gains = {}
    for row in found["rows"]:
        if row["section"] == "limits" and "off" in row:
            model, way, m = row["name"].replace("M=", "").split()
            if overlaps(way, *SIZES[model], int(m), found["ranks"]):
                gains[model, way, int(m)] = row["off"] / row["unasked"]
    assert len(gains) >= 12 and min(gains.values()) >= 1.0, gains
    assert {model for model, _, _ in gains} == {"llama-70b", "deepseek-v3"}


def overlaps(way: str, hidden: int, wide: int, m: int, ranks: int) -> bool:
    """Whether ``overlap=None`` means yes outside of graphs, of M rows in bfloat16: what layers ask for memory with."""
    layouts: Any = SimpleNamespace(mesh=SimpleNamespace(size=lambda: ranks), wanted=PLACES.get(way))
    dtype, device = torch.bfloat16, torch.device("meta")
    with patch.object(overlap, "_memory_for", return_value=None) as asked:
        if way == "gather":
            x = torch.empty((m // ranks, hidden), dtype=dtype, device=device)
            out = overlap.gathered_beside(layouts, x, 0, 2 * wide // ranks, Mock())
        else:
            out = overlap.summed_beside(layouts, (m,), hidden, wide // ranks, dtype, device, Mock())
    options = asked.call_args.kwargs
    assert out is None
    return bool(options["wins"]) and not options.get("in_graphs", False)
