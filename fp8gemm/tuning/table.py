"""Tuned tables: what was measured on a chip, and overrides what the model predicts.

A table is a JSON file. Its heading names the GPU, the chip (a name of `fp8gemm.tuning.hopper.CHIPS`) and the SMs it was
measured with, the date and the method; it holds for that chip with that many SMs and no other. Each entry says which
config was fastest for one M, N, K, scaling and size of the output's elements, with a static weight or without. It
holds for every M that choices count alike (`fp8gemm.tuning.problem.counted_rows`) and for no other; for every C, bias
and kind of store; and never for a batch-invariant product.

A config of the ordinary orientation is named by its tile, without the stages: those are what fits, which depends on
the kind of store; one of the swapped orientation by its whole label. An entry that names no candidate is passed over,
so that a table outlives changes to the candidates; of a user's table that is a warning, once for each name.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.quoting import cut, quoted, quoted_path
from fp8gemm.reading import Kind, read_json
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem, Scaling, counted_rows
from fp8gemm.writing import write_text

SCHEMA = 1
SHIPPED = Path(__file__).parent / "tables"
FILE = Kind("a tuned table in JSON", 16 << 20)

Key = tuple[int, int, int, str, int, bool]
"""M in whole steps, N, K, scaling, bytes of an output element, whether the weight is static."""

_T = TypeVar("_T")


class Labelled(Protocol):
    """A config, as far as tables know it."""

    @property
    def label(self) -> str:
        """Short name."""


_C = TypeVar("_C", bound=Labelled)


@dataclass(frozen=True)
class Entry:
    """What was fastest for a shape.

    Attributes:
        m, n, k: the shape that was measured.
        tile: name of the tile, as `tile_of` gives it.
        us: microseconds per call that were measured.
        model_us: the same of the model's choice, for people.
        scaling: value of a `Scaling`.
        output_bytes: of an element of the output.
        static_weights: whether the weight was read ahead of the kernel before.
    """

    m: int
    n: int
    k: int
    tile: str
    us: float
    model_us: float | None = None
    scaling: str = Scaling.BLOCK.value
    output_bytes: int = 2
    static_weights: bool = False

    @property
    def key(self) -> Key:
        """What the entry is found by."""
        return counted_rows(self.m), self.n, self.k, self.scaling, self.output_bytes, self.static_weights


@dataclass(frozen=True)
class Table:
    """One file.

    Attributes:
        gpu: the device's name, for people.
        chip, num_sms: the chip that the table holds for.
        date: of the newest measurement.
        method: how it was measured, for people.
        entries: one per key.
    """

    gpu: str
    chip: str
    num_sms: int
    date: str
    method: str
    entries: tuple[Entry, ...] = ()

    def as_text(self) -> str:
        """JSON with a line per entry, sorted, so that two versions can be compared."""
        heading = {"schema": SCHEMA, **asdict(self)}
        del heading["entries"]
        entries = sorted(self.entries, key=lambda entry: (entry.key[1:], entry.m))
        rows = ",\n".join(f"  {json.dumps(asdict(entry))}" for entry in entries)
        return json.dumps(heading, indent=1)[:-2] + ',\n "entries": [' + (f"\n{rows}\n " if rows else "") + "]\n}\n"


class Tables:
    """Tables in order, the strongest first. Equal only to itself, so that what is cached for it is found at once.

    Args:
        tables: the weaker ones.
        own: a user's, each with its file, which come before these; a name in them that is no candidate is told.
    """

    def __init__(self, tables: Iterable[Table], own: Iterable[tuple[Path, Table]] = ()) -> None:
        self._by_chip: dict[tuple[str, int], list[tuple[Path | None, dict[Key, str]]]] = {}
        self._told: set[tuple[Path, str]] = set()
        for path, table in (*own, *((None, table) for table in tables)):
            known = self._by_chip.setdefault((table.chip, table.num_sms), [])
            known.append((path, {entry.key: entry.tile for entry in table.entries}))

    def config(self, problem: Problem, chip: Chip, candidates: Sequence[_C]) -> _C | None:
        """What the tables say: of the candidates the one that the first table with such an entry names, or None.

        An entry that names none of them is passed over, and told if it is a user's.
        """
        known = self._by_chip.get((chip.name, chip.num_sms))
        if known is None or problem.batch_invariant:
            return None
        key = (problem.m, problem.n, problem.k, problem.scaling.value, problem.output.bytes)
        # A static weight makes a difference to the kernels for few rows alone.
        kinds = (True, False) if problem.static_weights and problem.m > FEW_ROWS[-1] else (problem.static_weights,)
        for path, tiles in known:
            tile = next((tiles[key + (kind,)] for kind in kinds if key + (kind,) in tiles), None)
            if tile is None:
                continue
            for config in candidates:
                if tile_of(config) == tile:
                    return config
            if path is not None:
                self._tell(path, tile, problem)
        return None

    def _tell(self, path: Path, tile: str, problem: Problem) -> None:
        if (path, tile) not in self._told:
            self._told.add((path, tile))
            warnings.warn(
                f"{quoted_path(path)}: expected the tile of a candidate for M up to {problem.m}, N = {problem.n}, "
                f"K = {problem.k}, got {quoted(tile)}; the entry is passed over",
                RuntimeWarning,
                stacklevel=2,
            )

    def rows(self, problem: Problem, chip: Chip) -> frozenset[int]:
        """Every M, in whole steps, for which a table may say something of the problem, whatever its own M."""
        known = self._by_chip.get((chip.name, chip.num_sms), ())
        shape = (problem.n, problem.k, problem.scaling.value, problem.output.bytes)
        return frozenset(key[0] for _, tiles in known for key in tiles if key[1:5] == shape)


NO_TABLES = Tables(())
"""For the model's own choice."""


def tables_in_force() -> Tables:
    """The user's tables, as the settings list them, and then the shipped ones. Each file is read once per process.

    Raises:
        InputError: a file cannot be read, or is no tuned table.
    """
    return _load(settings.current().tables)


def forget_tables() -> None:
    """Read the files again when they are next needed."""
    _load.cache_clear()


@lru_cache(maxsize=64)
def _load(paths: tuple[Path, ...]) -> Tables:
    return Tables(_shipped(), own=[(path, read_table(path)) for path in paths])


@cache
def _shipped() -> tuple[Table, ...]:
    return tuple(read_table(path) for path in sorted(SHIPPED.glob("*.json")))


def tile_of(config: Labelled) -> str:
    """Name of a config's tile: its label without the stages that are only what fits."""
    return tile_of_label(config.label)


def tile_of_label(label: str) -> str:
    """``256x128-s4-c2x1`` to ``256x128-c2x1``."""
    return "-".join(part for part in label.split("-") if not (part[:1] == "s" and part[1:].isdigit()))


def read_table(path: Path) -> Table:
    """Read a file.

    Raises:
        InputError: it cannot be read, or is no tuned table.
    """
    found = read_json(path, FILE)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise InputError(
            f'{quoted_path(path)}: expected a tuned table with "schema": {SCHEMA}, got schema {quoted(schema)}'
        )
    rows = found.pop("entries", None)
    if not isinstance(rows, list):
        raise InputError(f'{quoted_path(path)}: expected "entries" to be a list, got {quoted(rows)}')
    del found["schema"]
    entries = tuple(_checked(Entry, row, path, index) for index, row in enumerate(rows))
    keys: dict[Key, int] = {}
    for index, entry in enumerate(entries):
        first = keys.setdefault(entry.key, index)
        if first != index:
            raise InputError(
                f"{quoted_path(path)}: expected one entry for each step of rows, got entries {first} and {index} for "
                f"M = {entry.m}, N = {entry.n}, K = {entry.k}"
            )
    return _checked(Table, found | {"entries": entries}, path)


def write_table(path: Path, table: Table) -> None:
    """Replace a file in one step."""
    write_text(path, table.as_text())


def _checked(kind: type[_T], found: Any, path: Path, index: int | None = None) -> _T:
    """An `Entry` or a `Table` from JSON, each field of its declared type."""
    try:
        if not isinstance(found, dict):
            raise InputError(f"expected an object, got {quoted(found)}")
        try:
            made = kind(**found)
        except TypeError:  # a field too many or too few
            names = ", ".join(name for name, _, _ in _RULES[kind])
            raise InputError(f"expected the fields {names}, got {cut(', '.join(found)) or 'none'}") from None
        for name, expected, allowed in _RULES[kind]:
            value = getattr(made, name)
            # An exact type: JSON's true is no number. A comparison that NaN fails too.
            if type(value) not in allowed or (type(value) in (int, float) and not 0 < value < float("inf")):
                raise InputError(f"expected {name} to be {expected}, got {quoted(value)}")
        if isinstance(made, Entry) and made.scaling not in _SCALINGS:
            raise InputError(f"expected scaling to be one of {', '.join(_SCALINGS)}, got {quoted(made.scaling)}")
    except InputError as error:
        raise InputError(f"{quoted_path(path)}: {'' if index is None else f'entry {index}: '}{error}") from None
    return made


_SCALINGS = tuple(scaling.value for scaling in Scaling)
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a positive whole number", (int,)),
    "float": ("a positive number", (int, float)),
    "float | None": ("a positive number or null", (int, float, type(None))),
    "str": ("a string", (str,)),
    "bool": ("true or false", (bool,)),
}
_RULES: dict[type, list[tuple[str, str, tuple[type, ...]]]] = {
    kind: [(field.name, *_TYPES[str(field.type)]) for field in fields(kind) if field.type in _TYPES]
    for kind in (Entry, Table)
}
"""Name, expected value and types of each field whose value JSON holds as it is."""
