"""Steps of a decoder of real size, bfloat16 beside FP8, in turn: as transformers wrote it, and with compiled layers."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.lab.bench.decoder_model import (
    DecoderShape,
    RunLayer,
    StepInputs,
    compiled_layer,
    decoder_step,
    run_layer,
)
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.graph import GraphTimer, Rounds, WrongResultError
from fp8gemm.lab.bench.operands import relative_error
from fp8gemm.lab.bench.report import figure
from fp8gemm.lab.bench.timing import Schedule, Timer, Timings, rounded
from fp8gemm.terminal.table import Column, Group, Table

BF16, FP8 = "bf16", "fp8"
BF16_COMPILED, FP8_COMPILED, FP8_MERGED = "bf16_compiled", "fp8_compiled", "fp8_merged"
PAIRS = {
    "as written": (BF16, FP8),
    "compiled layers": (BF16_COMPILED, FP8_COMPILED),
    "merged": (BF16_COMPILED, FP8_MERGED),
}
"""What a time of bfloat16 and one of FP8 are compared of."""
VARIANTS = tuple(dict.fromkeys(name for pair in PAIRS.values() for name in pair))
DESCRIPTIONS = {
    BF16: "bfloat16, every layer as transformers wrote it",
    FP8: "the same weights after fp8gemm.nn.convert, the last linear layer left in bfloat16",
    BF16_COMPILED: "bfloat16, each layer compiled by torch.compile",
    FP8_COMPILED: "the same weights after fp8gemm.nn.convert, each layer compiled by torch.compile",
    FP8_MERGED: "the same, with fp8gemm.nn.compile_options: inputs that layers share are quantised once",
}
PREFILL, DECODE = "prefill", "decode"
MAX_DIFFERENCE = 0.8
"""Of FP8 logits from bfloat16 ones. 36 random layers of width 512 made it 0.12, of width 4096 0.52 (2026-11-22); chance
makes it 1.4."""
MAX_REPLAYS = 50
METHOD = (
    "one step captured in a CUDA graph and replayed, variants in turn in an order drawn for each round, median of "
    "{rounds}, milliseconds per step, embedding and last linear layer included, logits of the last token alone; random "
    "weights"
)


@dataclass(frozen=True)
class Step:
    """What is computed at once.

    Attributes:
        kind: ``prefill`` or ``decode``.
        batch: sequences.
        tokens: new ones of each sequence.
        context: tokens that each new one attends to at most, itself among them.
    """

    kind: str
    batch: int
    tokens: int
    context: int

    def __str__(self) -> str:
        return f"{self.kind} {self.batch}x{self.tokens}"

    def inputs(self, shape: DecoderShape, generator: torch.Generator) -> StepInputs:
        """Random ones."""
        if self.kind == PREFILL:
            return StepInputs.prefill(shape, batch=self.batch, tokens=self.tokens, generator=generator)
        return StepInputs.decode(shape, batch=self.batch, context=self.context, generator=generator)


def steps_of(*, prefill: int, batches: Sequence[int], context: int) -> list[Step]:
    """A prefill of so many tokens, none for 0, and a decode step for each batch."""
    first = [Step(PREFILL, 1, prefill, prefill)] if prefill else []
    return first + [Step(DECODE, batch, 1, context) for batch in batches]


@dataclass(frozen=True)
class DecoderRow(Timings):
    """What was measured for one step, by variant.

    Attributes:
        difference: of the logits from the bfloat16 ones, relative Frobenius norm, by FP8 variant.
    """

    step: Step
    difference: Mapping[str, float] = field(default_factory=dict)

    def speed(self, pair: str) -> float | None:
        """Of FP8 relative to bfloat16; None unless both were timed."""
        return self.time_ratio(*PAIRS[pair])

    def as_json(self) -> dict[str, Any]:
        """Rounded, for people and for later comparison."""
        step = self.step
        tokens = step.batch * step.tokens
        row: dict[str, Any] = {"kind": step.kind, "batch": step.batch, "tokens": step.tokens, "context": step.context}
        row["ms"] = rounded({name: us / 1e3 for name, us in self.us.items()}, 4)
        row["tokens_per_s"] = rounded({name: 1e6 * tokens / us for name, us in self.us.items()}, 1)
        row |= {"difference": rounded(self.difference, 4), "spread": rounded(self.spread, 4)}
        return row | self.circumstances()


class DecoderTable:
    """One row per step: milliseconds of each variant, then our speed relative to bfloat16."""

    def __init__(self) -> None:
        times = tuple(Column(name, 13) for name in VARIANTS)
        ratios = tuple(Column(name, 15) for name in PAIRS)
        self._table = Table(Group((Column("milliseconds", 16, left=True),)), Group(times), Group(ratios))
        self.header, self.remark = self._table.header, self._table.remark

    def line(self, row: DecoderRow) -> str:
        """One row; a dash where a variant has no time."""
        times = [figure(row.us[name] / 1e3 if name in row.us else None, 3) for name in VARIANTS]
        return self._table.line(str(row.step), *times, *(figure(row.speed(pair), 3) for pair in PAIRS))


def plain_timer(call: Callable[[], object], replays: int) -> Timer:
    """Measures calls where there is no graph, on a CPU: each does its work before it returns."""
    return lambda: 1e6 * timeit.timeit(call, number=replays) / replays


class DecoderBench:
    """Measures one step after another.

    Args:
        models: by ``bf16`` and ``fp8``, on the generator's device.
        shape: theirs.
        generator: of the tokens, and of the keys and values that are there before.
        rounds: who measures.
        measure_ms: length of one measurement, or one step if that is longer.
        variants: which of `VARIANTS`.
        emit: prints a line about progress.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        shape: DecoderShape,
        generator: torch.Generator,
        rounds: Rounds,
        *,
        measure_ms: float,
        variants: Sequence[str],
        emit: Callable[[str], None] = print,
    ) -> None:
        self._models, self._shape, self._generator, self._rounds = models, shape, generator, rounds
        self._measure_ms, self._variants, self._emit = measure_ms, variants, emit

    def measure(self, step: Step) -> DecoderRow:
        """Time every variant of one step, all of them on the same tokens, keys and values."""
        # The last step's graphs are gone; what was compiled for it would count towards the limit on recompilations.
        torch.compiler.reset()
        torch.cuda.empty_cache()
        inputs = step.inputs(self._shape, self._generator)
        expected = decoder_step(self._models[BF16], inputs)
        difference: dict[str, float] = {}

        def timer(name: str) -> Timer:
            start = time.perf_counter()
            model = self._models[BF16 if name in (BF16, BF16_COMPILED) else FP8]
            run: RunLayer = run_layer if name in (BF16, FP8) else compiled_layer(merge=name == FP8_MERGED)
            call = partial(decoder_step, model, inputs, run)
            difference[name] = _difference(call(), expected)
            made = self._timer(call)
            self._emit(f"{step}: {name} ready after {time.perf_counter() - start:.1f} s")
            return made

        timings = self._rounds.measure({name: partial(timer, name) for name in self._variants})
        return DecoderRow(step, difference, **vars(timings))

    def _timer(self, call: Callable[[], Tensor]) -> Timer:
        """A graph of one step, replayed as often as fits; plain calls on a CPU."""
        is_gpu = self._generator.device.type == "cuda"
        once = GraphTimer([call], Schedule(1, 1, 1)) if is_gpu else plain_timer(call, 1)
        once()
        replays = min(max(round(1e3 * self._measure_ms / once()), 1), MAX_REPLAYS)
        if isinstance(once, GraphTimer):
            return once.replayed(replays)
        return plain_timer(call, replays)


def _difference(logits: Tensor, expected: Tensor) -> float:
    """Relative Frobenius norm.

    Raises:
        WrongResultError: more than FP8 explains.
    """
    difference = relative_error(logits, expected)
    if not difference <= MAX_DIFFERENCE:  # a NaN fails too
        raise WrongResultError(
            f"the logits differ from the bfloat16 ones by {difference:.3g} (relative Frobenius norm), expected at most "
            f"{MAX_DIFFERENCE}"
        )
    return difference


def _speeds(kind: str, pair: str, rows: Sequence[DecoderRow]) -> dict[str, float | None]:
    return {str(row.step): row.speed(pair) for row in rows if row.step.kind == kind}


GATES: Gates[DecoderRow] = Gates(
    tuple(
        Gate(f"speed of {kind}, {pair}", limit, partial(_speeds, kind, pair))
        for kind, limit in ((PREFILL, 1.4), (DECODE, 1.25))
        for pair in PAIRS
    )
)
"""Of FP8 relative to bfloat16."""
