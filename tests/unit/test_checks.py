"""What the checks say that no product on the CPU gets to: of addresses on a GPU, of what is no tensor, of limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.checks.memory import check_addresses, check_memory
from fp8gemm.checks.operands import check_bias, check_c
from fp8gemm.checks.quantizers import check_norm, check_quantized, check_residual
from fp8gemm.checks.tensors import check_elements, check_features, check_tensor, check_whole, described
from fp8gemm.errors import InputError
from fp8gemm.tuning.problem import Addend

E4M3 = torch.float8_e4m3fn


class OnGpu(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True
    address: int | None = None

    def data_ptr(self) -> int:
        return super().data_ptr() if self.address is None else self.address


def on_gpu(x: Tensor, address: int | None = None) -> Tensor:
    tensor = x.as_subclass(OnGpu)
    tensor.address = address
    return tensor


def refused(message: str) -> Any:
    """The whole of what is said."""
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def test_addresses_that_kernels_cannot_use_are_refused() -> None:
    codes = torch.zeros(2, 16, dtype=torch.uint8).view(E4M3)
    with refused("a: expected a tensor with memory of its own, got one without"):
        check_addresses(b=None, a=on_gpu(torch.zeros(2), 0))
    negated = on_gpu(torch.zeros(2, dtype=torch.complex64).conj().imag)
    with refused("a: expected memory that holds its values, got their negatives; pass .resolve_neg()"):
        check_addresses(a=negated)
    past = "expected a base address that is a multiple of 16 bytes, got one that is"
    with refused(f"a: {past} 8 bytes past; pass .clone()"):
        check_addresses(a=on_gpu(codes, 4096 + 8))
    with refused("out: expected an address that is a multiple of its elements' 4 bytes, got 0x1002"):
        check_addresses(out=on_gpu(torch.zeros(2), 4096 + 2))


def test_addresses_that_kernels_can_use_are_not() -> None:
    codes = torch.zeros(2, 16, dtype=torch.uint8).view(E4M3)
    check_addresses(a=on_gpu(codes, 4096 + 16), scales=on_gpu(torch.zeros(2), 4096 + 4), c=None)
    check_addresses(a=on_gpu(torch.zeros(0), 0))
    check_addresses(a=torch.zeros(2, dtype=torch.complex64).conj().imag)  # on the CPU torch does as it should


def test_an_output_shares_no_byte_with_an_operand() -> None:
    memory = torch.zeros(16)
    check_memory(memory[4:8], None, a=memory[:4], b=memory[8:], bias=None)
    for a in (memory[:5], memory[7:], memory[5:6], memory):
        with refused("out: expected memory of its own, got memory that a occupies too"):
            check_memory(memory[4:8], None, a=a)
    check_memory(memory[4:4], None, a=memory)
    check_memory(memory[4:8], None, a=memory[5:5])
    check_memory(torch.zeros(4, device="meta"), None, a=memory)
    rows = memory.view(4, 4)
    with refused("out: expected memory of its own, got memory that a occupies too"):
        check_memory(rows[:, :2], None, a=rows[:, 2:])  # between the rows of the other
    check_memory(memory.view(2, 8)[:, :2], None, a=memory[10:])
    with refused("out: expected memory of its own, got memory that a occupies too"):
        check_memory(memory.view(2, 8)[:, :2], None, a=memory[9:])


def test_an_output_may_be_c_element_for_element() -> None:
    memory = torch.zeros(16)
    out = memory[:8].view(2, 4)
    check_memory(out, out)
    check_memory(out, memory[:8].view(2, 4))
    others = (memory[4:12].view(2, 4), memory[:8], out[:1], memory.as_strided((2, 4), (1, 2)), out.view(torch.int32))
    for c in others:
        with refused("out: expected memory of its own, got memory that c occupies too"):
            check_memory(out, c)
    check_memory(out, memory[8:].view(2, 4))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (5, 1)), ((3, 2), (3, 2)), ((1, 4), (0, 1)), ((4, 1), (1, 0))],
)
def test_elements_at_addresses_of_their_own(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    check_elements("out", torch.zeros(32).as_strided(shape, strides))


@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 4), (3, 1)), ((3, 4), (0, 1)), ((3, 4), (4, 0)), ((3, 2), (2, 2)), ((2, 2), (0, 0))]
)
def test_elements_that_share_an_address(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    with refused(f"out: expected each element at its own address, got strides {strides} for {shape}"):
        check_elements("out", torch.zeros(32).as_strided(shape, strides))


def test_what_is_no_tensor_is_named_by_its_type() -> None:
    assert described(None) == "None" and described("a") == "str" and described(re) == "module"
    assert described(re.compile("a")) == "re.Pattern"
    with refused("a: expected a torch.Tensor, got None"):
        check_tensor("a", None)
    with refused("a: expected a dense tensor, torch.strided, got one of layout torch.sparse_coo"):
        check_tensor("a", torch.zeros(2, 2).to_sparse())
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.zeros(2)], layout=layout)
        with refused("a: expected a dense tensor, torch.strided, got one of nested"):
            check_tensor("a", nested)


def test_whole_numbers_are_held_to_their_limits() -> None:
    for value in (1, 2, 3):
        check_whole("m", value, 1, 3)
        check_whole("m", value, 1)
    for value, message in ((0, "m: expected 1 to 3, got 0"), (4, "m: expected 1 to 3, got 4")):
        with refused(message):
            check_whole("m", value, 1, 3)
    for no_number in (2.0, "2"):
        with refused(f"m: expected a whole number, at least 1, got {no_number!r}"):
            check_whole("m", no_number, 1)


@pytest.mark.parametrize(
    ("size", "works"), [(0, 16), (-16, 16), (8, 16), (24, 32), (40, 48), (16.0, None), ("16", None), (None, None)]
)
def test_features_that_no_layer_has_are_refused(size: object, works: int | None) -> None:
    nearest = "" if works is None else f"; {works} works"
    with refused(f"in_features: expected a multiple of 16, at least 16, got {size!r}{nearest}"):
        check_features("in_features", size)


def test_features_of_a_layer() -> None:
    check_features("in_features", 16)
    check_features("in_features", 272)
    with pytest.raises(InputError, match="^in_features: .*in_features"):
        check_features("in_features", 2**40)


def test_room_for_codes_and_scales() -> None:
    x = torch.zeros(3, 144, dtype=torch.bfloat16)
    codes, scales = torch.zeros(3, 144, dtype=torch.uint8).view(E4M3), torch.zeros(3, 2)
    check_quantized(x, codes, scales)
    of_codes = "codes: expected torch.float8_e4m3fn of shape (3, 144) = (M, K) on cpu, got"
    with refused(f"{of_codes} torch.float32 of shape (3, 144) on cpu"):
        check_quantized(x, codes.float(), scales)
    with refused(f"{of_codes} torch.float8_e4m3fn of shape (2, 144) on cpu"):
        check_quantized(x, codes[:2], scales)
    with refused(f"{of_codes} torch.float8_e4m3fn of shape (3, 144) on meta"):
        check_quantized(x, codes.to("meta"), scales)
    of_scales = "scales: expected torch.float32 of shape (3, 2) = (M, ceil(K/128)) on cpu, got"
    with refused(f"{of_scales} torch.float32 of shape (3, 1) on cpu"):
        check_quantized(x, codes, scales[:, :1])
    with refused("scales: expected each element at its own address, got strides (0, 1) for (3, 2)"):
        check_quantized(x, codes, scales[:1].expand(3, 2))


def test_terms_that_are_added() -> None:
    a, b = torch.zeros(3, 16), torch.zeros(5, 16)
    assert check_c(torch.zeros(3, 5), a, b) is Addend.FLOAT32
    assert check_c(torch.zeros(3, 5, dtype=torch.bfloat16), a, b) is Addend.BFLOAT16
    assert check_bias(torch.zeros(5), b) is Addend.FLOAT32
    either = "torch.bfloat16 or torch.float32"
    with refused(f"c: expected {either} of shape (3, 5) = (M, N), got torch.float32 of shape (5, 3)"):
        check_c(torch.zeros(5, 3), a, b)
    with refused(f"c: expected {either} of shape (3, 5) = (M, N), got torch.float16 of shape (3, 5)"):
        check_c(torch.zeros(3, 5, dtype=torch.float16), a, b)
    with refused("c: expected the device of b, cpu, got meta"):
        check_c(torch.zeros(3, 5, device="meta"), a, b)
    with refused(f"bias: expected {either} of shape (5,) = (N,), got torch.float32 of shape (1, 5)"):
        check_bias(torch.zeros(1, 5), b)
    with refused("bias: expected stride 1, got stride 2; pass .contiguous()"):
        check_bias(torch.zeros(10)[::2], b)


def test_what_a_norm_takes() -> None:
    x, weight = torch.zeros(3, 144, dtype=torch.bfloat16), torch.ones(144)
    for eps in (0, 0.0, 1e-6):
        check_norm(x, weight, eps)
    with refused("x: expected 2 dimensions, (M, K), got shape (144,)"):
        check_norm(x[0], weight, 0.0)
    with pytest.raises(InputError, match="^x: .*K"):
        check_norm(torch.zeros(1, 2**20, dtype=torch.bfloat16), weight, 0.0)
    with refused("weight: expected a torch.Tensor, got list"):
        check_norm(x, [1.0], 0.0)  # type: ignore[arg-type]
    one_of = "weight: expected one of torch.bfloat16, torch.float16, torch.float32 of shape (144,) = (K,) on cpu, got"
    for other in (weight[:16], weight.double(), weight.to("meta")):
        with refused(f"{one_of} {other.dtype} of shape {tuple(other.shape)} on {other.device}"):
            check_norm(x, other, 0.0)
    with refused("weight: expected stride 1, got stride 2; pass .contiguous()"):
        check_norm(x, torch.ones(288)[::2], 0.0)
    for no_eps in (-1e-9, float("nan"), "0", None):
        with refused(f"eps: expected a number of at least 0, got {no_eps!r}"):
            check_norm(x, weight, no_eps)  # type: ignore[arg-type]


def test_what_a_residual_is() -> None:
    x = torch.zeros(3, 144, dtype=torch.bfloat16)
    check_residual(x.clone(), x)
    with refused("residual: expected 2 dimensions, (M, K), got shape (144,)"):
        check_residual(x[0], x)
    for other in (x[:2], x.float(), x.to("meta")):
        got = f"{other.dtype} of shape {tuple(other.shape)} on {other.device}"
        with refused(f"residual: expected torch.bfloat16 of shape (3, 144) on cpu as x, got {got}"):
            check_residual(other, x)
