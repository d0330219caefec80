"""scripts/profile.py without a GPU: what ncu says, expectations, tables, arguments; test_trace.py has the timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fp8gemm.cli import profile as command
from fp8gemm.errors import InputError
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.lab.profiling import counters, table, traced
from fp8gemm.lab.profiling.counters import Counters
from fp8gemm.lab.profiling.expected import expect
from fp8gemm.lab.profiling.kernel import choose_config
from fp8gemm.lab.profiling.sustained import Sustained
from fp8gemm.lab.profiling.trace import BUFFER_BYTES
from fp8gemm.lab.profiling.traced import TracedKernel, traced_request
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import CHIPS
from fp8gemm.tuning.problem import StoreKind, packed_problem
from fp8gemm.tuning.select import ranked_configs

ROOT = Path(__file__).resolve().parents[2]
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
IDENTITY = '"ID","Process ID","Process Name","Kernel Name","Device"'

RAW = f"""\
==PROF== Connected to process 7 (python)
something that the program prints, with "quotes"
==PROF== Profiling "fp8gemm_kernel": 0%....50%....100% - 9 passes
==PROF== Disconnected from process 7
{IDENTITY},"{counters.DURATION}","{counters.CYCLES}","{counters.TENSOR_ACTIVE[1]}","{counters.TO_SM}",\
"{STALL.format("gmma")}","{STALL.format("selected")}","{STALL.format("wait")}","lts__t_sector_hit_rate.pct"
"","","","","","ns","cycle","%","byte","inst","inst","inst","%"
"0","7","python","fp8gemm_kernel","0","100,000","150,000.00","62.5","2,000,000","3.00","1.00","1.00","n/a"
"""


def test_raw_counters_are_read_with_their_units() -> None:
    values = counters.parse(RAW)
    assert values[counters.DURATION] == pytest.approx(100.0)  # microseconds
    assert values[counters.CYCLES] == 150_000 and values[counters.TO_SM] == 2_000_000
    assert counters.L2_HIT_RATE not in values, "n/a is no number"
    read = Counters(values)
    assert read.first(counters.TENSOR_ACTIVE) == 62.5 and read.first(counters.TENSOR_INSTRUCTIONS) is None
    assert read.stalls() == [("gmma", 0.75), ("wait", 0.25)]


def test_scaled_units_and_one_row_per_metric_are_understood_too() -> None:
    text = (
        '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'
        f'"0","fp8gemm_kernel","all","{counters.DURATION}","ms","1.5"\n'
        f'"0","fp8gemm_kernel","all","{counters.DRAM_READ}","Mbyte","2.5"\n'
        '"0","fp8gemm_kernel","all","","",""\n'
    )
    assert counters.parse(text) == {counters.DURATION: 1500.0, counters.DRAM_READ: 2.5e6}


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM", f"{IDENTITY}\n", '"a quoted line"\n'])
def test_output_without_counters_gives_none(text: str) -> None:
    assert counters.parse(text) == {}


def ncu(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Makes this shell script the ncu on PATH; gives the file to which it writes its arguments."""
    path = directory / "ncu"
    path.write_text(f'#!/bin/sh\necho "$*" >>{directory}/log\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setattr(counters.shutil, "which", lambda name: str(path))
    return directory / "log"


QUERY = 'case "$*" in *--query-metrics*) cat <<EOF\n{}\nEOF\nexit 0;; esac\n'
GIVES_RAW = f"cat <<'EOF'\n{RAW}\nEOF"


def test_only_metrics_that_this_ncu_has_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = "gpu__time_duration   Counter  nsecond\nlts__t_bytes  Counter  byte\n"
    known += "smsp__average_warps_issue_stalled_gmma_per_issue_active  Ratio\nsm__something_else  Counter"
    log = ncu(tmp_path, monkeypatch, QUERY.format(known) + GIVES_RAW)
    read = counters.collect(["python", "worker"], launches_before=3, timeout=10.0, env={"X": "1"})
    asked = log.read_text().splitlines()[-1]
    wanted = (counters.DURATION, counters.L2_BYTES, STALL.format("gmma"))
    assert f"--metrics {','.join(wanted)} " in asked
    assert "--clock-control none" in asked and "-k regex:fp8gemm_kernel" in asked
    assert "--launch-skip 3 --launch-count 1" in asked and asked.endswith("python worker")
    assert read.missing == (counters.L2_BYTES,) and read.values[counters.DURATION] == 100.0 and not read.problem


def test_all_are_asked_for_where_ncu_tells_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ncu(tmp_path, monkeypatch, QUERY.format("==ERROR== unknown option") + GIVES_RAW)
    counters.collect(["worker"], launches_before=0, timeout=10.0, env={})
    asked = log.read_text()
    assert all(name in asked for name in (*counters.METRICS, STALL.format("long_scoreboard")))


def test_an_ncu_that_is_missing_or_refuses_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu(tmp_path, monkeypatch, "echo '==ERROR== ERR_NVGPUCTRPERM: no permission'\necho more\nexit 3")
    read = counters.collect(["worker"], launches_before=0, timeout=10.0, env={})
    assert not read.values and "exit code 3" in read.problem and "ERR_NVGPUCTRPERM" in read.problem
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    read = counters.collect(["worker"], launches_before=0, timeout=10.0, env={})
    assert not read.values and "not on PATH" in read.problem


def test_expectations_by_hand() -> None:
    config = TileConfig(128, 128, 4, cluster_m=2)
    expected = expect(packed_problem(512, 256, 1024), config, CHIPS["h200"])
    assert (expected.tiles, expected.k_blocks, expected.busiest) == (8, 8, 1)
    assert expected.cycles_per_k_block == 512 and expected.busiest_tensor_cycles == 8 * 512
    assert expected.tensor_cycles == pytest.approx(8 * 8 * 512 / 132)
    # Whole tiles: what arrives is tiles x K blocks x bytes of a stage; a cluster reads its B once.
    assert expected.bytes_into_sms == 8 * 8 * config.stage_bytes()
    assert expected.bytes_into_sms - expected.bytes_out_of_l2 == 8 * 8 * 128 * 128 // 2
    assert expected.instructions == 8 * 8 * 2 * 4 * 4
    assert expected.output_bytes == 512 * 256 * 2
    # A tail brings its own bytes only.
    tail = expect(packed_problem(1, 256, 1024), config, CHIPS["h200"])
    assert tail.tiles == 4 and tail.bytes_into_sms == 1024 * (1 * 2 + 256 * 2) + 4 * 8 * 1 * 2
    # Of four tiles' eight parts of 64 rows two have rows, and the others are passed over; not so without a cluster.
    assert (tail.instructions, tail.tensor_cycles) == (2 * 8 * 4 * 4, pytest.approx(2 * 8 * 256 / 132))
    alone = expect(packed_problem(1, 256, 1024), TileConfig(128, 128, 4), CHIPS["h200"])
    assert (alone.tiles, alone.instructions) == (2, 2 * 2 * 8 * 4 * 4)


@pytest.mark.parametrize(("k", "k_blocks"), [(1024, 8), (1040, 10)])
def test_expectations_where_warpgroups_share_k(k: int, k_blocks: int) -> None:
    """Each does as many K blocks: of nine the tenth is past the end, which is multiplied, but which nobody sends."""
    config = TileConfig(64, 64, 4, warpgroups_m=1, warpgroups_k=2)
    expected = expect(packed_problem(128, 256, k), config, CHIPS["h200"])
    assert (expected.tiles, expected.k_blocks, expected.cycles_per_k_block) == (8, k_blocks, 128)
    assert expected.instructions == 8 * k_blocks * 1 * 4 * 4
    assert expected.tensor_cycles == pytest.approx(8 * k_blocks * 128 / 132)
    assert expected.busiest_tensor_cycles == k_blocks * 128
    scales = 4 * (-(-k // 128)) * 64
    assert expected.bytes_into_sms == 8 * ((64 + 64) * k + scales)
    assert expected.bytes_out_of_l2 == expected.bytes_into_sms
    divided = expect(packed_problem(128, 256, k), TileConfig(64, 64, 4, warpgroups_m=1, warpgroups_n=2), CHIPS["h200"])
    assert divided.bytes_into_sms == expected.bytes_into_sms and divided.k_blocks == -(-k // 128)


def test_tables_have_a_line_per_figure_and_leave_out_what_is_not_known() -> None:
    problem, chip = packed_problem(4096, 4096, 4096), CHIPS["h200"]
    expected = expect(problem, choose_config(problem, chip, None), chip)
    run = Sustained(us=100.0, spread=0.01, sets=4, mhz=1500.0, watts=600.0)
    lines = list(table.sustained_lines(problem, run, expected))
    by_name = {line.name: line for line in lines}
    assert by_name["speed"].value == pytest.approx(2 * 4096**3 / 1e8)
    assert by_name["energy per call"].value == pytest.approx(60.0)  # mJ
    assert by_name["energy per operation"].value == pytest.approx(0.06 / (2 * 4096**3) * 1e12)
    silent = list(table.sustained_lines(problem, Sustained(100.0, 0.0, 4, None, None), expected))
    assert [line.name for line in silent] == ["time per call", "speed"]

    counted = list(table.counter_lines(Counters(counters.parse(RAW)), expected))
    names = [line.name for line in counted]
    assert names[:2] == ["duration", "SM clock"] and "L2 to SMs" in names and "stalled: gmma" in names
    assert "DRAM read" not in names and counted[1].value == 1500
    text = table.render([*lines, *counted])
    assert len(text.splitlines()) == 1 + len(lines) + len(counted) and "MHz" in text
    assert json.loads(json.dumps(table.as_json(counted)))[0]["name"] == "duration"


def test_configs_are_found_by_their_label() -> None:
    problem, chip = packed_problem(4096, 7168, 2048), CHIPS["h200"]
    ranked = ranked_configs(problem, chip)
    assert (
        choose_config(problem, chip, ranked[3].label) == ranked[3] and choose_config(problem, chip, None) == ranked[0]
    )
    assert problem.store is StoreKind.TMA and packed_problem(1, 100, 128).store is StoreKind.PREDICATED
    with pytest.raises(InputError, match=f"{ranked[-1].label}.*got '1x1'"):
        choose_config(problem, chip, "1x1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either MxNxK or --from"),
        (["64x64"], "MxNxK"),
        (["--from", "/nowhere/trace.json", "--timeline", "x.png"], "a file that --trace wrote"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_the_instrumented_request_differs_by_its_header_and_one_constant() -> None:
    problem = packed_problem(1, 7168, 2048)
    request = traced_request(problem, choose_config(problem, CHIPS["h200"], None), cta=2)
    assert request.header.endswith("dense_traced.cuh") and request.config[-1] == ("trace_cta", 2)


def test_the_script_does_not_stand_in_for_the_module_of_its_name() -> None:
    program = "import cProfile, profile; cProfile.Profile(); assert 'scripts' not in profile.__file__; profile.Profile"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "scripts", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "profile.py", "--help"],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "MxNxK" in done.stdout, done.stderr


@dataclass(frozen=True)
class Launch:
    """What the traced kernel knows of a launch."""

    function: int
    dynamic_shared_bytes: int = 1024


def test_products_of_every_size_are_launched_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, instrumented = 1, 2

    def load(kernel: Any, problem: object, config: object, **_: object) -> None:
        kernel.problem, kernel.config = problem, config
        kernel._launch = kernel._plain_launch = Launch(plain)

    monkeypatch.setattr(DenseKernel, "__init__", load)
    monkeypatch.setattr(traced, "build", lambda request: SimpleNamespace(cubin=b"", request=request))
    monkeypatch.setattr(traced, "load_library", lambda cubin: None)
    monkeypatch.setattr(traced, "get_function", lambda *names: instrumented)
    monkeypatch.setattr(traced, "set_max_dynamic_shared", lambda *sizes: None)
    monkeypatch.setattr(traced, "get_global", lambda *names: (0, BUFFER_BYTES))
    problem = packed_problem(4096, 32768, 512)
    kernel = TracedKernel(problem, ranked_configs(problem, CHIPS["h200"])[0], device_index=0, num_sms=132)
    assert {kernel.launch_that(starts_ahead=ahead).function for ahead in (True, False)} == {instrumented}
