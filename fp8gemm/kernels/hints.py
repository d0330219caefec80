"""The `fp8gemm warmup` that makes ready what was missed: for the messages of misses."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from fp8gemm import settings
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.tuning.hopper import Chip, chip_name, named_chip
from fp8gemm.tuning.problem import (
    NO_EPILOGUE,
    Grouping,
    InputType,
    OutputType,
    Problem,
    Scaling,
    StoreKind,
    epilogue_text,
    packed_problem,
)

if TYPE_CHECKING:
    from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem

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


def warmup_of(problem: AnyProblem, chip: Chip) -> str:
    """The command that compiles the kernels of a problem, and of others like it.

    They are those of every M that a GEMM or a group usually has, and of that of ``problem``; of groups of columns, of
    the gradient of a weight that has as many rows.
    """
    of_columns = not isinstance(problem, Problem) and problem.grouping is Grouping.COLUMNS
    weights = f"--nk {problem.n}x{problem.k}" if isinstance(problem, Problem) else _groups(problem)
    command = f"fp8gemm warmup {weights}"
    if problem.m > MAX_M and not of_columns:
        command += f" --max-m {problem.m}"
    command = _with_chip(command, chip)
    if problem.output is not OutputType.BFLOAT16 and not of_columns:
        command += f" --out-dtype {problem.output.value}"
    if isinstance(problem, Problem):
        command += _terms(problem)
    return _with_settings(_with_mode(command + _any_strides(problem), problem.batch_invariant))


def warmup_with(words: Sequence[str], chip: Chip) -> str:
    """The command with these options, on a chip, under the settings of now wherever it runs."""
    command = _with_settings(_with_chip(f"fp8gemm warmup {shlex.join(words)}", chip))
    return f"FP8GEMM_BATCH_INVARIANT=1 {command}" if settings.current().batch_invariant else command


def _groups(problem: GroupedProblem) -> str:
    # Without rows nothing is multiplied, but a kernel is loaded all the same: that of the fewest.
    sizes = (max(problem.m, 1), problem.n) if problem.grouping is Grouping.COLUMNS else (problem.n, problem.k)
    return f"--grouped {problem.groups}x{sizes[0]}x{sizes[1]} --layout {problem.grouping.value}"


def _terms(problem: Problem) -> str:
    epilogue = epilogue_text(problem.c, problem.bias)
    added = "" if epilogue == NO_EPILOGUE else f" --epilogue {epilogue}"
    return f"{added} --scaling 1d1d" if problem.scaling is Scaling.ROW else added


def warmup_of_quantizer(request: KernelRequest) -> str:
    """The command that compiles a quantiser and those beside it, or a kernel of routing, which may have no input."""
    config = {"input": InputType.BFLOAT16, **dict(request.config)}
    command = f"fp8gemm warmup --quantizers {config.get('k', 16)} --out-dtype {_type_name(config['input'])}"
    if config.get("weight", config["input"]) is not config["input"]:
        command += f" --norm-weights {_type_name(config['weight'])}"
    return _with_settings(command)


def _with_chip(command: str, chip: Chip) -> str:
    if not chip.limited:
        return f"{command} --chip {chip_name(chip)}"
    return f"FP8GEMM_NUM_SMS={chip.num_sms} {command} --chip {chip_name(_whole(chip))}"


def _whole(limited: Chip) -> Chip:
    """The chip of which some SMs are kept for others; how many a part of a GPU has, its share of the L2 cache tells."""
    known = named_chip(limited.name)
    num_sms = -(-limited.l2_bytes * known.num_sms // known.l2_bytes)
    return named_chip(f"{limited.name}:{max(num_sms, limited.num_sms + 1)}")


def _type_name(dtype: object) -> str:
    """What `--out-dtype` calls a type."""
    assert isinstance(dtype, Enum)
    return dtype.name.lower()


def _with_mode(command: str, batch_invariant: bool) -> str:
    """With what the product asks for, whatever the settings say."""
    if batch_invariant:
        return command + " --batch-invariant"
    return f"FP8GEMM_BATCH_INVARIANT=0 {command}" if settings.current().batch_invariant else command


def _any_strides(problem: AnyProblem) -> str:
    """What a command needs for an output that TMA cannot write though it can write a packed one."""
    usual = packed_problem(1, problem.n, 16, problem.output).store
    unusual = problem.store is StoreKind.PREDICATED and usual is not StoreKind.PREDICATED
    return " --any-strides" if unusual else ""


def _with_settings(command: str) -> str:
    """With the tables in force, which decide too."""
    tables = ":".join(map(str, settings.current().tables))
    return f"FP8GEMM_TABLES={shlex.quote(tables)} {command}" if tables else command
