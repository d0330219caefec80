"""Everything that is compiled before the first request: `warmup`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from fp8gemm import settings
from fp8gemm.ahead.grouped import GroupedVariants
from fp8gemm.ahead.kernels import CHIPS, Demand, Variants, all_quantizers, chips_named, demand
from fp8gemm.cache.entry import directory_name
from fp8gemm.errors import IncompleteWarmupError, InputError
from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.build import build, current_store, forget
from fp8gemm.jit.build import recompile as compile_again
from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.presence import ABSENT, Missing, Presence, keys_of, look, require_writable_directory
from fp8gemm.kernels.hints import MAX_M
from fp8gemm.quoting import counted, quoted
from fp8gemm.terminal.progress import bar
from fp8gemm.tuning.grouped_problem import AnyProblem
from fp8gemm.tuning.problem import parse_output

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

NOT_REPLACED = "compiled again, but could not be written; an older one is there"

_NAMED = 8
_NAMED_CHARACTERS = 80


@dataclass(frozen=True)
class Warmup:
    """What a warmup did, going by what lies in the cache directories at its end; `print` it for a line or two.

    Attributes:
        kernels: that were asked for.
        compiled: of these, by this call (with a process group, by all its ranks), and there.
        hits: of these, there without that.
        seconds: that it took.
        bytes: of the cubins that are there.
        chips: kernels of products by chip that were asked for; one may serve several.
        quantizers: kernels that quantise that were asked for.
        directory: where they are; several as in a setting.
        missing: kernels that no cache directory has intact (with a process group, those of any of its ranks).
    """

    kernels: int
    compiled: int
    hits: int
    seconds: float
    bytes: int
    chips: dict[str, int]
    quantizers: int
    directory: str
    missing: tuple[Missing, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        ready = self.kernels - len(self.missing)
        return (
            f"{self._counted(ready)} ready in {self.directory}: {self._multiply()}, {self._quantise()}\n"
            f"{self.compiled} compiled, {self.hits} found, {self.bytes / 2**20:.1f} MiB, {self.seconds:.1f} s"
        )

    def _counted(self, some: int) -> str:
        """So many of the kernels, as the subject of what is said of them."""
        of_all = f"{some} of " if self.missing else ""
        return f"{of_all}{counted(self.kernels, 'kernel')} {'is' if 1 in (some, self.kernels) else 'are'}"

    def _multiply(self) -> str:
        """Those that multiply, each once, and beside them those of each chip."""
        products = self.kernels - self.quantizers
        of_chips = ", ".join(f"{count} for {chip}" for chip, count in self.chips.items())
        shared = "; some for both" if len(self.chips) == 2 else "; some for several"
        verb = "multiplies" if products == 1 else "multiply"
        return f"{products} that {verb} ({of_chips}{shared if sum(self.chips.values()) > products else ''})"

    def _quantise(self) -> str:
        return f"{self.quantizers} that quantise{'s' if self.quantizers == 1 else ''}"

    def lack(self) -> str:
        """What is missing, in one line that names the first few."""
        named = [
            each.label if each.problem == ABSENT else f"{each.label} ({each.problem[:_NAMED_CHARACTERS]})"
            for each in self.missing[:_NAMED]
        ]
        more = len(self.missing) - len(named)
        names = ", ".join(named) + (f" and {more} more" if more else "")
        return f"{self._counted(len(self.missing))} not ready in {self.directory}: {names}"


def warmup(
    what: nn.Module | Iterable[tuple[int, ...]],
    max_m: int | None = None,
    *,
    chips: str | Sequence[str] | None = None,
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
        what: a model, whose `Fp8Linear`, `Fp8TrainingLinear` and `Fp8Experts` say what they will ask for, on "meta"
            too; or (N, K) of weights, for layers and for `fp8gemm.gemm`, or (G, N, K) of groups, for
            `fp8gemm.gemm_grouped` and `fp8gemm.gemm_masked`.
        max_m: the most rows, of groups those of a typical one; by default what each layer was made for, or 16384. Of
            layers that are trained the rows of a step: gradients of weights are made ready for that number alone.
        chips: names as in `fp8gemm.select`, or one of them, or "all"; by default that of the GPU on which a model is,
            else h200 and h100.
        out_dtype: of the outputs, and of activations that are quantised: bfloat16, float16 or float32, by name or as
            torch's; a model's layers know theirs, its experts and layers that are trained do not.
        epilogue: ``none``, ``c``, ``bias`` or ``c+bias``, each bfloat16 or as in ``bias:float32``; a model's layers
            know theirs.
        batch_invariant: as in `fp8gemm.gemm`; a model's layers know theirs.
        jobs: threads that compile; as many as this process has processors by default.
        recompile: compile also what is there, with the NVRTC that is installed now.
        progress: whether to show a bar on standard error; by default if that is a terminal.
        group: ranks that share the work. All of them must call this; each returns when all are done.

    Raises:
        InputError: an argument is not as described, or the model has no layer of `fp8gemm.nn`.
        CacheError: something is not there, and no cache directory can be written.
        IncompleteWarmupError: in the end something is not there, as on a disk that is full; the others are ready.
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
        shapes, most = _shapes_of(what), MAX_M if max_m is None else max_m
        problems: list[AnyProblem] = []
        for *groups, n, k in shapes:
            problems += of_groups.problems(groups[0], n, k, most) if groups else variants.problems(n, k, most)
        quantizers = all_quantizers((output,), [shape[-1] for shape in shapes])
        wanted = demand(problems, chips_named(CHIPS if chips is None else chips), quantizers)
    done = make_ready(wanted, jobs=jobs, again=recompile, progress=progress, group=group, started=started)
    if done.missing:
        names = [directory_name(each.label, each.key) for each in done.missing]
        raise IncompleteWarmupError(done.lack(), missing=names)
    return done


def _is_model(what: object) -> TypeGuard[nn.Module]:
    """NOTE: not by its class, which is torch's, and shapes need no torch."""
    return hasattr(what, "named_modules")


def _shapes_of(what: object) -> list[tuple[int, ...]]:
    """The shapes of weights and of groups; InputError if there is anything else."""
    if not isinstance(what, Iterable):
        raise InputError(f"what: expected a model, or a list of (N, K) and (G, N, K), got {quoted(what)}")
    shapes = list(what)
    if not shapes:
        raise InputError("what: expected at least one (N, K) of a weight or (G, N, K) of groups, got none")
    for shape in shapes:
        sizes = shape if isinstance(shape, (tuple, list)) else ()
        if len(sizes) not in (2, 3) or any(type(size) is not int for size in sizes):
            raise InputError(
                f"what: expected (N, K) of a weight or (G, N, K) of groups, whole numbers, got {quoted(shape)}"
            )
    return shapes


def make_ready(
    wanted: Demand,
    *,
    jobs: int | None = None,
    again: bool = False,
    progress: bool | None = None,
    group: ProcessGroup | None = None,
    started: float | None = None,
) -> Warmup:
    """Compile what no cache directory has yet, or ``again`` all of it, and look at what lies there in the end.

    Args:
        wanted: the kernels.
        jobs, progress, group: as in `warmup`.
        started: when the whole work did, by `time.perf_counter`.

    Raises:
        CacheError, CompileError: as `warmup`; but what is missing in the end is no error here.
    """
    started = time.perf_counter() if started is None else started
    keys = keys_of(wanted.requests)
    if group is None and not again and not (presence := look(keys)).missing:
        return _told(wanted, presence, (), (), started)  # one look at each kernel, which is most of the time then
    hidden = None if progress is None else not progress
    # The policy is for those who serve: whoever asks for kernels to be compiled wants them compiled.
    with (
        settings.scope(jit="compile"),
        bar(len(keys), "kernels", "warmup", hidden=hidden) as shown,
    ):

        def made(artifact: Artifact) -> None:
            shown.update()

        def make(some: Sequence[str], *, fresh: bool) -> list[Artifact]:
            todo = some if fresh else [each.key for each in look({key: keys[key] for key in some}).missing]
            shown.update(len(some) - len(todo))
            if todo:
                require_writable_directory()
                forget(todo)  # what an earlier call could not write is in memory, and would stay there alone
            requests = [keys[key] for key in todo]
            return build_many(requests, jobs=jobs, progress=made, make=compile_again if fresh else build)

        if group is None:
            artifacts = make(list(keys), fresh=again)
        else:
            from fp8gemm.ahead.group import shared

            artifacts = shared(list(keys), make, group, again=again)
    presence = look(keys)
    missing = presence.missing
    if again:
        kept = [each for each in artifacts if each.directory is None and each.key in presence.sizes]
        missing += tuple(Missing(each.request.label, each.key, NOT_REPLACED) for each in kept)
    compiled = {artifact.key for artifact in artifacts if artifact.source == "compiled"}
    if group is not None:
        from fp8gemm.ahead.group import united

        compiled, missing = united(compiled, missing, group)
    return _told(wanted, presence, missing, compiled, started)


def check_ready(wanted: Demand, *, started: float | None = None) -> Warmup:
    """Look whether kernels are there. Compiles nothing and writes nothing, and so needs no NVRTC and no directory that
    can be written."""
    started = time.perf_counter() if started is None else started
    presence = look(keys_of(wanted.requests))
    return _told(wanted, presence, presence.missing, frozenset(), started)


def _told(
    wanted: Demand, presence: Presence, missing: tuple[Missing, ...], compiled: Collection[str], started: float
) -> Warmup:
    kernels, lacking = len(wanted.requests), {each.key for each in missing}
    ready = sum(key not in lacking for key in compiled)
    return Warmup(
        kernels=kernels,
        compiled=ready,
        hits=kernels - len(missing) - ready,
        seconds=time.perf_counter() - started,
        bytes=sum(presence.sizes.values()),
        chips={chip: len(of_chip) for chip, of_chip in wanted.gemms.items()},
        quantizers=len(wanted.quantizers),
        directory=os.pathsep.join(map(str, presence.directories)) or current_store().describe(),
        missing=missing,
    )
