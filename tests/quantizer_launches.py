"""Quantisers ready to be launched very often: see `tests.launches`.

The first launch is held to the reference, to the bit where that has the kernel's bits; all others to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fp8gemm import reference
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.quantize import (
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    Quantizer,
    QuantizeSource,
    norm_threads,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
)
from fp8gemm.scales import block_count, mn_major_pitch
from tests.launches import Launch, Output, Prepared
from tests.prepared import Device
from tests.quantization import Exact, check_fused, exact_rms_norm, exact_silu_mul

E4M3 = torch.float8_e4m3fn
EPS = 1e-6
NAN_BITS, NAN_CODE = 0x7FC00000, 0x7F
"""What scales and codes are poisoned with. Both are compared as integers, bit for bit."""


@dataclass(frozen=True)
class Quantising:
    """A quantiser and the shape that it gets.

    Attributes:
        kind: "plain", "silu-mul", "blocks", "norm" or "add-norm".
        m, k: of the codes; where there are groups, M of each.
        dtype: of the input.
        counts: rows of each group that there are; empty without groups.
    """

    quantizer: Quantizer
    kind: str
    m: int
    k: int
    dtype: torch.dtype
    counts: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the reference has the kernel's bits."""
        return self.kind in ("plain", "blocks")


def quantisings() -> list[Quantising]:
    """Every kind with every dtype, each number of rows or warps somewhere, and partial K blocks."""
    found = []
    for i, dtype in enumerate(INPUTS):
        for source in QuantizeSource:
            rows = ROWS_OF_WARP[i]
            found.append(Quantising(quantizer_of_rows(source, INPUTS[dtype], rows), source.value, 4003, 400, dtype))
            counts = (1003, 0, 7, 998)
            masked = quantizer_of_masked(source, INPUTS[dtype])
            found.append(Quantising(masked, source.value, 1003, 272, dtype, counts))
        warps = WARPS_OF_BLOCK[i % 2]
        found.append(Quantising(quantizer_of_blocks(INPUTS[dtype], warps), "blocks", 1000, 400, dtype))
        for residual in (False, True):
            threads = norm_threads(1003, 528)
            norm = quantizer_of_norm(528, INPUTS[dtype], INPUTS[dtype], residual=residual, threads=threads)
            found.append(Quantising(norm, "add-norm" if residual else "norm", 1003, 528, dtype))
    return found


def prepare_quantising(each: Quantising, kernel: Any, seed: int, device: torch.device, *, stream: int) -> Prepared:
    """Operands, and what the first launch makes of them.

    Args:
        each: what is launched.
        kernel: it, loaded.
        seed: of the input.
        device: where operands are.
        stream: the CUstream of the first launch, torch's current one.

    Raises:
        AssertionError: the first launch was not right.
    """
    inputs = inputs_of(each, seed, device)
    bind = _masked_bind(each, inputs["x"], device) if each.counts else _bind(each, inputs)
    before = outputs_before(each, device)
    first = [output.clone() for output in before]
    bind(kernel, first, stream)()
    check_first(each, inputs, first)
    return Prepared(tuple(Output(*pair) for pair in zip(before, first, strict=True)), bind)


def inputs_of(each: Quantising, seed: int, device: Device) -> dict[str, Tensor]:
    """Normal values, by the names of what they are."""
    draw = torch.Generator(device).manual_seed(seed)
    groups = (len(each.counts),) if each.counts else ()

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device=device).to(each.dtype)

    inputs = {"x": normal(*groups, each.m, each.k * (2 if each.kind == "silu-mul" else 1))}
    if each.kind.endswith("norm"):
        inputs["weight"] = normal(each.k)
    if each.kind == "add-norm":
        inputs["residual"] = normal(each.m, each.k)
    return inputs


def outputs_before(each: Quantising, device: Device) -> list[Tensor]:
    """Poisoned memory of codes, of scales as it lies, and of a sum where there is one; integers of the same size."""
    m, blocks = each.m, block_count(each.k)
    groups = (len(each.counts),) if each.counts else ()
    scales = (block_count(m), blocks) if each.kind == "blocks" else (*groups, blocks, mn_major_pitch(m))
    found = [
        torch.full((*groups, m, each.k), NAN_CODE, dtype=torch.uint8, device=device),
        torch.full(scales, NAN_BITS, dtype=torch.int32, device=device),
    ]
    if each.kind == "add-norm":
        integer = torch.int32 if each.dtype == torch.float32 else torch.int16
        found.append(torch.full((m, each.k), -1, dtype=integer, device=device))  # a NaN
    return found


def scales_of(each: Quantising, memory: Tensor) -> Tensor:
    """The scales that lie in memory."""
    values = memory.view(torch.float32)
    return values if each.kind == "blocks" else values.mT[..., : each.m, :]


def _bind(each: Quantising, inputs: dict[str, Tensor]) -> Callable[[Any, Sequence[Tensor], int], Launch]:
    def bind(kernel: Any, outs: Sequence[Tensor], stream: int) -> Launch:
        terms: dict[str, Any] = dict(inputs)
        if "weight" in terms:
            terms["eps"] = EPS
        if "residual" in terms:
            terms["summed"] = outs[2].view(each.dtype)
        x = terms.pop("x")
        launch: Launch = kernel.bind(x, outs[0].view(E4M3), scales_of(each, outs[1]), stream=stream, **terms)
        return launch

    return bind


def _masked_bind(each: Quantising, x: Tensor, device: Device) -> Callable[[Any, Sequence[Tensor], int], Launch]:
    counts = torch.tensor(each.counts, dtype=torch.int32, device=device)

    def bind(kernel: Any, outs: Sequence[Tensor], stream: int) -> Launch:
        scales = scales_of(each, outs[1])
        launch: Launch = kernel.bind_masked(x, outs[0].view(E4M3), scales, counts, stream=stream)
        return launch

    return bind


def check_first(each: Quantising, inputs: dict[str, Tensor], found: Sequence[Tensor]) -> None:
    """AssertionError if codes, scales or a sum are not the reference's, or a row that is not there was written."""
    label, x = each.quantizer.request.label, inputs["x"]
    codes, scales = found[0], scales_of(each, found[1])
    if each.counts:
        rows = torch.arange(each.m, device=x.device)
        there = rows < torch.tensor(each.counts, device=x.device)[:, None]
        assert (codes[~there] == NAN_CODE).all() and scales[~there].isnan().all(), f"{label}: rows of no group"
        x, codes, scales = x[there], codes[there], scales[there]
    if each.kind == "add-norm":
        x = reference.add_rms_norm(x, inputs["residual"], inputs["weight"], EPS)[1]
        assert torch.equal(found[2].view(each.dtype), x), f"{label}: the sum"
    if each.exact:
        quantize = reference.quantize_blocks if each.kind == "blocks" else reference.quantize_rows
        right_codes, right_scales = (part.to(x.device) for part in quantize(x.cpu()))
        assert torch.equal(codes, right_codes.view(torch.uint8)) and torch.equal(scales, right_scales), label
    else:
        check_fused(codes.view(E4M3), scales, _exact(each, x, inputs), label)


def _exact(each: Quantising, x: Tensor, inputs: dict[str, Tensor]) -> Exact:
    return exact_silu_mul(x) if each.kind == "silu-mul" else exact_rms_norm(x, inputs["weight"], EPS)
