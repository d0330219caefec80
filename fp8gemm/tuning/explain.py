"""Why a tile config is chosen: the derivation of the winner and of those that come after it, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.tuning.candidates import why_last
from fp8gemm.tuning.dependent_launch import as_launched
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.many_rows import MOST_KERNELS
from fp8gemm.tuning.model import Cost, predict
from fp8gemm.tuning.problem import Problem, rounded
from fp8gemm.tuning.select import Config, constants_for, ranked_configs
from fp8gemm.tuning.swap_ab import SwapAbConfig
from fp8gemm.tuning.swap_ab_model import SwapAbCost, predict_swap_ab
from fp8gemm.tuning.table import NO_TABLES
from fp8gemm.tuning.terms import Row, Value, config_rows, fact_rows, product_facts
from fp8gemm.tuning.tiles import MANY_ROWS

AnyCost = Cost | SwapAbCost
Costs = Mapping[Config, AnyCost]

MODEL, TABLE = "model", "table"
"""Where a choice can come from: it has the least predicted cost, or a tuned table names another config than that."""


@dataclass(frozen=True)
class Explanation:
    """The derivation of one choice.

    Attributes:
        problem, chip: what it was made for.
        legal: how many configs there were to choose from.
        source: ``MODEL`` or ``TABLE``.
        configs: the winner, and the best of the others by prediction: of its orientation, of grouped products of both.
        facts: rows of one value, of the problem and the chip.
        rows: rows of one value per config.
        verdict: sentences: what bounds the problem; where the choice comes from and its largest term; why the first
            config that is predicted no slower is passed over, and what the first slower one loses to; what the other
            orientation would take.
    """

    problem: Problem | GroupedProblem
    chip: Chip
    legal: int
    source: str
    configs: tuple[Config, ...]
    facts: tuple[Row, ...]
    rows: tuple[Row, ...]
    verdict: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {
            "problem": {name: getattr(value, "value", value) for name, value in vars(self.problem).items()},
            "chip": asdict(self.chip),
            "legal_configs": self.legal,
            "source": self.source,
            "configs": [{"label": config.label, **asdict(config)} for config in self.configs],
            "facts": [asdict(row) for row in self.facts],
            "terms": [asdict(row) for row in self.rows],
            "verdict": list(self.verdict),
        }


def explain_choice(problem: Problem, chip: Chip, runners_up: int = 4) -> Explanation:
    """Derive the choice for a problem, beside ``runners_up`` others or as many as there are.

    Raises:
        InputError: M is 0, for which nothing is launched.
    """
    if problem.m < 1:
        raise InputError(f"expected M >= 1, since nothing is launched without rows, got M = {problem.m}")
    counted = rounded(problem)
    costs: dict[Config, AnyCost] = {
        config: predict_config(problem, config, chip) for config in ranked_configs(problem, chip)
    }
    winner, least = next(iter(costs)), ranked_configs(problem, chip, NO_TABLES)[0]
    alike = [config for config in costs if type(config) is type(winner)]
    shown = tuple(alike[: 1 + max(runners_up, 0)])
    facts = fact_rows(product_facts(problem, counted, chip))
    if winner != least:
        choice = [_measured(winner, least, costs)]
    else:
        us = costs[winner].total_us
        no_slower = list(takewhile(lambda config: costs[config].total_us <= us, shown[1:]))
        ties = [config for config in no_slower if costs[config].total_us == us and not why_last(counted, config, chip)]
        passed_over = [config for config in no_slower if config not in ties]
        losers = shown[1 + len(no_slower) :]
        choice = [
            _predicted(winner, costs),
            *_tied(ties),
            *(_passed_over(counted, config, chip) for config in passed_over[:1]),
            *(_lost(winner, loser, costs) for loser in losers[:1]),
        ]
    choice += _other_orientation(winner, costs)
    if problem.static_weights and not as_launched(problem, winner, chip).static_weights:
        choice.append("It is launched behind the kernel before it, where a static weight makes no difference.")
    return Explanation(
        problem=problem,
        chip=chip,
        legal=len(costs),
        source=MODEL if winner == least else TABLE,
        configs=shown,
        facts=facts,
        rows=tuple(config_rows(problem, chip, shown, [costs[config] for config in shown])),
        verdict=(bound_sentence({fact.name: fact.values[0] for fact in facts}), *choice),
    )


def predict_config(problem: Problem, config: Config, chip: Chip) -> AnyCost:
    """The predicted cost of a config of either orientation, as choices compare it."""
    launched = as_launched(problem, config, chip)
    if isinstance(config, SwapAbConfig):
        return predict_swap_ab(launched, config, chip)
    return predict(launched, config, chip, constants_for(launched))


def _other_orientation(winner: Config, costs: Costs) -> list[str]:
    others = [config for config in costs if type(config) is not type(winner)]
    if not others:
        return []
    best = min(others, key=lambda config: costs[config].total_us)
    return [other_orientation(winner, costs[best].total_us, best)]


def other_orientation(winner: Config, us: float, best: Config) -> str:
    """What the orientation that the winner does not have would take at best."""
    return f"The {other_name(winner)} would take {in_us(us)} at best, with {best.label}."


def other_name(config: Config) -> str:
    """What sentences call the orientation that a config does not have."""
    swapped = isinstance(config, SwapAbConfig)
    return "ordinary orientation" if swapped else "swapped orientation, weights on the 64-row side,"


def bound_sentence(facts: Mapping[str, Value]) -> str:
    """Whether the tensor cores or the memory are the limit, by facts that `roofline_facts` are among."""
    have, need, tensor, dram = (
        float(facts[name]) for name in ("intensity", "chip_intensity", "tensor_bound", "dram_bound")
    )
    limit = "the tensor cores are the limit" if tensor >= dram else "memory is the limit"
    return f"{have:,.1f} FLOP per byte where the chip has {need:,.1f}: {limit}, {max(tensor, dram):,.2f} us at best."


def _measured(winner: Config, least: Config, costs: Costs) -> str:
    return (
        f"{winner.label} was measured, from a table; {in_us(costs[winner].total_us)} are predicted for it. "
        f"The model alone would choose {least.label}, predicted {in_us(costs[least].total_us)}."
    )


def _predicted(winner: Config, costs: Costs) -> str:
    total, parts = costs[winner].total_us, _parts(costs[winner])
    largest = max(parts, key=lambda name: parts[name])
    may_win = " that the choice may fall on" if any(cost.total_us < total for cost in costs.values()) else ""
    return (
        f"{winner.label} has the least predicted cost of {len(costs)} legal configs{may_win}, {in_us(total)}; "
        f"its largest term is {largest}, {in_us(parts[largest])} ({parts[largest] / total:.0%})."
    )


def _tied(configs: Sequence[Config]) -> Iterator[str]:
    if configs:
        labels = ", ".join(config.label for config in configs)
        yield f"As long is predicted for {labels}: of equals the first in the order of candidates is taken."


def _passed_over(problem: Problem, config: Config, chip: Chip) -> str:
    of_others = f"this weight has other kernels, of which {MOST_KERNELS} at most are compiled from {MANY_ROWS} rows on"
    return f"{config.label} is predicted no slower, but {why_last(problem, config, chip) or of_others}."


def _lost(winner: Config, loser: Config, costs: Costs) -> str:
    more = costs[loser].total_us - costs[winner].total_us
    own = _parts(costs[winner])
    excess = {name: us - own[name] for name, us in _parts(costs[loser]).items()}
    worst = sorted((name for name in excess if excess[name] > 0), key=lambda name: -excess[name])[:2]
    why = ", ".join(f"{name} is {in_us(excess[name])} longer" for name in worst) or "no single term is longer"
    return f"{loser.label} loses by {in_us(more)} ({more / costs[winner].total_us:.1%}): {why}."


def in_us(value: float) -> str:
    """A time as sentences have it."""
    return f"{value:,.2f} us"


def _parts(cost: AnyCost) -> dict[str, float]:
    """What a total is made of: the terms that the model marks as parts, in microseconds."""
    return {
        term.name.removesuffix("_us").replace("_", " "): float(getattr(cost, term.name))
        for term in fields(cost)
        if term.metadata.get("part")
    }
