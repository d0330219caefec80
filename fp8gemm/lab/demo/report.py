"""The demo's table, its last line, and its JSON. Nothing here computes or touches a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fp8gemm.jit.artifact import Artifact
from fp8gemm.lab.demo.check import Check
from fp8gemm.quoting import counted
from fp8gemm.terminal.table import Cell, Column, Group, Painted, Table
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import Config

NO_FIGURE = "-"


@dataclass(frozen=True)
class Row:
    """One product.

    Attributes:
        problem: the shape that the kernel was chosen for.
        config: how that kernel divides it.
        shared_bytes: of shared memory per CTA.
        artifact: the kernel.
        check: of the result.
        rows_checked: rows of the result; fewer than M on the reference backend.
        us: microseconds per call, None where nothing was timed.
    """

    problem: Problem
    config: Config
    shared_bytes: int
    artifact: Artifact
    check: Check
    rows_checked: int
    us: float | None

    @property
    def spill_bytes(self) -> int:
        """Bytes per thread that the kernel moves to local memory and back because it lacks registers."""
        return self.artifact.resources.spill_store_bytes + self.artifact.resources.spill_load_bytes

    @property
    def tflops(self) -> float | None:
        """10^12 floating-point operations a second."""
        return None if self.us is None else self.problem.flops / self.us / 1e6

    @property
    def gigabytes_per_second(self) -> float | None:
        """10^9 bytes a second, each input read once and the output written once."""
        return None if self.us is None else self.problem.bytes / self.us / 1e3

    def as_json(self) -> dict[str, Any]:
        """Every figure, with what the table leaves out."""
        return {
            "m": self.problem.m,
            "n": self.problem.n,
            "k": self.problem.k,
            "config": asdict(self.config),
            "kernel": self.artifact.request.label,
            "key": self.artifact.key,
            "source": self.artifact.source,
            "build_seconds": self.artifact.seconds,
            "nvrtc_version": self.artifact.nvrtc_version,
            "registers": self.artifact.resources.registers,
            "spill_bytes": self.spill_bytes,
            "shared_bytes": self.shared_bytes,
            "warnings": list(self.artifact.warnings),
            "us": self.us,
            "tflops": self.tflops,
            "gigabytes_per_second": self.gigabytes_per_second,
            "rows_checked": self.rows_checked,
            "reference_error": _finite(self.check.reference_error),
            "bf16_error": _finite(self.check.bf16_error),
            "elements_outside": self.check.outside,
            "ok": self.check.passed,
            "failures": list(self.check.failures()),
        }


_COLUMNS: dict[Column, Callable[[Row], Cell]] = {
    Column("M", 5): lambda row: str(row.problem.m),
    Column("N", 5): lambda row: str(row.problem.n),
    Column("K", 5): lambda row: str(row.problem.k),
    Column("config", 18): lambda row: row.config.label,
    Column("regs"): lambda row: str(row.artifact.resources.registers),
    Column("spills"): lambda row: str(row.spill_bytes),
    Column("smem KB"): lambda row: str(row.shared_bytes // 1024),
    Column("compile s"): lambda row: _compile_time(row.artifact),
    Column("us", 7): lambda row: _figure(row.us, 1),
    Column("TFLOPS"): lambda row: _figure(row.tflops, 0 if (row.tflops or 0) >= 100 else 1),
    Column("GB/s", 5): lambda row: _figure(row.gigabytes_per_second, 0),
    Column("rel. error"): lambda row: f"{row.check.reference_error:.2e}",
    Column("vs bf16", 8): lambda row: f"{row.check.bf16_error:.2e}",
    Column("ok", 3): lambda row: Painted("yes", "green") if row.check.passed else Painted("NO", "red"),
}

LEGEND = (
    "config: tile M x N, stages, cluster M x N; of swapped operands: tile M x N, depth, CTAs that divide K. spills: "
    "bytes a thread. compile s: cache, where the kernel lay there before; reused, where a row above has it. rel. "
    "error: RMS against the float64 product of the dequantised operands; vs bf16: against the unquantised product."
)


class RowTable:
    """One row per product."""

    def __init__(self) -> None:
        self._table = Table(Group(tuple(_COLUMNS)), gap="  ")
        self.header = self._table.header

    def line(self, row: Row) -> str:
        """A row, and below it what is wrong with it."""
        warned = [f"the assembler warns of {', '.join(row.artifact.warnings)}"] if row.artifact.warnings else []
        remarks = map(self._table.remark, [*row.check.failures(), *warned])
        return "\n".join([self._table.line(*(text(row) for text in _COLUMNS.values())), *remarks])


@dataclass(frozen=True)
class Summary:
    """What came of all rows.

    Attributes:
        passed, failed: checks.
        compiled: kernels that were compiled now.
        from_cache: kernels that were ready before.
        cache: directories that hold these kernels; none if they are in memory alone.
    """

    passed: int
    failed: int
    compiled: int
    from_cache: int
    cache: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        """Count. A kernel that several rows share counts once, for what the first of them found."""
        kernels = {row.artifact.key: row.artifact for row in reversed(rows)}.values()
        passed = sum(row.check.passed for row in rows)
        compiled = sum(map(_is_compiled, kernels))
        places = {str(kernel.directory.parent) for kernel in kernels if kernel.directory is not None}
        return cls(passed, len(rows) - passed, compiled, len(kernels) - compiled, tuple(sorted(places)))

    def __str__(self) -> str:
        checks = f"{self.passed} of " * (self.failed > 0) + counted(self.passed + self.failed, "check")
        where = f"in {', '.join(self.cache)}" if self.cache else "this process's memory alone"
        return (
            f"{checks} passed, {counted(self.compiled, 'kernel')} compiled, "
            f"{self.from_cache} from the cache; the cache is {where}"
        )


def _is_compiled(artifact: Artifact) -> bool:
    return artifact.source == "compiled"


def _compile_time(artifact: Artifact) -> str:
    """Seconds, or where the kernel was without them: what is in this process's memory a row above has brought there."""
    without = {"disk": "cache", "memory": "reused"}
    return without.get(artifact.source, f"{artifact.seconds:.2f}")


def _figure(value: float | None, digits: int) -> str:
    return NO_FIGURE if value is None else f"{value:.{digits}f}"


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
