"""The project itself: what a wheel carries, and which environment `make` builds."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import fp8gemm

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted(path.relative_to(ROOT / "include").as_posix() for path in (ROOT / "include").rglob("*.cuh"))

TABLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "fp8gemm" / "tuning" / "tables").glob("*.json"))

needs_hatchling = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
)


def build(target: str, source: Path, destination: Path) -> Path:
    """Build a wheel or sdist of ``source`` with this environment's hatchling."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(destination)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = destination.iterdir()
    return built


def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/RECORD")}


@needs_hatchling
def test_an_unpacked_wheel_finds_its_own_headers(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path / "dist")
    names = wheel_names(wheel)
    assert HEADERS and {f"fp8gemm/include/{header}" for header in HEADERS} <= names
    assert TABLES and set(TABLES) <= names
    assert not [name for name in names if not name.startswith(("fp8gemm/", "fp8gemm-"))]

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import fp8gemm; print(fp8gemm.__file__); print(fp8gemm.include_dir())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # -S leaves out this environment's .pth files, an editable install's among them; torch's place is named instead.
    torch_site = Path(importlib.util.find_spec("torch").origin).parents[1]  # type: ignore[union-attr, arg-type]
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(torch_site)])
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package, include = map(Path, done.stdout.split("\n")[:2])
    assert package == site / "fp8gemm" / "__init__.py"
    assert include == site / "fp8gemm" / "include"
    for header in HEADERS:
        assert (include / header).read_bytes() == (ROOT / "include" / header).read_bytes()


@needs_hatchling
def test_the_wheel_says_what_it_is_and_needs(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        said = message_from_bytes(archive.read(names["METADATA"]))
        commands = archive.read(names["entry_points.txt"]).decode()
        assert archive.read(names["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
        assert "fp8gemm/py.typed" in archive.namelist()
    assert wheel.name == f"fp8gemm-{fp8gemm.__version__}-py3-none-any.whl"
    assert (said["Name"], said["Version"]) == ("fp8gemm", fp8gemm.__version__)
    assert (said["License-Expression"], said["Requires-Python"]) == ("MIT", ">=3.10")
    assert said["Description-Content-Type"] == "text/markdown"
    needed = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [re.match(r"[\w-]+", line)[0] for line in needed] == [  # type: ignore[index]
        *("cuda-python", "filelock", "nvidia-cuda-nvrtc-cu12", "torch", "tqdm")
    ]
    assert set(said.get_all("Provides-Extra", [])) == {"calibrate", "dev", "plot", "test", "transformers"}
    assert "[console_scripts]\nfp8gemm = fp8gemm.__main__:main" in commands


@needs_hatchling
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_checkout(tmp_path: Path) -> None:
    sdist = build("sdist", ROOT, tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert (source / "tests" / "unit" / Path(__file__).name).is_file() and (source / "LICENSE").is_file()
    assert (source / "examples" / "learn_hopper" / "run.py").is_file()
    direct, indirect = build("wheel", ROOT, tmp_path / "direct"), build("wheel", source, tmp_path / "indirect")
    assert wheel_names(indirect) == wheel_names(direct)


# A stand-in for Python that answers the questions of scripts/venv.sh and writes down what is asked of pip and venv.
FAKE_PYTHON = """#!/bin/sh
echo "$0 $*" >>"$LOG"
case "$*" in
    *sys.version_info*) exit "${OLD:-0}" ;;
    *sys.executable*) echo "$0" ;;
    *torch.version.cuda*) echo "$TORCH" ;;
    *purelib*) mkdir -p "$SITE"; echo "$SITE" ;;
    "-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
    "-m pip"*) cp "$VENV/constraints.txt" "$LOG.constraints" 2>/dev/null; exit "${PIP:-0}" ;;
    "-c import $LACKS") exit 1 ;;
esac
"""


class FakeMachine:
    """Runs scripts/venv.sh where ``python3`` is the stand-in."""

    def __init__(self, directory: Path) -> None:
        self.venv, self.log = directory / "venv", directory / "log"
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.add("python3")
        self.site = directory / "site"

    def add(self, name: str, text: str = FAKE_PYTHON) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, stdout: int = subprocess.PIPE, **answers: str) -> tuple[int, str]:
        """Exit code and standard error."""
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "LOG": str(self.log), "SITE": str(self.site), "TORCH": ""}
        environment |= {"VENV": str(self.venv), "LACKS": "nothing"} | answers
        command = ["sh", str(ROOT / "scripts" / "venv.sh"), str(self.venv)]
        done = subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    def chosen(self) -> Path:
        return Path((self.venv / "python.path").read_text().strip())

    def asked(self, what: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if f" -m {what} " in line]


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_a_bare_machine_gets_its_own_environment_with_tested_versions(machine: FakeMachine) -> None:
    code, _ = machine.run()
    assert code == 0 and machine.chosen() == machine.venv / "bin" / "python"
    assert "--system-site-packages" not in machine.asked("venv")[0]
    pip, old, newer = machine.asked("pip")
    assert f"-c {ROOT / 'constraints.txt'} -e {ROOT}[test,dev]" in pip and "nvrtc-12.4" in old and "nvrtc-13.0" in newer


@pytest.mark.parametrize(("release", "asked"), [("2.6.0", "torch==2.6.0 "), ("newest", "")])
def test_another_torch_comes_with_what_goes_with_it(machine: FakeMachine, release: str, asked: str) -> None:
    assert machine.run(TORCH_RELEASE=release)[0] == 0
    pins = Path(f"{machine.log}.constraints").read_text()
    assert not re.search("^(torch|cuda|nvidia-cuda-nvrtc-cu12)[-=]", pins, re.MULTILINE) and "pytest==" in pins
    assert f"-c {machine.venv}/constraints.txt {asked}-e {ROOT}[test,dev]" in machine.asked("pip")[0]


@pytest.mark.parametrize("torch", ["", "2.11.0+cu130"])
def test_it_says_what_takes_long_and_where_the_command_is(machine: FakeMachine, torch: str) -> None:
    _, message = machine.run(TORCH=torch)
    first, *_, last = message.splitlines()
    assert first.startswith(f"venv.sh: building {machine.venv} ") and first.endswith("in a minute or two")
    assert last == f"venv.sh: {machine.venv} is ready; its command is {machine.venv}/bin/fp8gemm"
    assert all(" -qq " in asked for asked in machine.asked("pip"))


def test_on_a_terminal_pip_shows_its_progress(machine: FakeMachine) -> None:
    ours, terminal = os.openpty()
    try:
        machine.run(stdout=terminal)
    finally:
        os.close(terminal)
        os.close(ours)
    assert machine.asked("pip") and not any("-q" in asked for asked in machine.asked("pip"))


def test_a_failed_installation_fails(machine: FakeMachine) -> None:
    code, _ = machine.run(PIP="3")
    assert code != 0 and not (machine.venv / "python.path").exists()


def test_a_torch_with_cuda_is_kept(machine: FakeMachine) -> None:
    code, message = machine.run(TORCH="2.11.0+cu130")
    assert code == 0 and "2.11.0+cu130" in message
    assert machine.chosen() == machine.venv / "bin" / "python"
    assert "--system-site-packages" in machine.asked("venv")[0]
    pins = Path(f"{machine.log}.constraints").read_text().splitlines()
    assert [pin for pin in pins if pin.startswith("torch")] == ["torch==2.11.0+cu130"]
    assert (machine.site / "parent.pth").read_text().strip() == str(machine.site)


def test_where_nothing_installs_the_python_with_cuda_torch_is_used_as_it_is(machine: FakeMachine) -> None:
    code, message = machine.run(TORCH="2.11.0+cu130", PIP="1")
    assert code == 0 and machine.chosen() == machine.bin / "python3"
    assert "nothing can be installed here" in message.splitlines()[-1]


def test_where_nothing_installs_and_a_module_is_missing_it_is_named(machine: FakeMachine) -> None:
    code, message = machine.run(TORCH="2.11.0+cu130", PIP="1", LACKS="filelock")
    assert code != 0 and message.splitlines()[-1].endswith("lacks filelock")
    assert not (machine.venv / "python.path").exists()


def test_an_old_python3_is_passed_over_for_a_newer_one(machine: FakeMachine) -> None:
    machine.add("python3", FAKE_PYTHON.replace('"${OLD:-0}"', "1"))
    newer = machine.add("python3.11")
    assert machine.run()[0] == 0
    assert machine.asked("venv")[0].startswith(str(newer))


def test_constraints_meet_the_requirements_of_every_dependency() -> None:
    packaging = pytest.importorskip("packaging.requirements", reason="packaging is not installed")
    text = (ROOT / "pyproject.toml").read_text()
    tables = re.findall(r"^(dependencies|test|dev) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in tables] == ["dependencies", "test", "dev"]
    wanted = [packaging.Requirement(spec) for _, body in tables for spec in re.findall(r'"([^"]+)"', body)]
    assert {"torch", "pytest", "ruff"} <= {requirement.name for requirement in wanted}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    tested = {pin.name: next(iter(pin.specifier)).version for pin in map(packaging.Requirement, lines)}
    for requirement in wanted:
        assert requirement.specifier.contains(tested[requirement.name]), requirement
