"""Runs the tests of a mutant apart from all others, and tells how they ended."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.isolation import run_pytest
from tests.mutations.mutant import Caught, Mutant

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240.0
"""For all tests of a mutant that a hang keeps from their end."""
SLOW_S = 580.0
"""For those that tell a hang themselves, and compile many kernels first; so do the controls, which are all of them."""
TELL_HANGS = frozenset({"test_release_order.py", "test_stress.py", "test_stress_grouped.py"})
"""Whose tests await launches for some seconds only, and then say `HANG_MARK`. If one is killed, it was slow, or still
compiling its kernels; that proves nothing."""

HANG_MARK = "the GPU hangs"
"""Begins the message of a test that has noticed a hang by itself."""

_CUDA_ERROR = re.compile(r"CUDA error|CUDA_ERROR_|AcceleratorError|DriverError")
_ASSERTION = re.compile(r"AssertionError|assert |Failed: ")


@dataclass(frozen=True)
class Outcome:
    """How tests ended.

    Attributes:
        how: by what they noticed a fault; None if they passed, or proved nothing.
        problem: why they prove nothing; empty otherwise.
        test: the one that failed, or that ran when the time was over.
        detail: the end of its message.
        seconds: from start to end.
    """

    how: Caught | None
    problem: str
    test: str
    detail: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.how is None and not self.problem

    def __str__(self) -> str:
        said = self.how.value if self.how else self.problem or "passed"
        return f"{said} after {self.seconds:.0f} s, {self.test or 'no test'}\n{self.detail}".rstrip()


def run_mutant(mutant: Mutant) -> Outcome:
    """Run the tests of a mutant, or of a control, until one fails."""
    limit_s = SLOW_S if any(tells_hangs(test) for test in mutant.tests) else LIMIT_S
    options = [*(["--mutant", mutant.name] if mutant.edits else []), *(["--chaos"] if mutant.chaos else [])]
    return run_tests([*options, *mutant.tests], cwd=ROOT, limit_s=limit_s)


def run_tests(arguments: Sequence[str], *, cwd: Path, limit_s: float) -> Outcome:
    """Run pytest with these arguments, until a test fails; kill it with all it has started when the time is over."""
    # Verbose, because a test that hangs is then named before; and what a dying driver says must not be captured.
    options = ["-x", "-v", "--capture=sys"]
    # A faulty kernel's figures are nobody's results.
    environment = {name: value for name, value in os.environ.items() if name != "FP8GEMM_TEST_REPORT_DIR"}
    ended = run_pytest([*options, *arguments], cwd=cwd, environment=environment, limit_s=limit_s)
    return classify(ended.code, ended.log, ended.report, seconds=ended.seconds)


def tells_hangs(test: str) -> bool:
    """Whether the test of this node id notices by itself that the GPU hangs."""
    return Path(test.partition("::")[0]).name in TELL_HANGS


def classify(code: int | None, log: str, report: ElementTree.ElementTree | None, *, seconds: float) -> Outcome:
    """Judge a run of pytest.

    Args:
        code: its exit code, None if it was killed when the time was over.
        log: what it printed.
        report: what it wrote as JUnit XML; None if it did not come to that.
        seconds: that it took.
    """
    end = "\n".join(log.strip().splitlines()[-30:])
    if code is None:
        begun = re.findall(r"^(\S+::\S.*?)\s*$", log, re.MULTILINE)
        if begun and tells_hangs(begun[-1]):
            return Outcome(None, "too slow for its limit, and has not told of a hang", begun[-1], end, seconds)
        if begun:
            return Outcome(Caught.HANG, "", begun[-1], "no end within the limit", seconds)
        return Outcome(None, "no test had begun when the time was over", "", end, seconds)
    if report is None:
        how = Caught.FAULT if _CUDA_ERROR.search(log) else None
        return Outcome(how, "" if how else f"pytest died with code {code}", "", end, seconds)
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        for failure in (*case.iter("failure"), *case.iter("error")):
            message = failure.get("message", "")
            how = _how(message, failure.text or "", asserted=failure.tag == "failure")
            problem = "" if how else f"neither a wrong result nor a hang nor a CUDA error: {failure.tag}"
            return Outcome(how, problem, name, message[:2000], seconds)
    passed = [case for case in report.iter("testcase") if case.find("skipped") is None]
    if code or not passed:
        return Outcome(None, f"no test ran to its end; pytest's code is {code}", "", end, seconds)
    return Outcome(None, "", "", "", seconds)


def _how(message: str, text: str, *, asserted: bool) -> Caught | None:
    """What a failure says. Errors before or after a test, and exceptions that no test is about, say nothing."""
    if "CompileError" in message:
        return Caught.REFUSED
    if _CUDA_ERROR.search(message):
        return Caught.FAULT
    if asserted and HANG_MARK in message:
        return Caught.HANG
    # A failure while another is handled names the last one in its message and both in its text.
    if asserted and _ASSERTION.match(message) and "CompileError" not in text:
        return Caught.WRONG
    return None
