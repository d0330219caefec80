"""Runs fp8gemm.gemm on small shapes under compute-sanitizer's tools and prints what they found. Runs from a checkout.

Exit code 0: all clean. 1: errors, a wrong result, a crash or a time-out. 2: no compute-sanitizer or no Hopper GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
# Whole tiles; tails everywhere, with an odd N that forbids a TMA store; several tiles and K blocks.
SHAPES = "64x128x256,65x100x144,300x576x512"
MAX_RELATIVE_ERROR = 2.5e-3
PASSED = "sanitize: the result is right"
EXIT_ERRORS, EXIT_CANNOT_RUN = 1, 2

_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")


@dataclass(frozen=True)
class Finding:
    """Outcome of one tool on one shape.

    Attributes:
        shape: MxNxK.
        status: "clean", "N errors", or what kept the tool from judging.
        detail: the end of the output where the status is not "clean".
    """

    tool: str
    shape: str
    status: str
    detail: str = ""


def judge(tool: str, shape: str, returncode: int, output: str) -> Finding:
    """Read a tool's output. Clean needs all three: its summary without errors, exit code 0, and the right result."""
    tail = "\n".join(output.strip().splitlines()[-40:])
    counts = [int(count) for groups in _SUMMARY.findall(output) for count in groups if count]
    if not counts:
        return Finding(tool, shape, f"no summary, exit code {returncode}", tail)
    if sum(counts):
        return Finding(tool, shape, f"{sum(counts)} errors", tail)
    if returncode or PASSED not in output:
        return Finding(tool, shape, f"wrong result or crash, exit code {returncode}", tail)
    return Finding(tool, shape, "clean")


def examine(sanitizer: str, tool: str, shape: str, *, timeout: float) -> Finding:
    """Run one shape under one tool in a process of its own."""
    from fp8gemm.jit.render import ENTRY

    command = [sanitizer, "--tool", tool, "--error-exitcode", "86", "--report-api-errors", "no"]
    # Our kernel alone: torch's own kernels are not ours to judge, and instrumenting them takes most of the time.
    command += ["--kernel-name", f"kne={ENTRY}", sys.executable, str(Path(__file__).resolve()), "--run", shape]
    # NOTE: torch's caching allocator hands out parts of large blocks, which hides accesses past a tensor's end.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return Finding(tool, shape, f"no end within {timeout:g} s")
    return judge(tool, shape, done.returncode, done.stdout)


def run_shape(shape: str) -> int:
    """What runs under the tool: one gemm, compared with the reference on the CPU."""
    import torch

    import fp8gemm
    from fp8gemm.benchmark.command import parse_mnk
    from fp8gemm.benchmark.peers import relative_error
    from fp8gemm.reference import gemm_reference

    m, n, k = parse_mnk(shape)
    torch.manual_seed(m * n + k)
    operands = (
        *fp8gemm.quantize_activation(torch.randn(m, k).cuda()),
        *fp8gemm.quantize_weight(torch.randn(n, k).cuda()),
    )
    result = fp8gemm.gemm(*operands).cpu()
    expected = gemm_reference(*(operand.cpu() for operand in operands), out_dtype=torch.float64)
    error = relative_error(result, expected)
    if not error <= MAX_RELATIVE_ERROR:
        print(f"sanitize: relative error {error:.3g}, expected at most {MAX_RELATIVE_ERROR}")
        return EXIT_ERRORS
    print(PASSED)
    return 0


def table(findings: Sequence[Finding]) -> str:
    """Tools down, shapes across."""
    shapes = list(dict.fromkeys(finding.shape for finding in findings))
    cells = {(finding.tool, finding.shape): finding.status for finding in findings}
    width = max(len(text) for text in [*shapes, *cells.values()])
    lines = [" ".join([f"{'':<10}", *(f"{shape:>{width}}" for shape in shapes)])]
    for tool in dict.fromkeys(finding.tool for finding in findings):
        lines.append(" ".join([f"{tool:<10}", *(f"{cells[tool, shape]:>{width}}" for shape in shapes)]))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run every tool on every shape, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default="memcheck,synccheck", help=f"among {','.join(TOOLS)}")
    parser.add_argument("--shapes", default=SHAPES, metavar="MxNxK,...", help=f"default {SHAPES}")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one tool on one shape, default 180")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the findings here")
    parser.add_argument("--run", metavar="MxNxK", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.run:
        return run_shape(options.run)
    tools = options.tools.split(",")
    if unknown := sorted(set(tools) - set(TOOLS)):
        parser.error(f"--tools: expected some of {', '.join(TOOLS)}, got {', '.join(unknown)}")

    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("sanitize: compute-sanitizer is not on PATH; it is part of the CUDA toolkit")
        return EXIT_CANNOT_RUN
    from fp8gemm.driver.device import DeviceStatus, diagnose

    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        print(f"sanitize: {diagnosis.message}")
        return EXIT_CANNOT_RUN

    findings = []
    for tool in tools:
        for shape in options.shapes.split(","):
            findings.append(examine(sanitizer, tool, shape, timeout=options.timeout))
            if findings[-1].status != "clean":
                print(f"{tool} {shape}: {findings[-1].status}\n{findings[-1].detail}", flush=True)
    print(table(findings))
    if options.json:
        options.json.write_text(json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    return EXIT_ERRORS if any(finding.status != "clean" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
