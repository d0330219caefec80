"""Makes linear layers ones of which each rank of a mesh has whole blocks of the weight."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fp8gemm.errors import InputError
from fp8gemm.nn.checkpoint import BIAS, SCALES, WEIGHT, checked_bias, checked_scales, checked_weight
from fp8gemm.nn.linear import Fp8Linear
from fp8gemm.nn.moving import frozen
from fp8gemm.parallel.blocks import become, check_divisible, check_whole_blocks, distributed, local, whole_of
from fp8gemm.parallel.layouts import Layouts
from fp8gemm.parallel.linear import FEATURES, ParallelLinear
from fp8gemm.parallel.overlap import check_overlap, may_overlap


def parallelize(layer: Fp8Linear, kind: type[ParallelLinear], layouts: Layouts, source: int | None) -> Fp8Linear:
    """Make a layer one of which each rank of the mesh has whole blocks; nothing is changed if it can't be.

    Args:
        layer: which.
        kind: `ColwiseLinear` or `RowwiseLinear`.
        layouts: its mesh, input and output.
        source: the rank of the mesh whose values are sent to all; None where each rank has them.

    Raises:
        InputError: a mesh of several dimensions, a layer that is divided already or has a forward of its own, a
            placement that is no sum, a size that is not of whole blocks for each rank, or an overlap that cannot be.
    """
    mesh, dim = layouts.mesh, kind.divided
    check_divisible(layer, mesh, layer.weight, Fp8Linear)
    for name, each in (("input_layouts", layouts.given), ("output_layouts", layouts.wanted)):
        if isinstance(each, Partial) and each.reduce_op != "sum":
            raise InputError(f"{name}: expected Partial('sum'), or Shard or Replicate, got {each}")
    check_whole_blocks({FEATURES[dim]: (layer.out_features, layer.in_features)[dim]}, mesh.size())
    check_overlap(layouts, layer.weight.device)
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, distributed(parameter, mesh, _places(dim)[name], source))
    layer._plan = copy(layer._plan)  # the one before knows whole weights, and calls by where they were
    return _made(layer, kind, layouts)


def of_parts(
    weight: DTensor,
    scales: DTensor,
    bias: DTensor | None,
    kind: type[ParallelLinear],
    layouts: Layouts,
    *,
    max_m: int,
    batch_invariant: bool | None,
) -> Fp8Linear:
    """A layer around parts that ranks have already, divided as `parallelize` divides them; nothing is sent.

    It keeps this rank's parts, not copies, where they need no conversion.

    Args:
        weight, scales, bias: of the whole layer, on the mesh of ``layouts``; else as in `Fp8Linear.from_quantized`.
        kind, layouts: as in `parallelize`.
        max_m, batch_invariant: as in `Fp8Linear`.

    Raises:
        InputError: this rank's parts are not of whole blocks, or not as described.
    """
    (n, k), dim, mesh = weight.shape, kind.divided, layouts.mesh
    check_overlap(layouts, weight.device)
    check_whole_blocks({FEATURES[dim]: (n, k)[dim]}, mesh.size())
    here = (n // mesh.size(), k) if dim == 0 else (n, k // mesh.size())
    options: dict[str, Any] = {"max_m": max_m, "batch_invariant": batch_invariant}
    layer = Fp8Linear(k, n, bias is not None, device="meta", dtype=torch.bfloat16, **options)
    parts = {
        WEIGHT: checked_weight(WEIGHT, local(weight), *here),
        SCALES: checked_scales(SCALES, local(scales), *here),
    }
    if bias is not None:
        parts[BIAS] = checked_bias(BIAS, local(bias), here[0])
    for name, part in parts.items():
        whole = getattr(layer, name)
        setattr(layer, name, frozen(whole_of(part, whole, mesh, _places(dim)[name])))
    return _made(layer, kind, layouts)


def _places(dim: int) -> dict[str, Placement]:
    """Of the parameters, where ranks have parts of this dimension of the weight."""
    return {WEIGHT: Shard(dim), SCALES: Shard(dim), BIAS: Replicate() if dim else Shard(0)}


def _made(layer: Fp8Linear, kind: type[ParallelLinear], layouts: Layouts) -> Fp8Linear:
    """A layer whose parameters are divided, with the forward that goes with them."""
    become(layer, kind, Fp8Linear)
    assert isinstance(layer, ParallelLinear)
    layer._layouts = layouts
    layer._adds_bias = kind.divided == 0 or layouts.mesh.get_local_rank() == 0
    comes, goes = (Replicate(), Shard(-1)) if kind.divided == 0 else (Shard(-1), Replicate())
    layer._may_overlap = may_overlap(layouts)
    layer._is_direct = layouts.given == comes and layouts.wanted in (goes, Replicate())
    layer._is_at_once = layer._is_direct and not (layer._may_overlap and kind.divided == 1)
    layer._known = set()
    layer._keeps = kind.divided == 0 and layouts.wanted == goes and layouts.local
    layer._prepare()
    return layer
