"""The work of a warmup divided among the ranks of a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fp8gemm.errors import CompileError
from fp8gemm.jit.build import Artifact
from fp8gemm.jit.request import KernelRequest

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Make(Protocol):
    """Builds several kernels, afresh or not."""

    def __call__(self, some: Sequence[KernelRequest], *, fresh: bool) -> list[Artifact]: ...


def shared(
    requests: Sequence[KernelRequest], make: Make, group: ProcessGroup, *, again: bool
) -> tuple[list[Artifact], int]:
    """Each rank makes its share; when all have, each finds what the others made, or makes it on another machine.

    Returns:
        The artifacts of all requests, this rank's share first, and how many were compiled by all ranks together.

    Raises:
        Fp8GemmError: this rank's own, or one that names what other ranks met; all ranks raise then.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    failure: BaseException | None = None
    artifacts: list[Artifact] = []
    try:
        artifacts += make(requests[rank::ranks], fresh=again)
    except BaseException as error:  # NOTE: the others must hear of whatever it is, or they wait for this rank for ever
        failure = error
    _meet(failure, group)
    others = [request for index, request in enumerate(requests) if index % ranks != rank]
    try:
        artifacts += make(others, fresh=False)
    except BaseException as error:
        failure = error
    _meet(failure, group)
    totals: list[int] = [0] * ranks
    compiled = sum(artifact.source == "compiled" for artifact in artifacts)
    dist.all_gather_object(totals, compiled, group=group)
    return artifacts, sum(totals)


def _meet(failure: BaseException | None, group: ProcessGroup) -> None:
    """A barrier that nobody leaves as if nothing had happened when a rank has failed."""
    import torch.distributed as dist

    told: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, None if failure is None else f"{type(failure).__name__}: {failure}", group=group)
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {what}" for rank, what in enumerate(told) if what is not None]
    if failed:
        raise CompileError("kernels could not be made ready by all ranks\n" + "\n".join(failed))
