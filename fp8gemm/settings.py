"""Every FP8GEMM_* environment variable, read in this one place.

======================= ====================================================================== ===================
variable                meaning                                                                default
======================= ====================================================================== ===================
FP8GEMM_CACHE_DIR       kernel cache directories, searched as listed (``/sealed:/writable``)   ~/.cache/fp8gemm
FP8GEMM_TRUSTED_DIRS    cache directories to use although others own them or can write to them none
FP8GEMM_JIT             what a missing kernel leads to: ``compile``, ``nearest``, ``error``    compile
FP8GEMM_BACKEND         ``auto``, or ``reference`` for plain PyTorch on every device           auto
FP8GEMM_NUM_SMS         upper bound on the SMs that a kernel occupies                          all of the device's
FP8GEMM_BATCH_INVARIANT ``1`` or ``true``: a row's bits depend neither on M nor on other rows  0
FP8GEMM_PDL             ``0`` or ``false``: no kernel starts before the one ahead of it has ended      1
FP8GEMM_TABLES          tuned tables, the first that knows a shape decides (``/mine.json:/b``) the shipped ones
FP8GEMM_CHECK_GROUPS    ``1`` or ``true``: grouped products wait for the GPU and refuse wrong groups   0
FP8GEMM_RECORD          a file to which every shape that kernels are asked for is added, for a warmup      none
FP8GEMM_ENGINES         ``1`` or ``true``: vLLM and SGLang compute with fp8gemm what they call DeepGEMM for    0
======================= ====================================================================== ===================

The environment is read once, at first use. ``reload()`` reads it again; ``scope(jit="error")`` overrides it in a block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass

JIT_POLICIES = ("compile", "nearest", "error")
BACKENDS = ("auto", "reference")
_SWITCHES = {"batch_invariant", "pdl", "check_groups", "engines"}
_BOOLS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Settings:
    """What a user can choose without touching code. A value that is not allowed is an ``InputError``.

    Attributes:
        cache_dirs: cache layers in reading order; the last one that can be written receives new kernels.
            Empty means that compiled kernels live in this process's memory alone.
        trusted_dirs: cache directories exempt from the ownership, mode and symlink checks.
        jit: ``compile`` a missing kernel, take the ``nearest`` ready one, or raise an ``error``.
        backend: ``auto`` runs Hopper kernels on CUDA tensors and the reference on CPU tensors;
            ``reference`` runs the reference on both.
        num_sms: at most this many SMs for a kernel; None for all.
        batch_invariant: whether products that do not say so themselves, and norms, are computed in an order that does
            not depend on M, so that a row of a result has the same bits whatever other rows there are.
        pdl: programmatic dependent launch: a kernel may start before the one ahead of it in the stream has ended, and
            prepare what does not depend on that one. Results are the same bits either way.
        tables: files of tuned configs; for a shape that several know the first decides, and all of them come before
            the tables that the package ships. Each is read once, when a config is first chosen.
        check_groups: grouped products look at the groups in device memory, which waits for the GPU, and refuse wrong
            ones; a debugging aid, impossible while a CUDA graph is captured.
        record: a file that is added to, see `fp8gemm.kernels.recording`; None for none.
        engines: whether the plugins that vLLM and SGLang load, see `fp8gemm.integrations.engines`, do anything.
    """

    cache_dirs: tuple[Path, ...] = ()
    trusted_dirs: tuple[Path, ...] = ()
    jit: str = "compile"
    backend: str = "auto"
    num_sms: int | None = None
    batch_invariant: bool = False
    pdl: bool = True
    tables: tuple[Path, ...] = ()
    check_groups: bool = False
    record: Path | None = None
    engines: bool = False

    def __post_init__(self) -> None:
        # The dataclass is frozen for its users; normalising its own fields is what __setattr__ is bypassed for.
        object.__setattr__(self, "cache_dirs", _absolute("cache_dirs", self.cache_dirs))
        object.__setattr__(self, "trusted_dirs", _absolute("trusted_dirs", self.trusted_dirs))
        object.__setattr__(self, "tables", _absolute("tables", self.tables))
        if self.record is not None:
            object.__setattr__(self, "record", _absolute("record", (self.record,))[0])
        _one_of("jit", self.jit, JIT_POLICIES)
        _one_of("backend", self.backend, BACKENDS)
        if self.num_sms is not None and (type(self.num_sms) is not int or self.num_sms < 1):
            raise _bad_value("num_sms", "a positive integer", self.num_sms)
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise _bad_value(name, f"a bool, or one of {', '.join(_BOOLS)}", getattr(self, name))


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Build settings from environment variables; an empty variable counts as an unset one.

    Raises:
        InputError: a variable holds a value that is not allowed.
    """
    values = {
        field.name: environment[_variable(field.name)]
        for field in fields(Settings)
        if environment.get(_variable(field.name))
    }
    changes: dict[str, Any] = dict(values)
    changes["cache_dirs"] = (
        _split_path(values["cache_dirs"]) if "cache_dirs" in values else _default_cache_dirs(environment)
    )
    changes["trusted_dirs"] = _split_path(values.get("trusted_dirs", ""))
    changes["tables"] = _split_path(values.get("tables", ""))
    if "num_sms" in values:
        # int() also takes "1_32" and "-1"; digits alone are what a person means by a count.
        digits = values["num_sms"]
        changes["num_sms"] = int(digits) if re.fullmatch("[0-9]{1,9}", digits) else digits
    for name in _SWITCHES & values.keys():
        changes[name] = _BOOLS.get(values[name], values[name])
    return Settings(**changes)


def variables() -> tuple[str, ...]:
    """The name of every variable that is read."""
    return tuple(_variable(field.name) for field in fields(Settings))


def refused(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold a value that is not allowed, and what is said of each."""
    found = {}
    for name in variables():
        try:
            from_environment({name: environment.get(name, "")})
        except InputError as error:
            found[name] = str(error)
    return found


def unknown(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that begin as ours do and that nothing reads, such as misspelt ones; the tests' own are left out."""
    ours = {name for name in environment if name.startswith("FP8GEMM_") and not name.startswith("FP8GEMM_TEST_")}
    return tuple(sorted(ours - set(variables())))


_environment_settings: Settings | None = None
_scoped_settings: ContextVar[Settings | None] = ContextVar("fp8gemm_settings", default=None)


def current() -> Settings:
    """The settings in force here: the innermost ``scope()``, else what the environment said at first use."""
    return _scoped_settings.get() or _environment_settings or reload()


def reload() -> Settings:
    """Read the environment again and return what it says; scopes that are open stay in force."""
    global _environment_settings
    _environment_settings = from_environment(os.environ)
    return _environment_settings


@contextmanager
def scope(**changes: Any) -> Iterator[Settings]:
    """Override settings for the code inside the ``with`` block, in this thread and in tasks that it starts.

    Args:
        changes: field names of ``Settings`` with their new values.

    Raises:
        InputError: an unknown field, or a value that is not allowed.
    """
    known = [field.name for field in fields(Settings)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise InputError(f"settings are {', '.join(known)}; found {', '.join(unknown)}")
    token = enter(replace(current(), **changes))
    try:
        yield current()
    finally:
        leave(token)


def enter(ready: Settings) -> Token[Settings | None]:
    """Put settings in force that were made before: for a caller who does so at every call, and cannot wait for `scope`.

    Returns:
        What `leave` takes, in this thread or task.
    """
    return _scoped_settings.set(ready)


def leave(token: Token[Settings | None]) -> None:
    """Put back what was in force before the `enter` that returned ``token``."""
    _scoped_settings.reset(token)


def _variable(field: str) -> str:
    return "FP8GEMM_CACHE_DIR" if field == "cache_dirs" else f"FP8GEMM_{field.upper()}"


def _bad_value(field: str, expected: str, found: object) -> InputError:
    return InputError(f"{_variable(field)} (settings.{field}) must be {expected}; found {found!r}")


def _one_of(field: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _bad_value(field, f"one of {', '.join(allowed)}", value)


def _absolute(field: str, value: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Absolute paths: a later change of the working directory must not move the cache, or another file."""
    if isinstance(value, (str, os.PathLike)):
        raise _bad_value(field, "a sequence of paths", value)
    try:
        return tuple(Path(path).expanduser().absolute() for path in value)
    except (RuntimeError, OSError) as error:  # an unknown ~user; a working directory that no longer exists
        raise _bad_value(field, "a sequence of paths that can be made absolute", value) from error


def _split_path(text: str) -> tuple[Path, ...]:
    # An empty component would mean the current directory, which is never a cache and no table.
    return tuple(Path(part) for part in text.split(os.pathsep) if part)


def _default_cache_dirs(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """``$XDG_CACHE_HOME/fp8gemm`` or ``~/.cache/fp8gemm``; none if neither variable holds an absolute path."""
    for variable, below in (("XDG_CACHE_HOME", "fp8gemm"), ("HOME", ".cache/fp8gemm")):
        base = environment.get(variable, "")
        if os.path.isabs(base):
            return (Path(base, below),)
    return ()
