"""The kernels of docs/learn-hopper.md without a GPU: what compilers make of them, what they compute on an emulated
Hopper, what of that breaks with each line the page warns of, and that the page quotes what the files contain."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.learn_hopper.run import HERE, STEPS, Step, instruction_count, source_of
from examples.learn_hopper.tasks import TASKS, Task
from fp8gemm.jit.compiler import CompileResult
from tests.emulated import Emulate, emulators
from tests.jit import order
from tests.jit.listing import Listing
from tests.jit.nvrtcs import ROOT, libraries
from tests.jit.sass import disassemblers
from tests.learn_hopper_faults import FAULTS, Fault

PAGE = (ROOT / "docs" / "learn-hopper.md").read_text()
CPU = torch.device("cpu")
_COMPILE = """\
import ctypes, pickle, sys
if sys.argv[1]:
    ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
from examples.learn_hopper.run import STEPS, compile_step
sys.stdout.buffer.write(pickle.dumps({step.entry: compile_step(step) for step in STEPS}))
"""
WAVE = {r"QGMMA\.64x128x32\.F32\.E4M3\.E4M3": 4, r"WARPGROUP\.ARRIVE": 1, r"WARPGROUP\.DEPBAR": 1}
ROLES = {r"USETMAXREG\.DEALLOC": 1, r"USETMAXREG\.TRY_ALLOC": 1}
EXPECTED = {
    "tma_ring": {r"UTMALDG\.2D": 1, r"LDS\.128": 1, r"STG\.E\.128": 1},
    "wgmma": {r"UTMALDG\.2D": 2, r"STG\.E\.64": 32, **WAVE},
    "promotion": {r"UTMALDG\.2D": 2, "FFMA": 64, r"STG\.E\.64": 32, **WAVE},
    "warp_roles": {r"UTMALDG\.2D": 3, "FFMA": 64, r"STG\.E\.64": 32, **WAVE, **ROLES},
    "persistent": {r"UTMALDG\.2D": 3, "FFMA": 64, r"STSM\.16": 8, r"UTMASTG\.2D": 2, **WAVE, **ROLES},
}
"""Instructions by their beginning, and at least how many of them."""


def run_python(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True)


@pytest.fixture(scope="module", params=["", *libraries()], ids=lambda path: Path(path).parts[-5] if path else "nvrtc")
def compiled(request: pytest.FixtureRequest) -> dict[str, CompileResult]:
    """All kernels by their entries, under one of the NVRTCs that there are."""
    places = {"LD_LIBRARY_PATH": os.path.dirname(request.param)} if request.param else {}
    done = run_python(["-c", _COMPILE, request.param], **places)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    results: dict[str, CompileResult] = pickle.loads(done.stdout)
    return results


@pytest.fixture(scope="module")
def listings(compiled: dict[str, CompileResult], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Listing]:
    directory, tools = tmp_path_factory.mktemp("cubins"), list(disassemblers())
    if not tools:
        pytest.skip("no nvdisasm on PATH, in the package nvidia-cuda-nvdisasm or in triton")
    found = {}
    for entry, result in compiled.items():
        cubin = directory / f"{entry}.cubin"
        cubin.write_bytes(result.cubin)
        for tool in tools:
            done = subprocess.run([str(tool), "-c", str(cubin)], capture_output=True, text=True)
            if done.returncode == 0:
                found[entry] = Listing.parse(entry, done.stdout)
                break
        else:
            pytest.skip(f"none of {', '.join(map(str, tools))} reads a cubin of NVRTC {result.nvrtc_version}")
    return found


def test_kernels_compile_without_spills_or_warnings(compiled: dict[str, CompileResult]) -> None:
    assert set(compiled) == set(EXPECTED) == set(TASKS)
    for entry, result in compiled.items():
        used = result.resources
        assert not result.warnings, (entry, result.warnings)
        assert used.registers > 0 and not (used.spill_load_bytes + used.spill_store_bytes + used.stack_bytes), entry


def test_kernels_drive_hoppers_units(compiled: dict[str, CompileResult], listings: dict[str, Listing]) -> None:
    for entry, listing in listings.items():
        assert len(listing.instructions) == instruction_count(compiled[entry].cubin, entry)
        assert not listing.where(r"LDL|STL|CALL"), entry
        for pattern, least in {r"SYNCS\.PHASECHK": 1, **EXPECTED[entry]}.items():
            assert len(listing.where(pattern)) >= least, (entry, pattern)


def test_stages_are_released_behind_their_reads(listings: dict[str, Listing]) -> None:
    for entry, listing in listings.items():
        assert not order.unknown_opcodes(listing), entry
        assert not order.late_loads(listing), entry
        assert not order.unbound_scales(listing), entry
        for place in listing.where(r"QGMMA"):
            until_done = listing.reached(place, lambda each: each.opcode.startswith("WARPGROUP.DEPBAR"))
            early = [text for i in until_done if re.match(r"STG|SYNCS\.ARRIVE", text := listing.instructions[i].text)]
            assert not early, (entry, early)
    # What is looked for is there.
    assert listings["tma_ring"].where(r"LDS\.128") and len(order.scale_loads(listings["persistent"])) == 2


def test_a_staged_tile_is_fenced_and_met_for_before_it_is_stored(listings: dict[str, Listing]) -> None:
    listing = listings["persistent"]
    for place in listing.where("STSM"):
        for wanted in (r"FENCE\.VIEW\.ASYNC", r"BAR\.SYNC"):
            after = listing.reached(place, lambda each, w=wanted: re.match(f"{w}|UTMASTG", each.text) is not None)
            assert not [i for i in after if listing.instructions[i].text.startswith("UTMASTG")], wanted


@pytest.fixture(scope="module", params=STEPS, ids=lambda step: step.entry)
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Step, list[Emulate]]:
    """A kernel on the host, and with each of its faults."""
    step: Step = request.param
    faulty = [fault.apply(source_of(step)) for fault in FAULTS if fault.entry == step.entry]
    return step, emulators(step, tmp_path_factory.mktemp(step.entry), faulty)


def emulate(step: Step, kernel: Emulate, shape: tuple[int, int, int], seed: int) -> tuple[str, Task]:
    """What is wrong besides the result, and the result; persistent kernels have two CTAs, so that each walks."""
    m, n, k = shape
    task = TASKS[step.entry](m, n, min(k, 128) if step.entry == "wgmma" else k, device=CPU, exact=True)
    return kernel(task, min(task.tiles, 2) if step.walks else task.tiles, seed), task


@pytest.mark.parametrize("shape", [(1, 16, 16), (64, 128, 128), (200, 272, 784), (321, 144, 656)], ids=str)
def test_results_are_exact_on_an_emulated_hopper(
    emulated: tuple[Step, list[Emulate]], shape: tuple[int, int, int]
) -> None:
    step, (kernel, *_) = emulated
    for seed in (1, 2):
        said, task = emulate(step, kernel, shape, seed)
        assert said == "" and task.error() == (0.0, 0.0), (said, task.error())


def test_each_line_that_the_page_warns_of_is_needed(emulated: tuple[Step, list[Emulate]]) -> None:
    step, (_, *faulty) = emulated
    faults = [fault for fault in FAULTS if fault.entry == step.entry]
    assert faults
    shape = (600, 144, 128) if step.entry in ("tma_ring", "wgmma") else (200, 272, 784)
    page = " ".join(PAGE.split()).lower()
    for fault, kernel in zip(faults, faulty, strict=True):
        assert any(shows(fault, *emulate(step, kernel, shape, seed)) for seed in range(8)), fault.name
        assert f"*{fault.name}*".lower() in page, f"the page does not say what happens if {fault.name}"


def shows(fault: Fault, said: str, task: Task) -> bool:
    return fault.outcome in said and (said != "" or task.error()[0] > 0)


def test_without_a_gpu_the_runner_compiles_and_says_what_is_missing() -> None:
    done = run_python(["examples/learn_hopper/run.py"], CUDA_VISIBLE_DEVICES="")
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    rows = [line.split() for line in said.splitlines()]
    for step in STEPS:
        (row,) = (row for row in rows if row[:1] == [step.file])
        registers, spilled, shared, instructions, _ = row[1:]
        assert int(registers) > 0 and spilled == "0" and int(shared) == step.shared_bytes and int(instructions) > 100
    assert "Hopper" in said.splitlines()[-1]


def quotable() -> dict[str, list[str]]:
    """The lines of the files that the page quotes, without indentation."""
    files = [*HERE.glob("*.cu*"), *(ROOT / "include").rglob("*.cuh")]
    return {
        path.relative_to(ROOT).as_posix(): [line.strip() for line in path.read_text().splitlines()] for path in files
    }


def test_the_page_quotes_what_the_files_contain() -> None:
    files, quoted = quotable(), set[str]()
    blocks = re.findall(r"```cpp\n(.*?)\n```", PAGE, re.DOTALL)
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        sources = [
            name
            for name, text in files.items()
            if any(text[i : i + len(lines)] == lines for i in range(len(text) - len(lines) + 1))
        ]
        assert sources, f"in no file:\n{block}"
        quoted.update(sources)
    assert {f"examples/learn_hopper/{step.file}.cu" for step in STEPS} <= quoted
    for step in STEPS:
        assert f"examples/learn_hopper/{step.file}.cu" in PAGE


def test_the_page_names_the_instruction_of_each_wrapper() -> None:
    """The table's rows: a wrapper that a kernel here uses, and an instruction that the wrapper's file has."""
    rows = re.findall(r"^\| `(?:ptx::)?(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE)
    wrappers = "\n".join(path.read_text() for path in (ROOT / "include" / "fp8gemm" / "ptx").glob("*.cuh"))
    used = set(re.findall(r"ptx::(\w+)", "".join(path.read_text() for path in HERE.glob("*.cu*"))))
    library = set(re.findall(r"ptx::(\w+)", "".join(path.read_text() for path in (ROOT / "include").rglob("*.cuh"))))
    assert used - {"warp_index", "lane_index"} <= {name for name, _ in rows}
    for name, instruction in rows:
        assert name in used | library, name
        assert re.search(rf"\b{name}\b", wrappers) and instruction in wrappers, (name, instruction)


def test_the_page_links_to_files_that_are_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE) if "://" not in link]
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / "docs" / link).resolve().exists()]
