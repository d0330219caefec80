"""What MkDocs builds the site of besides the pages in docs/: hooks that mkdocs.yml names.

The start page is the README. Pages of the root, of each command's help and of the public calls' docstrings are made
when the site is built, and so is a page for every file outside docs/ that some page links to: nothing is written twice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import fp8gemm  # noqa: E402
from fp8gemm.cli import main as cli  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

OF_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the root, and what they are in the site."""
API = {
    "Products": ("fp8gemm", ("gemm", "plan", "Plan", "gemm_grouped", "gemm_masked", "gemm_k_grouped", "linear")),
    "Quantisers": (
        "fp8gemm",
        tuple(name for name in fp8gemm.__all__ if name.startswith("quantize_"))
        + ("fold_scales", "Folded", "to_mn_major"),
    ),
    "Layers": ("fp8gemm.nn", None),
    "Routing": ("fp8gemm.routing", None),
    "Several GPUs": ("fp8gemm.parallel", None),
    "Choice and warmup": ("fp8gemm", ("select", "enumerate_configs", "enumerate_grouped_configs", "warmup", "Warmup")),
    "Headers": ("fp8gemm", ("include_dir",)),
    "Errors": ("fp8gemm", tuple(name for name in fp8gemm.__all__ if name.endswith("Error"))),
}
"""What api.md documents: of a module these names, or all that it exports."""
LANGUAGES = {".py": "python", ".cuh": "cpp", ".cu": "cpp", ".toml": "toml", ".json": "json"}

_PICTURE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+\.png)\)")
_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    made = {"cli.md": command_page(), "api.md": api_page()}
    made |= {name: (ROOT / source).read_text() for source, name in OF_ROOT.items()}
    made |= {source_page(path): source_text(path) for path in sorted(set(linked_sources()))}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to where the pages are in the site, and a picture, which a phone shows small, to itself."""
    return _PICTURE.sub(r"[\g<0>](\g<target>)", relinked(markdown, page.file.src_uri))


def relinked(markdown: str, page: str) -> str:
    """A page's text with links that hold in the site, of which ``page`` is its path."""
    if page.startswith("source/"):
        return markdown
    folder = "" if page in OF_ROOT.values() else "docs"
    return _LINK.sub(lambda link: f"]({place_of(target_of(link, folder))}{link['anchor'] or ''})", markdown)


def target_of(link: re.Match[str], folder: str) -> str:
    """The file of the repository that a link leads to, on a page in so named a folder of it."""
    return posixpath.normpath(posixpath.join(folder, link["target"]))


def place_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in OF_ROOT:
        return OF_ROOT[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else source_page(path)


def linked_sources() -> Iterator[str]:
    """Files outside docs/ that pages link to, other than pages of the root."""
    for page in [*(ROOT / name for name in OF_ROOT), *sorted((ROOT / "docs").glob("*.md"))]:
        for link in _LINK.finditer(page.read_text()):
            path = target_of(link, page.parent.relative_to(ROOT).as_posix())
            if not path.startswith("docs/") and path not in OF_ROOT and (ROOT / path).is_file():
                yield path


def source_page(path: str) -> str:
    """The page that shows a file."""
    return f"source/{path}.md"


def source_text(path: str) -> str:
    """The file's text under its name."""
    fence = "`````"
    return f"# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{(ROOT / path).read_text()}\n{fence}\n"


def command_page() -> str:
    """Every command's own help."""
    parts = ["# Commands\n", "What each says to `--help`, at 80 columns."]
    for name in cli.COMMANDS:
        parts.append(f"\n## fp8gemm {name}\n\n```text\n{help_of(name)}\n```")
        for action in actions_of(name):
            parts.append(f"\n### fp8gemm {name} {action}\n\n```text\n{help_of(name, action)}\n```")
    return "\n".join(parts) + "\n"


def actions_of(command: str) -> list[str]:
    """The commands within a command."""
    import_module(f"fp8gemm.cli.{command}").add_arguments(parser := argparse.ArgumentParser())
    within = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return [name for each in within for name in each.choices]


def help_of(*command: str) -> str:
    """What a command prints for ``--help``."""
    out = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="80"), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    return out.getvalue().strip()


def api_page() -> str:
    """A directive for each public call, which mkdocstrings fills from its docstring."""
    parts = ["# API\n", "From the docstrings; [one line each](reference.md#calls)."]
    for heading, (module, names) in API.items():
        parts.append(f"\n## {heading}\n")
        homes = (home_of(module, name) for name in names or exported(module))
        parts += [f"::: {home}\n" for home in homes if home.startswith("fp8gemm.")]  # torch documents its own
    return "\n".join(parts) + "\n"


def exported(module: str) -> tuple[str, ...]:
    """Names that a module exports."""
    return tuple(import_module(module).__all__)


def home_of(module: str, name: str) -> str:
    """The dotted name of where it is written: what mkdocstrings reads runs nothing, and follows no lazy import."""
    value = getattr(import_module(module), name)
    return f"{value.__module__}.{value.__name__}"
