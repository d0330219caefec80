"""The `fp8gemm warmup` that makes ready what was missed: for the messages of misses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fp8gemm import settings
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.tuning.epilogue import NONE, epilogue_text
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip, chip_name, named_chip
from fp8gemm.tuning.problem import Grouping, OutputType, Problem, Scaling, StoreKind, packed_problem

MAX_M = 16384
"""Rows up to which a warmup makes kernels ready if nobody says how many."""


@contextmanager
def naming_the_warmup(command: Callable[[], str]) -> Iterator[None]:
    """A miss inside the block also says which command would have prevented it."""
    try:
        yield
    except CacheMissError as error:
        if error.key is None:
            raise
        raise CacheMissError(f"{error}\nmake it ready with: {command()}", key=error.key) from error


def warmup_of_problem(problem: Problem, chip: Chip) -> str:
    """The command that compiles the kernels of a GEMM for every M that it usually has, and for that of ``problem``."""
    command = f"fp8gemm warmup --nk {problem.n}x{problem.k}"
    if problem.m > MAX_M:
        command += f" --max-m {problem.m}"
    command = _with_chip(command, chip)
    if problem.output is not OutputType.BFLOAT16:
        command += f" --out-dtype {problem.output.value}"
    epilogue = epilogue_text(problem.c, problem.bias)
    if epilogue != NONE:
        command += f" --epilogue {epilogue}"
    if problem.scaling is Scaling.ROW:
        command += " --scaling rows"
    if problem.batch_invariant:
        command += " --batch-invariant"
    return _with_settings(command + _any_strides(problem))


def warmup_of_grouped(problem: GroupedProblem, chip: Chip) -> str:
    """The command that compiles the kernels of a grouped product for every M that a group usually has, and for that of
    ``problem``; of groups of columns, for the gradient of a weight that has as many rows."""
    of_columns = problem.grouping is Grouping.COLUMNS
    # Without rows nothing is multiplied, but a kernel is loaded all the same: that of the fewest.
    n, k = (max(problem.m, 1), problem.n) if of_columns else (problem.n, problem.k)
    command = f"fp8gemm warmup --grouped {problem.groups}x{n}x{k} --layout {problem.grouping.value}"
    if problem.m > MAX_M and not of_columns:
        command += f" --max-m {problem.m}"
    command = _with_chip(command, chip)
    if problem.output is not OutputType.BFLOAT16 and not of_columns:
        command += f" --out-dtype {problem.output.value}"
    if problem.batch_invariant:
        command += " --batch-invariant"
    return _with_settings(command + _any_strides(problem))


def warmup_of_quantizer(request: KernelRequest) -> str:
    """The command that compiles a quantiser and those beside it."""
    config = dict(request.config)
    command = f"fp8gemm warmup --quantizers {config.get('k', 16)} --out-dtype {config['input'].name.lower()}"  # type: ignore[union-attr]
    return _with_settings(command)


def _with_chip(command: str, chip: Chip) -> str:
    if not chip.limited:
        return f"{command} --chip {chip_name(chip)}"
    whole = chip_name(named_chip(chip.name))
    return f"FP8GEMM_NUM_SMS={chip.num_sms} {command} --chip {whole}"


def _any_strides(problem: Problem | GroupedProblem) -> str:
    """What a command needs for an output that TMA cannot write though it can write a packed one."""
    usual = packed_problem(1, problem.n, 16, problem.output).store
    unusual = problem.store is StoreKind.PREDICATED and usual is not StoreKind.PREDICATED
    return " --any-strides" if unusual else ""


def _with_settings(command: str) -> str:
    """With the tables in force, which decide too."""
    tables = ":".join(map(str, settings.current().tables))
    return f"FP8GEMM_TABLES={tables} {command}" if tables else command
