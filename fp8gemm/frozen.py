"""Frozen dataclasses that are quick to define.

The standard library writes six methods of each frozen dataclass as source and compiles them. That takes most of a
millisecond, and the first product of a process needs thirty such classes. Here it writes ``__init__`` alone; the others
are the same functions for every class, and do what those of the library do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type], type]:
        """``dataclasses.dataclass`` with ``frozen=True``, for a class without bases that has a field to compare."""
        if not frozen:
            raise TypeError("expected frozen=True: any other dataclass is one of dataclasses.dataclass")

        def make(cls: type) -> type:
            made = dataclasses.dataclass(repr=False, eq=False, kw_only=kw_only)(cls)
            made._compared = attrgetter(*(field.name for field in dataclasses.fields(made) if field.compare))
            for name, method in _METHODS.items():
                if name not in vars(cls):
                    setattr(made, name, method)
            return made

        return make


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _eq(self: Any, other: Any) -> bool:
    return bool(self._compared(self) == self._compared(other)) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _set_once(self: Any, name: str, value: object) -> None:
    # It is __init__ that sets each field for the first time.
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _keep(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _set_once, "__delattr__": _keep}
