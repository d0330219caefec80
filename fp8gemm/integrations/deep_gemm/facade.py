"""The modules that ``import deep_gemm`` gives after `install`: this package's functions before those of another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import isfunction, signature
from types import ModuleType
from typing import Any

from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations.deep_gemm.arguments import FOLDED, whole_recipe
from fp8gemm.integrations.deep_gemm.beyond import REFUSED
from fp8gemm.integrations.deep_gemm.other import OURS, ROOTS, SETTERS, AbsentError, Other, of_root

MODULES = ("", "testing", "testing.bench", "testing.numeric", "testing.utils", "utils", "utils.layout", "utils.math")
"""Those of this package that have a counterpart in DeepGEMM."""

_FOLDED_RECIPE = whole_recipe(*FOLDED)
_NOTHING = object()
_PACKAGES = {"", *(tail.rpartition(".")[0] for tail in MODULES)}

NOT_DEEP_GEMMS = {"AbsentError", "RefusedError", "answers", "install", "uninstall"}
"""Names of this package that DeepGEMM has not."""


def public_names(module: ModuleType) -> list[str]:
    """What a module of this package has for users of DeepGEMM."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    return sorted(set(names) - NOT_DEEP_GEMMS)


class Facade(ModuleType):
    """A module with this package's names; those that it has not are looked up in the other DeepGEMM, at each use."""

    def __init__(self, tail: str, spec: ModuleSpec, other: Other) -> None:
        ours = import_module(f"{OURS}.{tail}" if tail else OURS)
        super().__init__(spec.name, ours.__doc__)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, ours.__file__
        self.__package__ = spec.parent
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__all__ = public_names(ours)
        self._tail, self._other = tail, other
        self._refusals = {name: getattr(ours, name) for name in self.__all__ if name in REFUSED}
        for name in self.__all__:
            value = getattr(ours, name)
            if name not in REFUSED and not isinstance(value, ModuleType):
                setattr(self, name, _with_other(name, value, other))
        if not tail:
            self.__version__ = vars(ours)["__version__"]

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # questions of Python's own, whether there is a hook say
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            return self._other.attribute(self._tail, name)
        except AbsentError:
            if name in self._refusals:
                return self._refusals[name]
            raise

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self.__all__}
        if self._other.loaded:
            with suppress(ImportError):  # the other need not have every module
                names |= set(dir(self._other.module(self._tail)))
        return sorted(names)


def _with_other(name: str, value: Any, other: Other) -> Any:
    """What `Facade` has as ``name`` for this package's ``value``."""
    if name in SETTERS:
        return told_to_both(value, other)
    takes_recipe = isfunction(value) and "recipe" in signature(value).parameters
    return or_the_others(name, value, other) if takes_recipe else value


def or_the_others(name: str, function: Callable[..., object], other: Other) -> Callable[..., object]:
    """``function``, and for calls that are well formed but not served here what the other has as ``name``.

    SGLang makes such calls on SM90: masked products that overlap with communication. And products of blocks of 32x32,
    whose operands would be folded anew at each call here: asked for as engines do, by the keyword ``recipe``, they,
    too, are the other's, if it has a function for them.
    Where the other has no such function, or there is none, ours answers, with a refusal if need be.
    """

    @wraps(function)
    def calling(*args: object, **named: object) -> object:
        if named.get("recipe") == _FOLDED_RECIPE and (theirs := other.own(name)) is not None:
            return theirs(*args, **named)
        try:
            return function(*args, **named)
        except UnsupportedError:
            theirs = other.own(name)
            if theirs is None:
                raise
        return theirs(*args, **named)

    return calling


def told_to_both(setter: Callable[[object], None], other: Other) -> Callable[..., None]:
    """``setter``, which calls the other's of that name with what it has taken."""

    @wraps(setter)
    def telling(*args: object, **named: object) -> None:
        setter(*args, **named)
        (value,) = (*args, *named.values())
        other.tell(setter.__name__, value)

    return telling


class Finder(MetaPathFinder, Loader):
    """Finds DeepGEMM's modules, by each of its names: the same `Facade` objects, or modules of the other."""

    of_fp8gemm = True  # by which the search for the other one tells it

    def __init__(self, other: Other) -> None:
        self.other = other
        self._replaced: list[tuple[ModuleType, str, object]] = []
        self._facades: dict[str, Facade] = {}
        for tail in MODULES:
            made = self._facades[tail] = Facade(tail, self._spec(ROOTS[0], tail), other)
            outer, _, child = tail.rpartition(".")
            if tail:
                setattr(self._facades[outer], child, made)

    def facade(self) -> Facade:
        """That of the package."""
        return self._facades[""]

    def put_into_adopted(self) -> None:
        """Let the other's modules that were imported before have these functions, for who holds those modules.

        SGLang, for one, imports DeepGEMM while it imports what then calls plugins.
        """
        for name, module in self.other.adopted.items():
            found = of_root(name)
            facade = self._facades.get(found[1]) if found is not None else None
            for each in facade.__all__ if facade is not None else ():
                value = vars(facade).get(each)
                if value is not None and not isinstance(value, ModuleType):
                    self._replaced.append((module, each, vars(module).get(each, _NOTHING)))
                    setattr(module, each, value)

    def take_out_of_adopted(self) -> None:
        """Undo that."""
        while self._replaced:
            module, name, value = self._replaced.pop()
            if value is _NOTHING:
                delattr(module, name)
            else:
                setattr(module, name, value)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec of a module of DeepGEMM's; None for one of others.

        Raises:
            ModuleNotFoundError: neither this package nor the other has it.
        """
        found = of_root(fullname)
        if found is None:
            return None
        root, tail = found
        if tail not in self._facades:
            self.other.module(tail)
        return self._spec(root, tail)

    def create_module(self, spec: ModuleSpec) -> None:
        """None: a module as any, which `exec_module` puts the right one in the place of."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module in place, as modules may do that replace themselves while they are executed."""
        found = of_root(module.__name__)
        assert found is not None
        tail = found[1]
        sys.modules[module.__name__] = self._facades.get(tail) or self.other.module(tail)

    def _spec(self, root: str, tail: str) -> ModuleSpec:
        found = self.other.spec() if not tail else None
        # NOTE: SGLang looks for CUTLASS's headers beside the file that a spec of deep_gemm names.
        origin = import_module(OURS).__file__ if found is None else found.origin
        name = f"{root}.{tail}" if tail else root
        spec = ModuleSpec(name, self, origin=origin, is_package=tail in _PACKAGES)
        if found is not None and found.submodule_search_locations is not None:
            spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec
