"""Pages here and in docs: every link leads somewhere, every file that is named exists, code imports what it uses."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 150

_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_NAMED = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*(?:\.(?:py|cuh|cu|sh|svg|png|md)|/)|docs/results/[\w.*-]+\.json")
_TREES = ("fp8gemm", "examples", "include", "scripts", "tests", "docs")
OTHERS = {"deep_gemm.py", "tests/test_fp8_fp4.py"}
"""Files of others: the reader's own, and those of DeepGEMM's tree."""


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """What a link to a heading says behind ``#``: lower case, hyphens for spaces, no other punctuation."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.finditer(prose(page.read_text())):
        target, _, anchor = link["target"].partition("#")
        if ":" in target:
            continue
        found = page.parent / target if target else page
        if not found.exists() or (anchor and anchor not in anchors(found.read_text())):
            yield link["target"]


def exists(name: str, page: Path) -> bool:
    """Whether a file is there: from the root, from the page, from a folder of headers or of the package, or, if it is a
    bare name, anywhere in the tree."""
    places = [ROOT, page.parent, ROOT / "include" / "fp8gemm", ROOT / "fp8gemm"]
    if any(any(place.glob(name.rstrip("/"))) for place in places):
        return True
    return "/" not in name and any(any((ROOT / tree).rglob(name)) for tree in _TREES)


def missing_files(page: Path) -> Iterator[str]:
    for code in _CODE.findall(prose(page.read_text())):
        for word in code.split():
            name = word.partition("::")[0]
            if _NAMED.fullmatch(name) and name not in OTHERS and not exists(name, page):
                yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    assert not list(missing_files(page))


def not_imported(text: str) -> set[str]:
    """Packages and classes that the Python of a page uses, and that it has neither imported nor made above; what is the
    reader's own begins with "My"."""
    known, missing = set(dir(builtins)), set[str]()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        nodes = list(ast.walk(ast.parse(block)))
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                known.add(node.name)
        used = {node.id for node in nodes if isinstance(node, ast.Name)} - known
        missing |= {name for name in used if name in ("fp8gemm", "torch") or name[0].isupper()}
    return {name for name in missing if not name.startswith("My")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_imports_what_it_uses(page: Path) -> None:
    assert not not_imported(page.read_text())


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, `two` and three\n[a](page.md) [b](#one-two-and-three) [c](gone.md) [d](#four) [e](page.md#five)\n"
        "`fp8gemm/errors.py` `mainloop/load.cuh` `errors.py`\n"
        "`fp8gemm/families/dense.py` `jit/store.py::x` `benchmark/`\n"
        "[f](https://example.org/x.md)\n```\n[g](gone.md) `gone.py`\n```\n"
    )
    code = "```python\nimport torch\nx = Model(MyModel())\n```\n```python\nfp8gemm.gemm(torch.ones(1), y)\n```\n"
    assert not_imported(code) == {"Model", "fp8gemm"}
    assert list(broken_links(page)) == ["gone.md", "#four", "page.md#five"]
    assert list(missing_files(page)) == ["fp8gemm/families/dense.py", "jit/store.py", "benchmark/"]


def test_the_readme_is_short_and_every_page_is_reached_from_it() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= README_LINES
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            targets = (link["target"].partition("#")[0] for link in _LINK.finditer(page.read_text()))
            ahead += [(page.parent / each).resolve() for each in targets if each.endswith(".md") and ":" not in each]
    assert set(PAGES) <= reached
