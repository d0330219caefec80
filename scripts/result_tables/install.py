"""The wheel beside each torch and under each Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from result_tables.markdown import MISSING, Result, table


def matrix(result: Result) -> list[str]:
    """A row for each torch and Python, below them those that could not be had, then what was skipped."""
    rows = result["rows"]
    commands = ", ".join(f"`{command.removesuffix(' --json')}`" for command in result["commands"])
    heads = ["torch", "Python", "import, ms", "NVRTC", "demo", "warmups", "tests", "failed", "skipped", "seconds"]
    return [
        f"{result['cpu']}, {result['cores']} processors, no GPU. Milliseconds are those of `import fp8gemm` with torch "
        f"imported; NVRTC, that of a process with torch. Commands: {commands}; the demo's checks, and the kernels "
        f"by the NVRTC that compiled them. Tests that passed, failed and were skipped are {', '.join(_files(rows))}. "
        f"A row with `{MISSING}` ran without them. Seconds: the whole row, with the installation, beside other work.",
        "",
        *table(heads, [_row(row) for row in rows if row["problem"] is None]),
        "",
        *_left_out(rows),
    ]


def _row(row: dict[str, Any]) -> list[str]:
    warmups = sorted((row["warmup"], row["other_warmup"]), key=lambda step: float(step["nvrtc"]))
    steps = [step for step in row.values() if isinstance(step, dict)]
    tests = row.get("tests", {})
    return [
        row["import"]["torch"],
        row["python_version"],
        f"{row['import']['milliseconds']:.0f}",
        row["info"]["nvrtc"],
        f"{row['demo']['passed']} of {row['demo']['passed'] + row['demo']['failed']}",
        ", ".join(f"{step['kernels']} by {step['nvrtc']}" for step in warmups),
        *(str(tests.get(name, MISSING)) for name in ("passed", "failed", "skipped")),
        f"{sum(step['seconds'] for step in steps):.0f}",
    ]


def _left_out(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What failed, what could not be had, and why tests were skipped."""
    for row in rows:
        name = f"Python {row['python']} with torch {row['torch']}"
        if row["problem"] is not None:
            yield f"- {name} could not be tested: {row['problem']}."
        yield from (f"- {name}: `{test}` failed." for test in row.get("tests", {}).get("failures", []))
    reasons = {reason for row in rows for reason in row.get("tests", {}).get("reasons", {})}
    yield from (f"- Skipped: {reason}." for reason in sorted(reasons))
    if not any(row.get("tests", {}).get("failures") or row["problem"] for row in rows):
        yield "- Nothing failed, and every row could be had."


def _files(rows: list[dict[str, Any]]) -> list[str]:
    words: list[str] = next((row["tests"]["words"] for row in rows if "tests" in row), [])
    return [f"`{re.sub('^tests/unit/test_|[.]py$', '', word)}`" for word in words if not word.startswith("--")]
