"""A layer's tensors, one part for each rank of a mesh, cut along whole 128x128 blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from fp8gemm.checks.dtypes import CODES
from fp8gemm.errors import InputError
from fp8gemm.nn.moving import frozen
from fp8gemm.sizes import SCALE_BLOCK

_CLASSES: dict[tuple[type, type], type] = {}
"""Of divided layers that were of a class with methods of its own."""


def check_divisible(module: nn.Module, mesh: DeviceMesh, weight: Tensor, whole: type[nn.Module]) -> None:
    """A layer with this weight, of a class that is or is derived from ``whole``, can be divided among ranks.

    Raises:
        InputError: the mesh has several dimensions, the layer is divided already, or does something of its own.
    """
    if mesh.ndim != 1:
        raise InputError(f"device_mesh: expected one dimension, got {mesh.ndim}; give a slice of it, mesh['tp'] say")
    if isinstance(weight, DTensor):
        raise InputError("module: expected one that is not divided among ranks yet, got one whose weight is a DTensor")
    if type(module).forward is not whole.forward:
        raise InputError(
            f"module: expected the forward of {whole.__name__}, got a {type(module).__name__}, whose own would be lost"
        )


def become(module: nn.Module, kind: type[nn.Module], whole: type[nn.Module]) -> None:
    """Make a layer one of class ``kind``, derived from ``whole``, and leave it what else its own class has."""
    of = type(module)
    made = kind if of is whole else _CLASSES.setdefault((kind, of), type(of.__name__, (kind, of), {}))
    module.__class__ = made


def check_whole_blocks(sizes: Mapping[str, int], ranks: int) -> None:
    """Each of so many ranks has whole scale blocks of so many rows or columns.

    Args:
        sizes: by what the message calls them, of all that the same ranks shall have parts of.
        ranks: how many.

    Raises:
        InputError: they have not; the message begins with the name of one, and names a number of ranks that would have
            whole blocks of all.
    """

    def fit(count: int) -> bool:
        return all(size % (SCALE_BLOCK * count) == 0 for size in sizes.values())

    for name, size in sizes.items():
        if size % (SCALE_BLOCK * ranks):
            works = max(count for count in range(1, ranks + 1) if count == 1 or fit(count))
            raise InputError(
                f"{name}: expected a multiple of {SCALE_BLOCK} for each of {ranks} ranks, because scales are of whole "
                f"{SCALE_BLOCK}x{SCALE_BLOCK} blocks, got {size}; it can be on {works} rank{'s' * (works > 1)}"
            )


def distributed(tensor: Tensor, mesh: DeviceMesh, placement: Placement, source: int | None) -> nn.Parameter:
    """A parameter of which each rank of a 1-D mesh has its part, in memory of its own.

    Args:
        tensor: all of it. Rank ``source`` of the mesh sends the others theirs; each cuts out its own if that is None.
    """
    if source is None:
        return frozen(own_part(tensor, mesh, placement))
    # NOTE: codes travel as bytes, because not every backend knows FP8.
    sent = tensor.detach().view(torch.uint8) if tensor.dtype == CODES else tensor.detach()
    if isinstance(placement, Replicate):
        sent = sent.clone()  # what is received is written into it
    options: dict[str, Any] = {} if source == 0 else {"src_data_rank": source}  # the keyword is newer than torch 2.6
    part = distribute_tensor(sent, mesh, [placement], **options).to_local().view(tensor.dtype)
    return frozen(whole_of(_alone(part), tensor, mesh, placement))


def own_part(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """This rank's part of ``tensor``, which a 1-D mesh divides evenly, as a DTensor in memory of its own."""
    part = tensor.detach()
    if isinstance(placement, Shard):
        part = part.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()].contiguous()
    return whole_of(_alone(part), tensor, mesh, placement)


def _alone(part: Tensor) -> Tensor:
    """Without the rest of a storage that would be kept for it."""
    return part.clone() if not part.is_meta and part.untyped_storage().nbytes() > part.nbytes else part


def whole_of(part: Tensor, tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """The DTensor of the shape of ``tensor`` of which this rank has ``part``."""
    stride = torch.empty(tensor.shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=tensor.shape, stride=stride)


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a DTensor: always the same object, so that the plan knows it.

    NOTE: ``to_local`` makes another each time while gradients are enabled, and is a node of a compiled graph.
    """
    part: Tensor = parameter._local_tensor  # type: ignore[attr-defined]
    return part


def is_on(parameter: Tensor, mesh: DeviceMesh) -> bool:
    """Whether a parameter is a DTensor on this very mesh: on no other, as where FSDP divides it further."""
    return isinstance(parameter, DTensor) and (parameter.device_mesh is mesh or parameter.device_mesh == mesh)
