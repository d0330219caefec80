"""Kernels of routing that run on the host, called as the products call them, and held to the reference bit for bit.

What they write is poisoned before, and has room behind it that must stay as it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.routing import chunks_of
from fp8gemm.reference import routing as reference
from fp8gemm.scales import block_count, mn_major_pitch
from tests.calls import same_bits
from tests.emulated.routing import Run

E4M3 = torch.float8_e4m3fn
CODE, SCALE = 0x55, -7.0
"""What codes and scales are poisoned with."""
_BEHIND = 1 << 13
"""Elements, more than any fault reaches."""

Routes = tuple[Tensor, Tensor, Tensor]


def drawn(tokens: int, top_k: int, groups: int, seed: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Ids of groups from 3 on, of others and of none; a token may name one twice."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, groups + 6, (tokens, top_k), generator=generator, dtype=dtype)


def poisoned(ids: Tensor, groups: int) -> Routes:
    """Offsets, rows and, as bytes, what is kept."""
    offsets, rows = torch.full((groups + 1,), -7, dtype=torch.int32), torch.full(ids.shape, -7)
    return offsets, rows, torch.full(ids.shape, 7, dtype=torch.uint8)


def are_right(found: Routes, ids: Tensor, groups: int, first: int) -> bool:
    """Whether they are the reference's."""
    offsets, rows, kept = reference.route(ids, groups, first)
    return all(map(torch.equal, found, (offsets, rows, kept.to(torch.uint8))))


def is_routed(kernels: dict[str, Run], ids: Tensor, groups: int, first: int = 0, seed: int = 1) -> bool:
    """Whether each index has the reference's row."""
    found = offsets, rows, kept = poisoned(ids, groups)
    routes, said, chunks = (offsets, rows, kept.view(torch.bool)), "", chunks_of(ids.numel())
    counts = torch.full((chunks, groups + 1), -7, dtype=torch.int32) if chunks > 1 else None
    if counts is not None:
        said = kernels["count"]("bind_route", ids, routes, counts, first, seed=seed)
    said += kernels["route"]("bind_route", ids, routes, counts, first, seed=seed)
    return said == "" and are_right(found, ids, groups, first)


class Copies:
    """Codes and MN-major scales of so many rows, to be written to."""

    def __init__(self, rows: int, k: int) -> None:
        self._shape, self._blocks, self._pitch = (rows, k), block_count(k), mn_major_pitch(rows)
        self._codes = torch.full((rows * k + _BEHIND,), CODE, dtype=torch.uint8)
        self._scales = torch.full((self._blocks * self._pitch + _BEHIND,), SCALE)
        self.codes = self._codes[: rows * k].view(self._shape).view(E4M3)
        self.scales = self._scales.as_strided((rows, self._blocks), (1, self._pitch))

    def are(self, codes: Tensor, scales: Tensor, kept: int) -> bool:
        """Whether the first ``kept`` rows are these, bit for bit, and all else is as it was."""
        k, rows = self._shape[1], self._shape[0]
        padding = self._scales[: self._blocks * self._pitch].view(self._blocks, self._pitch)[:, rows:]
        untouched = (
            bool((part == poison).all())
            for part, poison in (
                (self._codes[kept * k :], CODE),
                (self.scales[kept:], SCALE),
                (padding, SCALE),
                (self._scales[self._blocks * self._pitch :], SCALE),
            )
        )
        return (
            all(untouched)
            and same_bits(self.codes[:kept], codes[:kept])
            and same_bits(self.scales[:kept], scales[:kept])
        )


def is_quantized(kernels: dict[str, Run], x: Tensor, ids: Tensor, groups: int, seed: int = 1) -> bool:
    """Whether rows of groups, from 3 on, are the reference's, and others are not written."""
    offsets, rows, _ = reference.route(ids, groups, 3)
    copies = Copies(rows.numel(), x.shape[1])
    run = kernels[f"quantize {x.dtype}"]
    said = run("bind_to_rows", x, copies.codes, copies.scales, rows, offsets, seed=seed)
    return said == "" and copies.are(*reference.quantize_to_rows(x, rows), kept=int(offsets[-1]))


def is_routed_and_quantized(kernels: dict[str, Run], x: Tensor, ids: Tensor, groups: int, seed: int = 1) -> bool:
    """The same of one launch, which finds the rows too, of groups from 3 on."""
    found = offsets, rows, kept = poisoned(ids, groups)
    copies = Copies(ids.numel(), x.shape[1])
    given = x, ids, (offsets, rows, kept.view(torch.bool)), (copies.codes, copies.scales), 3
    said = kernels[f"route and quantize {x.dtype}"]("bind_route_and_quantize", *given, seed=seed)
    right = reference.route(ids, groups, 3)
    copied = copies.are(*reference.quantize_to_rows(x, right[1]), kept=int(right[0][-1]))
    return said == "" and are_right(found, ids, groups, 3) and copied


def is_copied(kernels: dict[str, Run], codes: Tensor, scales: Tensor, routes: Routes) -> bool:
    """Whether copies are the reference's, of all tokens at once and of some after others, and rows of no group are not
    written."""
    offsets, rows, _ = routes
    right = reference.copy_to_rows(codes, scales, rows)
    tokens, few = rows.shape[0], -(-rows.shape[0] // 3)
    for parts in ([slice(0, tokens)], [slice(few, tokens), slice(0, few)]):
        copies = Copies(rows.numel(), codes.shape[1])
        out = copies.codes, copies.scales
        of_parts = [((codes[part], scales[part]), rows[part], offsets, out) for part in parts if rows[part].numel()]
        said = "".join(kernels["copy"]("bind_copy", *given, seed=1) for given in of_parts)
        if said or not copies.are(*right, kept=int(offsets[-1])):
            return False
    return True


def is_summed(kernels: dict[str, Run], y: Tensor, routes: Routes, weights: Tensor) -> bool:
    """Whether sums have the reference's bits; rows of no group are NaN, and their weights infinite."""
    offsets, rows, kept = routes
    y[int(offsets[-1]) :], weights[~kept] = math.nan, math.inf
    size = rows.shape[0] * y.shape[1]
    memory = torch.full((size + _BEHIND,), SCALE, dtype=y.dtype)
    out = memory[:size].view(rows.shape[0], y.shape[1])
    given = y, rows, kept, weights, INPUTS[weights.dtype], out
    said = kernels[f"unpermute {y.dtype}"]("bind_unpermute", *given, seed=1)
    right = reference.unpermute(y, rows, kept, weights)
    return said == "" and bool(right.isfinite().all() and (memory[size:] == SCALE).all()) and same_bits(out, right)
