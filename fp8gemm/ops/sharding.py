"""How the operators run on DTensors: which operands may be sharded, and what the output then is.

Replicated operands give a replicated output. Rows of A, groups, and rows of B are each rank's own; of a divided K each
rank has a part of the sum (`Partial`). Blocks of scales are never cut: where scales are of 128x128 blocks, N, and
wherever K is divided, K, are multiples of 128 for each rank, else the operand is gathered first. What is added, C and
bias, is divided among ranks that divide K as torch divides what it makes partial. The ``_out`` forms have no rule, and
DTensor refuses them.

Imported with `fp8gemm.parallel`, or when the first DTensor appears (`fp8gemm.ops.heed_dtensors`): to import
torch.distributed takes long. ``torch.ops.fp8gemm`` alone does not see it appear under ``torch.inference_mode()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from fp8gemm.sizes import SCALE_BLOCK

Rule = tuple[list[Placement | None], list[Placement | None]]
"""Placements of the outputs, and of the arguments: None of those that are no tensors."""

_WHOLE, _ROWS, _COLUMNS, _DEPTH = Replicate(), Shard(0), Shard(1), Shard(2)


def _placed(outputs: Sequence[Placement], operands: Sequence[Placement], args: Sequence[Any]) -> Rule:
    """Placements of operands as ``args`` has them: None for an operand that is left out, and for options behind."""
    places = [None if arg is None else place for place, arg in zip(operands, args, strict=False)]
    return list(outputs), [*places, *[None] * (len(args) - len(places))]


def _divides(size: int, spec: Any) -> bool:
    """Whether each rank of the operand's mesh has whole blocks of a dimension of so many elements."""
    return bool(size % (SCALE_BLOCK * spec.mesh.size()) == 0)


def _gemm(*args: Any) -> list[Rule]:
    a, _, b, scales_b, *_ = args
    (n, k), of_rows = b.shape, scales_b.shape[0] == b.shape[0]
    rules = [
        _placed([_WHOLE], [_WHOLE] * 6, args),
        _placed([_ROWS], [_ROWS, _ROWS, _WHOLE, _WHOLE, _ROWS, _WHOLE], args),
    ]
    if of_rows or _divides(n, a):
        rules.append(_placed([_COLUMNS], [_WHOLE, _WHOLE, _ROWS, _ROWS, _COLUMNS, _ROWS], args))
    if _divides(k, a):
        rules.append(_placed([Partial()], [*[_COLUMNS] * 4, Partial(), Partial()], args))
    return rules


def _gemm_grouped(*args: Any) -> list[Rule]:
    a, _, b, *_ = args
    _, n, k = b.shape
    rules = [_placed([_WHOLE], [_WHOLE] * 6, args)]
    if _divides(n, a):
        rules.append(_placed([_COLUMNS], [_WHOLE, _WHOLE, _COLUMNS, _COLUMNS, _WHOLE, _WHOLE], args))
    if _divides(k, a):
        rules.append(_placed([Partial()], [_COLUMNS, _COLUMNS, _DEPTH, _DEPTH, _WHOLE, _WHOLE], args))
    return rules


def _gemm_masked(*args: Any) -> list[Rule]:
    a, _, b, *_ = args
    _, n, k = b.shape
    rules = [_placed([_WHOLE], [_WHOLE] * 5, args), _placed([_ROWS], [_ROWS] * 5, args)]
    if _divides(n, a):
        rules.append(_placed([_DEPTH], [_WHOLE, _WHOLE, _COLUMNS, _COLUMNS, _WHOLE], args))
    if _divides(k, a):
        rules.append(_placed([Partial()], [*[_DEPTH] * 4, _WHOLE], args))
    return rules


def _gemm_k_grouped(*args: Any) -> list[Rule]:
    return [
        _placed([_WHOLE], [_WHOLE] * 6, args),
        _placed([_COLUMNS], [_ROWS, _ROWS, _WHOLE, _WHOLE, _WHOLE, _COLUMNS], args),
        _placed([_DEPTH], [_WHOLE, _WHOLE, _ROWS, _ROWS, _WHOLE, _DEPTH], args),
    ]


def _quantize_activation(*args: Any) -> list[Rule]:
    x, *_ = args
    last = x.ndim - 1
    rules = [_placed([_WHOLE] * 2, [_WHOLE] * 2, args), _placed([_ROWS] * 2, [_ROWS] * 2, args)]
    if _divides(x.shape[last], x):
        rules.append(_placed([Shard(last)] * 2, [Shard(last), _WHOLE], args))
    return rules


def _quantize_silu_mul(*args: Any) -> list[Rule]:
    """Gate and up are halves of a row: its columns are not divided."""
    return [_placed([_WHOLE] * 2, [_WHOLE] * 2, args), _placed([_ROWS] * 2, [_ROWS] * 2, args)]


def _quantize_weight(*args: Any) -> list[Rule]:
    (w,) = args
    rules = [_placed([_WHOLE] * 2, [_WHOLE], args)]
    rules += [_placed([place] * 2, [place], args) for place in (_ROWS, _COLUMNS) if _divides(w.shape[place.dim], w)]
    return rules


def _quantize_with_transpose(*args: Any) -> list[Rule]:
    """What is divided along one side of x is divided along the other one of its transpose."""
    (x,) = args
    rules = [_placed([_WHOLE] * 4, [_WHOLE], args)]
    for place, other in ((_ROWS, _COLUMNS), (_COLUMNS, _ROWS)):
        if _divides(x.shape[place.dim], x):
            rules.append(_placed([place, place, other, other], [place], args))
    return rules


def _quantize_rms_norm(*args: Any) -> list[Rule]:
    return [_placed([place] * 2, [place, _WHOLE], args) for place in (_WHOLE, _ROWS)]


def _quantize_add_rms_norm(*args: Any) -> list[Rule]:
    return [_placed([place] * 3, [place, place, _WHOLE], args) for place in (_WHOLE, _ROWS)]


def _route(*args: Any) -> list[Rule]:
    """Where a row goes depends on all tokens."""
    return [_placed([_WHOLE] * 3, [_WHOLE], args)]


def _quantize_permuted(*args: Any) -> list[Rule]:
    x, *_ = args
    rules = [_placed([_WHOLE] * 5, [_WHOLE] * 2, args)]
    if _divides(x.shape[1], x):
        rules.append(_placed([_COLUMNS, _COLUMNS, _WHOLE, _WHOLE, _WHOLE], [_COLUMNS, _WHOLE], args))
    return rules


def _copy_to_rows(*args: Any) -> list[Rule]:
    codes, *_ = args
    rules = [_placed([_WHOLE] * 2, [_WHOLE] * 4, args)]
    if _divides(codes.shape[1], codes):
        rules.append(_placed([_COLUMNS] * 2, [_COLUMNS, _COLUMNS, _WHOLE, _WHOLE], args))
    return rules


def _unpermute(*args: Any) -> list[Rule]:
    """Columns are summed each by itself."""
    return [_placed([place], [place, _WHOLE, _WHOLE, _WHOLE], args) for place in (_WHOLE, _COLUMNS)]


_ALL: tuple[Callable[..., list[Rule]], ...] = (
    *(_gemm, _gemm_grouped, _gemm_masked, _gemm_k_grouped, _quantize_activation, _quantize_silu_mul),
    *(_quantize_weight, _quantize_with_transpose, _quantize_rms_norm, _quantize_add_rms_norm),
    *(_route, _quantize_permuted, _copy_to_rows, _unpermute),
)

for _rules in _ALL:
    register_sharding(getattr(torch.ops.fp8gemm, _rules.__name__.removeprefix("_")).default)(_rules)
