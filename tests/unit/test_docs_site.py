"""The site of the pages: each is in its menu, links lead somewhere in it, and every public call is documented."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import fp8gemm
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
MADE_HERE = {"api.md", "cli.md"}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return load_script("docs_site")


def menu(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else menu(value)


def test_every_page_is_in_the_menu_once(site: ModuleType) -> None:
    listed = list(menu(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | set(site.OF_ROOT.values()) | MADE_HERE
    assert sorted(listed) == sorted(pages)


def test_links_lead_to_pages_and_files_of_the_site(site: ModuleType) -> None:
    pages = {name: ROOT / source for source, name in site.OF_ROOT.items()}
    pages |= {path.name: path for path in (ROOT / "docs").glob("*.md")}
    made = {*pages, *MADE_HERE, *map(site.source_page, site.linked_sources())}
    for name, path in pages.items():
        for link in re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", site.relinked(path.read_text(), name)):
            assert link in made or (ROOT / "docs" / link).is_file(), f"{name}: {link}"
    assert site.relinked("[a](docs/linear.md#b) [c](LICENSE) [d](#e) [f](https://g)", "index.md") == (
        "[a](linear.md#b) [c](source/LICENSE.md) [d](#e) [f](https://g)"
    )
    assert site.relinked("[a](../README.md) [b](plots/c.png)", "linear.md") == "[a](index.md) [b](plots/c.png)"
    assert site.source_page("include/a.cuh") == "source/include/a.cuh.md"


def test_a_picture_leads_to_itself(site: ModuleType) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    shown = site.on_page_markdown("![a b](docs/plots/c.png) [d](docs/e.md)", page=page, config=None, files=None)
    assert shown == "[![a b](plots/c.png)](plots/c.png) [d](e.md)"


def test_every_public_call_is_documented_where_it_is_written(site: ModuleType) -> None:
    text = site.api_page()
    homes = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert len(homes) == len(set(homes)) and all(home.startswith("fp8gemm.") for home in homes)
    calls = [name for name in fp8gemm.__all__ if not inspect.ismodule(getattr(fp8gemm, name))]
    assert {home.rpartition(".")[2] for home in homes} >= set(calls)
    assert "fp8gemm.nn.linear.Fp8Linear" in homes and "fp8gemm.parallel.styles.ColwiseParallel" in homes


def test_the_commands_speak_for_themselves(site: ModuleType) -> None:
    text = site.command_page()
    assert "## fp8gemm explain" in text and "usage: fp8gemm warmup" in text and "example: fp8gemm tune" in text
    assert "### fp8gemm cache seal" in text and "--anew" in text
    assert "`````cpp\n" in site.source_text("include/fp8gemm/kernels/dense.cuh")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings_handlers"))),
    reason="mkdocs-material and mkdocstrings-python are not installed; make docs installs them",
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    api = (tmp_path / "api.html").read_text()
    assert "(M, K) float8_e4m3fn" in api and (tmp_path / "source" / "LICENSE.html").is_file()
    scripts = re.findall(r'<script src="([^"]+)"', (tmp_path / "index.html").read_text())
    assert "site/iframe-worker.js" in scripts and all((tmp_path / script).is_file() for script in scripts), (
        "none of elsewhere"
    )
