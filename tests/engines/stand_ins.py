"""What stands in for packages that the engines import and the tests never use, and for their compiled parts."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OF_VLLM = {
    *("cv2", "fastapi", "llguidance", "mistral_common", "opentelemetry", "partial_json_parser", "soundfile"),
    *("xgrammar", "PIL"),
}
"""Packages that vLLM imports and its linear layers, its experts and the tests of both never use."""


class _Anything(ModuleType):
    """A module that has every name: a class where it begins with a capital, else a function that returns what it is
    given, so that it serves as a decorator too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = _given
        if name[0].isupper():
            members = {"__init__": _nothing, "__class_getitem__": classmethod(lambda cls, _: cls)}
            value = type(name, (), members)
        setattr(self, name, value)
        return value


def _nothing(self: object, *_: object, **__: object) -> None: ...


def _given(*args: Any, **options: Any) -> Any:
    return args[0] if len(args) == 1 and not options else _given


class StandIns(MetaPathFinder, Loader):
    """Finds modules that nothing else does.

    Args:
        packages: roots, with all that is below them.
        compiled: modules that are files of machine code in the engine's wheel.
    """

    def __init__(self, packages: set[str], compiled: set[str]) -> None:
        self._packages, self._compiled = packages, compiled
        self.used: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        root = name.split(".")[0]
        if root not in self._packages and name not in self._compiled:
            return None
        self.used.add(root if root in self._packages else name)
        return ModuleSpec(name, self, is_package=name not in self._compiled)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...

    def install(self) -> None:
        """Behind all else, so that what is really there is taken."""
        sys.meta_path.append(self)
