"""The layers that a report is about, and what the model of speed says of each with so many rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.tuning.explain import Explanation, explain_choice
from fp8gemm.tuning.explain_grouped import explain_grouped
from fp8gemm.tuning.grouped import grouped_config_by_m
from fp8gemm.tuning.grouped_model import predicted_us
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.select import Config, config_by_m
from fp8gemm.tuning.terms import Value


@dataclass(frozen=True)
class Layer:
    """Weights of one shape that are asked for in one way.

    Attributes:
        names: of those that share them, for people.
        problem: what is asked for, with the largest M.
        count: how many products of it a step has, one for each such layer of the model.
        routed: experts of a layer on all ranks, and to how many of them a token goes; None for M rows in each group.
    """

    names: tuple[str, ...]
    problem: AnyProblem
    count: int = 1
    routed: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """All of them."""
        return ", ".join(self.names)

    @property
    def groups(self) -> int:
        """1 for a single product."""
        return self.problem.groups if isinstance(self.problem, GroupedProblem) else 1

    @property
    def weight_bytes(self) -> int:
        """Of FP8 codes and scales."""
        one = self.problem.of_group() if isinstance(self.problem, GroupedProblem) else self.problem
        return self.groups * one.weight_bytes

    def with_rows(self, m: int) -> AnyProblem:
        """What a step of M rows, or tokens, asks for: of experts, rows of a typical one."""
        if self.routed is not None:
            experts, of_token = self.routed
            m = -(-m * of_token // experts)
        return replace(self.problem, m=m)

    def touched(self, m: int) -> int:
        """Groups that have rows, at most."""
        if self.routed is None:
            return self.groups
        experts, of_token = self.routed
        return min(self.groups, -(-m * of_token * self.groups // experts))

    def configs(self, chip: Chip) -> list[tuple[int, str]]:
        """Largest M, or rows of a typical group, and config, of every choice up to the largest M."""
        if isinstance(self.problem, GroupedProblem):
            steps = grouped_config_by_m(self.problem, chip)
        else:
            steps = config_by_m(self.problem, chip)
        return [(min(m, self.problem.m), config.label) for m, config in steps]


def merged(layers: Iterable[Layer]) -> list[Layer]:
    """Those of the same products as one, in the order of the first."""
    found: dict[tuple[AnyProblem, tuple[int, int] | None], Layer] = {}
    for layer in layers:
        key = layer.problem, layer.routed
        same = found.get(key)
        if same is not None:
            names = tuple(dict.fromkeys(same.names + layer.names))
            layer = replace(same, names=names, count=same.count + layer.count)
        found[key] = layer
    return list(found.values())


@dataclass(frozen=True)
class Point:
    """A layer with so many rows.

    Attributes:
        layer, m: which; M are rows, or tokens.
        problem: what a kernel is chosen for.
        config: that kernel's.
        explanation: why.
        facts: by name, of the groups that have rows.
        us: predicted microseconds under load that lasts.
        burst_us: predicted in bursts; None where the model has one time for both.
        measured: microseconds by regime; empty where nothing was measured.
        failed: why there is no measured time; empty where none was wanted.
        kernel: its name.
        ready: whether a cache directory has that kernel.
    """

    layer: Layer
    m: int
    problem: AnyProblem
    config: Config
    explanation: Explanation
    facts: Mapping[str, Value]
    us: float
    burst_us: float | None
    measured: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    kernel: str = ""
    ready: bool = False

    @property
    def measured_us(self) -> float | None:
        """What compares with ``us``: under load that lasts, or with few rows, of which power limits none, in turn."""
        return self.measured.get(Regime.SUSTAINED.value, self.measured.get(Regime.TURN.value))

    @property
    def bound_us(self) -> float:
        """What no kernel is faster than."""
        return max(float(self.facts["tensor_bound"]), float(self.facts["dram_bound"]))

    def tflops(self, us: float) -> float:
        """10^12 operations a second, at so many microseconds."""
        return float(self.facts["flops"]) / us / 1e6

    def as_json(self) -> dict[str, Any]:
        """All of it but for the names of the layer."""
        us = self.us if self.measured_us is None else self.measured_us
        return {
            "m": self.m,
            "rows": self.problem.m,
            "groups_with_rows": self.layer.touched(self.m),
            "config": self.config.label,
            "source": self.explanation.source,
            "us": round(self.us, 3),
            "burst_us": None if self.burst_us is None else round(self.burst_us, 3),
            "measured_us": {regime: round(us, 3) for regime, us in self.measured.items()},
            "failed": self.failed,
            "tflops": round(self.tflops(us), 1),
            "roof_share": round(self.bound_us / us, 4),
            **{name: self.facts[name] for name in ("flops", "bytes", "intensity", "tensor_bound", "dram_bound")},
            "verdict": list(self.explanation.verdict),
            "kernel": self.kernel,
            "ready": self.ready,
        }


def predicted(layer: Layer, m: int, chip: Chip) -> Point:
    """What is chosen for a layer with so many rows, and what that is predicted to take."""
    problem = layer.with_rows(m)
    if not isinstance(problem, GroupedProblem):
        found = explain_choice(problem, chip, 0)
        terms = {row.name: float(row.values[0]) for row in found.rows if row.name in ("total_us", "burst_us")}
        return Point(
            layer, m, problem, found.configs[0], found, _facts(found), terms["total_us"], terms.get("burst_us")
        )
    found = explain_grouped(problem, chip, 0)
    # The host knows nothing of which groups have rows, so the choice does not; but only their weights are read.
    there = replace(problem, groups=layer.touched(m))
    us = predicted_us(replace(there, m=problem.counted_m), found.configs[0], chip)
    return Point(layer, m, problem, found.configs[0], found, _facts(explain_grouped(there, chip, 0)), us, None)


def _facts(found: Explanation) -> dict[str, Value]:
    return {row.name: row.values[0] for row in found.facts}
