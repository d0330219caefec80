"""How a run of tests is judged that had a faulty kernel, or might have had."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.mutations import runner
from tests.mutations.catalogue import find
from tests.mutations.mutant import Caught
from tests.mutations.runner import LIMIT_S, ROOT, SLOW_S, TELL_HANGS, Outcome, run_mutant, run_tests

WORKERS = 3

FAKES = {
    "passes": ("def test(): pass", None, ""),
    "fails": ("def test(): assert 1 == 2", Caught.WRONG, ""),
    "raises": ("def test(): raise AssertionError('off by a tenth')", Caught.WRONG, ""),
    "notices a hang": ("def test(): raise AssertionError('the GPU hangs: 7 launches')", Caught.HANG, ""),
    "hangs": ("import time\ndef test(): time.sleep(60)", Caught.HANG, ""),
    "hangs with a child": (
        "import subprocess, sys\ndef test(): subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
        Caught.HANG,
        "",
    ),
    # Its file has the name of one whose tests notice a hang by themselves.
    "stress": ("import time\ndef test(): time.sleep(60)", None, "too slow"),
    "hangs before a test": ("import time\ntime.sleep(60)\ndef test(): pass", None, "no test had begun"),
    "meets a CUDA error": ("def test(): raise RuntimeError('CUDA error: illegal address')", Caught.FAULT, ""),
    "dies of a CUDA error": (
        "import os, sys\ndef test(): os.write(1, b'CUDA error: launch failure'); os.abort()",
        Caught.FAULT,
        "",
    ),
    "dies": ("import os\ndef test(): os.abort()", None, "died with code -6"),
    "does not compile": (
        "class CompileError(Exception): pass\ndef test(): raise CompileError('refused')",
        Caught.REFUSED,
        "",
    ),
    "does not import": ("import nothing_of_the_kind\ndef test(): pass", None, "error"),
    "has a bug": ("def test(): nothing_of_the_kind()", None, "failure"),
    "has a broken fixture": (
        "import pytest\n@pytest.fixture\ndef broken(): assert False\ndef test(broken): pass",
        None,
        "error",
    ),
    "skips": ("import pytest\ndef test(): pytest.skip('no GPU')", None, "no test ran"),
    "is not there": ("", None, "no test ran"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """How runs of the fake tests are judged."""
    place = tmp_path_factory.mktemp("fakes")
    futures = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, (text, _, _) in FAKES.items():
            path = place / f"test_{name.replace(' ', '_')}.py"
            path.write_text(text)
            limit_s = 6.0 if "time.sleep(60)" in text else 60.0
            run = partial(run_tests, [path.name, "-p", "no:hypothesispytest"], cwd=place, limit_s=limit_s)
            futures[name] = pool.submit(run)
        yield futures


STUCK = """
import time

class Owner:
    def __del__(self):
        time.sleep(60)

def test(no_progress):
    no_progress("7 launches", Owner())

def test_that_must_not_run():
    time.sleep(60)
"""


def test_a_session_ends_at_a_hang_without_waiting_for_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "test_stuck.py"
    path.write_text(STUCK)
    outcome = run_tests(["-p", "tests.conftest", f"--confcutdir={tmp_path}", str(path)], cwd=ROOT, limit_s=30.0)
    assert outcome.how is Caught.HANG and "7 launches" in outcome.detail, str(outcome)


@pytest.mark.parametrize("name", FAKES)
def test_a_run_is_judged_by_what_its_tests_say(name: str, judged: dict[str, Future[Outcome]]) -> None:
    _, how, problem = FAKES[name]
    outcome = judged[name].result()
    assert outcome.how is how and problem in outcome.problem, str(outcome)
    assert outcome.passed == (name == "passes") and bool(outcome.problem) == bool(problem), str(outcome)


def test_those_that_tell_a_hang_are_those_that_can() -> None:
    files = {path.name for path in (ROOT / "tests" / "gpu").rglob("test_*.py") if "no_progress" in path.read_text()}
    assert files == TELL_HANGS


@pytest.mark.parametrize(
    ("name", "limit_s"), [("full-not-awaited", SLOW_S), ("promotion-dropped", LIMIT_S), ("control", SLOW_S)]
)
def test_tests_that_compile_much_have_time_for_it(name: str, limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Outcome(None, "", "", "", 0.0)
    limits = []

    def run(arguments: object, *, cwd: Path, limit_s: float) -> Outcome:
        limits.append(limit_s)
        return passed

    monkeypatch.setattr(runner, "run_tests", run)
    run_mutant(find(name))
    assert limits == [limit_s]
