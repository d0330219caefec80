"""Which GPU there is, and what DeepGEMM's tests are decorated with."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

_Test = Callable[..., Any]


def get_arch_major() -> int:
    """The current GPU's compute capability before the point: 9 for Hopper."""
    return torch.cuda.get_device_capability()[0]


def test_filter(condition: Callable[[], bool]) -> Callable[[_Test], _Test]:
    """Run a test only where ``condition`` holds, and say so where it does not."""

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def filtered(*arguments: Any, **options: Any) -> None:
            if condition():
                test(*arguments, **options)
            else:
                print(f"{test.__name__}: left out, {condition} does not hold")

        return filtered

    return decorate


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable[[_Test], _Test]:
    """Run a test without the environment variable ``name`` where ``condition`` holds."""

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def without(*arguments: Any, **options: Any) -> None:
            value = os.environ.pop(name, None) if condition() else None
            try:
                test(*arguments, **options)
            finally:
                if value is not None:
                    os.environ[name] = value

        return without

    return decorate
