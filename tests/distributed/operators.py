"""Operators on DTensors: what is sharded stays so, and the whole has the bits of one process."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import fp8gemm
from fp8gemm.checks.dtypes import CODES
from tests.calls import picked, same_bits
from tests.distributed.models import inputs
from tests.distributed.world import Check, Rank
from tests.experts import relative_error

WHOLE, ROWS, COLUMNS, DEPTH = Replicate(), Shard(0), Shard(1), Shard(2)
K = 512


def placed(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    as_sent = tensor.view(torch.uint8) if tensor.dtype == CODES else tensor
    local = distribute_tensor(as_sent, mesh, [placement]).to_local().view(tensor.dtype)
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride())


def gathered(found: Tensor) -> Tensor:
    """The whole of a DTensor. Gloo knows no FP8."""
    assert isinstance(found, DTensor)
    if found.dtype != CODES:
        return found.full_tensor()
    as_sent = found.to_local().view(torch.uint8)
    return DTensor.from_local(as_sent, found.device_mesh, found.placements, run_check=False).full_tensor().view(CODES)


def products_of_sharded_operands(world: Rank) -> None:
    mesh = world.mesh()
    m, n = 8 * world.ranks, 128 * world.ranks
    weights = inputs(n, columns=K)
    a, scales_a = fp8gemm.quantize_activation(inputs(m, columns=K))
    bias, c = torch.linspace(-1, 1, n), torch.linspace(-4, 4, m * n).view(m, n)
    for b, scales_b in (fp8gemm.quantize_weight(weights), fp8gemm.quantize_activation(weights)):
        right = fp8gemm.gemm(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=torch.float32)
        for of_a, of_b, of_c, of_bias, of_out in (
            (WHOLE, WHOLE, WHOLE, WHOLE, WHOLE),
            (ROWS, WHOLE, ROWS, WHOLE, ROWS),
            (WHOLE, ROWS, COLUMNS, ROWS, COLUMNS),
            (COLUMNS, COLUMNS, WHOLE, WHOLE, Partial()),
        ):
            out = fp8gemm.gemm(
                *(placed(each, mesh, of_a) for each in (a, scales_a)),
                *(placed(each, mesh, of_b) for each in (b, scales_b)),
                c=placed(c, mesh, of_c),
                bias=placed(bias, mesh, of_bias),
                out_dtype=torch.float32,
            )
            assert isinstance(out, DTensor) and out.placements == (of_out,), (of_a, of_b, out)
            if of_out == Partial():  # sums of several ranks, in another order
                assert relative_error(out.full_tensor(), right) < 1e-6
            else:
                assert torch.equal(out.full_tensor(), right), (of_a, of_b)


def quantisers_of_sharded_inputs(world: Rank) -> None:
    mesh = world.mesh()
    rows, groups = 8 * world.ranks, 2 * world.ranks
    x, w = inputs(rows, columns=128 * world.ranks), inputs(128 * world.ranks, columns=128 * world.ranks)
    norm, counts = inputs(1, columns=128 * world.ranks)[0], torch.arange(groups, dtype=torch.int32)
    stacked = inputs(groups, 16, columns=256)
    cases = (
        (fp8gemm.quantize_activation, (x,), ((WHOLE,), (ROWS,), (COLUMNS,))),
        (fp8gemm.quantize_weight, (w,), ((WHOLE,), (ROWS,), (COLUMNS,))),
        (fp8gemm.quantize_silu_mul, (x,), ((WHOLE,), (ROWS,))),
        (fp8gemm.quantize_rms_norm, (x, norm), ((WHOLE, WHOLE), (ROWS, WHOLE))),
        (fp8gemm.quantize_add_rms_norm, (x, x, norm), ((WHOLE, WHOLE, WHOLE), (ROWS, ROWS, WHOLE))),
    )
    for quantize, operands, placements in cases:
        right = quantize(*operands)
        for places in placements:
            found = quantize(*(placed(each, mesh, place) for each, place in zip(operands, places, strict=True)))
            for one, other in zip(found, right, strict=True):
                assert isinstance(one, DTensor) and one.placements == places[:1], (quantize, places, one)
                assert same_bits(gathered(one), other), quantize
    right = fp8gemm.quantize_silu_mul(stacked, counts=counts)
    found = fp8gemm.quantize_silu_mul(placed(stacked, mesh, ROWS), counts=placed(counts, mesh, ROWS))
    there = torch.arange(16)[None] < counts[:, None]
    for pick, one, other in zip((picked, Tensor.__getitem__), found, right, strict=True):
        assert one.placements == (ROWS,) and same_bits(pick(gathered(one), there), pick(other, there))


def products_of_sharded_groups(world: Rank) -> None:
    mesh = world.mesh()
    groups, rows, n = 2 * world.ranks, 16, 128 * world.ranks
    flat = fp8gemm.quantize_activation(inputs(groups * rows, columns=K))
    many = [fp8gemm.quantize_weight(each) for each in inputs(groups, n, columns=K)]
    b, scales_b = (torch.stack(list(each)) for each in zip(*many, strict=True))
    offsets = rows * torch.arange(groups + 1, dtype=torch.int32)
    right = fp8gemm.gemm_grouped(*flat, b, scales_b, offsets=offsets, out_dtype=torch.float32)
    for of_a, of_b, of_out in ((WHOLE, WHOLE, WHOLE), (WHOLE, COLUMNS, COLUMNS), (COLUMNS, DEPTH, Partial())):
        terms = [
            placed(each, mesh, place)
            for each, place in zip((*flat, b, scales_b), (of_a, of_a, of_b, of_b), strict=True)
        ]
        out = fp8gemm.gemm_grouped(*terms, offsets=placed(offsets, mesh, WHOLE), out_dtype=torch.float32)
        assert isinstance(out, DTensor) and out.placements == (of_out,)
        assert relative_error(out.full_tensor(), right) < 1e-6
    a, scales_a = (each.contiguous().unflatten(0, (groups, rows)) for each in flat)
    counts = torch.full((groups,), rows, dtype=torch.int32)
    right = fp8gemm.gemm_masked(a, scales_a, b, scales_b, counts, out_dtype=torch.float32)
    for of_a, of_b, of_counts, of_out in (
        (ROWS, ROWS, ROWS, ROWS),
        (WHOLE, COLUMNS, WHOLE, DEPTH),
        (DEPTH, DEPTH, WHOLE, Partial()),
    ):
        terms = [
            placed(each, mesh, place)
            for each, place in zip((a, scales_a, b, scales_b, counts), (of_a, of_a, of_b, of_b, of_counts), strict=True)
        ]
        out = fp8gemm.gemm_masked(*terms, out_dtype=torch.float32)
        assert isinstance(out, DTensor) and out.placements == (of_out,)
        assert relative_error(out.full_tensor(), right) < 1e-6


def gradients_of_sharded_rows(world: Rank) -> None:
    mesh = world.mesh()
    m, depth = 16 * world.ranks, 256
    a, b = (fp8gemm.quantize_activation(inputs(m, columns=depth)) for _ in range(2))
    offsets = torch.tensor([0, 128, 256], dtype=torch.int32)
    right = fp8gemm.gemm_k_grouped(*a, *b, offsets=offsets)
    for of_a, of_b, of_out in ((ROWS, WHOLE, COLUMNS), (WHOLE, ROWS, DEPTH)):
        terms = [*(placed(each, mesh, of_a) for each in a), *(placed(each, mesh, of_b) for each in b)]
        out = fp8gemm.gemm_k_grouped(*terms, offsets=placed(offsets, mesh, WHOLE))
        assert isinstance(out, DTensor) and out.placements == (of_out,) and torch.equal(out.full_tensor(), right)


CHECKS: tuple[Check, ...] = (
    products_of_sharded_operands,
    quantisers_of_sharded_inputs,
    products_of_sharded_groups,
    gradients_of_sharded_rows,
)
