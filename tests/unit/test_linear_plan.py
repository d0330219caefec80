"""A layer's two launches, found again: for an input seen before, and never for one that only looks like it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.products import linear as linear_plan
from fp8gemm.products.linear import LinearPlan
from fp8gemm.reference import gemm_reference, quantize_rows
from tests import cases
from tests.calls import same_bits
from tests.played_gpu import STREAM, PlayedGpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
N, K = 136, 272


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGpu:
    return PlayedGpu(monkeypatch)


@pytest.fixture
def fixed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that always has the same memory for tensors of one kind, as torch's has between equal calls."""
    kept: dict[Any, Tensor] = {}
    allocate = torch.empty_strided

    def give(shape: Any, strides: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = tuple(shape), tuple(strides), dtype, device
        if key not in kept:
            kept[key] = allocate(shape, strides, dtype=dtype, device=device)
        return kept[key]

    monkeypatch.setattr(linear_plan.torch, "empty_strided", give)


class Layer:
    """A weight, its plan, and what both must give."""

    def __init__(self, *, bias: torch.dtype | None = BF16, max_m: int = 128, seed: int | None = None) -> None:
        case = cases.signed(1, N, K, seed=cases.fresh_seed() if seed is None else seed, bias=bias)
        self.weight, self.scales, self.bias = case.b, case.scales_b, case.bias
        self.plan = LinearPlan(max_m=max_m, batch_invariant=None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.plan(x, self.weight, self.scales, self.bias)

    def expected(self, x: Tensor) -> Tensor:
        codes, scales = quantize_rows(x.reshape(-1, K).contiguous())
        out = gemm_reference(codes, scales, self.weight, self.scales, bias=self.bias, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], N)

    def is_right(self, x: Tensor) -> bool:
        y = self(x)
        return same_bits(y, self.expected(x)) and y.is_contiguous()


def tokens(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, K).to(dtype)


@pytest.mark.usefixtures("fixed_memory")
@pytest.mark.parametrize("bias", [None, BF16, FP32], ids=str)
def test_the_same_again_makes_and_checks_nothing_anew(
    bias: torch.dtype | None, gpu: PlayedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = Layer(bias=bias), tokens(33)
    assert layer.is_right(x)
    loaded, bound, encoded = len(gpu.loads), gpu.bound, gpu.encoded
    monkeypatch.setattr(linear_plan, "check_input", lambda x, weight: pytest.fail("checked again"))
    for _ in range(5):
        x.copy_(tokens(33))
        assert layer.is_right(x)
    assert (len(gpu.loads), gpu.bound, gpu.encoded) == (loaded, bound, encoded)
    assert bound == 2 and len(gpu.launches) == 12
    assert [each.label.split("-")[0] for each in gpu.launches[:2]] == ["quantize", gpu.launches[1].label.split("-")[0]]
    assert {each.stream for each in gpu.launches} == {STREAM}


@pytest.mark.parametrize("m", [1, 7, 33, 64, 65, 128])
def test_inputs_at_new_addresses(m: int, gpu: PlayedGpu) -> None:
    """Only addresses are replaced: no map is encoded for them. With more places than are remembered."""
    layer = Layer()
    kept = [tokens(m) for _ in range(40)]
    assert layer.is_right(kept[0])
    encoded = gpu.encoded
    for x in (*kept, *kept[:3]):
        assert layer.is_right(x) and gpu.launches[-2].address == x.data_ptr()
    assert gpu.encoded == encoded


def test_more_shapes_than_are_remembered(gpu: PlayedGpu) -> None:
    layer, x = Layer(), tokens(80)
    for m in (*range(1, 81), 1, 2, 80):
        assert layer.is_right(x[:m]), m
    for shape in ((2, 3), (6,), (3, 2), (1, 6, 1)):
        assert layer.is_right(tokens(*shape)) and layer(tokens(*shape)).shape == (*shape, N)
    assert layer.is_right(torch.randn(K).to(BF16))


@pytest.mark.parametrize("m", [1, 40, 100])
def test_more_rows_than_were_planned_for_take_the_last_kernel(m: int, gpu: PlayedGpu) -> None:
    layer = Layer(max_m=8)
    assert layer.is_right(tokens(8))
    loaded, last = len(gpu.loads), gpu.launches[-1].label
    assert layer.is_right(tokens(m)) and len(gpu.loads) == loaded
    assert m <= 8 or gpu.launches[-1].label == last


@pytest.mark.usefixtures("fixed_memory")
@pytest.mark.parametrize("name", ["weight", "scales", "bias"])
def test_a_weight_that_moved_or_changed(name: str, gpu: PlayedGpu) -> None:
    layer, other, x = Layer(), Layer(), tokens(33)
    before = layer(x).clone()
    old, new = getattr(layer, name), getattr(other, name)
    old.view(-1).view(torch.uint8).copy_(new.view(-1).view(torch.uint8))  # in place: the launches stay
    bound = gpu.bound
    assert layer.is_right(x) and gpu.bound == bound and not same_bits(layer(x), before)
    third = getattr(Layer(), name)
    old.data = third  # the tensor stays, and what it holds lies elsewhere
    old_values = new.clone()
    assert layer.is_right(x) and gpu.bound == bound + 2
    setattr(layer, name, old_values)
    assert layer.is_right(x) and layer.is_right(x)


@pytest.mark.usefixtures("fixed_memory")
def test_a_bias_of_another_dtype_at_the_same_address(gpu: PlayedGpu) -> None:
    """Freed memory is soon another tensor's."""
    layer, x, storage = Layer(), tokens(5), torch.randn(N)
    for dtype in (FP32, BF16, FP32):
        layer.bias = storage.view(dtype)[:N]
        if dtype is BF16:
            layer.bias.copy_(torch.randn(N))
        assert layer.is_right(x), dtype


@pytest.mark.usefixtures("fixed_memory")
def test_settings_that_change_are_followed(gpu: PlayedGpu) -> None:
    layer, x = Layer(), tokens(7)
    assert layer.is_right(x)
    for pdl in (False, True, False):
        with settings.scope(pdl=pdl):
            for _ in range(2):
                assert layer.is_right(x)
                assert [each.programmatic for each in gpu.launches[-2:]] == [pdl, pdl]
    count = len(gpu.launches)
    with settings.scope(backend="reference"):
        assert layer.is_right(x) and len(gpu.launches) == count
    assert layer.is_right(x) and len(gpu.launches) == count + 2


@pytest.mark.usefixtures("fixed_memory")
def test_another_stream_and_another_current_device(gpu: PlayedGpu) -> None:
    layer, x = Layer(), tokens(7)
    for stream in (STREAM, 18, STREAM, 18):
        gpu.stream = stream
        assert layer.is_right(x) and {each.stream for each in gpu.launches[-2:]} == {stream}
    assert gpu.bound == 4 and gpu.moved == 0
    gpu.device = 1
    assert layer.is_right(x) and (gpu.bound, gpu.moved) == (4, 2)


CHANGES: dict[str, Callable[[], Tensor]] = {
    "misaligned": lambda: torch.randn(6 * K + 1).to(BF16)[1:].view(6, K),
    "rows not on 16 bytes": lambda: torch.randn(6, K + 1).to(BF16)[:, :K],
    "rows of a wider tensor": lambda: torch.randn(6, K + 16).to(BF16)[:, 8 : K + 8],
    "permuted": lambda: tokens(3, 2).transpose(0, 1),
    "transposed": lambda: torch.randn(K, 6).to(BF16).t(),
    "expanded": lambda: tokens(1).expand(6, K),
    "every second row": lambda: tokens(12)[::2],
    "leading dimensions of a wider tensor": lambda: torch.randn(2, 3, 2 * K).to(BF16)[..., :K],
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_inputs_of_any_strides_and_alignment(make: Callable[[], Tensor], gpu: PlayedGpu) -> None:
    layer = Layer()
    assert layer.is_right(tokens(6))
    for _ in range(3):
        x = make()
        before = x.clone()
        assert layer.is_right(x) and torch.equal(x, before)
        assert gpu.launches[-2].address % 16 == 0


@pytest.mark.usefixtures("fixed_memory")
def test_inputs_of_another_dtype_at_the_same_address(gpu: PlayedGpu) -> None:
    layer, storage = Layer(), torch.empty(7 * K)
    for dtype in (BF16, FP16, FP32, BF16, FP16, FP32):
        x = storage.view(dtype)[: 7 * K].view(7, K).copy_(torch.randn(7, K))
        assert layer.is_right(x), dtype


def test_nothing_is_launched_for_no_rows(gpu: PlayedGpu) -> None:
    layer = Layer()
    for shape in ((0,), (2, 0), (0, 3)):
        y = layer(tokens(*shape))
        assert y.shape == (*shape, N) and y.dtype == BF16
    assert gpu.launches == []


def test_wrong_inputs_are_refused_after_right_ones_too(gpu: PlayedGpu) -> None:
    layer, x = Layer(), tokens(7)
    layer(x)
    count = len(gpu.launches)
    for wrong, message in (
        (x[:, :256], r"got torch.bfloat16 of shape \(7, 256\)"),
        (x.double(), "got torch.float64"),
        (torch.tensor(1.0), r"of shape \(\)"),
    ):
        with pytest.raises(InputError, match=message):
            layer(wrong)
    x.requires_grad_()
    with pytest.raises(InputError, match="inference only"):
        layer(x)
    assert len(gpu.launches) == count
    with torch.no_grad():
        assert layer.is_right(x)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_copy_is_like_a_new_plan(copied: Callable[[LinearPlan], LinearPlan], gpu: PlayedGpu) -> None:
    layer, x = Layer(max_m=8), tokens(40)
    layer(x)
    label, bound = gpu.launches[-1].label, gpu.bound
    layer.plan = copied(layer.plan)
    assert layer.is_right(x) and gpu.bound == bound + 2 and gpu.launches[-1].label == label


@pytest.mark.parametrize("m", [1, 33])
def test_an_output_that_is_given_is_written_and_returned(m: int, gpu: PlayedGpu) -> None:
    layer, memory = Layer(), torch.full((3, m, N), 7.0).to(BF16)
    for turn in range(4):
        x, out = tokens(m), memory[turn % 2]
        assert layer.plan(x, layer.weight, layer.scales, layer.bias, out) is out
        assert same_bits(out, layer.expected(x))
    assert (memory[2] == 7).all() and layer.is_right(tokens(m))
    strided, out = tokens(2 * m)[::2, :], memory[0]
    assert layer.plan(strided, layer.weight, layer.scales, layer.bias, out) is out
    assert same_bits(out, layer.expected(strided))


def test_threads_that_share_a_plan(gpu: PlayedGpu) -> None:
    """Inputs of their own, of shapes that are shared and of more than are remembered."""
    layer = Layer()
    errors: list[str] = []

    def work(thread: int) -> None:
        for i in range(40):
            x = tokens(1 + (thread * i) % 70, dtype=(BF16, FP32)[i % 2])
            if not layer.is_right(x):
                errors.append(f"thread {thread}, call {i}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert errors == [] and len(gpu.launches) == 8 * 40 * 2


def test_nan_in_a_row_stays_there(gpu: PlayedGpu) -> None:
    layer, x = Layer(), tokens(5)
    x[3, 7] = math.nan
    y = layer(x)
    assert y[3].isnan().all() and y[[0, 1, 2, 4]].isfinite().all()
