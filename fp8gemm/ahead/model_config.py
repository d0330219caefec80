"""A model's ``config.json``, and its fields, each checked as it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted
from fp8gemm.reading import Kind, read_json
from fp8gemm.sizes import LIMIT, check_whole_number

Bias = bool | tuple[str, bool]
"""Whether there is a bias: a fact, or the field that says so with what holds where it is left out."""

FILE = Kind("a config.json, or a directory that holds one", 1 << 20)


def read_config(path: Path) -> dict[str, Any]:
    """The contents of a ``config.json``, or of the one in the directory ``path``.

    Raises:
        InputError: there is no such file, it cannot be read, is too large, or does not hold a JSON object.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    config = read_json(file, FILE)
    if not isinstance(config, dict):
        raise FILE.unfit(file, f"JSON that is no object but of type {type(config).__name__}")
    return config


class Fields:
    """The fields of a configuration, each checked as it is read: numbers are below 2^31, or up to a ``most`` of their
    own.

    Raises:
        InputError: from every method, if the field is not what the method is for.
    """

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self._config, self.model_type = config, model_type

    def size(self, name: str, *, least: int = 1, most: int = LIMIT - 1) -> int:
        """A number that every such model states."""
        if name not in self._config:
            raise InputError(f"{name}: the config of a {self.model_type} model needs this field, and it is missing")
        return check_whole_number(name, self._config[name], least, most)

    def size_or_null(self, name: str, left_out: int | None, *, least: int = 1, most: int = LIMIT - 1) -> int | None:
        """A number; None for null, and ``left_out`` if the field is not there."""
        value = self._config.get(name, left_out)
        return None if value is None else check_whole_number(name, value, least, most)

    def bias(self, stated: Bias) -> bool:
        """Whether there is a bias."""
        if isinstance(stated, bool):
            return stated
        name, left_out = stated
        value = self._config.get(name, left_out)
        if type(value) is not bool:
            raise InputError(f"{name}: expected true or false, got {quoted(value)}")
        return value

    def indices(self, name: str) -> frozenset[int]:
        """A list of numbers; empty if it is null or not there."""
        value = self._config.get(name) or []
        if not isinstance(value, list):
            raise InputError(f"{name}: expected a list of whole numbers, got {quoted(value)}")
        return frozenset(check_whole_number(name, index, 0) for index in value)
