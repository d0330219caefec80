"""Runs the tests of a fault apart from all others, and tells how they ended."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass

from tests.gpu.faults.table import ROOT, Fault
from tests.isolation import run_pytest

PASSED = "passed"


@dataclass(frozen=True)
class Outcome:
    """How the tests of a fault ended.

    Attributes:
        tests: how many passed.
        seconds: from start to end.
        result: begins with "passed" if all that ran passed, and some did; with "skipped" if none ran.
        detail: the end of their output.
    """

    fault: Fault
    tests: int
    seconds: float
    result: str
    detail: str = ""

    @property
    def row(self) -> dict[str, object]:
        """For the result file."""
        what = {"number": self.fault.number, "what": self.fault.what}
        return {**what, "tests": self.tests, "seconds": round(self.seconds, 1), "result": self.result}


def run(fault: Fault, *, seed: int) -> Outcome:
    """Run all tests of a fault with this seed for their data; kill them with all they started when the time is over."""
    environment = os.environ | {"FP8GEMM_TEST_SEED": str(seed)}
    ended = run_pytest(["-q", "--tb=short", *fault.nodes], cwd=ROOT, environment=environment, limit_s=fault.limit_s)
    tests, result = judge(ended.code, ended.report, limit_s=fault.limit_s)
    return Outcome(fault, tests, ended.seconds, result, "\n".join(ended.log.strip().splitlines()[-100:]))


def judge(code: int | None, report: ElementTree.ElementTree | None, *, limit_s: float) -> tuple[int, str]:
    """How many tests passed, and the result in words.

    Args:
        code: pytest's exit code, None if it was killed when the time was over.
        report: what it wrote as JUnit XML, None if it did not come to that.
    """
    if code is None:
        return 0, f"no end within {limit_s:g} s"
    if report is None:
        return 0, f"pytest died with code {code}"
    ran = list(report.iter("testcase"))
    failed = [case for case in ran if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in ran if case.find("skipped") is not None]
    passed = len(ran) - len(failed) - len(skipped)
    if failed or (code and not (code == 5 and not ran)):
        return passed, f"{len(failed)} of {len(ran)} failed, exit code {code}"
    reasons = "; ".join(dict.fromkeys(_reason(case) for case in skipped))
    if not passed:
        return 0, f"skipped: {reasons or 'no tests'}"
    return passed, f"{PASSED}, {len(skipped)} skipped: {reasons}" if skipped else PASSED


def _reason(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    return "" if skipped is None else skipped.get("message", "")


def table(outcomes: Iterable[Outcome]) -> str:
    """A line for each fault."""
    return "\n".join(
        f"{each.fault.number:>3}  {each.fault.what:<70} {each.tests:>5} tests {each.seconds:>6.1f} s  {each.result}"
        for each in outcomes
    )
