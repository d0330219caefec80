"""`install`: what imports DeepGEMM by its own name gets this package, and for all that it has not another DeepGEMM."""

from __future__ import annotations

import sys
from importlib import import_module
from threading import RLock
from types import ModuleType

from fp8gemm import settings
from fp8gemm.frozen import dataclass
from fp8gemm.integrations.deep_gemm.beyond import PURPOSES, REFUSED
from fp8gemm.integrations.deep_gemm.facade import Finder, public_names
from fp8gemm.integrations.deep_gemm.other import OURS, ROOTS, Other, of_root

OURS_ANSWERS, OTHER_ANSWERS, NOBODY_ANSWERS = "fp8gemm", "other", "nobody"

_lock = RLock()
_finder: Finder | None = None
_removed: dict[str, ModuleType] = {}
"""What ``sys.modules`` had under DeepGEMM's names before `install`."""


@dataclass(frozen=True)
class Answers:
    """Who has the functions of DeepGEMM in this process, or would have them after `install`.

    Attributes:
        installed: whether ``import deep_gemm`` gives this package.
        other: the other DeepGEMM's name and file; empty if there is none.
        loaded: whether it is imported. Until then it is taken to have what DeepGEMM 2.8.1 has.
        problems: why packages that are there cannot be used.
        functions: "fp8gemm", "other" or "nobody", by the function's name.
    """

    installed: bool
    other: str
    loaded: bool
    problems: tuple[str, ...]
    functions: dict[str, str]


def install() -> ModuleType:
    """Make ``import deep_gemm`` give this package's functions, and those of another DeepGEMM for all others.

    The other one may be a package deep_gemm (DeepGEMM's or sgl-deep-gemm) or the copy that vLLM carries. It is imported
    when a name is asked for that this package has not, and not before. ``vllm.third_party.deep_gemm`` becomes the same
    module. What holds for the whole process (`set_num_sms`, `set_pdl` and others) is told to both, to one that is
    imported later then.

    Where DeepGEMM is imported already, who holds its module finds these functions in it too; who has taken functions
    out of it before keeps those, so call this first where you can. To call it again changes nothing.

    Returns:
        The module; a name that neither has is an `AbsentError`, which is an `AttributeError` that says what to install.
    """
    global _finder
    with _lock:
        if _finder is None:
            limit = settings.current().num_sms
            # NOTE: what schedules the other's kernels asks for the number of SMs here, so theirs must be the same.
            _finder = Finder(Other({} if limit is None else {"set_num_sms": limit}))
            _removed.update(_remove_modules())
            sys.meta_path.insert(0, _finder)
            _finder.put_into_adopted()
            for root in ROOTS:
                if root in _removed:
                    _set_in_parent(root, _finder.facade())
        return _finder.facade()


def uninstall() -> None:
    """Put back what ``import deep_gemm`` gave before `install`; without one, nothing happens."""
    global _finder
    with _lock:
        if _finder is None:
            return
        sys.meta_path.remove(_finder)
        _remove_modules()
        _finder.take_out_of_adopted()
        _finder.other.forget()
        sys.modules.update(_removed)
        for root in ROOTS:
            _set_in_parent(root, _removed.get(root))
        _removed.clear()
        _finder = None


def answers() -> Answers:
    """Who has which function, without importing the other DeepGEMM."""
    with _lock:
        installed = _finder is not None
        other = Other({}) if _finder is None else _finder.other
        functions = dict.fromkeys(public_names(import_module(OURS)), OURS_ANSWERS)
        for name in PURPOSES:
            if name in REFUSED or name not in functions:
                functions[name] = OTHER_ANSWERS if other.has(name) else NOBODY_ANSWERS
        if not installed:
            other.forget()
        return Answers(installed, other.where(), other.loaded, tuple(other.problems), functions)


def _remove_modules() -> dict[str, ModuleType]:
    """Take what is imported under DeepGEMM's names out of ``sys.modules``."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if of_root(name) is not None}


def _set_in_parent(root: str, module: ModuleType | None) -> None:
    """Make ``module`` the attribute of the package around it, as importing it does; None takes ours away."""
    outer, _, name = root.rpartition(".")
    parent = sys.modules.get(outer)
    if parent is not None and module is not None:
        setattr(parent, name, module)
    elif _finder is not None and getattr(parent, name, None) is _finder.facade():
        delattr(parent, name)
