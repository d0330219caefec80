"""How a divided layer's input comes and its output goes, and the plain collectives that bring it there."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fp8gemm.frozen import dataclass
from fp8gemm.parallel.collectives import gathered, summed, summed_part


@dataclass(frozen=True)
class Layouts:
    """How a layer's input comes and its output goes.

    Attributes:
        mesh: of one dimension.
        given: placement of inputs that are no DTensors.
        wanted: placement of the output.
        local: whether the output is this rank's tensor, else a DTensor.
        overlap: whether what is sent travels while products are computed; None where that was measured to win.
    """

    mesh: DeviceMesh
    given: Placement
    wanted: Placement
    local: bool
    overlap: bool | None = None

    @property
    def group(self) -> ProcessGroup:
        """That of the mesh, found by its name: the mesh itself takes as long as a launch."""
        if is_dynamo_compiling():  # it cannot trace that
            return self.mesh.get_group()
        return _resolve_process_group(self.group_name)  # type: ignore[arg-type]

    @property
    def copies(self) -> bool | None:
        """What `fp8gemm.parallel.gather_quantized` is told where nothing is overlapped with a gather."""
        return False if self.overlap is False else None

    @cached_property
    def group_name(self) -> str:
        return self.mesh.get_group().group_name


def is_last(place: Placement, x: Tensor) -> bool:
    """Whether ranks have parts of a tensor's last dimension."""
    return isinstance(place, Shard) and place.dim in (-1, x.dim() - 1)


def given_away(x: Tensor, layouts: Layouts, *, is_part_of_sum: bool) -> Tensor:
    """A product of this rank, which has some columns of the whole or a part of each sum, as ``layouts`` asks for it."""
    wanted, mesh, last = layouts.wanted, layouts.mesh, x.dim() - 1
    dim = wanted.dim % x.dim() if isinstance(wanted, Shard) else None
    whole: DTensor | None = None
    if is_part_of_sum:
        if isinstance(wanted, Replicate):
            x = summed(x, layouts.group)
        elif dim is not None and x.shape[dim] % mesh.size() == 0:
            x = summed_part(x, dim, layouts.group)
        elif not isinstance(wanted, Partial):
            whole = redistributed(x, Partial(), wanted, mesh)
    elif isinstance(wanted, Replicate):
        x = gathered(x, last, layouts.group)
    elif dim != last:
        whole = redistributed(x, Shard(last), wanted, mesh)
    if layouts.local:
        return x if whole is None else whole.to_local()
    return DTensor.from_local(x, mesh, [wanted], run_check=False) if whole is None else whole


def redistributed(x: Tensor, place: Placement, wanted: Placement, mesh: DeviceMesh) -> DTensor:
    """As torch moves it, from any placement to any."""
    return DTensor.from_local(x, mesh, [place], run_check=False).redistribute(placements=[wanted])
