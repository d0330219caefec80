"""Runs every family of kernels on small shapes under compute-sanitizer's tools and says what they found, by kernel.

A tool runs all kernels in one process; if it is not clean, or not done in time, each again by itself. Memcheck and
initcheck must also see a fault that is planted for them. Runs from a checkout.

Exit code 0: all clean. 1: errors, a wrong result, a crash, a time-out, or no compute-sanitizer. 2: bad arguments.
3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from sanitize_kernels import CONTROLLED, KERNELS, PASSED, QUICK, lines_named  # noqa: E402
from sanitize_limits import CLIPPED_STORE, JUDGED, MISJUDGED, Limitation  # noqa: E402

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, json_file, note, tell, tell_json  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, device_info, diagnose  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.jit.render import ENTRY  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.terminal.progress import bar  # noqa: E402
from fp8gemm.terminal.table import Cell, Column, Painted, Table, fitted  # noqa: E402

TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
CLEAN = "clean"
EXIT_FOUND = 86
WORKERS = 8

ACCEPTED: tuple[Limitation, ...] = (CLIPPED_STORE,)
"""What racecheck is known to be wrong about. Each run shows on the smallest such kernel that it still is."""

LIMITS = " ".join(
    [
        "What the tools cannot see: TMA and WGMMA access memory through the async proxy, which memcheck, racecheck and",
        "initcheck do not track, and racecheck does not see what stmatrix writes. So a clean report is about ordinary",
        "loads and stores (scales of blocks, C, bias, staged and element-wise outputs) and about barriers. The rest is",
        "covered by canaries around outputs, by NaN before and around all operands, and by the stress test.",
        *(f"False races: {each.reason}." for each in ACCEPTED),
    ]
)


@dataclass(frozen=True)
class Finding:
    """Outcome of one tool on one kernel.

    Attributes:
        kernel, shape: its label without N and K, and MxNxK.
        status: "clean", "clean but for N false races", "N errors", or what kept the tool from judging.
        detail: the end of the output where the kernel is not clean.
    """

    tool: str
    kernel: str
    shape: str
    status: str
    detail: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong with the kernel."""
        return is_clean(self.status)


_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")


def judge(tool: str, returncode: int, output: str, accepted: Sequence[Limitation] = ()) -> tuple[str, str]:
    """Status and detail of a tool's output. Clean needs all: its summary without errors, exit code 0, right results."""
    tail = "\n".join(output.strip().splitlines()[-40:])
    counts = [int(count) for groups in _SUMMARY.findall(output) for count in groups if count]
    if not counts:
        return f"no summary, exit code {returncode}", tail
    false = sum(any(each.explains(message) for each in accepted) for message in _messages(output))
    errors = sum(counts) - false
    if errors > 0:
        return f"{errors} errors", tail
    allowed = (0, EXIT_FOUND) if false else (0,)
    if returncode not in allowed or PASSED not in output:
        return f"wrong result or crash, exit code {returncode}", tail
    return f"{CLEAN} but for {false} false race{'s' * (false > 1)}" if false else CLEAN, ""


def is_clean(status: str) -> bool:
    """Whether a status of `judge` is about a kernel without errors."""
    return status == CLEAN or status.startswith(f"{CLEAN} but")


def _messages(output: str) -> list[str]:
    """The tool's messages; the lines after a message's first are further in."""
    return re.findall(r"^========= \S.*(?:\n=========  +\S.*)*", output, re.MULTILINE)


def examine(sanitizer: str, tool: str, arguments: Sequence[str], *, timeout: float) -> tuple[str, str]:
    """Run sanitize_kernels.py with these arguments under a tool, in a process of its own; status and detail."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(EXIT_FOUND), "--report-api-errors", "no"]
    # Our kernels alone: torch's are not ours to judge, and instrumenting them takes most of the time.
    command += ["--print-limit", "10000", "--kernel-name", f"kne={ENTRY}"]
    # NOTE: torch's caching allocator hands out parts of large blocks, which hides accesses past a tensor's end.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            [*command, sys.executable, str(HERE / "sanitize_kernels.py"), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        partial = error.stdout or b""
        text = partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        return f"no end within {timeout:g} s", "\n".join(text.splitlines()[-40:])
    return judge(tool, done.returncode, done.stdout, ACCEPTED if tool == "racecheck" else ())


def find(sanitizer: str, tool: str, indices: Sequence[int], *, timeout: float) -> Iterator[Finding]:
    """One tool on these kernels, all together and, if that is not clean, each alone."""
    together = examine(sanitizer, tool, [",".join(map(str, indices))], timeout=timeout)
    alone: Iterable[tuple[str, str]] = [together] * len(indices)
    with ThreadPoolExecutor(WORKERS) as pool:
        if together[0] != CLEAN:
            alone = pool.map(lambda index: examine(sanitizer, tool, [str(index)], timeout=timeout), indices)
        all_clean = True
        for index, (status, detail) in zip(indices, alone, strict=True):
            kernel = KERNELS[index]
            finding = Finding(tool, kernel.label, kernel.shape, status, detail)
            all_clean &= finding.clean
            yield finding
    if all_clean and not is_clean(together[0]):
        yield Finding(tool, "all in one process", "", *together)
    if tool in CONTROLLED:
        status, detail = examine(sanitizer, tool, ["--control", tool], timeout=timeout)
        if not re.fullmatch(r"\d+ errors", status):
            yield Finding(tool, "planted fault", "", f"not seen: {status}", detail)
    if tool == "racecheck":
        yield from doubt(sanitizer, timeout=timeout)


def doubt(sanitizer: str, *, timeout: float) -> Iterator[Finding]:
    """What keeps `ACCEPTED` from being accepted: racecheck is not wrong, or not right, where it was."""
    for form, expected in ((MISJUDGED, r"\d+ errors"), (JUDGED, CLEAN)):
        status, detail = examine(sanitizer, "racecheck", ["--reproduce", form], timeout=timeout)
        if not re.fullmatch(expected, status) or (detail and PASSED not in detail):
            yield Finding("racecheck", f"reproducer, {form}", "", f"expected {expected}: {status}", detail)


def table(findings: Sequence[Finding]) -> str:
    """Kernels down, tools across."""
    tools = list(dict.fromkeys(finding.tool for finding in findings))
    rows = list(dict.fromkeys((finding.kernel, finding.shape) for finding in findings))
    cells = {(finding.kernel, finding.shape, finding.tool): finding.status for finding in findings}
    drawn: list[list[Cell]] = []
    for row in rows:
        found = [cells.get((*row, tool), "-") for tool in tools]
        verdicts = [Painted(status, "green" if is_clean(status) else "red") for status in found]
        drawn.append([" ".join(row).rstrip(), *verdicts])
    printed = Table(fitted([Column(left=True), *map(Column, tools)], drawn))
    return "\n".join([printed.header(), *(printed.line(*row) for row in drawn)])


def report(findings: Sequence[Finding], gpu: str) -> dict[str, Any]:
    """The result."""
    rows = [{name: value for name, value in asdict(each).items() if name != "detail"} for each in findings]
    today = datetime.date.today().isoformat()
    return {"gpu": gpu, "date": today, **provenance(), "findings": rows, "limits": LIMITS}


def run_tools(sanitizer: str, tools: Sequence[str], indices: Sequence[int], *, timeout: float) -> list[Finding]:
    """Every tool on these kernels, all tools at once; what is not clean is told at once."""
    with bar(len(tools) * len(indices), "verdicts") as progress, ThreadPoolExecutor(len(tools)) as pool:

        def found_by(tool: str) -> list[Finding]:
            findings = []
            for finding in find(sanitizer, tool, indices, timeout=timeout):
                findings.append(finding)
                progress.update()
                if not finding.clean:
                    told = f"{tool} {finding.kernel} {finding.shape}: {finding.status}\n{finding.detail}"
                    progress.write(told, file=sys.stderr)
            return findings

        return [finding for of_tool in pool.map(found_by, tools) for finding in of_tool]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run every tool on every kernel, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS), help="some of them, with commas; all by default")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} kernels instead of {len(KERNELS)}")
    parser.add_argument("--timeout", type=float, help="seconds of one process under a tool, default 300; --quick: 90")
    add_json(parser)
    options = parser.parse_args(argv)
    tools = options.tools.split(",")
    if unknown := sorted(set(tools) - set(TOOLS)):
        parser.error(f"--tools: expected some of {', '.join(TOOLS)}, got {', '.join(unknown)}")

    if file := json_file(options):
        file.parent.mkdir(parents=True, exist_ok=True)  # now, not after minutes

    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        note("sanitize: compute-sanitizer is not on PATH; it is part of the CUDA toolkit")
        return Exit.FAILED
    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        note(f"sanitize: {diagnosis.message}")
        return Exit.NO_GPU
    indices = QUICK if options.quick else tuple(range(len(KERNELS)))
    # Here, because compiling under a tool takes far longer.
    with lines_named():
        build_many([KERNELS[index].request for index in indices])

    findings = run_tools(sanitizer, tools, indices, timeout=options.timeout or (90.0 if options.quick else 300.0))
    tell(options, f"{table(findings)}\n\n{LIMITS}")
    tell_json(options, report(findings, device_info(0).name))
    return Exit.DONE if all(finding.clean for finding in findings) else Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
