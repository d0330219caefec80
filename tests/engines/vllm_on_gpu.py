"""vLLM in this process, on the GPU that is there: a plugin of pytest (``-p tests.engines.vllm_on_gpu``).

vLLM's Python, its compiled operators and its choice among kernels are its own; ``import deep_gemm`` is fp8gemm.
Packages that vLLM imports and these tests never use have stand-ins where they are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

import tests
from tests.engines import compiled, packages, place
from tests.engines.stand_ins import OF_VLLM, StandIns

ATTENTION = {"vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"}
"""Most of the machine code in vLLM's wheel, which neither linear layers nor experts call."""

sys.path.append(str(place("vllm")))  # behind our own package of tests
sys.path.append(str(packages()))
stand_ins = StandIns(OF_VLLM, ATTENTION)
stand_ins.install()
tests.__path__.append(str(place("vllm") / "tests"))  # which call themselves ``tests`` too

import vllm  # noqa: E402

vllm.__path__.append(str(compiled() / "vllm"))

import vllm.third_party  # noqa: E402

vllm.third_party.__path__.append(str(compiled() / "vllm" / "third_party"))

from fp8gemm.integrations.deep_gemm import answers, install  # noqa: E402

install()


def pytest_sessionfinish() -> None:
    assert answers().installed


if not hasattr(torch.Stream, "is_capturing"):  # which the torch that this vLLM asks for has
    from vllm.model_executor.layers.fused_moe.experts import fused_batched_moe

    fused_batched_moe._is_capturing_or_compiling = lambda: (
        torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()
    )


# As vLLM's own ``conftest`` has them, which imports all of vLLM.


@pytest.fixture
def workspace_init() -> Iterator[None]:
    from vllm.v1.worker.workspace import init_workspace_manager, reset_workspace_manager

    init_workspace_manager(torch.device("cuda:0"))
    yield
    reset_workspace_manager()


@pytest.fixture
def default_vllm_config() -> Iterator[object]:
    from vllm.config import VllmConfig, set_current_vllm_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    from vllm.distributed import cleanup_dist_env_and_memory

    yield
    torch.set_default_device(None)
    torch._dynamo.reset()
    cleanup_dist_env_and_memory()
