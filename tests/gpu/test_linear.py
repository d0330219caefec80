"""`Fp8Linear` on a Hopper GPU: what it computes, that it follows its weight, and what it refuses."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear, convert
from tests.calls import same_bits
from tests.numerics import Report, check
from tests.operators import SAMPLES, check_operator

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROWS = (1, 7, 64, 65, 333, 1024)


def linear(n: int, k: int, generator: torch.Generator, *, dtype: torch.dtype = BF16, bias: bool = True) -> nn.Linear:
    made = nn.Linear(k, n, bias=bias, dtype=dtype, device=generator.device)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=k**-0.5, generator=generator)
    return made.requires_grad_(False)


def tokens(*shape: int, generator: torch.Generator, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def report(layer: Fp8Linear, x: Tensor, y: Tensor) -> Report:
    """The output against the reference of the quantised operands, by the gates of signed data."""
    rows = x.reshape(-1, layer.in_features).contiguous()
    a, scales_a = fp8gemm.quantize_activation(rows)
    terms = {} if layer.bias is None else {"bias": layer.bias}
    out = y.reshape(-1, layer.out_features)
    return check(out, a, scales_a, layer.weight, layer.weight_scale_inv, data="signed", **terms)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (576, 512), (136, 272), (100, 112)])
def test_output(n: int, k: int, bias: bool, dtype: torch.dtype, generator: torch.Generator) -> None:
    layer = Fp8Linear.from_linear(linear(n, k, generator, dtype=dtype, bias=bias), max_m=512)
    for m in ROWS:
        x = tokens(m, k, generator=generator, dtype=dtype)
        y = layer(x)
        assert y.dtype == dtype and y.shape == (m, n) and y.is_contiguous()
        report(layer, x, y).raise_if_failed(f"{m} x {n} x {k}, {dtype}, bias {bias}")


@pytest.mark.parametrize("shape", [(512,), (2, 3, 512), (0, 512), (2, 0, 512), (1, 1, 512)], ids=str)
def test_leading_dimensions(shape: tuple[int, ...], generator: torch.Generator) -> None:
    layer = Fp8Linear.from_linear(linear(576, 512, generator))
    x = tokens(*shape, generator=generator)
    y = layer(x)
    assert y.shape == (*shape[:-1], 576)
    assert same_bits(y, layer(x.reshape(-1, 512)).view(y.shape))


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.view(1024, 64)[:512].t(),
    "every second row": lambda x: x[::2, :512],
    "rows of a wider tensor, not on 16 bytes": lambda x: x[:, 3:515],
    "expanded": lambda x: x[:1, :512].expand(6, 512),
    "permuted": lambda x: x[:, :512].view(8, 8, 512).transpose(0, 1),
}


@pytest.mark.parametrize("change", STRIDED.values(), ids=STRIDED)
def test_inputs_of_any_strides(change: Callable[[Tensor], Tensor], generator: torch.Generator) -> None:
    layer = Fp8Linear.from_linear(linear(576, 512, generator))
    x = change(tokens(64, 1024, generator=generator))
    assert same_bits(layer(x), layer(x.clone(memory_format=torch.contiguous_format)))


def test_forward_quantized_takes_what_a_fused_kernel_made(generator: torch.Generator) -> None:
    layer = Fp8Linear.from_linear(linear(576, 512, generator))
    for m in ROWS:
        a, scales_a = fp8gemm.quantize_silu_mul(tokens(m, 1024, generator=generator))
        for out_dtype in (BF16, FP32):
            y = layer.forward_quantized(a, scales_a, out_dtype=out_dtype)
            found = check(y, a, scales_a, layer.weight, layer.weight_scale_inv, data="signed", bias=layer.bias)
            found.raise_if_failed(f"{m} rows, {out_dtype}")


MOVES: dict[str, Callable[[Fp8Linear, Fp8Linear], object]] = {
    "data": lambda layer, other: [
        setattr(mine, "data", theirs.data) for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True)
    ],
    "load": lambda layer, other: layer.load_state_dict(other.state_dict()),
    "assign": lambda layer, other: layer.load_state_dict(other.state_dict(), assign=True),
    "there and back": lambda layer, other: layer.cpu().cuda().load_state_dict(other.state_dict()),
    "in place": lambda layer, other: [
        mine.view(torch.uint8).copy_(theirs.view(torch.uint8))
        for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True)
    ],
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_layer_follows_its_parameters(
    move: Callable[[Fp8Linear, Fp8Linear], object], generator: torch.Generator
) -> None:
    layer, other = (Fp8Linear.from_linear(linear(576, 512, generator)) for _ in range(2))
    x = tokens(7, 512, generator=generator)
    expected = other(x)
    assert not same_bits(layer(x), expected)
    move(layer, other)
    gc.collect()
    torch.cuda.empty_cache()
    assert same_bits(layer(x), expected)
    report(layer, x, layer(x)).raise_if_failed("after the move")


def test_the_cpu_computes_the_same_layer(generator: torch.Generator) -> None:
    layer, x = Fp8Linear.from_linear(linear(576, 512, generator)), tokens(7, 512, generator=generator)
    on_gpu, on_cpu = layer(x).cpu(), copy.deepcopy(layer).cpu()(x.cpu())
    assert torch.allclose(on_gpu.float(), on_cpu.float(), rtol=2**-7, atol=1e-3)


def test_tensors_on_different_devices_are_refused(generator: torch.Generator) -> None:
    layer, x = Fp8Linear.from_linear(linear(576, 512, generator)), tokens(7, 512, generator=generator)
    with pytest.raises(InputError, match="x: expected the device of weight, cuda:.*, got cpu"):
        layer(x.cpu())
    with pytest.raises(InputError, match="x: expected the device of weight, cpu, got cuda"):
        layer.cpu()(x)


def test_batch_invariance(generator: torch.Generator) -> None:
    layer = Fp8Linear.from_linear(linear(2112, 7168, generator), batch_invariant=True)
    x = tokens(1024, 7168, generator=generator)
    whole = layer(x)
    for m in ROWS:
        assert same_bits(layer(x[:m]), whole[:m]), m


def test_convert_frees_each_weight_before_the_next_is_quantised(
    generator: torch.Generator, device: torch.device
) -> None:
    layers, n, k = 6, 4096, 8192
    model = nn.Sequential(*(linear(n, k, generator, bias=False) for _ in range(layers)))
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    conversion = convert(model)
    assert len(conversion.converted) == layers
    after, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    assert before - after >= 0.99 * (conversion.bytes_before - conversion.bytes_after)
    assert peak - before <= 1.1 * n * k, "more than the codes of one layer on top"


@pytest.mark.parametrize("sample", SAMPLES)
def test_torch_finds_nothing_wrong_with_an_operator(
    sample: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_operator(sample, device, monkeypatch)
