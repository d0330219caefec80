"""Grouped products beside single ones, beside reading their weights, and beside other libraries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fp8gemm
from fp8gemm.lab.bench.graph import check_result
from fp8gemm.lab.bench.grouped_cases import GroupedCase
from fp8gemm.lab.bench.grouped_operands import (
    FLOOR,
    Contender,
    Scaled,
    Work,
    check_groups,
    group_of,
    in_bfloat16,
    indices_of,
    offsets_of,
    product,
    random_masked,
    random_rows,
    random_weights,
    reading,
)
from fp8gemm.lab.bench.grouped_peers import (
    BF16,
    DEEP_GEMM,
    PaddedRows,
    bf16_weights,
    deep_gemm_columns,
    deep_gemm_masked,
    grouped_mm,
)
from fp8gemm.lab.bench.operands import Call, normal
from fp8gemm.lab.bench.timing import set_count

OFFSETS, INDICES, IN_MASK, BY_COLUMNS, ACCUMULATE = "offsets", "indices", "masked", "k_grouped", "accumulate"
DENSE = "dense"


def contiguous(case: GroupedCase, generator: torch.Generator, l2_bytes: int, others: Collection[str]) -> Work:
    """Prefill: groups one behind the other, beside one product of as many rows."""
    n, k, sizes, device = case.n, case.k, case.sizes(), generator.device
    m = sum(sizes)
    sets = set_count((m + case.groups * n) * k, l2_bytes)
    rows = [random_rows(generator, m, k) for _ in range(sets)]
    weights = [random_weights(generator, case.groups, n, k) for _ in range(sets)]
    outs = [normal(generator, m, n) for _ in range(sets)]
    offsets, indices = offsets_of(sizes, device), indices_of(sizes, device)

    def ours(groups: dict[str, Any]) -> list[Call]:
        calls = zip(rows, weights, outs, strict=True)
        return [partial(fp8gemm.gemm_grouped, *a, *b, **groups, expected_m=case.m, out=out) for a, b, out in calls]

    def dense() -> list[Call]:
        calls = zip(rows, weights, outs, strict=True)
        return [partial(fp8gemm.gemm, *a, *group_of(b, 0), out=out) for a, b, out in calls]

    def bf16() -> list[Call]:
        return [grouped_mm(in_bfloat16(*a), bf16_weights(b), offsets) for a, b in zip(rows, weights, strict=True)]

    check = partial(_check_rows, rows[0], weights[0], sizes)
    padded = PaddedRows.of(sizes, device)
    contenders = {
        OFFSETS: Contender(lambda: ours({"offsets": offsets}), check),
        INDICES: Contender(lambda: ours({"indices": indices}), check),
        DENSE: Contender(dense, partial(_check_dense, rows[0], group_of(weights[0], 0))),
    }
    deep_gemm = Contender(
        lambda: [padded.call(a, b, n) for a, b in zip(rows, weights, strict=True)],
        lambda result: check(result[padded.places]),
    )
    peers = {DEEP_GEMM: deep_gemm, BF16: Contender(bf16, check)}
    contenders |= {name: peer for name, peer in peers.items() if name in others}
    return Work(contenders, sets, 2 * m * n * k, case.groups * n * k)


def masked(case: GroupedCase, generator: torch.Generator, l2_bytes: int, others: Collection[str]) -> Work:
    """Room for ``max_m`` rows of each group, beside reading the weights."""
    n, k, sizes = case.n, case.k, case.sizes()
    sets = set_count(case.groups * n * k, l2_bytes)
    counts = torch.tensor(sizes, dtype=torch.int32, device=generator.device)
    weights = [random_weights(generator, case.groups, n, k) for _ in range(sets)]
    calls, check = _masked_calls(case, generator, weights, [counts] * sets)
    rows = [call.args[:2] for call in calls]

    def deep_gemm() -> list[Call]:
        return [deep_gemm_masked(a, b, n, counts, case.m) for a, b in zip(rows, weights, strict=True)]

    contenders = {IN_MASK: Contender(lambda: calls, check), FLOOR: Contender(lambda: reading(weights, case.groups))}
    if DEEP_GEMM in others:
        contenders[DEEP_GEMM] = Contender(deep_gemm, check)
    return Work(contenders, sets, 2 * sum(sizes) * n * k, case.groups * n * k)


def decode(case: GroupedCase, generator: torch.Generator, l2_bytes: int, others: Collection[str]) -> Work:
    """Few rows of many groups, in both layouts; where only some have rows, others in each set of operands."""
    n, k, device = case.n, case.k, generator.device
    sizes = case.sizes()
    sets = set_count(case.touched * n * k, l2_bytes)
    if case.touched == case.groups:
        weights = [random_weights(generator, case.groups, n, k) for _ in range(sets)]
        counts = [torch.tensor(sizes, dtype=torch.int32, device=device)] * sets
    else:
        weights = [random_weights(generator, case.groups, n, k)] * sets
        apart = case.groups // case.touched
        groups = torch.arange(case.groups, device=device)
        counts = [(groups % apart == index % apart).to(torch.int32) for index in range(sets)]
    rows = [random_rows(generator, sum(sizes), k) for _ in range(sets)]
    in_mask, check_mask = _masked_calls(case, generator, weights, counts)
    outs = [normal(generator, sum(sizes), n) for _ in range(sets)]

    def offsets() -> list[Call]:
        of_sets = zip(rows, weights, counts, outs, strict=True)
        return [
            partial(fp8gemm.gemm_grouped, *a, *b, offsets=offsets_of(count.tolist(), device), out=out)
            for a, b, count, out in of_sets
        ]

    contenders = {
        OFFSETS: Contender(offsets, partial(_check_rows, rows[0], weights[0], counts[0].tolist())),
        IN_MASK: Contender(lambda: in_mask, check_mask),
        FLOOR: Contender(lambda: reading(weights, case.touched)),
    }
    return Work(contenders, sets, 2 * sum(sizes) * n * k, case.touched * n * k)


def by_columns(case: GroupedCase, generator: torch.Generator, l2_bytes: int, others: Collection[str]) -> Work:
    """Weight gradients: groups side by side along K, beside one product of as many operations."""
    m, n, sizes, groups = case.m, case.n, case.sizes(), case.groups
    k = sum(sizes)
    sets = set_count((m + n) * k, l2_bytes)
    pairs = [(random_rows(generator, m, k), random_rows(generator, n, k)) for _ in range(sets)]
    outs = [torch.zeros((groups, m, n), dtype=torch.float32, device=generator.device) for _ in range(sets)]
    offsets = offsets_of(sizes, generator.device)

    def ours(accumulate: bool) -> list[Call]:
        return [
            partial(fp8gemm.gemm_k_grouped, *a, *b, offsets, c=out.zero_() if accumulate else None, out=out)
            for (a, b), out in zip(pairs, outs, strict=True)
        ]

    def dense() -> list[Call]:
        return [partial(fp8gemm.gemm, *a, *b, out=out[0]) for (a, b), out in zip(pairs, outs, strict=True)]

    def deep_gemm() -> list[Call]:
        return [deep_gemm_columns(a, b, sizes, out.zero_()) for (a, b), out in zip(pairs, outs, strict=True)]

    def check(result: Tensor) -> None:
        blocks = [size // 128 for size in sizes]
        a, b = (zip(x[0].split(sizes, 1), x[1].split(blocks, 1), strict=True) for x in pairs[0])
        check_groups(result, a, b)

    contenders = {
        BY_COLUMNS: Contender(lambda: ours(accumulate=False), check),
        ACCUMULATE: Contender(lambda: ours(accumulate=True), check),
        DENSE: Contender(dense, partial(_check_dense, *pairs[0])),
    }
    if DEEP_GEMM in others:
        contenders[DEEP_GEMM] = Contender(deep_gemm, check)
    return Work(contenders, sets, 2 * m * n * k, 0)


def _masked_calls(
    case: GroupedCase, generator: torch.Generator, weights: Sequence[Scaled], counts: Sequence[Tensor]
) -> tuple[list[partial[Tensor]], Callable[[Tensor], None]]:
    """A call for each set of operands, and the check of the first one's result."""
    shape = case.groups, case.max_m, case.n
    rows = [random_masked(generator, case.max_m, case.k, count) for count in counts]
    calls = [
        partial(
            fp8gemm.gemm_masked,
            *a,
            *b,
            count,
            expected_m=case.m,
            out=torch.empty(shape, dtype=torch.bfloat16, device=generator.device),
        )
        for a, b, count in zip(rows, weights, counts, strict=True)
    ]

    def check(result: Tensor) -> None:
        valid = counts[0].tolist()
        parts = ((rows[0][0][group, :count], rows[0][1][group, :count]) for group, count in enumerate(valid))
        results = (result[group, :count] for group, count in enumerate(valid))
        check_groups(results, parts, zip(*weights[0], strict=True))

    return calls, check


def _check_rows(rows: Scaled, weights: Scaled, sizes: Sequence[int], result: Tensor) -> None:
    """Groups of these sizes, one behind the other."""
    codes, scales, results = (tensor.split(list(sizes)) for tensor in (*rows, result))
    check_groups(results, zip(codes, scales, strict=True), zip(*weights, strict=True))


def _check_dense(a: Scaled, b: Scaled, result: Tensor) -> None:
    check_result(result, product(a, b), "the product of dequantised operands")
