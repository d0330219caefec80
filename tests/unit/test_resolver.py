"""What a resolver makes of fp8gemm beside each torch: that torch, with an NVRTC and bindings that work."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fp8gemm.jit.compiler import OLDEST

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0")
NEWEST, ALONE = "newest", "the newest alone"


PROJECT = (ROOT / "pyproject.toml").read_text()
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
EXTRAS = re.findall(r"^(\w+) = \[", PROJECT[PROJECT.index("[project.optional-dependencies]") :].split("\n[")[0], re.M)


def resolve(*requirements: str | Path, python: str = "3.12") -> subprocess.CompletedProcess[str]:
    """Ask for the versions that go together on Linux with torch's default build, which is for CUDA."""
    uv = pytest.importorskip("uv", reason="uv, the resolver, is not installed")
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-header", "--no-annotate"]
    command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28", "--no-python-downloads"]
    return subprocess.run([*command, *map(str, requirements)], capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What was found beside each release, and for the newest one alone; all are asked for at once."""
    directory = tmp_path_factory.mktemp("asked")

    def ask(release: str, *more: str) -> subprocess.CompletedProcess[str]:
        asked = directory / f"torch-{release}.txt"
        asked.write_text("torch\n" if release == NEWEST else f"torch=={release}\n")
        return resolve(asked, *more)

    if ask(NEWEST).returncode != 0:
        pytest.skip("no package index can be reached")
    with ThreadPoolExecutor(8) as pool:
        beside = {release: pool.submit(ask, release, "pyproject.toml") for release in (*RELEASES, NEWEST)}
        alone = pool.submit(ask, NEWEST)
    return {ALONE: alone.result(), **{release: each.result() for release, each in beside.items()}}


def versions(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([\w-]+)==(\S+)", done.stdout, re.MULTILINE))


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@pytest.mark.parametrize("release", [*RELEASES, NEWEST])
def test_fp8gemm_beside_a_torch_leaves_that_torch_as_it_is(
    release: str, resolved: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    found = versions(resolved[release])
    assert found["torch"] == (versions(resolved[ALONE])["torch"] if release == NEWEST else release)
    assert number(found["nvidia-cuda-nvrtc-cu12"]) >= OLDEST
    assert (12, 9) <= number(found["cuda-python"]) < (14,)
    assert number(found["cuda-python"])[0] == number(found["cuda-bindings"])[0]


def test_extras_resolve_under_the_oldest_and_newest_python(
    resolved: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    assert resolved[NEWEST].returncode == 0
    brought = {
        "test": "pytest",
        "dev": "ruff",
        "plot": "matplotlib",
        "transformers": "accelerate",
        "calibrate": "scipy",
    }
    assert list(brought) == EXTRAS
    asked = [(extra, python) for extra in EXTRAS for python in (PYTHONS[0], PYTHONS[-1])]
    with ThreadPoolExecutor(8) as pool:
        found = {each: pool.submit(resolve, "pyproject.toml", "--extra", each[0], python=each[1]) for each in asked}
    brought = {
        "plot": "matplotlib",
        "transformers": "accelerate",
        "calibrate": "scipy",
        "test": "pytest",
        "dev": "ruff",
    }
    for (extra, python), done in found.items():
        assert brought[extra] in versions(done.result()), (extra, python)


def test_every_extra_is_on_the_page_with_what_it_is_for() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|", page, re.MULTILINE) == EXTRAS
