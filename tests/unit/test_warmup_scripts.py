"""scripts/warmup.py and scripts/warmup_time.py, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import SCRIPTS, load_script

TINY = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_local_experts": 0,
}
"""Four layers of one shape, which one kernel multiplies, and no experts."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


def test_the_script_is_the_command_and_does_without_torch() -> None:
    arguments = ("--nk", "64x64", "--max-m", "1", "--chip", "h20", "--calls", "gemm", "--list", "--json")
    program = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = python("-c", program, str(SCRIPTS / "warmup.py"), *arguments)
    assert done.returncode == 0, done.stderr
    by_command = python("-m", "fp8gemm", "warmup", *arguments, PYTHONPATH=str(SCRIPTS.parent))
    assert json.loads(done.stdout) == json.loads(by_command.stdout)
    imported = done.stderr.split()
    assert "fp8gemm.cli.warmup" in imported and "torch" not in imported


def test_the_script_fails_as_the_command_does() -> None:
    done = python(str(SCRIPTS / "warmup.py"))
    assert done.returncode == 1 and done.stderr.startswith("fp8gemm: expected what to make ready: --nk"), done.stderr


def test_a_warmup_is_timed_from_nothing_and_again(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results" / "warmup.json"
    arguments = ("--model", str(model), "--tp", "1", "--max-m", "1", "--repeats", "1", "--json", str(file))
    # What the user has set must not reach the processes: neither may it compile less, nor may it be found.
    done = python(str(SCRIPTS / "warmup_time.py"), *arguments, FP8GEMM_NUM_SMS="1", FP8GEMM_JIT="error")
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    (run,) = written["runs"]
    assert (run["model"], run["tp"], run["max_m"]) == ("tiny", [1], 1)
    assert set(run["chips"]) == {"h200", "h100"} and run["kernels"] > run["quantizers"] > 0 and run["bytes"] > 0
    assert run["cold_seconds"] > run["warm_seconds"] > 0
    assert written["cores"] >= 1 and written["repeats"] == 1 and written["nvrtc"].count(".") == 1
    assert run["kernels_with_experts"] == run["kernels"]  # it has none
    assert f"tiny, tp 1, M up to 1, --layout none: {run['kernels']} kernels" in done.stdout
    drawn = load_script("results").SECTIONS["warmup"].draw(written)
    assert any(line.startswith("| tiny | 1 | 1 |") for line in drawn)


class Warmups:
    """Stands for the processes: what each prints, in turn."""

    def __init__(self, script: Any, monkeypatch: pytest.MonkeyPatch, hits: list[int]) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._hits = hits
        monkeypatch.setattr(script, "warmup", self)

    def __call__(self, *arguments: str) -> tuple[float, Any]:
        if "--list" in arguments:
            assert "--layout" not in arguments
            return 0.5, ["a kernel"] * 12
        hits = self._hits[len(self.asked)]
        self.asked.append(arguments)
        printed = {"kernels": 9, "compiled": 9 - hits, "hits": hits, "chips": {"h200": 5}, "quantizers": 4, "bytes": 7}
        return (30.0 if hits == 0 else 0.25 * len(self.asked)), printed


def test_the_median_of_the_warm_processes_counts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("warmup_time")
    warmups = Warmups(script, monkeypatch, [0, 9, 9, 9])
    run = script.measure(model, [1, 8], 16384, repeats=3)
    assert (run["cold_seconds"], run["warm_seconds"], run["kernels_with_experts"]) == (30.0, 0.75, 12)
    assert len(set(warmups.asked)) == 1 and warmups.asked[0][:6] == (
        "--model",
        str(model),
        "--tp",
        "1,8",
        *("--max-m", "16384"),
    )


@pytest.mark.parametrize("hits", [[1, 9], [0, 8]], ids=["the first found some", "the second compiled some"])
def test_a_warmup_that_was_not_what_it_is_told_to_be_is_no_figure(model, monkeypatch, hits) -> None:
    script = load_script("warmup_time")
    Warmups(script, monkeypatch, hits)
    with pytest.raises(SystemExit, match="expected 9 kernels compiled, then found"):
        script.measure(model, [1], 16384, repeats=1)


def test_a_process_that_fails_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("warmup_time")
    with pytest.raises(SystemExit, match=r"(?s)the measured process failed:.*expected a config\.json"):
        script.warmup("--model", str(model.with_name("none.json")), "--list")
