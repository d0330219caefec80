"""examples/container/Dockerfile: its commands parse, it copies what is there, and both stages do what they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fp8gemm.cli import main as cli
from tests.children import ROOT, environment
from tests.jit.caches import fill

DOCKERFILE = ROOT / "examples" / "container" / "Dockerfile"
KERNELS = "/opt/fp8gemm/kernels"


def stages() -> list[list[tuple[str, str]]]:
    """Instruction and rest of each line of either stage, with the values that arguments have by default."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    text = re.sub(r"\$\{(\w+)\}", lambda used: arguments[used[1]], text)
    found: list[list[tuple[str, str]]] = [[]]
    for line in filter(None, text.splitlines()):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, rest))
    return found[1:]


BUILD, SERVE = stages()


def of(stage: list[tuple[str, str]], instruction: str, part: str = "") -> list[str]:
    return [rest for name, rest in stage if name == instruction and part in rest]


def test_the_commands_parse() -> None:
    runs = [command for line in of(BUILD + SERVE, "RUN") for command in line.split("&&") if "fp8gemm " in command]
    commands = [words[1:] for words in map(shlex.split, runs) if words[0] == "fp8gemm"]
    assert [words[0] for words in commands] == ["warmup", "cache", "cache"]
    for words in commands:
        assert cli.command_parser(words[0]).parse_args(words).run is not None


def test_the_first_stage_has_what_the_wheel_needs_but_torch() -> None:
    (listed,) = re.findall(
        r"^dependencies = \[(.*?)^\]$", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    needed = re.findall(r'^ +"([^"]+)"', listed, re.MULTILINE)
    (line,) = of(BUILD, "RUN", "cuda-python")
    assert shlex.split(line)[3:] == [each for each in needed if not each.startswith("torch")]


def test_what_is_copied_is_there_and_let_in() -> None:
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    sources = [words[0] for words in map(str.split, of(BUILD + SERVE, "COPY")) if not words[0].startswith("--")]
    assert set(sources) == {"dist/*.whl", "examples/container/config.json", "examples/cuda_graph_server.py"}
    for source in sources:
        assert any(fnmatch(source, pattern) for pattern in let_in)
        assert source.startswith("dist/") or (ROOT / source).is_file()


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str, Path], str]:
    """Runs a line of a stage whose ``/opt`` is a directory, and says what it printed."""
    (tmp_path / "bin").mkdir()
    (command := tmp_path / "bin" / "fp8gemm").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fp8gemm "$@"\n'
    )
    command.chmod(0o755)
    clean = {name: value for name, value in environment().items() if not name.startswith("FP8GEMM_")}
    clean["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{clean['PATH']}"

    def run(line: str, opt: Path) -> str:
        line = line.replace("/build/config.json", str(DOCKERFILE.parent / "config.json")).replace("/opt/", f"{opt}/")
        line = line.replace("--max-m 16384", "--max-m 32")  # what the server asks for
        done = subprocess.run(["sh", "-ec", line], env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_image_serves_what_was_compiled_without_a_gpu(tmp_path: Path, machine: Callable[[str, Path], str]) -> None:
    """Every line of both stages but those of pip; a copy makes the directory that it copies into anew."""
    first, second = tmp_path / "first", tmp_path / "second"
    (warm,) = of(BUILD, "RUN", "fp8gemm warmup")
    assert ": sealed: " in machine(warm, first)
    ((source, target),) = (line.split()[1:] for line in of(SERVE, "COPY", "--from=kernels"))
    assert source == target == str(Path(KERNELS).parent), "the directory above: a copy loses the modes of its own"
    shutil.copytree(first / "fp8gemm", second / "fp8gemm")
    (check,) = of(SERVE, "RUN", "cache seal")
    assert "was sealed already, and is as it was then" in machine(check, second)
    kernels = second / "fp8gemm" / "kernels"
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o555

    (settings,) = of(SERVE, "ENV")
    assert settings == f"FP8GEMM_CACHE_DIR={KERNELS} FP8GEMM_JIT=error"
    (server,) = of(SERVE, "COPY", ".py")
    program, place = server.split()
    assert of(SERVE, "ENTRYPOINT") == [f'["python", "{place}"]']
    serve = f"{settings} {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / program))}"
    told = machine(serve, second)
    assert "\n0 compiled, " in told and told.splitlines()[-1].startswith("8 requests in a batch of 8")
    kernels.chmod(0o755)  # for a builder that loses modes, and for whoever removes this
    assert ": sealed: " in machine(check, second)
    kernels.chmod(0o755)


def test_a_kernel_that_the_image_lacks_ends_the_server(tmp_path: Path, machine: Callable[[str, Path], str]) -> None:
    fill(tmp_path / "fp8gemm" / "kernels", 1)
    (seal,) = of(SERVE, "RUN", "cache seal")
    machine(seal, tmp_path)
    (settings,) = of(SERVE, "ENV")
    serve = f"{settings} {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'examples' / 'cuda_graph_server.py'))}"
    with pytest.raises(AssertionError, match="CacheError: expected a cache directory that can be written"):
        machine(serve, tmp_path)
    (tmp_path / "fp8gemm" / "kernels").chmod(0o755)
