"""Bad arguments: each gets an `InputError` that names it and says what was expected, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.arguments import FULL, FULL_ROWS, Arguments, K, M, N, arguments_of
from tests.gpu.faults.support import BF16, F16, F32, multiply, poisoned_rows, reach_of


def overlapping(arguments: Arguments, name: str) -> Arguments:
    """The named operand, and an output that begins in its last 16 bytes."""
    tensor, out = arguments[name], arguments["out"]
    size = -(-reach_of(tensor) * tensor.element_size() // 16) * 16
    storage = torch.zeros(size + out.numel() * 4, dtype=torch.uint8, device=out.device)
    inside = storage[:size].view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return {name: inside, "out": storage[size - 16 : size - 16 + out.numel() * 4].view(F32).view(out.shape)}


def interleaved(arguments: Arguments) -> Arguments:
    """Rows of C and of the output in turn: no byte is shared, but the range of addresses is."""
    storage = torch.zeros(M, 2 * N, dtype=F32, device=arguments["out"].device)
    return {"c": storage[:, :N], "out": storage[:, N:]}


# What is wrong -> the arguments that are. The error names one of them.
REFUSED: dict[str, Callable[[Arguments], Arguments]] = {
    "a bfloat16": lambda x: {"a": x["a"].to(BF16)},
    "a e5m2": lambda x: {"a": x["a"].float().to(torch.float8_e5m2)},
    "a on the CPU": lambda x: {"a": x["a"].cpu()},
    "a one-dimensional": lambda x: {"a": x["a"][0]},
    "a three-dimensional": lambda x: {"a": x["a"][None]},
    "a column-major": lambda x: {"a": x["a"].t().contiguous().t()},
    "a one row for all": lambda x: {"a": x["a"][:1].expand(M, -1)},
    "a with overlapping rows": lambda x: {"a": x["a"].flatten().as_strided((M, K), (K - 16, 1))},
    "a with a pitch of 8 more": lambda x: {"a": poisoned_rows(x["a"], pitch_extra=8)},
    "a every other column": lambda x: {"a": poisoned_rows(x["a"], pitch_extra=K)[:, ::2]},
    "a that requires grad": lambda x: {"a": x["a"].clone().requires_grad_()},
    "K of a and b no multiple of 16": lambda x: {name: x[name][:, :-8].contiguous() for name in ("a", "b")},
    "K = 0": lambda x: {name: x[name][:, :0] for name in ("a", "b", "scales_a", "scales_b")},
    "b float32": lambda x: {"b": x["b"].float()},
    "b on the CPU": lambda x: {"b": x["b"].cpu()},
    "b three-dimensional": lambda x: {"b": x["b"][None]},
    "b of another K": lambda x: {"b": x["b"][:, :-16].contiguous()},
    "b of no rows": lambda x: {"b": x["b"][:0]},
    "b column-major": lambda x: {"b": x["b"].t().contiguous().t()},
    "b one row for all": lambda x: {"b": x["b"][:1].expand(N, -1)},
    "b with a pitch of 8 more": lambda x: {"b": poisoned_rows(x["b"], pitch_extra=8)},
    "b that requires grad": lambda x: {"b": x["b"].clone().requires_grad_()},
    "scales_a float64": lambda x: {"scales_a": x["scales_a"].double()},
    "scales_a on the CPU": lambda x: {"scales_a": x["scales_a"].cpu()},
    "scales_a a column short": lambda x: {"scales_a": x["scales_a"][:, :-1].contiguous()},
    "scales_a a row short": lambda x: {"scales_a": x["scales_a"][:-1].contiguous()},
    "scales_a transposed": lambda x: {"scales_a": x["scales_a"].t().contiguous()},
    "scales_a that require grad": lambda x: {"scales_a": x["scales_a"].clone().requires_grad_()},
    "scales_b bfloat16": lambda x: {"scales_b": x["scales_b"].to(BF16)},
    "scales_b on the CPU": lambda x: {"scales_b": x["scales_b"].cpu()},
    "scales_b transposed": lambda x: {"scales_b": x["scales_b"].t().contiguous()},
    "scales_b a row short": lambda x: {"scales_b": x["scales_b"][:-1].contiguous()},
    "scales_b that require grad": lambda x: {"scales_b": x["scales_b"].clone().requires_grad_()},
    "scales_b of blocks, transposed in memory": lambda x: {
        "scales_b": torch.ones(4, 2, device=x["b"].device).t(),
    },
    "c float16": lambda x: {"c": x["c"].to(F16)},
    "c float64": lambda x: {"c": x["c"].double()},
    "c on the CPU": lambda x: {"c": x["c"].cpu()},
    "c a row short": lambda x: {"c": x["c"][:-1]},
    "c one row": lambda x: {"c": x["c"][0]},
    "c that requires grad": lambda x: {"c": x["c"].clone().requires_grad_()},
    "bias float16": lambda x: {"bias": x["bias"].to(F16)},
    "bias on the CPU": lambda x: {"bias": x["bias"].cpu()},
    "bias one short": lambda x: {"bias": x["bias"][:-1]},
    "bias two-dimensional": lambda x: {"bias": x["bias"][None]},
    "bias one number for all": lambda x: {"bias": x["bias"][:1].expand(N)},
    "bias every other": lambda x: {"bias": x["bias"].repeat_interleave(2)[::2]},
    "bias that requires grad": lambda x: {"bias": x["bias"].clone().requires_grad_()},
    "out float64": lambda x: {"out": x["out"].double()},
    "out transposed shape": lambda x: {"out": x["out"].new_zeros(N, M)},
    "out a row long": lambda x: {"out": x["out"].new_zeros(M + 1, N)},
    "out on the CPU": lambda x: {"out": x["out"].cpu()},
    "out one row for all": lambda x: {"out": x["out"][:1].expand(M, N)},
    "out with overlapping rows": lambda x: {"out": x["out"].flatten().as_strided((M, N), (N - 1, 1))},
    "out that requires grad": lambda x: {"out": x["out"].clone().requires_grad_()},
    "out in the memory of a": lambda x: overlapping(x, "a"),
    "out in the memory of scales_a": lambda x: overlapping(x, "scales_a"),
    "out in the memory of b": lambda x: overlapping(x, "b"),
    "out in the memory of scales_b": lambda x: overlapping(x, "scales_b"),
    "out in the memory of bias": lambda x: overlapping(x, "bias"),
    "out in a part of the memory of c": lambda x: overlapping(x, "c"),
    "out is c with other strides": lambda x: {"c": x["out"].view(-1).as_strided((M, N), (1, M))},
    "out is c of another dtype": lambda x: {"c": x["out"].view(BF16)[:, :N]},
    "out and c in turn": interleaved,
    "out_dtype int8": lambda x: {"out_dtype": torch.int8, "out": None},
    "out_dtype other than that of out": lambda x: {"out_dtype": F16},
}


@pytest.mark.parametrize("kind", [FULL, FULL_ROWS], ids=str)
@pytest.mark.parametrize("what", REFUSED)
def test_fault_05_bad_arguments_are_refused_before_any_launch(what, kind, device, seed):
    case = cases.signed(M, N, K, seed=seed, device=device, **kind.options)
    arguments = arguments_of(case, kind)
    bad = REFUSED[what](arguments)
    arguments |= bad
    out = arguments["out"]
    before = None if out is None else out.detach().clone()
    with pytest.raises(InputError, match=r"expected (.|\n)*got ") as caught:
        fp8gemm.gemm(**arguments)
    # What does not fit b, c, or the dtype asked for, may be named in their place.
    others = {"b": ["scales_b", "a"], "c": ["out"], "out": ["out_dtype"], "out_dtype": ["out"]}
    named = [*bad, *(other for name in bad for other in others.get(name, ()))]
    assert str(caught.value).partition(":")[0] in named, f"{what}: {caught.value}"
    assert isinstance(caught.value, ValueError)
    assert before is None or same_bits(out.detach(), before), what
    # Nothing is broken by it.
    case.check(multiply(case, kind)).raise_if_failed(case)


def test_fault_05_torch_has_no_negative_strides(device):
    codes = torch.zeros(M, K, dtype=torch.float8_e4m3fn, device=device)
    with pytest.raises(RuntimeError, match="[Nn]egative strides"):
        codes.as_strided((M, K), (-K, 1), (M - 1) * K)


class _Foreign:
    """Float32 memory of another library, at any address: torch makes no tensor of its own between elements."""

    def __init__(self, tensor: Tensor, address: int) -> None:
        strides = tuple(4 * stride for stride in tensor.stride())
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": tuple(tensor.shape),
            "strides": strides,
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


def between_elements(tensor: Tensor, byte_offset: int, keep: list[Tensor]) -> Tensor:
    """The same float32 values and strides at an address that four does not divide; `keep` owns the memory."""
    reach = reach_of(tensor)
    packed = torch.zeros(reach, dtype=F32, device=tensor.device)
    packed.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    storage = torch.zeros(4 * reach + 16, dtype=torch.uint8, device=tensor.device)
    storage[byte_offset : byte_offset + 4 * reach] = packed.view(torch.uint8)
    keep.append(storage)
    moved = torch.as_tensor(_Foreign(tensor, storage.data_ptr() + byte_offset), device=tensor.device)
    assert moved.data_ptr() % 4 == byte_offset % 4
    return moved


# The last test of its number: a launch that reads or writes such an address breaks the process's CUDA context.
@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("which", ["scales_a", "scales_b", "c", "bias", "out"])
def test_fault_05_addresses_between_elements_are_refused(which, offset, device, seed):
    case = cases.signed(M, N, K, seed=seed, device=device, c=F32, bias=F32)
    keep: list[Tensor] = []
    arguments = arguments_of(case, FULL)
    arguments[which] = between_elements(arguments[which], offset, keep)
    with pytest.raises(InputError, match=f"{which}: expected .*got "):
        fp8gemm.gemm(**arguments)
    torch.cuda.synchronize(device)
