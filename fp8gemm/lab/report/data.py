"""All that a report tells. The page is drawn from it, and ``--json`` is it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fp8gemm.lab.report.layers import Layer, Point
from fp8gemm.tuning.hopper import Chip, chip_name


@dataclass(frozen=True)
class Step:
    """All products of a step with so many rows, each as often as the model has it.

    Attributes:
        m: rows, or tokens.
        points: of each layer.
    """

    m: int
    points: tuple[Point, ...]

    @property
    def us(self) -> float:
        """Predicted under load that lasts."""
        return sum(point.layer.count * point.us for point in self.points)

    @property
    def burst_us(self) -> float:
        """Predicted in bursts, where the model tells them apart."""
        return sum(point.layer.count * (point.burst_us or point.us) for point in self.points)

    @property
    def measured_us(self) -> float | None:
        """None unless each was measured."""
        found = [point.measured_us for point in self.points]
        if None in found:
            return None
        return sum(point.layer.count * (us or 0.0) for point, us in zip(self.points, found, strict=True))

    def shares(self) -> list[float]:
        """Of each layer, of the predicted time."""
        return [point.layer.count * point.us / self.us for point in self.points]

    def measured_shares(self) -> list[float] | None:
        """The same of the measured time."""
        total = self.measured_us
        if total is None:
            return None
        return [point.layer.count * (point.measured_us or 0.0) / total for point in self.points]

    def as_json(self) -> dict[str, Any]:
        """Without the points."""
        return {
            "m": self.m,
            "us": round(self.us, 3),
            "burst_us": round(self.burst_us, 3),
            "measured_us": None if self.measured_us is None else round(self.measured_us, 3),
            "shares": [round(share, 5) for share in self.shares()],
            "measured_shares": self.measured_shares() and [round(share, 5) for share in self.measured_shares() or ()],
        }


@dataclass(frozen=True)
class TunedTable:
    """A tuned table in force: its file, or its name if it is shipped; of what; whether it holds for the chip here."""

    path: str
    chip: str
    date: str
    entries: int
    holds: bool


@dataclass(frozen=True)
class CacheDirectory:
    """A directory of the kernel cache, all its kernels, and in words what is odd about it."""

    path: str
    state: str
    kernels: int
    bytes: int
    note: str


@dataclass(frozen=True)
class Kernels:
    """What a warmup of all this would hold.

    Attributes:
        command: the warmup.
        products, quantizers: names of its kernels, of products and of what quantises.
        missing: those of them that no cache directory has intact, each with the reason.
        bytes: of the cubins that are there.
        max_m: most rows.
    """

    command: str
    products: tuple[str, ...]
    quantizers: tuple[str, ...]
    missing: Mapping[str, str]
    bytes: int
    max_m: int

    @property
    def count(self) -> int:
        """Ready and missing."""
        return len(self.products) + len(self.quantizers)

    @property
    def ready(self) -> int:
        """Those that are there."""
        return self.count - len(self.missing)


@dataclass(frozen=True)
class Report:
    """One page.

    Attributes:
        title: what it is about: a model's name, or shapes.
        facts: what stands at its head, by name.
        chip: what kernels are chosen for.
        steps: by rows; each has a point of every layer, in the order of ``layers``.
        weighted: whether the layers are counted as the model's configuration says.
        method: how it was measured; empty where nothing was.
        unmeasured: why nothing was measured; empty otherwise.
        tables, cache, kernels: what is in force, there and missing.
    """

    title: str
    facts: Mapping[str, str | None]
    chip: Chip
    layers: Sequence[Layer]
    steps: Sequence[Step]
    weighted: bool
    method: str
    unmeasured: str
    tables: Sequence[TunedTable]
    cache: Sequence[CacheDirectory]
    kernels: Kernels

    def points(self, layer: Layer) -> list[Point]:
        """Of one layer, by rows."""
        return [point for step in self.steps for point in step.points if point.layer is layer]

    def as_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        kernels = self.kernels
        return {
            "title": self.title,
            **self.facts,
            "chip": {"name": chip_name(self.chip), **{k: v for k, v in asdict(self.chip).items() if k != "name"}},
            "weighted": self.weighted,
            "method": self.method,
            "unmeasured": self.unmeasured,
            "layers": [self._layer(layer) for layer in self.layers],
            "steps": [step.as_json() for step in self.steps],
            "tables": [asdict(table) for table in self.tables],
            "cache": [asdict(directory) for directory in self.cache],
            "warmup": {
                **asdict(kernels),
                "kernels": kernels.count,
                "ready": kernels.ready,
                "products": list(kernels.products),
                "quantizers": list(kernels.quantizers),
            },
        }

    def _layer(self, layer: Layer) -> dict[str, Any]:
        problem = {name: getattr(value, "value", value) for name, value in vars(layer.problem).items()}
        return {
            "names": list(layer.names),
            "count": layer.count,
            "groups": layer.groups,
            **{name: value for name, value in problem.items() if name != "m"},
            "routed": layer.routed and list(layer.routed),
            "weight_bytes": layer.weight_bytes,
            "configs": [{"max_m": m, "config": label} for m, label in layer.configs(self.chip)],
            "points": [point.as_json() for point in self.points(layer)],
        }
