"""docs/serving.md: its commands parse, its Dockerfile's lines do what it says, and it leaves nothing out."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()

TINY = {
    "model_type": "mixtral",
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_local_experts": 0,
}
"""A model whose layers are two shapes for each of eight ranks, and which has no experts."""


CACHE_ACTIONS = ("ls", "verify", "seal", "export", "import", "prune", "clear")


def commands() -> Iterator[str]:
    """What a reader can type after ``fp8gemm``, from code blocks and from tables, as one line each."""
    text = PAGE.replace("\\\n", " ")
    for block in re.findall(r"```(?:dockerfile)?\n(.*?)```", text, re.DOTALL):
        for line in re.split(r"\n|&&", block):
            found = re.match(r"\s*(?:RUN +)?fp8gemm (.*)", line)
            if found:
                yield found[1]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`fp8gemm ([^`]+)`", prose.replace("\n", " "))


WHOLE = sorted({each for each in commands() if "..." not in each and not re.fullmatch("[a-z ]+", each)})
"""Those that are no mere names of commands."""


@pytest.mark.parametrize("command", WHOLE)
def test_the_commands_parse(command: str) -> None:
    for optional in ("", r"\1"):  # without what stands in brackets, and with it
        words = shlex.split(re.sub(r"\[(.*?)\]", optional, command))
        parsed = cli.command_parser(next(word for word in words if word in cli.COMMANDS)).parse_args(words)
        assert parsed.run is not None


def test_the_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are named without their command."""
    for words in (["warmup"], ["report"], *(["cache", action] for action in CACHE_ACTIONS)):
        with pytest.raises(SystemExit):
            cli.command_parser(words[0]).parse_args([*words, "--help"])
    known = set(re.findall(r"--[a-z][\w-]+", capsys.readouterr().out))
    named = set(re.findall(r"(?<=`)--[a-z][\w-]+", PAGE))
    assert named and named <= known, named - known


def test_settings_and_warnings_are_as_the_code_has_them() -> None:
    variables = {settings._variable(field.name) for field in fields(settings.Settings)}
    assert set(re.findall(r"FP8GEMM_[A-Z_]+", PAGE)) <= variables
    warned = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert [event for event in warned if not event.startswith("FP8GEMM_")] == [event.name for event in CacheEvent]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
    local = [link for link in links if "://" not in link and not link.startswith("results/")]
    assert local and all((ROOT / "docs" / link).exists() for link in local), local


def stages() -> list[list[str]]:
    """The instructions of the Dockerfile's stages."""
    (block,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    found: list[list[str]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            found.append([])
        if line:
            found[-1].append(line)
    return found


def test_the_image_serves_what_was_compiled_without_a_gpu(tmp_path: Path) -> None:
    """The Dockerfile's own lines, but for pip, on a small model; ``COPY`` makes the directory it copies into anew."""
    build, serve = stages()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "config.json").write_text(json.dumps(TINY))
    (fp8gemm := tmp_path / "fp8gemm").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fp8gemm "$@"\n')
    fp8gemm.chmod(0o755)
    here = {name: value for name, value in os.environ.items() if not name.startswith("FP8GEMM_")}
    here |= {"PATH": f"{tmp_path}:{here['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(line: str, stage: Path) -> str:
        for place, stands_for in (("/build/", tmp_path / "build"), ("/opt/", stage)):
            line = line.replace(place, f"{stands_for}/")
        line = line.replace("--max-m 16384", "--max-m 1 --chip h200 --calls gemm")
        done = subprocess.run(["sh", "-ec", line], env=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (warm,) = (line.removeprefix("RUN ") for line in build if "fp8gemm warmup" in line)
    told = run(warm, tmp_path / "first")
    assert ": sealed: " in told
    (copied,) = (shlex.split(line)[-2:] for line in serve if line.startswith("COPY "))
    shutil.copytree(f"{tmp_path}/first/{copied[0].removeprefix('/opt/')}", tmp_path / "second" / "fp8gemm")
    (check,) = (line.removeprefix("RUN ") for line in serve if line.startswith("RUN "))
    assert "was sealed already, and is as it was then" in run(check, tmp_path / "second")
    kernels = tmp_path / "second" / "fp8gemm" / "kernels"
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o555

    (environment,) = (shlex.split(line.removeprefix("ENV ")) for line in serve if line.startswith("ENV "))
    here |= dict(each.replace("/opt/", f"{tmp_path}/second/").split("=", 1) for each in environment)
    program = (
        "import sys; sys.argv[0] = 'fp8gemm'\n"  # which leaves torch alone
        "from fp8gemm.errors import CacheMissError\n"
        "from fp8gemm.kernels.catalogue import kernel_request\n"
        "from fp8gemm.jit.build import build\n"
        "from fp8gemm.tuning.problem import Problem\n"
        "from fp8gemm.tuning.select import select\n"
        "print(build(kernel_request(Problem(1, 16, 128), select(1, 16, 128))).source)\n"
        "try: build(kernel_request(Problem(1, 24, 128), select(1, 24, 128)))\n"
        "except CacheMissError: print('missed')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=here, capture_output=True, text=True)
    assert done.stdout.split() == ["disk", "missed"], done.stderr
    kernels.chmod(0o755)  # for a builder that loses modes, and for whoever removes this
    assert ": sealed: " in run(check, tmp_path / "second")
