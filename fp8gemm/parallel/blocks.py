"""A layer's tensors, one part for each rank of a mesh, cut along whole 128x128 blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from fp8gemm.checks.dtypes import CODES
from fp8gemm.errors import InputError
from fp8gemm.nn.moving import frozen
from fp8gemm.sizes import SCALE_BLOCK


def check_mesh(mesh: DeviceMesh, weight: Tensor) -> None:
    """A layer with this weight can be divided among the ranks of ``mesh``.

    Raises:
        InputError: the mesh has several dimensions, or the layer is divided already.
    """
    if mesh.ndim != 1:
        raise InputError(f"device_mesh: expected one dimension, got {mesh.ndim}; give a slice of it, mesh['tp'] say")
    if isinstance(weight, DTensor):
        raise InputError("module: expected one that is not divided among ranks yet, got one whose weight is a DTensor")


def check_whole_blocks(name: str, size: int, ranks: int) -> None:
    """Each of so many ranks has whole scale blocks of ``size`` rows or columns.

    Raises:
        InputError: it has not; the message begins with ``name``, and names a number of ranks that would have.
    """
    if size % (SCALE_BLOCK * ranks):
        works = max(count for count in range(1, ranks + 1) if count == 1 or size % (SCALE_BLOCK * count) == 0)
        raise InputError(
            f"{name}: expected a multiple of {SCALE_BLOCK} for each of {ranks} ranks, because scales are of whole "
            f"{SCALE_BLOCK}x{SCALE_BLOCK} blocks, got {size}; it can be on {works} rank{'s' * (works > 1)}"
        )


def distributed(tensor: Tensor, mesh: DeviceMesh, placement: Placement, source: int | None) -> nn.Parameter:
    """A parameter of which each rank of a 1-D mesh has its part, in memory of its own.

    Args:
        tensor: all of it. Rank ``source`` of the mesh sends the others theirs; each cuts out its own if that is None.
    """
    # NOTE: codes travel as bytes, because not every backend knows FP8.
    as_sent = tensor.detach().view(torch.uint8) if tensor.dtype == CODES else tensor.detach()
    options: dict[str, Any] = {} if source == 0 else {"src_data_rank": source}  # the keyword is newer than torch 2.6
    local = distribute_tensor(as_sent, mesh, [placement], **options).to_local()
    if not local.is_meta and local.untyped_storage().nbytes() > local.nbytes:
        local = local.clone()  # or it would keep all of the tensor
    local = local.view(tensor.dtype)
    whole = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.contiguous().stride()
    )
    return frozen(whole)


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a DTensor: always the same object, so that the plan knows it.

    NOTE: ``to_local`` makes another each time while gradients are enabled, and is a node of a compiled graph.
    """
    part: Tensor = parameter._local_tensor  # type: ignore[attr-defined]
    return part
