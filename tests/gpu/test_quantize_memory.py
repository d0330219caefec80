"""What quantisers read and write: all of their outputs, nothing around them, and nothing past the end of an input."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.driver.current import current_stream
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.loaded import quantizer_for
from fp8gemm.kernels.quantize import (
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    Quantizer,
    QuantizeSource,
    norm_threads,
    quantizer_of_blocks,
    quantizer_of_norm,
)
from fp8gemm.products import quantize
from fp8gemm.products.quantizers import rows_quantizer
from fp8gemm.scales import block_count, mn_major_pitch
from tests.calls import same_bits

E4M3 = torch.float8_e4m3fn
GUARD, PATTERN, NAN_CODE = 256, 0x5A, 0x7F
SHAPES = sorted({*product((1, 3, 4, 5, 63, 64, 65, 333), (16, 144)), (7, 112), (5, 272), (6, 4112), (129, 400)})
KINDS = ("rows", "silu-mul", "blocks", "norm", "norm-residual")

every_dtype = pytest.mark.parametrize("dtype", INPUTS, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_shape = pytest.mark.parametrize(("m", "k"), SHAPES)


@dataclass
class Guarded:
    """Bytes for an output, filled with ``fill``, between others that must not change."""

    size: int
    fill: int
    device: torch.device
    storage: Tensor = field(init=False)

    def __post_init__(self) -> None:
        whole = GUARD + -(-self.size // GUARD) * GUARD + GUARD
        self.storage = torch.full((whole,), PATTERN, dtype=torch.uint8, device=self.device)
        self.inside.fill_(self.fill)

    @property
    def inside(self) -> Tensor:
        return self.storage[GUARD : GUARD + self.size]

    def untouched(self) -> bool:
        around = torch.cat([self.storage[:GUARD], self.storage[GUARD + self.size :]])
        return bool((around == PATTERN).all())


def amid_nans(x: Tensor, *, pitch: int) -> Tensor:
    """The same matrix or vector with NaN before it, past its last row and past the columns of each row."""
    rows, columns = x.shape if x.dim() == 2 else (1, x.shape[0])
    storage = torch.full((rows + 4, pitch), math.nan, dtype=x.dtype, device=x.device)
    inside = storage[2 : 2 + rows, :columns]
    inside.copy_(x.view(rows, columns))
    return inside if x.dim() == 2 else inside[0]


def quantizers_of(kind: str, m: int, k: int, dtype: torch.dtype) -> list[Quantizer]:
    """All that this library may ever choose for a kind, whatever it would choose here."""
    if kind == "rows" or kind == "silu-mul":
        source = QuantizeSource.PLAIN if kind == "rows" else QuantizeSource.SILU_MUL
        return [rows_quantizer(source, dtype, rows) for rows in ROWS_OF_WARP]
    if kind == "blocks":
        return [quantizer_of_blocks(INPUTS[dtype], warps) for warps in WARPS_OF_BLOCK]
    kinds, residual = (INPUTS[dtype], INPUTS[dtype]), kind == "norm-residual"
    numbers = sorted({norm_threads(each, k) for each in (1, 256, 2**16)})
    return [quantizer_of_norm(k, *kinds, residual=residual, threads=threads) for threads in numbers]


@pytest.fixture(scope="module", autouse=True)
def _built(device: torch.device) -> None:
    """All kernels of these tests, compiled on all processors."""
    wanted = [
        quantizer.request
        for kind, (m, k), dtype in product(KINDS, SHAPES, INPUTS)
        for quantizer in quantizers_of(kind, m, k, dtype)
    ]
    build_many(list(dict.fromkeys(wanted)))


@dataclass
class Outputs:
    """Guarded outputs of a quantiser, and the tensors that lie in them."""

    m: int
    k: int
    dtype: torch.dtype
    device: torch.device
    of_rows: bool

    def __post_init__(self) -> None:
        m, k, blocks = self.m, self.k, block_count(self.k)
        pitch = mn_major_pitch(m)
        floats = blocks * pitch if self.of_rows else block_count(m) * blocks
        self.guards = [
            Guarded(m * k, NAN_CODE, self.device),
            Guarded(4 * floats, 0xFF, self.device),
            Guarded(m * k * self.dtype.itemsize, 0xFF, self.device),
        ]
        codes, scales, summed = (guard.inside for guard in self.guards)
        self.codes, self.summed = codes.view(E4M3).view(m, k), summed.view(self.dtype).view(m, k)
        whole = scales.view(torch.float32)
        self.scales = whole.as_strided((m, blocks), (1, pitch)) if self.of_rows else whole.view(block_count(m), blocks)
        self.padding = whole.view(blocks, pitch)[:, m:] if self.of_rows else whole[:0]

    def check(self, context: str) -> None:
        assert all(guard.untouched() for guard in self.guards), f"{context}: wrote around an output"
        assert (self.padding.contiguous().view(torch.uint8) == 0xFF).all(), (
            f"{context}: wrote between columns of scales"
        )


def inputs_of(kind: str, m: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device).to(dtype)

    inputs = {"x": normal(m, 2 * k if kind == "silu-mul" else k)}
    if kind.startswith("norm"):
        inputs["weight"] = normal(k)
    if kind == "norm-residual":
        inputs["residual"] = normal(m, k)
    return inputs


def quantised(kind: str, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """By the library's own function, into outputs of its own."""
    call: Any = {
        "rows": quantize.quantize_activation,
        "silu-mul": quantize.quantize_silu_mul,
        "blocks": quantize.quantize_weight,
        "norm": quantize.quantize_rms_norm,
        "norm-residual": quantize.quantize_add_rms_norm,
    }[kind]
    found: tuple[Tensor, ...] = call(**{"w" if kind == "blocks" and n == "x" else n: t for n, t in inputs.items()})
    return found


def launch(quantizer: Quantizer, inputs: dict[str, Tensor], outputs: Outputs) -> None:
    index = outputs.device.index
    terms = {name: tensor for name, tensor in inputs.items() if name != "x"}
    if "residual" in terms:
        terms["summed"] = outputs.summed
    options: dict[str, Any] = {"eps": 1e-6} if "weight" in terms else {}
    kernel = quantizer_for(quantizer, index)
    kernel.bind(inputs["x"], outputs.codes, outputs.scales, stream=current_stream(index), **terms, **options)()
    torch.cuda.synchronize(index)


@every_kind
@every_dtype
@every_shape
def test_outputs_are_written_whole_and_nothing_around_them_and_no_nan_past_an_input_matters(
    m, k, dtype, kind, device, generator
):
    inputs = inputs_of(kind, m, k, dtype, generator)
    pitches = {name: tensor.shape[-1] + 16 for name, tensor in inputs.items()}
    amid = {name: amid_nans(tensor, pitch=pitches[name]) for name, tensor in inputs.items()}
    for quantizer in quantizers_of(kind, m, k, dtype):
        context = f"{quantizer.request.label}, {m}x{k}"
        plain, poisoned = (Outputs(m, k, dtype, device, of_rows=kind != "blocks") for _ in range(2))
        launch(quantizer, inputs, plain)
        launch(quantizer, amid, poisoned)
        for outputs in (plain, poisoned):
            outputs.check(context)
            assert not outputs.codes.float().isnan().any() and not outputs.scales.isnan().any(), context
            if kind == "norm-residual":
                expected = (inputs["x"].float() + inputs["residual"].float()).to(dtype)
                assert same_bits(outputs.summed, expected), context
            else:
                assert (outputs.summed.contiguous().view(torch.uint8) == 0xFF).all(), context
        assert same_bits(plain.codes, poisoned.codes) and torch.equal(plain.scales, poisoned.scales), context
        if not kind.startswith("norm"):  # whose sums' order is that of their threads
            codes, scales = quantised(kind, inputs)[:2]
            assert same_bits(plain.codes, codes) and torch.equal(plain.scales, scales), context
        for name, tensor in inputs.items():
            assert same_bits(tensor, amid[name]), f"{context}: {name} changed"


@every_kind
def test_rows_past_2_31_elements(kind, device):
    """Offsets of 64 bits: the last rows of a matrix of 2^31 codes and more, read and written."""
    m, k = 2**31 // 16384 + 3, 16384
    free, _ = torch.cuda.mem_get_info(device)
    wide = 2 if kind == "silu-mul" else 1
    needed = m * k * (2 * wide + 1 + (4 if kind == "norm-residual" else 0)) + 2**30
    if free < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory, {free / 2**30:.0f} are left")
    x = torch.empty(m, wide * k, dtype=torch.bfloat16, device=device).fill_(1.0)
    ends = (slice(0, 2), slice(2**31 // k - 128, m))
    for rows in ends:
        x[rows] = torch.arange(x[rows].numel(), device=device).view(x[rows].shape).remainder(253).bfloat16() - 100
    inputs = {"x": x}
    if kind.startswith("norm"):
        inputs["weight"] = torch.ones(k, dtype=torch.bfloat16, device=device)
    if kind == "norm-residual":
        inputs["residual"] = torch.ones_like(x)
    found = quantised(kind, inputs)
    for rows in ends[1:] if kind == "blocks" else ends:
        part = quantised(kind, {name: each if name == "weight" else each[rows] for name, each in inputs.items()})
        first = rows.start // 128 if kind == "blocks" else rows.start
        for whole, expected in zip(found, part, strict=True):
            at = first if whole.dtype == torch.float32 else rows.start
            if kind.startswith("norm") and whole.dtype != x.dtype:
                # Another number of threads adds squares in another order: codes and scales may be neighbours.
                got = whole[at : at + expected.shape[0]].float()
                assert torch.allclose(got, expected.float(), rtol=0.126, atol=0.01), kind
            else:
                assert same_bits(whole[at : at + expected.shape[0]].contiguous(), expected.contiguous()), kind
    del x, inputs, found
    torch.cuda.empty_cache()
