"""The rules of the house: who may import whom, which way device headers include, how long files are."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "quoting": set(),
    "frozen": set(),
    "writing": set(),
    "installed": set(),
    "terminal": set(),
    "errors": set(),
    "reading": {"errors"},
    "settings": {"errors"},
    "sizes": {"errors"},
    "scales": {"errors", "sizes"},
    "driver": {"errors"},
    "reference": {"errors", "scales", "sizes"},
    "tuning": {"errors", "settings", "sizes"},
    "cache": {"errors", "settings"},
    "jit": {"cache", "driver", "errors", "settings"},
    "checks": {"tuning", "errors", "scales", "sizes"},
    "ops": {"checks", "scales", "sizes"},
    "kernels": {"jit", "tuning", "driver", "errors", "settings", "sizes"},
    "products": {
        *("kernels", "checks", "ops", "reference", "jit", "tuning", "driver"),
        *("errors", "settings", "scales", "sizes"),
    },
    "routing": {"products", "checks", "reference", "errors", "scales", "sizes"},
    "nn": {"products", "routing", "checks", "errors", "scales", "sizes", "terminal"},
    "parallel": {"nn", "products", "ops", "routing", "checks", "driver", "errors", "scales", "sizes"},
    "integrations": {
        *("parallel", "nn", "products", "checks", "driver"),
        *("errors", "installed", "scales", "settings", "sizes"),
    },
    "ahead": {"nn", "kernels", "jit", "cache", "tuning", "errors", "settings", "sizes", "terminal"},
    "fp8gemm": {"ahead", "nn", "products", "ops", "tuning", "jit", "errors", "scales"},
    "lab": {
        *("fp8gemm", "nn", "products", "kernels", "reference", "jit", "tuning", "driver"),
        *("errors", "installed", "settings", "scales", "sizes", "terminal"),
    },
    "cli": {
        *("fp8gemm", "lab", "ahead", "integrations", "kernels", "jit", "cache", "tuning", "driver"),
        *("errors", "installed", "settings", "sizes", "terminal"),
    },
    "__main__": {"cli"},
}
"""The rooms of the house from its cellar up, and those below that each may enter. "fp8gemm" is the package's own
module, with the public names."""

EVERYWHERE = {"frozen", "reading", "writing", "quoting"}
"""How every room makes its dataclasses, reads and writes files, and shows in messages what came."""

PACKAGE = ROOT / "fp8gemm"


def room_of(path: Path) -> str:
    """The package or module right below ours that a file is in."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "fp8gemm" if first == "__init__" else first


FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({room_of(path) for path in FILES})


def imported_parts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def entered_from(path: Path) -> set[str]:
    """Rooms that a file imports from, late and for its types too."""
    names = [name for name in imported_parts(path) if name.split(".")[0] == "fp8gemm"]
    rooms = {name.split(".")[1] if "." in name else "fp8gemm" for name in names}
    return {room if room in ROOMS else "fp8gemm" for room in rooms}  # a public name is in no room of its own


def test_every_room_is_in_the_table_and_enters_lower_ones_alone() -> None:
    assert sorted(MAY_IMPORT) == ROOMS
    order = list(MAY_IMPORT)
    for number, (room, below) in enumerate(MAY_IMPORT.items()):
        assert below <= set(order[:number]), room


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room} | EVERYWHERE
    for path in FILES:
        if room_of(path) == room:
            assert entered_from(path) <= allowed, path


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_what_is_allowed_is_needed(room: str) -> None:
    needed = {entered for path in FILES if room_of(path) == room for entered in entered_from(path)}
    assert MAY_IMPORT[room] <= needed, "the table allows more than there is"


FOREIGN = {"tuning": ({"torch", "cuda"}, set()), "cache": ({"torch", "cuda"}, set()), "reference": (set(), {"torch"})}
"""Of packages that are not ours: those that a room does without, or if not empty, those that it may have."""


@pytest.mark.parametrize("room", FOREIGN)
def test_foreign_packages(room: str) -> None:
    never, only = FOREIGN[room]
    for path in FILES:
        if room_of(path) == room:
            foreign = {name.split(".")[0] for name in imported_parts(path)} - set(sys.stdlib_module_names) - {"fp8gemm"}
            assert not foreign & never and (not only or foreign <= only), path


DEVICE_LAYERS = [
    *({"common"}, {"ptx"}, {"pipeline"}, {"scheduler"}, {"trace"}),
    *({"mainloop", "epilogue", "quantize"}, {"kernels"}),
]
"""Lowest first; a header includes its own folder and lower layers, never a neighbour in its layer."""


def test_device_headers_include_downward() -> None:
    rank = {folder: level for level, layer in enumerate(DEVICE_LAYERS) for folder in layer}
    headers = sorted((ROOT / "include" / "fp8gemm").rglob("*.cuh"))
    assert {header.parent.name for header in headers} == set(rank)
    for header in headers:
        own = header.parent.name
        for included in re.findall(r'#include "fp8gemm/(\w+)/', header.read_text()):
            assert included == own or rank[included] < rank[own], f"{header} includes {included}"


SOURCES = sorted(
    path
    for folder in ("fp8gemm", "include", "scripts", "examples", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".hpp", ".sh")
)


def test_files_and_functions_are_short() -> None:
    assert len(SOURCES) > 20
    too_long = []
    for path in SOURCES:
        text = path.read_text()
        if (lines := text.count("\n")) >= 300:
            too_long.append(f"{path}: {lines} lines, fewer than 300 are wanted")
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines >= 80:
                    too_long.append(f"{path}: {node.name} has {lines} lines, fewer than 80 are wanted")
    assert not too_long, "\n".join(too_long)
