"""A dtype may be given by its name, wherever one is taken, and is the same then; what is known is said of any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import fp8gemm
from fp8gemm import reference
from fp8gemm.nn import Fp8Linear

M, N, K, G = 8, 16, 128, 2
NAMES = {"bfloat16": torch.bfloat16, "torch.float16": torch.float16, "float32": torch.float32}
A = fp8gemm.quantize_activation(torch.linspace(-1, 1, M * K).view(M, K))
W = torch.linspace(-1, 1, N * K).view(N, K)
B = fp8gemm.quantize_weight(W)
OF_GROUPS = B[0].expand(G, N, K).contiguous(), B[1].expand(G, 1, 1).contiguous()
MASKED = A[0].expand(G, M, K).contiguous(), A[1].expand(G, M, 1).contiguous()
INDICES, COUNTS = torch.tensor([0] * 3 + [1] * 5), torch.tensor([M, M])

CALLS: dict[str, Callable[[Any], torch.Tensor]] = {
    "gemm": lambda dtype: fp8gemm.gemm(*A, *B, out_dtype=dtype),
    "plan": lambda dtype: fp8gemm.plan(*B, max_m=M, out_dtype=dtype)(*A),
    "grouped": lambda dtype: fp8gemm.gemm_grouped(*A, *OF_GROUPS, indices=INDICES, out_dtype=dtype),
    "masked": lambda dtype: fp8gemm.gemm_masked(*MASKED, *OF_GROUPS, COUNTS, out_dtype=dtype),
    "layer": lambda dtype: Fp8Linear.from_quantized(*B, dtype=dtype)(torch.ones(M, K, dtype=torch.bfloat16)),
    "reference": lambda dtype: reference.gemm_reference(*A, *B, out_dtype=dtype),
    "grouped reference": lambda dtype: reference.gemm_grouped_reference(
        *A, *OF_GROUPS, indices=INDICES, out_dtype=dtype
    ),
    "masked reference": lambda dtype: reference.gemm_masked_reference(*MASKED, *OF_GROUPS, COUNTS, out_dtype=dtype),
    "forward_quantized": lambda dtype: Fp8Linear.from_quantized(*B).forward_quantized(*A, out_dtype=dtype),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_name_is_the_dtype_each_time(call: Callable[[Any], torch.Tensor], name: str) -> None:
    wanted = call(NAMES[name])
    for _ in range(2):
        found = call(name)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)


def test_a_plan_and_a_layer_know_the_dtype_itself() -> None:
    plan = fp8gemm.plan(*B, max_m=M, out_dtype="float16", c_dtype="torch.float32")
    assert (plan.out_dtype, plan.c_dtype) == (torch.float16, torch.float32)
    assert Fp8Linear(K, N, dtype="float16").input_dtype == torch.float16


def test_dequantised_values_are_of_the_dtype_that_is_named() -> None:
    assert reference.dequantize_activation(*A, dtype="float64").dtype == torch.float64
    assert torch.equal(reference.dequantize_weight(*B, dtype="torch.float32"), reference.dequantize_weight(*B))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", ["gemm", "grouped", "masked"])
def test_a_compiled_product_takes_a_name(call: str, name: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(CALLS[call], backend="eager", fullgraph=True)
    assert torch.equal(compiled(name), CALLS[call](NAMES[name]))


@pytest.mark.parametrize("name", NAMES)
def test_a_product_of_fake_tensors_takes_a_name(name: str) -> None:
    with FakeTensorMode() as mode:
        a, b, of_groups, masked = (tuple(map(mode.from_tensor, each)) for each in (A, B, OF_GROUPS, MASKED))
        indices, counts = map(mode.from_tensor, (INDICES, COUNTS))
        products = (
            fp8gemm.gemm(*a, *b, out_dtype=name),
            fp8gemm.gemm_grouped(*a, *of_groups, indices=indices, out_dtype=name),
            fp8gemm.gemm_masked(*masked, *of_groups, counts, out_dtype=name),
        )
    assert all(isinstance(each, FakeTensor) and each.dtype == NAMES[name] for each in products)


@pytest.mark.parametrize("name", NAMES)
def test_configs_are_those_of_the_dtype(name: str) -> None:
    def chosen(dtype: object) -> list[Any]:
        return [
            fp8gemm.select(64, 256, 512, out_dtype=dtype),
            fp8gemm.enumerate_configs(256, 512, 64, out_dtype=dtype),
            fp8gemm.enumerate_grouped_configs("masked", 4, 256, 512, 64, out_dtype=dtype),
        ]

    assert chosen(name) == chosen(NAMES[name])


def test_what_is_known_is_named() -> None:
    known = "torch.bfloat16, torch.float16, torch.float32"
    with pytest.raises(fp8gemm.InputError, match=f"^out_dtype: expected one of {known}, got 'fp8', no torch.dtype"):
        fp8gemm.gemm(*A, *B, out_dtype="fp8")
    with pytest.raises(fp8gemm.InputError, match="^c_dtype: expected one of torch.bfloat16, torch.float32, got torch."):
        fp8gemm.plan(*B, max_m=M, c_dtype="float16")
    with pytest.raises(fp8gemm.InputError, match="^out_dtype: expected bfloat16, float16, float32, got half"):
        fp8gemm.select(64, 256, 512, out_dtype="half")


def test_one_chip_or_several_for_a_warmup() -> None:
    from fp8gemm.ahead.kernels import chips_named

    assert (
        [chip.name for chip in chips_named("h200,h20")]
        == ["h200", "h20"]
        == [c.name for c in chips_named(["h200", "h20"])]
    )
    assert len(chips_named("all")) == 4
    with pytest.raises(fp8gemm.InputError, match="expected a chip among h200, .*got 'h9'"):
        chips_named("h9")
