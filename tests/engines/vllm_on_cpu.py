"""vLLM in this process, on a CPU that it takes for a Hopper GPU, with fp8gemm's reference for kernels.

A plugin of pytest (``-p tests.engines.vllm_on_cpu``), or imported before anything of vLLM. What is vLLM's own: its
layers, its quantisation methods, its choice among kernels, its wrapper of DeepGEMM. What stands in is all below.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines import packages, place
from tests.engines.stand_ins import OF_VLLM, StandIns

COMPILED = {"vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C"}
CAPABILITIES = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")
CAPABILITIES += ("cutlass_scaled_mm_supports_fp4", "cutlass_group_gemm_supported")
"""Operators of vLLM's compiled part that are asked at import whether CUTLASS has kernels. The answer is no."""

sys.path[:0] = [str(place("vllm"))]
sys.path.append(str(packages()))
stand_ins = StandIns(OF_VLLM, COMPILED)
stand_ins.install()

_operators = torch.library.Library("_C", "FRAGMENT")
for _name in CAPABILITIES:
    _operators.define(f"{_name}(int capability) -> bool")
    _operators.impl(_name, lambda capability: False, "CompositeExplicitAutograd")

import vllm.platforms as platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability, PlatformEnum  # noqa: E402


class HopperOnCpu(CpuPlatform):
    """A CPU while modules are imported, which want compiled parts on a GPU, and Hopper from then on."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, 0)

    @classmethod
    def support_deep_gemm(cls) -> bool:
        return True

    @classmethod
    def is_arch_support_pdl(cls) -> bool:
        return True


platforms._current_platform = HopperOnCpu()
for _name in ("kernels.linear", "layers.linear", "layers.quantization.fp8", "layers.fused_moe"):
    importlib.import_module(f"vllm.model_executor.{_name}")

HopperOnCpu._enum = PlatformEnum.CUDA


@contextmanager
def configured(model_type: str = "qwen3", dtype: torch.dtype = torch.bfloat16, rows: int = 64) -> Iterator[Any]:
    """With vLLM's configuration of a model, and a group of one rank."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    HopperOnCpu._enum = PlatformEnum.CPU
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    HopperOnCpu._enum = PlatformEnum.CUDA
    hf_text_config = SimpleNamespace(model_type=model_type)
    config.model_config = SimpleNamespace(is_moe=False, dtype=dtype, hf_text_config=hf_text_config)
    config.scheduler_config.max_num_batched_tokens = rows
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            meeting = tempfile.mkdtemp()
            init_distributed_environment(1, 0, f"file://{meeting}/there", 0, "gloo")
            initialize_model_parallel(1)
        yield config


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
