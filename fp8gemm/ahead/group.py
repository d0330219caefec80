"""The work of a warmup divided among the ranks of a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from fp8gemm.errors import CompileError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.presence import Missing

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Make(Protocol):
    """Builds the kernels of several keys that are not there, or all of them afresh."""

    def __call__(self, some: Sequence[str], *, fresh: bool) -> list[Artifact]: ...


def shared(keys: Sequence[str], make: Make, group: ProcessGroup, *, again: bool) -> list[Artifact]:
    """Each rank makes its share; when all have, each finds what the others made, or makes it on another machine.

    Returns:
        What this rank had to make.

    Raises:
        Fp8GemmError: this rank's own, or one that names what other ranks met; all ranks raise then.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    failure: BaseException | None = None
    artifacts: list[Artifact] = []
    try:
        artifacts += make(keys[rank::ranks], fresh=again)
    except BaseException as error:  # NOTE: the others must hear of whatever it is, or they wait for this rank for ever
        failure = error
    _meet(failure, group)
    others = [key for index, key in enumerate(keys) if index % ranks != rank]
    try:
        artifacts += make(others, fresh=False)
    except BaseException as error:
        failure = error
    _meet(failure, group)
    return artifacts


def united(
    compiled: Collection[str], missing: Sequence[Missing], group: ProcessGroup
) -> tuple[set[str], tuple[Missing, ...]]:
    """The keys of what any rank compiled, and what any rank misses: ranks may be on machines of their own."""
    import torch.distributed as dist

    told: list[tuple[list[str], list[Missing]]] = [([], [])] * dist.get_world_size(group)
    dist.all_gather_object(told, (list(compiled), list(missing)), group=group)
    lacking = {each.key: each for _, of_rank in reversed(told) for each in of_rank}
    return {key for keys, _ in told for key in keys}, tuple(lacking.values())


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
