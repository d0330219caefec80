"""Quantisers of groups of which only some rows are there: the bits of the plain quantisers for these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8gemm.ahead.kernels import all_quantizers, masked_quantizers, recorded_quantizers
from fp8gemm.errors import InputError
from fp8gemm.kernels.quantize import QuantizeSource, quantizer_of_masked
from fp8gemm.kernels.recording import record_quantizer, recorded
from fp8gemm.products.quantize import quantize_activation, quantize_silu_mul
from fp8gemm.tuning.problem import InputType, OutputType
from tests.calls import same_bits

Quantise = Callable[..., tuple[Tensor, Tensor]]
QUANTISE: dict[str, Quantise] = {"activation": quantize_activation, "silu_mul": quantize_silu_mul}
every_quantiser = pytest.mark.parametrize("name", QUANTISE)
K = 272


def columns_of(name: str, k: int = K) -> int:
    return 2 * k if name == "silu_mul" else k


def groups_of(
    name: str, groups: int, max_m: int, *, k: int = K, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(groups, max_m, columns_of(name, k), generator=generator).to(dtype)


def check_groups(name: str, x: Tensor, counts: Sequence[int], found: tuple[Tensor, Tensor]) -> None:
    """Each group's rows are those that the plain quantiser makes of them, and lie as they should."""
    codes, scales = found
    groups, max_m, k = codes.shape
    blocks, pitch = -(-k // 128), -(-max_m // 4) * 4
    assert codes.shape == (*x.shape[:2], x.shape[2] // columns_of(name, 1)) and codes.is_contiguous()
    assert scales.shape == (groups, max_m, blocks) and scales.dtype == torch.float32
    assert scales.stride() == (blocks * pitch, 1, pitch)
    assert scales.untyped_storage().nbytes() == 4 * groups * blocks * pitch
    for group, count in enumerate(counts):
        rows = slice(0, min(max(count, 0), max_m))
        expected = QUANTISE[name](x[group, rows])
        assert same_bits(codes[group, rows], expected[0]) and same_bits(scales[group, rows], expected[1]), group


@every_quantiser
@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(-1, 8), max_size=5),
    max_m=st.integers(0, 6),
    k=st.sampled_from([16, 128, 144, 272]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    wide=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_rows_that_there_are_have_the_plain_quantisers_bits(
    name: str, counts: list[int], max_m: int, k: int, dtype: torch.dtype, wide: bool, seed: int
) -> None:
    x = groups_of(name, len(counts), max_m, k=k, seed=seed, dtype=dtype)
    before = x.clone()
    of_groups = torch.tensor(counts, dtype=torch.int64 if wide else torch.int32)
    check_groups(name, x, counts, QUANTISE[name](x, counts=of_groups))
    assert same_bits(x, before) and of_groups.tolist() == counts


@every_quantiser
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_lies_past_a_groups_rows_changes_nothing(name: str, bad: float) -> None:
    x, counts = groups_of(name, 4, 5), [2, 0, 5, 1]
    poisoned = x.clone()
    for group, count in enumerate(counts):
        poisoned[group, count:] = bad
    found = QUANTISE[name](poisoned, counts=torch.tensor(counts))
    check_groups(name, x, counts, found)
    assert found[0].float().isfinite().all() and found[1].isfinite().all()


@every_quantiser
def test_counts_past_32_bits_are_clamped_and_not_cut_off(name: str) -> None:
    x, counts = groups_of(name, 4, 3), [2**32 + 1, -(2**32) + 1, 2**62, 2**31]
    check_groups(name, x, counts, QUANTISE[name](x, counts=torch.tensor(counts)))


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "columns of wider rows": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "rows of taller groups": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "groups inside rows": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "off by an element": lambda x: torch.cat([x[:, :, :1], x], 2)[:, :, 1:],
    "one group many times": lambda x: x[:1].expand_as(x),
}


@every_quantiser
@pytest.mark.parametrize("change", STRIDED.values(), ids=STRIDED)
def test_rows_and_groups_may_have_any_pitch(name: str, change: Callable[[Tensor], Tensor]) -> None:
    x, counts = change(groups_of(name, 3, 5)), [4, 5, 1]
    check_groups(name, x, counts, QUANTISE[name](x, counts=torch.tensor([0, 4, 0, 5, 0, 1], dtype=torch.int32)[1::2]))


def test_row_major_scales_are_contiguous() -> None:
    x, counts = groups_of("activation", 3, 5), torch.tensor([5, 5, 5])
    codes, scales = quantize_activation(x, counts=counts, scale_layout="row_major")
    assert scales.is_contiguous() and same_bits(scales, quantize_activation(x, counts=counts)[1])
    assert same_bits(codes, quantize_activation(x, counts=counts)[0])


@every_quantiser
def test_counts_may_change_in_a_compiled_graph(name: str) -> None:
    """The operator, with symbolic sizes, and no look at what the counts are."""
    targets: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        targets.extend(str(node.target) for node in module.graph.nodes if "fp8gemm" in str(node.target))
        return module.forward

    compiled = torch.compile(QUANTISE[name], fullgraph=True, backend=backend, dynamic=True)
    for max_m, counts in ((5, [0, 5, 2]), (5, [4, 1, 9]), (3, [1, 1, 3])):
        x = groups_of(name, 3, max_m)
        check_groups(name, x, counts, compiled(x, counts=torch.tensor(counts, dtype=torch.int32)))
    assert len(targets) == 1 and f"quantize_{name}" in targets[0], targets


@every_quantiser
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3, 64)}, r"^x: expected 3 dimensions, \(G, max_m, 2?K\), got shape \(3, 64\)"),
        ({"x": torch.ones(3, 5, 48)[:, :, :40]}, r"^x: expected \(G, max_m, 2?K\) with K a positive multiple of 16"),
        (
            {"x": torch.ones(3, 5, 128)[:, :, ::2]},
            r"^x: .* with K contiguous \(stride 1\), got strides \(640, 128, 2\)",
        ),
        ({"x": torch.ones(3, 5, 64, dtype=torch.float64)}, "^x: expected one of .* got torch.float64"),
        ({"counts": torch.ones(3)}, r"^counts: expected torch.int32 or torch.int64 .* got torch.float32"),
        ({"counts": torch.ones(2, dtype=torch.int32)}, r"^counts: expected .* shape \(3,\) = \(G,\) .* shape \(2,\)"),
        ({"counts": torch.ones(3, 1, dtype=torch.int32)}, r"^counts: expected .* got torch.int32 of shape \(3, 1\)"),
        ({"counts": torch.ones(3, dtype=torch.int32, device="meta")}, "^counts: expected .* on cpu, got .* on meta"),
        ({"counts": None}, r"^x: expected 2 dimensions, \(M, 2?K\), got shape \(3, 5, 64\)"),
    ],
)
def test_bad_input_is_named(name: str, change: dict[str, Tensor | None], message: str) -> None:
    arguments = {"x": torch.ones(3, 5, 64), "counts": torch.ones(3, dtype=torch.int32), **change}
    with pytest.raises(InputError, match=message):
        QUANTISE[name](arguments["x"], counts=arguments["counts"])


def test_a_warmup_has_the_masked_quantisers_and_reads_them_from_a_record(tmp_path: Path) -> None:
    ready = all_quantizers([OutputType.FLOAT16], [128])
    for source in QuantizeSource:
        request = quantizer_of_masked(source, InputType.FLOAT16).request
        assert request in ready
        file = tmp_path / source.value
        record_quantizer(file, request.family, dict(request.config))
        assert recorded_quantizers(*recorded(file)[1][0]) == [request]
    assert len({request.label for dtype in InputType for request in masked_quantizers(dtype)}) == 6
