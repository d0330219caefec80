"""What a server will be asked for, by a command line: `warmup` makes its kernels ready, and `report` draws it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fp8gemm.ahead.architectures import LinearShape, linears_of_config, read_config
from fp8gemm.ahead.experts import GroupedShape, experts_of_config
from fp8gemm.ahead.grouped import GroupedVariants
from fp8gemm.ahead.kernels import (
    CHIPS,
    Demand,
    Variants,
    all_quantizers,
    chips_named,
    demand,
    recorded_quantizers,
)
from fp8gemm.errors import InputError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.hints import MAX_M
from fp8gemm.kernels.recording import recorded
from fp8gemm.quoting import quoted_path
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Addend, Scaling


@dataclass(frozen=True)
class Weight:
    """Something that will be multiplied with.

    Attributes:
        name: for people.
        problems: the products that it will be asked for, each with the largest M.
        layers: how many of a model's layers have such a weight; None where nobody says.
        routed: experts of a layer on all ranks, and to how many of them a token goes; None where nobody says.
    """

    name: str
    problems: tuple[AnyProblem, ...]
    layers: int | None = None
    routed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Asked:
    """Everything that will be asked for: weights, and kernels that quantise."""

    weights: tuple[Weight, ...]
    quantizers: tuple[KernelRequest, ...]

    def demand(self, chips: Sequence[Chip]) -> Demand:
        """The kernels of it on these chips."""
        return demand([problem for weight in self.weights for problem in weight.problems], chips, self.quantizers)


def demand_of(options: argparse.Namespace) -> Demand:
    """The kernels of what a warmup's options name, on the chips that they name."""
    return asked_for(options).demand(chips_named(options.chip or CHIPS))


def asked_for(options: argparse.Namespace, purpose: str = "what to make ready") -> Asked:
    """What the options name, in their order.

    Raises:
        InputError: nothing is named, or a file is not what the option takes.
        UnsupportedError: a model whose layers are not known.
    """
    if not (options.nk or options.grouped or options.model or options.recorded or options.quantizers):
        raise InputError(f"expected {purpose}: --nk, --grouped, --model, --recorded or --quantizers")
    variants = Variants(
        outputs=options.out_dtype,
        epilogues=options.epilogue or ("none",),
        scaling=options.scaling or Scaling.BLOCK,
        static_weights=options.calls,
        batch_invariant=options.batch_invariant,
        any_strides=options.any_strides,
    )
    max_m = MAX_M if options.max_m is None else options.max_m
    weights = [Weight(f"{n}x{k}", tuple(variants.problems(n, k, max_m))) for n, k in options.nk]
    groups = [GroupedShape(f"{g}x{n}x{k}", g, n, k) for g, n, k in options.grouped]
    ks = [k for _, k in options.nk] + [k for _, _, k in options.grouped] + [*options.quantizers]
    if options.model is not None:
        config = read_config(options.model)
        linears = _linears_of_model(config, options)
        weights += [_linear(ranks, linear, options, variants, max_m) for ranks, linear in linears]
        groups += _experts_of_model(config, options)
        ks += [linear.k for _, linear in linears if linear.reads_norm]
    weights += _grouped(groups, options, max_m)
    trains = bool(options.quantizers) or variants.scaling is Scaling.ROW
    quantizers = all_quantizers(options.out_dtype, ks, options.norm_weights, transposes=trains) if ks else []
    if options.recorded is not None:
        problems, more = _recorded(options.recorded, options.max_m)
        weights += [Weight(_name(problem), (problem,)) for problem in problems]
        quantizers += more
    return Asked(tuple(weights), tuple(quantizers))


def _linears_of_model(config: Mapping[str, Any], options: argparse.Namespace) -> list[tuple[int, LinearShape]]:
    """Each layer with the number of ranks that share it."""
    return [
        (ranks, linear) for ranks in options.tp for linear in linears_of_config(config, tp=ranks, merged=options.merged)
    ]


def _linear(ranks: int, linear: LinearShape, options: argparse.Namespace, variants: Variants, max_m: int) -> Weight:
    own = [variants]
    if options.epilogue is None:
        own = [variants.of_layer(output, bias=linear.bias, ranks=ranks) for output in options.out_dtype]
    problems = tuple(problem for each in own for problem in each.problems(linear.n, linear.k, max_m))
    return Weight(linear.name, problems, linear.layers)


def _experts_of_model(config: Mapping[str, Any], options: argparse.Namespace) -> list[GroupedShape]:
    """The weights of its experts, if anything is wanted of them."""
    if not options.layout:
        return []
    return [each for tp, ep in product(options.tp, options.ep) for each in experts_of_config(config, tp=tp, ep=ep)]


def _grouped(shapes: Sequence[GroupedShape], options: argparse.Namespace, max_m: int) -> list[Weight]:
    variants = GroupedVariants(
        groupings=options.layout,
        outputs=options.out_dtype,
        batch_invariant=options.batch_invariant,
        any_strides=options.any_strides,
    )
    return [
        Weight(
            each.name,
            tuple(variants.problems(each.groups, each.n, each.k, max_m)),
            each.layers,
            None if each.experts_per_token is None else (each.experts, each.experts_per_token),
        )
        for each in shapes
    ]


def _recorded(path: Path, max_m: int | None) -> tuple[list[AnyProblem], list[KernelRequest]]:
    problems, quantizers = recorded(path)
    if not problems and not quantizers:
        raise InputError(f"--recorded: {quoted_path(path)} is empty: nothing was asked for while it was recorded")
    # Before 2026-11-26 a C that was the output was recorded as any other.
    problems += [each.accumulating() for each in problems if each.c is Addend.FLOAT32]
    if max_m is not None:
        problems = [replace(problem, m=max_m) for problem in problems]
    return problems, [request for family, config in quantizers for request in recorded_quantizers(family, config)]


def _name(problem: AnyProblem) -> str:
    groups = f"{problem.groups}x" if isinstance(problem, GroupedProblem) else ""
    return f"{groups}{problem.n}x{problem.k}"
