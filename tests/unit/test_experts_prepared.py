"""A block of experts got ready ahead: exactly the kernels that its calls then ask for, and nothing without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm import settings
from fp8gemm.ahead.models import demand_of_model
from fp8gemm.errors import InputError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request, ranked
from fp8gemm.kernels.group_ranges import GROUP_RANGES
from fp8gemm.kernels.quantize import ROWS_OF_WARP
from fp8gemm.nn import Fp8Experts, experts
from fp8gemm.products import prepared
from fp8gemm.tuning.hopper import CHIPS
from fp8gemm.tuning.problem import OutputType

G, H, INNER = 4, 256, 128


class Asked:
    """What is built, and what is loaded; a GPU is played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[KernelRequest] = []
        self.loaded: list[KernelRequest] = []
        chip = CHIPS["h200"]

        def kernel_for(problem: Any, of_chip: Any, index: int) -> None:
            assert of_chip == chip and index == 3
            self.loaded.append(kernel_request(problem, ranked(problem, chip)[0]))

        def other_for(each: Any, index: int) -> None:
            assert index == 3
            self.loaded.append(getattr(each, "request", each))

        monkeypatch.setattr(experts, "uses_reference", lambda tensor: False)
        for name, value in {
            "device_chip": lambda index: chip,
            "build_many": self.built.extend,
            "kernel_for": kernel_for,
            "quantizer_for": other_for,
            "routing_kernel_for": other_for,
        }.items():
            monkeypatch.setattr(prepared, name, value)
        real = prepared.prepare_experts

        def prepare(weights: Any, *args: Any, **options: Any) -> None:
            there = [SimpleNamespace(shape=weight.shape, device=SimpleNamespace(index=3)) for weight in weights]
            real(there, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(experts, "prepare_experts", prepare)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_made_ready_is_loaded_and_a_warmup_has_it(
    dtype: torch.dtype, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, block = Asked(monkeypatch), Fp8Experts(G, H, INNER, batch_invariant=invariant)
    with settings.scope(jit="compile"):
        assert block.prepare(dtype, max_m=64) is block
    assert set(asked.built) == set(asked.loaded) and len(asked.built) > 8
    output = OutputType.BFLOAT16 if dtype == torch.bfloat16 else OutputType.FLOAT16
    wanted = demand_of_model(block, 64, ["h200"], output)
    assert set(asked.loaded) <= set(wanted.requests)
    contiguous = {each for each in wanted.gemms["h200"] if "masked" not in each.label and each != GROUP_RANGES}
    assert contiguous <= set(asked.loaded)


def test_some_of_the_experts_have_their_own_quantiser_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the rows that are kept, which a warmup of theirs has; the other one has all experts alone."""
    blocks = Fp8Experts(G, H, INNER), Fp8Experts(2 * G, H, INNER, first_expert=G, num_local_experts=G)
    between = []
    for block in blocks:
        with monkeypatch.context() as patch, settings.scope(jit="compile"):
            asked = Asked(patch)
            block.prepare(max_m=64)
        assert set(asked.built) == set(asked.loaded)
        assert set(asked.loaded) <= set(demand_of_model(block, 64, ["h200"]).requests)
        between.append([each.label for each in asked.loaded if "silu" in each.label])
    rows = [f"quantize-rows-silu-mul-bf16-r{count}" for count in ROWS_OF_WARP]
    assert between == [rows, ["quantize-masked-silu-mul-bf16"]]


def test_what_may_not_be_compiled_is_loaded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    with settings.scope(jit="error"):
        Fp8Experts(G, H, INNER).prepare(max_m=8)
    assert asked.built == [] and len(asked.loaded) > 8


def test_without_a_gpu_there_is_nothing_to_prepare() -> None:
    for device in ("cpu", "meta"):
        block = Fp8Experts(G, H, INNER, device=device)
        assert block.prepare() is block


def test_refused() -> None:
    block = Fp8Experts(G, H, INNER)
    with pytest.raises(InputError, match="dtype: expected one of torch.bfloat16, .* got torch.float64"):
        block.prepare(torch.float64)
    with pytest.raises(InputError, match="max_m: expected at least 1, got 0"):
        block.prepare(max_m=0)
