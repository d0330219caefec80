"""vLLM's own tests in this process, on a CPU: a plugin of pytest (``-p tests.engines.vllms_tests_on_cpu``).

Beside what `tests.engines.vllm_on_cpu` does, "cuda" is the CPU, Triton's kernels are interpreted, ``import deep_gemm``
is fp8gemm, and operators of vLLM's compiled part that are reached are those of `tests.engines.vllms_compiled`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

os.environ["TRITON_INTERPRET"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # to compile vLLM's casts takes longer than all that is computed here

import pytest  # noqa: E402
import torch  # noqa: E402

import tests  # noqa: E402
from tests.engines import packages, place  # noqa: E402

sys.path.append(str(packages()))
from triton.backends import backends  # noqa: E402

backends["nvidia"].driver.is_active = staticmethod(lambda: True)  # vLLM takes Triton for absent without one

from tests.engines import triton_on_cpu, vllm_on_cpu, vllms_compiled  # noqa: E402
from tests.engines.cuda_on_cpu import redirect  # noqa: E402

tests.__path__.append(str(place("vllm") / "tests"))  # which call themselves ``tests`` too

from fp8gemm.integrations.deep_gemm import install  # noqa: E402

_operators = vllms_compiled.define()
triton_on_cpu.extend()
install()
redirect()


@pytest.fixture
def workspace_init() -> Iterator[None]:
    """As vLLM's own ``conftest`` has it, on the CPU."""
    from vllm.v1.worker.workspace import init_workspace_manager, reset_workspace_manager

    init_workspace_manager(torch.device("cpu"))
    yield
    reset_workspace_manager()


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    with vllm_on_cpu.configured():
        yield
