"""Everything that is compiled before the first request: `warmup`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from fp8gemm import settings
from fp8gemm.ahead.grouped import GroupedVariants
from fp8gemm.ahead.kernels import CHIPS, Demand, Variants, all_quantizers, chips_named, demand
from fp8gemm.errors import InputError
from fp8gemm.hints import MAX_M
from fp8gemm.jit.build import Artifact, build, writable_directory
from fp8gemm.jit.build import recompile as compile_again
from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.request import KernelRequest
from fp8gemm.recording import AnyProblem
from fp8gemm.tuning.epilogue import parse_output

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Warmup:
    """What a warmup did; `print` it for a line or two.

    Attributes:
        kernels: that are ready now.
        compiled: of these, by this call (with a process group, by all its ranks).
        hits: the others.
        seconds: that it took.
        bytes: of all cubins.
        chips: kernels of GEMMs by chip; one may serve several.
        quantizers: kernels that quantise.
        directory: where they are.
    """

    kernels: int
    compiled: int
    hits: int
    seconds: float
    bytes: int
    chips: dict[str, int]
    quantizers: int
    directory: str

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        of_chips = ", ".join(f"{count} for {chip}" for chip, count in self.chips.items())
        return (
            f"{self.kernels} kernels are ready in {self.directory}: {of_chips}, {self.quantizers} that quantise\n"
            f"{self.compiled} compiled, {self.hits} found, {self.bytes / 2**20:.1f} MiB, {self.seconds:.1f} s"
        )


def warmup(
    what: nn.Module | Iterable[tuple[int, ...]],
    max_m: int | None = None,
    *,
    chips: Sequence[str] | None = None,
    out_dtype: object = "bfloat16",
    epilogue: str = "none",
    batch_invariant: bool | None = None,
    jobs: int | None = None,
    recompile: bool = False,
    progress: bool | None = None,
    group: ProcessGroup | None = None,
) -> Warmup:
    """Compile every kernel that will be asked for, and nothing else. Needs no GPU and no driver.

    Args:
        what: a model, whose `Fp8Linear` and `Fp8Experts` say what they will ask for, on "meta" too; or (N, K) of
            weights, for layers and for `fp8gemm.gemm`, or (G, N, K) of groups, for `fp8gemm.gemm_grouped` and
            `fp8gemm.gemm_masked`.
        max_m: the most rows, of groups those of a typical one; by default what each layer was made for, or 16384.
        chips: names as in `fp8gemm.select`; by default that of the GPU on which a model is, else h200 and h100.
        out_dtype: of the outputs, and of activations that are quantised; a model's layers know theirs,
            its experts do not.
        epilogue: ``none``, ``c``, ``bias`` or ``c+bias``, each bfloat16 or as in ``bias:float32``; a model's layers
            know theirs.
        batch_invariant: as in `fp8gemm.gemm`; a model's layers know theirs.
        jobs: threads that compile; as many as this process has processors by default.
        recompile: compile also what is there, with the NVRTC that is installed now.
        progress: whether to show a bar on standard error; by default if that is a terminal.
        group: ranks that share the work. All of them must call this; each returns when all are done.

    Raises:
        InputError: an argument is not as described, or the model has neither `Fp8Linear` nor `Fp8Experts`.
        CacheError: no cache directory can be written.
        CompileError: a kernel could not be compiled; others are ready, and another call goes on from there.
    """
    started = time.perf_counter()
    if _is_model(what):
        from fp8gemm.ahead.models import demand_of_model

        wanted = demand_of_model(what, max_m, chips, parse_output(out_dtype))
    else:
        output = parse_output(out_dtype)
        variants = Variants((output,), (epilogue,), batch_invariant=batch_invariant)
        of_groups = GroupedVariants(outputs=(output,), batch_invariant=batch_invariant)
        shapes, most = list(cast("Iterable[tuple[int, ...]]", what)), MAX_M if max_m is None else max_m
        problems: list[AnyProblem] = []
        for shape in shapes:
            if len(shape) not in (2, 3):
                raise InputError(f"expected (N, K) of a weight or (G, N, K) of groups, got {shape}")
            *groups, n, k = shape
            problems += of_groups.problems(groups[0], n, k, most) if groups else variants.problems(n, k, most)
        quantizers = all_quantizers((output,), [shape[-1] for shape in shapes])
        wanted = demand(problems, chips_named(CHIPS if chips is None else chips), quantizers)
    return make_ready(wanted, jobs=jobs, again=recompile, progress=progress, group=group, started=started)


def _is_model(what: object) -> TypeGuard[nn.Module]:
    """NOTE: not by its class, which is torch's, and shapes need no torch."""
    return hasattr(what, "named_modules")


def make_ready(
    wanted: Demand,
    *,
    jobs: int | None = None,
    again: bool = False,
    progress: bool | None = None,
    group: ProcessGroup | None = None,
    started: float | None = None,
) -> Warmup:
    """Compile what is not there yet, or ``again`` all of it.

    Args:
        wanted: the kernels.
        jobs, progress, group: as in `warmup`.
        started: when the whole work did, by `time.perf_counter`.

    Raises:
        CacheError, CompileError: as `warmup`.
    """
    from tqdm import tqdm

    started = time.perf_counter() if started is None else started
    requests = wanted.requests
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    # The policy is for those who serve: whoever asks for kernels to be compiled wants them compiled.
    with (
        settings.scope(jit="compile"),
        tqdm(total=len(requests), unit=" kernels", desc="warmup", disable=hidden, file=sys.stderr) as bar,
    ):
        directory = writable_directory()

        def made(artifact: Artifact) -> None:
            bar.update()

        def make(some: Sequence[KernelRequest], *, fresh: bool) -> list[Artifact]:
            return build_many(some, jobs=jobs, progress=made, make=compile_again if fresh else build)

        if group is None:
            artifacts = make(requests, fresh=again)
            compiled = sum(artifact.source == "compiled" for artifact in artifacts)
        else:
            from fp8gemm.ahead.group import shared

            artifacts, compiled = shared(requests, make, group, again=again)
    return Warmup(
        kernels=len(requests),
        compiled=compiled,
        hits=len(requests) - compiled,
        seconds=time.perf_counter() - started,
        bytes=sum(len(artifact.cubin) for artifact in artifacts),
        chips={chip: len(of_chip) for chip, of_chip in wanted.gemms.items()},
        quantizers=len(wanted.quantizers),
        directory=str(directory),
    )
