"""scripts/cache_chaos.py: a short run of it, and that it notices what must not be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8gemm.cache.entry import CUBIN
from tests.jit.caches import fill, name_of
from tests.scripts import load_script


def test_nothing_is_torn_by_processes_that_are_killed_prune_and_seal(capsys: pytest.CaptureFixture[str]) -> None:
    code = load_script("cache_chaos").main(["--seconds", "5", "--seeds", "7", "--warmups", "2"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["faults"], told["seed"]) == (0, [], 7)
    counts = told["counts"]
    assert counts["loaded"] > 0 == counts["torn"] == counts["damaged"] and counts["processes"] > 5


def test_a_torn_kernel_and_a_process_that_fails_are_faults(tmp_path: Path) -> None:
    chaos = load_script("cache_chaos").Chaos(fill(tmp_path / "cache", 1, 2).path, 1)
    chaos.read()
    assert chaos.counts["loaded"] == 2 and not chaos.faults
    (tmp_path / "cache" / name_of(1) / CUBIN).write_bytes(b"torn")
    chaos.read()
    assert chaos.counts["torn"] == 1 and "tiny-1" in chaos.faults[0]
    chaos.verify()
    assert chaos.counts["damaged"] == 1
    chaos._must("check", "cache", "no-such-action")
    assert "check ended with code 2" in chaos.faults[-2] and chaos.faults[-1] == "the last check failed"
