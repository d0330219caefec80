"""The mutants fit the headers as they are, and change the compiled code.

A third of them is compiled at a time, and of those that need no GPU it is run here: some test must fail on each.
`tests/gpu/test_mutations.py` runs the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fp8gemm.errors import CompileError
from fp8gemm.jit.compiler import CompileResult, compile_options, compile_source, nvrtc_version
from fp8gemm.jit.fingerprint import header_closure, key_of
from fp8gemm.jit.render import render_source
from fp8gemm.tuning import config as dense
from fp8gemm.tuning import swap_ab
from tests import remembered
from tests.gpu.test_stress import DENSE, SWAP_AB, drawn_swap_ab
from tests.jit.sass import disassemblers, what_is_done
from tests.mutations import tree
from tests.mutations.catalogue import CONTROLS, MUTANTS, find
from tests.mutations.mutant import REFUSED, SAMPLES, Edit, Mutant
from tests.mutations.ptx import OPTIONS as PTX_OPTIONS
from tests.mutations.ptx import translate
from tests.mutations.release import IN_REGISTERS
from tests.mutations.runner import ROOT, Outcome, run_mutant, run_tests
from tests.mutations.tree import INCLUDE, EditError
from tests.thirds import third_of

COMPILED = third_of(MUTANTS, lambda mutant: mutant.name)
"""Those whose turn it is."""
ON_CPU = [mutant for mutant in COMPILED if not mutant.gpu and mutant.tests and mutant.caught != REFUSED]
WORKERS = 3

Built = CompileResult | bytes | CompileError
"""What the compiler made of a kernel: machine code, or PTX."""
Compile = Callable[..., Built]
"""(mutant, sample, chaos, to_ptx=) -> what became of it."""


def is_told_by_ptx(mutant: Mutant) -> bool:
    """Whether it is enough that the compiler's output differs: then tests that fail show that machine code does too."""
    return not (mutant.same_code or mutant.may_survive)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as pool:
        yield pool


@pytest.fixture(scope="module")
def compiled(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """Everything that the tests below ask for, compiled ahead in threads."""
    place = tmp_path_factory.mktemp("trees")
    futures: dict[tuple[str, str, bool, bool], Future[Built]] = {}

    def compile_one(mutant: Mutant | None, sample: str, chaos: bool, to_ptx: bool) -> Built:
        name = f"{mutant.name if mutant else ''}-{sample}-{chaos}-{to_ptx}"
        include = tree.make(place / name, mutant, chaos=chaos)
        request = SAMPLES[sample].request
        source, arch = render_source(request), request.arch
        options = PTX_OPTIONS if to_ptx else compile_options(arch)

        def compile_now() -> CompileResult | bytes:
            if to_ptx:
                return translate(request, include)
            return compile_source(source, label=request.label, options=options, arch=arch, include_dir=include)

        try:
            if mutant is not None and mutant not in MUTANTS:
                return compile_now()  # of a test of the compiler itself
            key = key_of(source, header_closure(source, include), options=options, arch=arch)
            return remembered.compiled("ptx" if to_ptx else "kernel", key, compile_now)
        except CompileError as error:
            return error

    def get(mutant: Mutant | None, sample: str, chaos: bool, *, to_ptx: bool = False) -> Built:
        return start(mutant, sample, chaos, to_ptx).result()

    def start(mutant: Mutant | None, sample: str, chaos: bool, to_ptx: bool) -> Future[Built]:
        key = (mutant.name if mutant else "", sample, chaos, to_ptx)
        if key not in futures:
            futures[key] = pool.submit(compile_one, mutant, sample, chaos, to_ptx)
        return futures[key]

    for mutant in COMPILED:
        for each in (None, mutant):
            start(each, mutant.sample, mutant.chaos, is_told_by_ptx(mutant))
    yield get


def test_names_are_unique_and_faults_are_described() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *CONTROLS)]
    assert len(set(names)) == len(names) > 40
    for mutant in MUTANTS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", mutant.name) and find(mutant.name) is mutant
        assert len(mutant.what.split()) > 4 and "\n" not in mutant.what, mutant
        assert mutant.edits and bool(mutant.tests) != bool(mutant.same_code), mutant
        assert bool(mutant.message) == (mutant.caught == REFUSED), mutant
        assert mutant.gpu or not mutant.may_survive, f"{mutant.name}: what needs no GPU is certain"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_edit_applies_exactly_once(mutant: Mutant, tmp_path: Path) -> None:
    include = tree.make(tmp_path, mutant, chaos=True)
    changed = {
        path.relative_to(include / "fp8gemm").as_posix()
        for path in include.rglob("*.cuh")
        if path.read_bytes() != (INCLUDE / path.relative_to(include)).read_bytes()
    }
    assert set(mutant.files) <= changed


def test_the_headers_themselves_stay_as_they_are(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in INCLUDE.rglob("*.cuh")}
    include = tree.make(tmp_path, MUTANTS[0], chaos=True)
    assert include != INCLUDE and {path: path.read_bytes() for path in INCLUDE.rglob("*.cuh")} == before


@pytest.mark.parametrize("old", ["no such text", "uint32_t"])
def test_an_edit_that_does_not_fit_is_an_error(old: str, tmp_path: Path) -> None:
    mutant = Mutant("misfit", "", (Edit("common/types.cuh", old, "x"),), ())
    with pytest.raises(EditError, match="common/types.cuh"):
        tree.make(tmp_path, mutant)


@pytest.mark.parametrize("mutant", COMPILED, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_code_or_does_not_compile(mutant: Mutant, compiled: Compile, tmp_path: Path) -> None:
    to_ptx = is_told_by_ptx(mutant)
    sound, faulty = (compiled(each, mutant.sample, mutant.chaos, to_ptx=to_ptx) for each in (None, mutant))
    assert not isinstance(sound, CompileError), sound
    if mutant.caught == REFUSED:
        assert isinstance(faulty, CompileError), "it compiles"
        assert "static assertion failed" in faulty.log and mutant.message in faulty.log
        return
    assert not isinstance(faulty, CompileError), faulty
    if not mutant.same_code:
        assert code_of(faulty) != code_of(sound)
    elif code_of(faulty) != code_of(sound):
        assert isinstance(sound, CompileResult) and isinstance(faulty, CompileResult)
        assert what_is_done(faulty.cubin, tmp_path) == what_is_done(sound.cubin, tmp_path)


def code_of(built: bytes | CompileResult) -> object:
    """What tells one program from another. The assembler puts some missing instructions in, and warns."""
    return built if isinstance(built, bytes) else (built.cubin, built.warnings)


@pytest.mark.parametrize("to_ptx", [False, True])
@pytest.mark.parametrize("chaos", [False, True])
def test_compiling_the_same_twice_gives_the_same_code(chaos: bool, to_ptx: bool, compiled: Compile) -> None:
    """Else a mutant's code would differ for no reason."""
    edit = Edit("mainloop/load.cuh", "#pragma once\n", "#pragma once  // Each header has this line.\n")
    comment = Mutant("comment", "", (edit,), ())
    first, second = (compiled(each, "plain", chaos, to_ptx=to_ptx) for each in (None, comment))
    assert not isinstance(first, CompileError) and not isinstance(second, CompileError)
    assert code_of(first) == code_of(second)


@pytest.mark.parametrize("sample", sorted({mutant.sample for mutant in MUTANTS if mutant.chaos}))
def test_the_chaos_build_only_sleeps(sample: str, compiled: Compile) -> None:
    """It is other code, but loses no overlap: where the assembler puts in waits, a missing one is no fault."""
    sound, chaos = compiled(None, sample, False), compiled(None, sample, True)
    assert isinstance(sound, CompileResult) and isinstance(chaos, CompileResult), chaos
    assert sound.cubin != chaos.cubin and chaos.warnings == ()
    assert chaos.resources.spill_store_bytes <= 64


def test_stress_kernels_are_legal() -> None:
    found = {
        (problem, config): dense.violations(config, problem.store, problem.output, problem.scaling)
        for problem, config in DENSE
    }
    found |= {
        (problem, config): swap_ab.violations(config, problem.k) for problem, config in SWAP_AB + drawn_swap_ab(1)
    }
    assert not any(found.values()), found


def test_every_named_test_exists() -> None:
    names = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(pool: ThreadPoolExecutor, compiled: Compile) -> dict[str, Future[Outcome]]:
    """The mutants that need no GPU, run after everything has been compiled."""
    return {mutant.name: pool.submit(run_mutant, mutant) for mutant in ON_CPU}


WARNING_OF_FENCES = ("12.6", "12.8", "12.9", "13.0")
"""Compilers known to warn (C7519) of a fence that they had to add. 12.4 and 13.2 add it in silence."""


@pytest.mark.parametrize("mutant", ON_CPU, ids=lambda mutant: mutant.name)
def test_a_mutant_that_needs_no_gpu_is_caught(mutant: Mutant, runs: dict[str, Future[Outcome]]) -> None:
    if mutant.tests == IN_REGISTERS and not list(disassemblers()):
        pytest.skip("its test reads machine code, and there is no nvdisasm")
    if mutant.name.endswith("no-fence-before-wgmma") and nvrtc_version() not in WARNING_OF_FENCES:
        pytest.skip(f"NVRTC {nvrtc_version()} adds the fence without a warning: the instructions are the same")
    outcome = runs[mutant.name].result()
    assert outcome.how in mutant.caught, str(outcome)


def test_an_unknown_mutant_is_refused(tmp_path: Path) -> None:
    outcome = run_tests(["--mutant", "no-such", "tests/unit/test_settings.py"], cwd=ROOT, limit_s=30.0)
    assert not outcome.passed and "promotion-dropped" in outcome.detail, str(outcome)
