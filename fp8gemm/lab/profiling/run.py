"""One shape under one config on this machine's GPU: measured, or its warp roles recorded."""

from __future__ import annotations

import datetime
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fp8gemm.driver.device import device_info
from fp8gemm.errors import InputError
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.graph import Telemetry
from fp8gemm.lab.bench.peers import kernel_call
from fp8gemm.lab.profiling import table
from fp8gemm.lab.profiling.counters import Counters, collect
from fp8gemm.lab.profiling.expected import Expected, expect
from fp8gemm.lab.profiling.sustained import operands_of, schedule_of, sustain
from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.lab.profiling.trace import summarise
from fp8gemm.lab.profiling.traced import TracedKernel
from fp8gemm.lab.provenance import provenance
from fp8gemm.tuning.hopper import Chip
from fp8gemm.writing import write_text

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCHES_BEFORE = 3
_NCU_SECONDS = 300.0
_WARM_LAUNCHES = 20
_TYPICAL_MHZ = 1500.0
"""Under load; for a launch too short to tell its clock, where the machine does not tell either."""


@dataclass(frozen=True)
class Subject:
    """What is looked at. Everything is printed as soon as it is known."""

    kernel: DenseKernel
    chip: Chip

    @property
    def shape(self) -> str:
        """MxNxK."""
        problem = self.kernel.problem
        return f"{problem.m}x{problem.n}x{problem.k}"

    @property
    def title(self) -> str:
        """One line."""
        ctas = self.kernel.grid(self.kernel.problem.m)
        return f"{self.shape} under {self.kernel.config.label} on {device_info(0).name}, {ctas} CTAs"

    def measure(self, seconds: float) -> dict[str, Any]:
        """Load for so long, then counters; print a table of each. Both as JSON."""
        expected = self._expected()
        run = sustain(self.kernel, self.chip, _generator(), seconds=seconds)
        lines = list(table.sustained_lines(self.kernel.problem, run, expected))
        print(f"\nsustained, {seconds:g} s of graph replay over {run.sets} operand sets\n{table.render(lines)}")
        read = self._counters()
        counted = list(table.counter_lines(read, expected))
        print(f"\none launch under ncu\n{table.render(counted) if counted else read.problem}", flush=True)
        if read.values and read.missing:
            print(f"not told by this ncu: {', '.join(read.missing)}")
        figures = {"sustained": table.as_json(lines), "counters": table.as_json(counted)}
        return {**self._heading(), **figures, "metrics": read.values, "problem": read.problem}

    def trace(self, cta: int, path: Path | None) -> tuple[Timeline, bool]:
        """Record one CTA's roles, print how they spent their time, write the trace to `path`.

        Returns:
            The timeline, and whether the instrumented kernel computed the same bytes as the normal one.

        Raises:
            InputError: the grid has no such CTA.
        """
        kernel = self.kernel
        if not 0 <= cta < kernel.grid(kernel.problem.m):
            raise InputError(f"--cta: expected 0 to {kernel.grid(kernel.problem.m) - 1}, got {cta}")
        traced = TracedKernel(kernel.problem, kernel.config, device_index=0, num_sms=self.chip.num_sms, cta=cta)
        # As many sets as for measuring, so that the recorded launch finds none of its own in L2.
        generator = _generator()
        operands = [operands_of(kernel, generator) for _ in range(schedule_of(kernel.problem, self.chip).sets)]
        calls = [kernel_call(traced, each) for each in operands]
        wanted = kernel_call(kernel, operands[0])()
        telemetry = Telemetry()
        for index in range(max(_WARM_LAUNCHES, len(calls))):
            calls[-1 - index % len(calls)]()
            telemetry.sample()
        for call in calls[1:]:
            call()
        traced.clear()
        out = calls[0]()
        recording = traced.recording()
        clock_mhz = telemetry.medians().get("sm_mhz") or _TYPICAL_MHZ
        timeline = Timeline.of(recording, {**self._heading(), "cta": cta}, clock_mhz)
        for summary in summarise(timeline.spans):
            print(summary.line())
        ideal = self._expected().cycles_per_k_block
        print(f"tensor work of a K block at full rate: {ideal:.0f} cycles; {timeline.clock_mhz:.0f} MHz")
        for role, count in recording.dropped.items():
            print(f"{role}: {count} marks found no room and are missing")
        if path is not None:
            write_text(path, json.dumps(timeline.as_json()) + "\n")
        same = torch.equal(out.view(torch.uint8), wanted.view(torch.uint8))
        print(f"result of the instrumented kernel: {'that' if same else 'NOT THAT'} of the normal one, byte for byte")
        return timeline, same

    def _expected(self) -> Expected:
        return expect(self.kernel.problem, self.kernel.config, self.chip)

    def _counters(self) -> Counters:
        worker = [sys.executable, "-m", "fp8gemm.lab.profiling.worker", self.shape, self.kernel.config.label]
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return collect(
            [*worker, str(_LAUNCHES_BEFORE + 1)],
            launches_before=_LAUNCHES_BEFORE,
            timeout=_NCU_SECONDS,
            env={"PYTHONPATH": path},
        )

    def _heading(self) -> dict[str, Any]:
        today = datetime.date.today().isoformat()
        what = {"shape": self.shape, "config": self.kernel.config.label}
        return {"gpu": device_info(0).name, "date": today, **provenance(), **what}


def _generator() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(0)
