"""Hardware counters of one launch, read by Nsight Compute (``ncu``) in a process of its own."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fp8gemm.jit.render import ENTRY

DURATION = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
ACTIVE_CYCLES = "sm__cycles_active.avg"
TENSOR_ACTIVE = (
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
TENSOR_INSTRUCTIONS = ("sm__inst_executed_pipe_tensor_op_gmma.sum", "sm__inst_executed_pipe_tensor.sum")
ISSUE_ACTIVE = "sm__inst_issued.avg.pct_of_peak_sustained_active"
TO_SM = "l1tex__m_xbar2l1tex_read_bytes.sum"
TO_SM_TMA = "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"
FROM_SM = "l1tex__m_l1tex2xbar_write_bytes.sum"
L2_BYTES = "lts__t_bytes.sum"
L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
DRAM_READ, DRAM_WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"

# Names differ between versions of ncu, so more are asked for than one version has.
METRICS = (
    DURATION,
    CYCLES,
    ACTIVE_CYCLES,
    *TENSOR_ACTIVE,
    *TENSOR_INSTRUCTIONS,
    ISSUE_ACTIVE,
    TO_SM,
    TO_SM_TMA,
    FROM_SM,
    L2_BYTES,
    L2_HIT_RATE,
    DRAM_READ,
    DRAM_WRITE,
)
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active")
_STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
_NO_STALLS = ("selected", "not_selected")

_UNITS = {
    **dict.fromkeys(("ns", "nsecond"), 1e-3),
    **dict.fromkeys(("ms", "msecond"), 1e3),
    **dict.fromkeys(("s", "second"), 1e6),
    **{"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9},
}
"""Times become microseconds, and sizes bytes."""


@dataclass(frozen=True)
class Counters:
    """What was read.

    Attributes:
        values: by metric; times in microseconds, sizes in bytes, shares in percent.
        missing: metrics that were asked for in vain.
        problem: why there are no values, empty if there are.
    """

    values: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    problem: str = ""

    def first(self, names: Sequence[str]) -> float | None:
        """The value of the first of these metrics that there is."""
        return next((self.values[name] for name in names if name in self.values), None)

    def stalls(self) -> list[tuple[str, float]]:
        """Why warps that could not issue did not, and the share of each reason, largest first."""
        found = {match[1]: value for name, value in self.values.items() if (match := _STALL.match(name))}
        waits = {reason: value for reason, value in found.items() if reason not in _NO_STALLS}
        total = sum(waits.values())
        return sorted(((reason, value / total) for reason, value in waits.items() if value), key=lambda each: -each[1])


def collect(worker: Sequence[str], *, launches_before: int, timeout: float, env: Mapping[str, str]) -> Counters:
    """Run a program under ncu and read the counters of one launch of our kernel.

    ncu replays that launch, some counters at a time, and empties the caches before each replay.

    Args:
        worker: the program and its arguments.
        launches_before: launches of the kernel to let pass.
        timeout: seconds.
        env: variables that the program needs, beside those that there are.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        return Counters(problem="ncu is not on PATH; it is part of the CUDA toolkit (Nsight Compute)")
    metrics = available(ncu)
    # NOTE: locked clocks would change other programs' speed, and are not those of real load.
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(metrics), "-k", f"regex:{ENTRY}"]
    command += ["--launch-skip", str(launches_before), "--launch-count", "1", *worker]
    try:
        done = _run(command, timeout, env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Counters(problem=f"ncu did not finish: {error}")
    values = parse(done.stdout)
    if not values:
        return Counters(problem=_complaint(done))
    return Counters(values, tuple(name for name in metrics if name not in values))


def available(ncu: str) -> tuple[str, ...]:
    """What to ask for: of ours the metrics that this ncu knows, and its stall reasons; all of ours if it tells none."""
    try:
        listed = _run([ncu, "--query-metrics", "--chips", "gh100"], 120.0, {}).stdout
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    known = set(re.findall(r"^\"?([a-z]\w*__\w+)", listed, re.MULTILINE))
    if not known:
        reasons = (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in _STALLS)
        return (*METRICS, *reasons)
    stalls = sorted(f"{name}.ratio" for name in known if _STALL.fullmatch(name))
    return (*(name for name in METRICS if name.split(".")[0] in known), *stalls)


def parse(output: str) -> dict[str, float]:
    """The last launch in ncu's CSV of raw metrics: names in the first row, units in the second; what is no number is
    left out. Also takes the form with one row per metric."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    names, *rows = csv.reader(lines[start:])
    if "Metric Name" in names:
        places = [names.index(each) for each in ("Metric Name", "Metric Unit", "Metric Value")]
        triples = [tuple(row[place] for place in places) for row in rows if len(row) == len(names)]
    elif len(rows) < 2:
        return {}
    else:
        triples = list(zip(names, rows[0], rows[-1], strict=False))
    values = {}
    for name, unit, text in triples:
        if "__" in name and (number := _number(text)) is not None:
            values[name] = number * _UNITS.get(unit, 1.0)
    return values


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _run(command: Sequence[str], timeout: float, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **env, "LC_ALL": "C"},  # numbers with points
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        text=True,
        errors="replace",
    )


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What ncu says went wrong, else the end of its output."""
    lines = done.stdout.strip().splitlines()
    errors = [line for line in lines if line.startswith("==ERROR==")] or lines[-3:]
    return f"ncu gave no counters, exit code {done.returncode}: {' '.join(errors) or 'no output'}"
