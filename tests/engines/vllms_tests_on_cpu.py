"""vLLM's own tests in this process, on a CPU: a plugin of pytest (``-p tests.engines.vllms_tests_on_cpu``).

Beside what `tests.engines.vllm_on_cpu` does, "cuda" is the CPU, Triton's kernels are interpreted, ``import deep_gemm``
is fp8gemm, and the one operator of vLLM's compiled part that is reached computes what vLLM's tests have as reference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

os.environ["TRITON_INTERPRET"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402

import tests  # noqa: E402
from tests.engines import packages, place  # noqa: E402

sys.path.append(str(packages()))
from triton.backends import backends  # noqa: E402

backends["nvidia"].driver.is_active = staticmethod(lambda: True)  # vLLM takes Triton for absent without one

from tests.engines import vllm_on_cpu  # noqa: E402
from tests.engines.cuda_on_cpu import redirect  # noqa: E402

tests.__path__.append(str(place("vllm") / "tests"))  # which call themselves ``tests`` too

from fp8gemm.integrations.deep_gemm import install  # noqa: E402

_QUANTISE = (
    "per_token_group_fp8_quant(Tensor x, Tensor(a!) codes, Tensor(b!) scales, int group, float eps, float low, "
    "float high, bool ue8m0, bool column_major, bool tma_aligned) -> ()"
)


def _quantise(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    eps: float,
    low: float,
    high: float,
    ue8m0: bool,
    column_major: bool,
    tma_aligned: bool,
) -> None:
    """As `native_per_token_group_quant_fp8` of vLLM's tests."""
    groups = x.float().reshape(*x.shape[:-1], -1, group)
    found = groups.abs().amax(-1, keepdim=True).clamp(min=eps) / high
    if ue8m0:
        found = torch.exp2(torch.ceil(torch.log2(found)))
    codes.copy_((groups / found).clamp(low, high).to(codes.dtype).view(codes.shape))
    scales.copy_(found.squeeze(-1))


vllm_on_cpu._operators.define(_QUANTISE)
vllm_on_cpu._operators.impl("per_token_group_fp8_quant", _quantise, "CompositeExplicitAutograd")
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
