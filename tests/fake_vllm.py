"""A package in vLLM's place with the few modules that a linear kernel is registered in, for tests without vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fp8gemm.integrations.vllm as ours

PACKAGE = {
    "__init__.py": "",
    "envs.py": "environment_variables = {}\nVLLM_BATCH_INVARIANT = False\n",
    "config.py": "def get_current_vllm_config_or_none():\n    return None\n",
    "platforms.py": """
import enum
class PlatformEnum(enum.Enum):
    CUDA, ROCM = 1, 2
class Platform:
    capability, cuda = (9, 0), True
    def is_cuda(self):
        return self.cuda
    def get_device_capability(self):
        class Found(tuple):
            def to_int(self):
                return self[0] * 10 + self[1]
        return self.capability and Found(self.capability)
current_platform = Platform()
""",
    "model_executor/__init__.py": "",
    "model_executor/utils.py": "def replace_parameter(layer, name, new):\n    getattr(layer, name).data = new\n",
    "model_executor/kernels/__init__.py": "",
    "model_executor/kernels/linear/__init__.py": """
from vllm.platforms import PlatformEnum
class Fp8BlockScaledMMLinearKernel:
    def __init__(self, config):
        self.config = config
class FP8ScaledMMLinearLayerConfig:
    pass
class DeepGemmFp8BlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):
    pass
_POSSIBLE_FP8_BLOCK_KERNELS = {PlatformEnum.CUDA: [DeepGemmFp8BlockScaledMMKernel], PlatformEnum.ROCM: []}
""",
}


def write(directory: Path) -> Path:
    """The package, in ``directory``; its registry's file."""
    for name, text in PACKAGE.items():
        path = directory / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "vllm" / "model_executor" / "kernels" / "linear" / "__init__.py"


@contextmanager
def forgotten() -> Iterator[None]:
    """Without anything that was registered before, or after."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*sys.modules]:
            if name.split(".")[0] == "vllm" or name == f"{ours.__name__}.linear":
                patch.delitem(sys.modules, name)
        patch.setattr(ours, "_problems", [])
        yield
        for name in [*sys.modules]:
            if name.split(".")[0] == "vllm" or name == f"{ours.__name__}.linear":
                del sys.modules[name]
