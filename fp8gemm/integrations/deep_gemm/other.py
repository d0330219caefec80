"""Another DeepGEMM beside this package: where it is, and what it has, imported only when that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm.beyond import PURPOSES
from fp8gemm.quoting import printable

OURS = "fp8gemm.integrations.deep_gemm"
ROOTS = ("deep_gemm", "vllm.third_party.deep_gemm")
"""The names by which programs import DeepGEMM, the first that is there before the others: a package of that name
(DeepGEMM's own or sgl-deep-gemm), and the copy that vLLM carries."""

SETTERS = (
    "set_block_size_multiple_of",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "use_deterministic_algorithms",
)
"""What is kept for the whole process, by each library for itself: both are told."""

_ALIAS = "_other_deep_gemm"
"""What the other package is called in ``sys.modules`` while its own names are ours. Its modules import each other
relatively, so they find each other under any name."""


class AbsentError(UnsupportedError, AttributeError):
    """Neither fp8gemm nor another DeepGEMM has a function; `hasattr` says so, as of any module."""


def of_root(fullname: str) -> tuple[str, str] | None:
    """One of ``ROOTS`` and what follows in ``fullname``, without the dot; None for a module of others."""
    for root in ROOTS:
        if _is_within(fullname, root):
            return root, fullname[len(root) + 1 :]
    return None


class Other:
    """The first DeepGEMM that can be imported.

    Args:
        told: values by the functions that are to be called with them once it is imported.

    Attributes:
        adopted: modules of it by their names, that were imported before this was made.
        problems: why packages that are there cannot be used: imported, and told what was set.
    """

    def __init__(self, told: dict[str, object]) -> None:
        self.adopted = _imported()
        self.problems: list[str] = []
        self._lock = RLock()
        self._root: ModuleType | None = None
        self._name = ""
        self._tried = False
        self._told = told
        self._setters: dict[str, Callable[[object], object]] = {}
        self._kept: dict[str, Any] | None = None
        for root in ROOTS:
            if root in self.adopted:
                for name, module in self.adopted.items():
                    if _is_within(name, root):
                        sys.modules[_ALIAS + name[len(root) :]] = module
                self._root, self._name, self._tried = self.adopted[root], root, True
                self._kept = dict(vars(self._root))  # ours will stand in their places
                self._tell_all(self._root)
                return

    @property
    def loaded(self) -> bool:
        """Whether it has been imported."""
        return self._root is not None

    def spec(self) -> ModuleSpec | None:
        """Where it is, as far as that can be told without importing it or a package around it."""
        if self._root is not None:
            return self._root.__spec__
        return next((spec for _, spec in _found()), None)

    def where(self) -> str:
        """The name it is imported by and its file, for messages; empty if there is none."""
        if self._root is not None:
            return f"{self._name} ({getattr(self._root, '__file__', 'no file')})"
        return next((f"{name} ({spec.origin})" for name, spec in _found()), "")

    def has(self, name: str) -> bool:
        """Whether the package has ``name``; while it is not imported, whether there is one at all."""
        return hasattr(self._root, name) if self._tried else bool(self.where())

    def attribute(self, tail: str, name: str) -> object:
        """``name`` of its module ``tail``, "" for the package.

        Raises:
            AbsentError: there is no such module or no such name in it, or there is no other DeepGEMM.
        """
        try:
            value: object = getattr(self.module(tail), name)
        except (AttributeError, ImportError) as error:
            raise AbsentError(self._absent(".".join(filter(None, (ROOTS[0], tail, name))))) from error
        return value

    def module(self, tail: str) -> ModuleType:
        """Its module ``tail``, "" for the package.

        Raises:
            ModuleNotFoundError: there is no such module, or no other DeepGEMM that can be imported.
        """
        name, alias = (".".join(filter(None, (root, tail))) for root in (ROOTS[0], _ALIAS))
        if self._load() is None:
            raise ModuleNotFoundError(self._absent(name), name=name)
        try:
            return import_module(alias)
        except ModuleNotFoundError as error:
            if error.name != alias:  # it is there, and asks for a package that is not
                raise
            raise ModuleNotFoundError(self._absent(name), name=name) from None

    def own(self, name: str) -> Callable[..., object] | None:
        """The package's own function, in whose place ours may stand; None if it has none."""
        if self._kept is not None:
            return self._kept.get(name)
        found: Callable[..., object] | None = getattr(self._load(), name, None)
        return found

    def tell(self, setter: str, value: object) -> None:
        """Call its ``setter``, now if it is loaded, or when it will be; one that has none goes on without."""
        with self._lock:
            self._told[setter] = value
            if self._root is not None and setter in self._setters:
                self._setters[setter](value)

    def forget(self) -> None:
        """Take its modules' other names out of ``sys.modules``; those that were imported before keep their own."""
        for name in [name for name in sys.modules if _is_within(name, _ALIAS)]:
            del sys.modules[name]

    def _load(self) -> ModuleType | None:
        with self._lock:
            if self._tried:
                return self._root
            self._tried = True
            for self._name, spec in _found():
                try:
                    self._root = self._execute(spec)
                    break
                except Exception as error:  # what a library that does not fit raises: OSError, AssertionError, ...
                    self._root = None
                    self.forget()
                    said = next(iter(str(error).splitlines()), "")  # DeepGEMM's go on with a trace of its C++
                    self.problems.append(
                        f"{self._name} ({spec.origin}) cannot be used: {type(error).__name__}: {printable(said)}"
                    )
            return self._root

    def _execute(self, found: ModuleSpec) -> ModuleType:
        assert found.origin is not None
        spec = spec_from_file_location(
            _ALIAS, found.origin, submodule_search_locations=found.submodule_search_locations
        )
        assert spec is not None and spec.loader is not None
        # What it asks for of itself while it is imported it gets, as in any circular import.
        self._root = sys.modules[_ALIAS] = module_from_spec(spec)
        spec.loader.exec_module(self._root)
        module = sys.modules[_ALIAS]
        if _is_ours(module):
            raise ImportError("it is fp8gemm by another name; delete it, install() does without")
        self._tell_all(module)
        return module

    def _tell_all(self, module: ModuleType) -> None:
        # NOTE: kept from now on, because in a module that others hold ours will stand in their places.
        self._setters = {name: getattr(module, name) for name in SETTERS if hasattr(module, name)}
        for setter, value in self._told.items():
            if setter in self._setters:
                self._setters[setter](value)

    def _absent(self, name: str) -> str:
        purpose = PURPOSES.get(name.rpartition(".")[2], "")
        text = f"{name}: fp8gemm does not have it"
        if purpose:
            text += f" ({purpose}; DeepGEMM 2.8.1 does)"
        if self._root is not None:
            return f"{text}, and neither has {self.where()}"
        if self.problems:
            return f"{text}, and {'; '.join(self.problems)}"
        return f"{text}, and there is no other DeepGEMM to ask; install DeepGEMM or sgl-deep-gemm beside it"


def _is_within(name: str, package: str) -> bool:
    """Whether a module's name is a package's, or one below it."""
    return name == package or name.startswith(f"{package}.")


def _is_ours(module: ModuleType) -> bool:
    """Whether a file in DeepGEMM's place has put fp8gemm's functions under its name."""
    return str(getattr(module, "__name__", "")).startswith("fp8gemm.")


def _imported() -> dict[str, ModuleType]:
    """Modules of another DeepGEMM that are imported under its own names."""
    found: dict[str, ModuleType] = {}
    for root in ROOTS:
        module = sys.modules.get(root)
        if module is None or _is_ours(module):
            continue
        found |= {name: each for name, each in list(sys.modules.items()) if each is not None and _is_within(name, root)}
    return found


def _found() -> Iterator[tuple[str, ModuleSpec]]:
    for root in ROOTS:
        spec = _spec(root)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            yield root, spec


def _spec(fullname: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, but packages around it are not imported, and what is imported does not count."""
    spec, path = None, None
    for end in [*(at for at, letter in enumerate(fullname) if letter == "."), len(fullname)]:
        finders = [finder for finder in sys.meta_path if not getattr(finder, "of_fp8gemm", False)]
        specs = (finder.find_spec(fullname[:end], path) for finder in finders if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or (end < len(fullname) and spec.submodule_search_locations is None):
            return None
        path = spec.submodule_search_locations
    return spec
