"""scripts/sanitize.py: what it takes for clean, and its report; with stand-ins for compute-sanitizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.jit import job
from fp8gemm.jit.headers import include_dir
from tests.scripts import load_script


@pytest.fixture(scope="module")
def sanitize() -> ModuleType:
    return load_script("sanitize")


RIGHT = "sanitize: all results are right\n"
RACE = "========= RACECHECK SUMMARY: {0} hazards displayed ({0} errors, 0 warnings)"


def test_its_progress_is_on_a_terminal_alone(
    sanitize: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        sanitize.Finding("memcheck", "a", "1x2", "clean"),
        sanitize.Finding("memcheck", "b", "1x2", "3 errors", "where"),
    ]
    monkeypatch.setattr(sanitize, "find", lambda *arguments, **options: iter(found))
    assert sanitize.run_tools("sanitizer", ["memcheck", "racecheck"], [0, 1], timeout=1.0) == found * 2
    told = capsys.readouterr()
    ends = [f"{tool} b 1x2: 3 errors\nwhere\n" for tool in ("memcheck", "racecheck")]
    assert not told.out and told.err in ("".join(ends), "".join(ends[::-1]))  # tools run at once
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    sanitize.run_tools("sanitizer", ["memcheck", "racecheck"], [0, 1], timeout=1.0)
    told = capsys.readouterr()
    assert not told.out and "/4 verdicts [" in told.err and "ETA 0" in told.err


@pytest.mark.parametrize(
    ("returncode", "output", "status"),
    [
        (0, RIGHT + "========= ERROR SUMMARY: 0 errors", "clean"),
        (0, RIGHT + RACE.format(0), "clean"),
        (86, RIGHT + "========= ERROR SUMMARY: 3 errors", "3 errors"),
        (86, RIGHT + "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", "1 errors"),
        (0, RIGHT + "========= ERROR SUMMARY: 3 errors", "3 errors"),
        (86, RIGHT + "========= ERROR SUMMARY: 0 errors", "wrong result or crash, exit code 86"),
        (1, "========= ERROR SUMMARY: 0 errors", "wrong result or crash, exit code 1"),
        (0, "========= ERROR SUMMARY: 0 errors", "wrong result or crash, exit code 0"),
        (0, RIGHT, "no summary, exit code 0"),
        (255, "========= Error: Device not supported", "no summary, exit code 255"),
    ],
)
def test_output_is_clean_only_with_summary_exit_code_and_result(
    sanitize: ModuleType, returncode: int, output: str, status: str
) -> None:
    found, detail = sanitize.judge("memcheck", returncode, output)
    assert found == status and bool(detail) == (status != "clean")


STAGED = "fp8gemm::ptx::store_shared_pair(unsigned int, float, float)+0x10 in memory.cuh:18"
COPIED = "void fp8gemm::ClippedStore<Config>::copy_rows<fp8gemm::KernelParams>(const T1 &)+0x20 in clipped_store.cuh:72"


def race(*accesses: str) -> str:
    """A message of racecheck."""
    first, *others = accesses
    lines = [f"Error: Race reported between {first}", *(f"    and {other} [4 hazards]" for other in others), ""]
    return "".join(f"========= {line}\n" for line in lines)


FALSE = race(f"Read access at {COPIED}", f"Write access at {STAGED}", f"Write access at {STAGED}")


@pytest.mark.parametrize(
    ("messages", "errors", "returncode", "results", "status"),
    [
        (FALSE, 1, 86, RIGHT, "clean but for 1 false race"),
        (FALSE + FALSE, 2, 86, RIGHT, "clean but for 2 false races"),
        (FALSE, 2, 86, RIGHT, "1 errors"),
        (FALSE, 1, 86, "", "wrong result or crash, exit code 86"),
        (FALSE, 1, 1, RIGHT, "wrong result or crash, exit code 1"),
        # Every access must be where it was: one of another place, or the same two the other way round, is an error.
        (
            race(f"Read access at {COPIED}", f"Write access at {STAGED}", "Write access at b.cuh:3"),
            1,
            86,
            RIGHT,
            "1 errors",
        ),
        (race(f"Read access at {COPIED}", "Read access at a.cuh:3"), 1, 86, RIGHT, "1 errors"),
        (race(f"Write access at {COPIED}", f"Read access at {STAGED}"), 1, 86, RIGHT, "1 errors"),
        (FALSE + race(f"Read access at {STAGED}", f"Write access at {STAGED}"), 2, 86, RIGHT, "1 errors"),
        ("========= Error: of another kind\n", 1, 86, RIGHT, "1 errors"),
    ],
)
def test_a_race_that_is_none_is_counted_and_said(
    sanitize: ModuleType, messages: str, errors: int, returncode: int, results: str, status: str
) -> None:
    output = f"========= COMPUTE-SANITIZER\n{messages}{results}{RACE.format(errors)}"
    found, detail = sanitize.judge("racecheck", returncode, output, sanitize.ACCEPTED)
    assert found == status and sanitize.is_clean(found) == (not detail) == status.startswith("clean")
    assert not sanitize.is_clean(sanitize.judge("racecheck", returncode, output)[0])


def test_the_places_of_false_races_are_in_the_headers(sanitize: ModuleType) -> None:
    headers = {path.name: path.read_text() for path in include_dir().rglob("*.cuh")}
    for limitation in sanitize.ACCEPTED:
        for place in (limitation.reads, limitation.writes):
            function, header = re.fullmatch(r"(\w+)\.\* in (\w+)\\\.cuh:\\d\+", place).groups()
            assert f"{function}(" in headers[f"{header}.cuh"], place


def test_the_reproducer_compiles_in_both_forms_and_they_differ() -> None:
    limits = load_script("sanitize_limits")
    cubins = set()
    for form in (limits.MISJUDGED, limits.JUDGED):
        made = limits.compile_reproducer(form)
        assert made.resources.spill_store_bytes == 0 and not made.warnings
        cubins.add(made.cubin)
    assert len(cubins) == 2


def test_kernels_are_built_with_their_lines_and_only_then(sanitize: ModuleType) -> None:
    before = job.compile_options("sm_90a")
    with sanitize.lines_named():
        assert job.compile_options("sm_90a") == (*before, "-lineinfo")
    assert job.compile_options("sm_90a") == before


def stand_in(directory: Path, script: str) -> str:
    """A compute-sanitizer that is this shell script; its options are the tool's, python, the runner and its own."""
    path = directory / "compute-sanitizer"
    path.write_text(f'#!/bin/sh\ntool=$2\nfor last; do :; done\necho "$*" >>{directory}/log\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_a_tool_that_hangs_is_stopped_and_what_it_said_is_kept(sanitize: ModuleType, tmp_path: Path) -> None:
    hangs = stand_in(tmp_path, "echo so far\nexec sleep 60")
    status, detail = sanitize.examine(hangs, "memcheck", ["0"], timeout=1.0)
    assert status == "no end within 1 s" and detail == "so far"


def test_only_our_kernels_are_instrumented_and_tensors_have_their_own_memory(
    sanitize: ModuleType, tmp_path: Path
) -> None:
    tool = stand_in(tmp_path, 'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING" >>' + f"{tmp_path}/log")
    sanitize.examine(tool, "racecheck", ["3,4"], timeout=10.0)
    asked, caching = (tmp_path / "log").read_text().splitlines()
    assert "--tool racecheck" in asked and "kne=fp8gemm_kernel" in asked and asked.endswith("sanitize_kernels.py 3,4")
    assert caching == "1"


SUMMARY = 'echo "========= ERROR SUMMARY: {} errors"'
MISJUDGES = f'case "$*" in *one-arrives*) echo "{RIGHT.strip()}"; {SUMMARY.format(1)}; exit 86;; esac\n'
SEES = MISJUDGES + f'case "$*" in *--control*) {SUMMARY.format(2)}; exit 86;; esac\n'
ALL_RIGHT = f"echo '{RIGHT.strip()}'\n{SUMMARY.format(0)}"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (SEES + ALL_RIGHT, {"clean"}),
        # One kernel is at fault: found alone, and the others are clean.
        (SEES + f'case "$last" in *1*) {SUMMARY.format(4)}; exit 86;; esac\n' + ALL_RIGHT, {"clean", "4 errors"}),
        # Together they are not clean, alone they are: that is said too.
        (SEES + f'case "$last" in *,*) {SUMMARY.format(5)}; exit 86;; esac\n' + ALL_RIGHT, {"clean", "5 errors"}),
        # A tool that sees nothing at all.
        (ALL_RIGHT, {"clean", "not seen: clean"}),
    ],
)
def test_each_kernel_gets_its_own_finding(
    sanitize: ModuleType, tmp_path: Path, script: str, expected: set[str]
) -> None:
    findings = list(sanitize.find(stand_in(tmp_path, script), "memcheck", (0, 1, 2), timeout=10.0))
    kernels = [sanitize.KERNELS[index] for index in (0, 1, 2)]
    assert [finding.kernel for finding in findings[:3]] == [kernel.label for kernel in kernels]
    assert {finding.status for finding in findings} == expected
    dirty = [finding for finding in findings if finding.status != "clean"]
    assert len(dirty) == len(expected) - 1
    assert all(finding.detail or finding.kernel == "planted fault" for finding in dirty)


FORM = 'case "$*" in *{}*) {}{}; exit 86;; esac\n'
SAYS_RIGHT = f"echo '{RIGHT.strip()}'; "


@pytest.mark.parametrize(
    ("script", "doubtful"),
    [
        (SEES + ALL_RIGHT, []),
        # The tool has learnt what it did not know.
        (ALL_RIGHT, ["one-arrives"]),
        # The kernel is wrong itself, so that it shows nothing.
        (FORM.format("one-arrives", "", SUMMARY.format(1)) + ALL_RIGHT, ["one-arrives"]),
        # The tool knows nothing of mbarriers at all.
        (SEES + FORM.format("every-lane", SAYS_RIGHT, SUMMARY.format(1)) + ALL_RIGHT, ["every-lane-arrives"]),
    ],
)
def test_racecheck_must_still_be_wrong_and_right_about_the_smallest_kernel(
    sanitize: ModuleType, tmp_path: Path, script: str, doubtful: list[str]
) -> None:
    findings = list(sanitize.find(stand_in(tmp_path, script), "racecheck", (0, 1), timeout=10.0))
    assert [finding.clean for finding in findings] == [True, True, *(False for _ in doubtful)]
    assert [finding.kernel for finding in findings[2:]] == [f"reproducer, {form}" for form in doubtful]


@pytest.fixture
def on_hopper(sanitize: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes main() find a Hopper GPU, its kernels built, and this compute-sanitizer; gives the path for its report."""

    def install(script: str) -> Path:
        ready = Diagnosis(DeviceStatus.READY, "")
        monkeypatch.setattr(sanitize, "diagnose", lambda index: ready)
        monkeypatch.setattr(sanitize, "build_many", lambda requests: None)
        monkeypatch.setattr(sanitize, "device_info", lambda index: type("Info", (), {"name": "NVIDIA H200"}))
        tool = stand_in(tmp_path, script)
        monkeypatch.setattr(sanitize.shutil, "which", lambda name: tool)
        return tmp_path / "report.json"

    return install


@pytest.mark.parametrize(("script", "code"), [(SEES + ALL_RIGHT, 0), (ALL_RIGHT, 1), ("exit 3", 1)])
def test_report_and_exit_code(
    sanitize: ModuleType, on_hopper: Callable[[str], Path], capsys: pytest.CaptureFixture[str], script: str, code: int
) -> None:
    path = on_hopper(script)
    assert sanitize.main(["--quick", "--json", str(path)]) == code
    found = json.loads(path.read_text())
    assert set(found) == {"gpu", "date", "commit", "headers", "findings", "limits"} and found["gpu"] == "NVIDIA H200"
    assert all(set(each) == {"tool", "kernel", "shape", "status"} for each in found["findings"])
    assert {each["tool"] for each in found["findings"]} == set(sanitize.TOOLS)
    assert (code == 0) == all(each["status"] == "clean" for each in found["findings"])
    printed = capsys.readouterr().out
    assert all(each["kernel"] in printed for each in found["findings"])
    assert "TMA" in found["limits"] and found["limits"] in printed
    assert all(each.reason in found["limits"] for each in sanitize.ACCEPTED)


def test_without_a_sanitizer_or_a_gpu_it_says_so(
    sanitize: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: None)
    assert sanitize.main([]) == 1 and "not on PATH" in capsys.readouterr().err
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: "compute-sanitizer")
    monkeypatch.setattr(sanitize, "diagnose", lambda index: Diagnosis(DeviceStatus.NO_GPU, "no GPU here"))
    assert sanitize.main([]) == 3 and "no GPU here" in capsys.readouterr().err
