"""A GPU that is played for the quantisers: what is loaded and launched is kept, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fp8gemm.driver.arguments import Arguments, QuantizeParams
from fp8gemm.kernels import loaded
from fp8gemm.kernels import quantize as family
from fp8gemm.products import quantize, quantizers

STREAM = 17


class Gpu:
    """Stands where the GPU and its driver are; keeps what was loaded, and the arguments and grids of launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads: list[tuple[str, bool]] = []
        self.launches: list[tuple[Any, QuantizeParams, int, int]] = []
        monkeypatch.setattr(family, "load", self.load)
        monkeypatch.setattr(family, "LaunchConfig", SimpleNamespace)
        monkeypatch.setattr(family, "BoundLaunch", self.bind)
        monkeypatch.setattr(quantize, "uses_reference", lambda x: False)
        monkeypatch.setattr(loaded, "hopper_info", lambda index: None)
        monkeypatch.setattr(quantizers, "current_stream", lambda index: STREAM)
        monkeypatch.setattr(quantizers, "on_device", lambda index: nullcontext())
        monkeypatch.setattr(loaded, "_kernels", {})

    def load(self, request: Any, index: int, shared_bytes: int, *, allow_compile: bool) -> Any:
        assert shared_bytes == 0
        self.loads.append((request.label, allow_compile))
        return SimpleNamespace(function=len(self.loads))

    def bind(
        self, config: Any, arguments: Arguments[QuantizeParams], stream: int, grid: int | None = None
    ) -> Callable[[], None]:
        assert grid
        return lambda: self.launches.append((config, arguments.params, stream, grid))
