"""What quantisers are launched with, and how many CTAs of which kernel; a GPU is played, and its launches are kept."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.driver.arguments import QuantizeParams
from fp8gemm.kernels.quantize import (
    MASKED_CTAS_OF_SM,
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    QuantizeKernel,
    Quantizer,
    QuantizeSource,
    norm_threads,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
    rows_of_warp,
    warps_of_block,
)
from fp8gemm.products import quantize
from fp8gemm.products.quantizers import aligned
from fp8gemm.scales import empty_mn_major
from fp8gemm.tuning.problem import InputType
from tests.played_quantizers import STREAM, Gpu

HEADER = Path(__file__).resolve().parents[2] / "include/fp8gemm/quantize/params.cuh"
SIZES = {"void*": 8, "uint8_t*": 8, "int32_t*": 8, "int64_t*": 8, "float*": 8, "int64_t": 8, "uint32_t": 4, "float": 4}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
K = 272


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_the_host_lays_out_the_struct_as_the_header_declares_it() -> None:
    """The compiler's own rule for these types: each at a multiple of its size, one behind the other."""
    found = re.findall(r"^    (?:const )?(\w+\*?) (\w+);", HEADER.read_text(), re.MULTILINE)
    offset = 0
    for (kind, name), (field, _) in zip(found, QuantizeParams._fields_, strict=True):
        size = SIZES[kind]
        offset = -(-offset // size) * size
        described = getattr(QuantizeParams, field)
        assert (name, offset, size) == (field, described.offset, described.size)
        offset += size
    assert ctypes.sizeof(QuantizeParams) == -(-offset // 8) * 8 == 144, "a multiple of the largest of them"
    assert f"sizeof(QuantizeParams) == {ctypes.sizeof(QuantizeParams)}" in HEADER.read_text()


@pytest.mark.parametrize("residual", [False, True])
def test_every_argument_reaches_its_field(residual: bool, gpu: Gpu) -> None:
    m = 5
    x, added = torch.zeros(m, 400, dtype=BF16)[:, :K], torch.zeros(m, 512, dtype=BF16)[:, :K]
    weight, summed = torch.ones(K), torch.empty(m, K, dtype=BF16)
    codes, scales = torch.empty(m, K, dtype=torch.float8_e4m3fn), empty_mn_major(m, 3, device=x.device)
    quantizer = quantizer_of_norm(K, InputType.BFLOAT16, InputType.FLOAT32, residual=residual, threads=64)
    kernel = QuantizeKernel(quantizer, device_index=3, programmatic=True)
    terms = {"residual": added, "summed": summed} if residual else {}
    kernel.bind(x, codes, scales, stream=STREAM, weight=weight, eps=0.25, **terms)()
    ((config, params, stream, grid),) = gpu.launches
    assert (params.x, params.x_stride) == (x.data_ptr(), 400)
    assert (params.codes, params.scales) == (codes.data_ptr(), scales.data_ptr())
    assert (params.rows, params.k, params.scales_pitch) == (m, K, 8)
    assert (params.weight, params.eps) == (weight.data_ptr(), 0.25)
    of_residual = (added.data_ptr(), 512, summed.data_ptr()) if residual else (None, 0, None)
    assert (params.residual, params.residual_stride, params.summed) == of_residual
    assert (stream, grid, config.threads, config.device_index, config.programmatic) == (STREAM, m, 64, 3, True)
    assert ctypes.addressof(params) % 64 == 0


def covered(quantizer: Quantizer, m: int, k: int, rows: int, cols: int) -> bool:
    """Whether a grid has a place for each piece of ``rows`` x ``cols`` codes, and no CTA without any."""
    pieces, of_cta = -(-m // rows) * -(-k // cols), quantizer.threads // 32 if rows < 128 else 1
    return quantizer.grid(m, k) * of_cta >= pieces > (quantizer.grid(m, k) - 1) * of_cta


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 127, 128, 129, 333, 2**20])
@pytest.mark.parametrize("k", [16, 112, 128, 144, 256, 272, 7168, 16384])
def test_grids_are_large_enough_and_no_larger(m: int, k: int) -> None:
    for rows, source in itertools.product(ROWS_OF_WARP, QuantizeSource):
        assert covered(quantizer_of_rows(source, InputType.BFLOAT16, rows), m, k, rows, 256)
    for warps in WARPS_OF_BLOCK:
        assert covered(quantizer_of_blocks(InputType.FLOAT32, warps), m, k, 128, 128)
    threads = norm_threads(m, k)
    norm = quantizer_of_norm(k, InputType.BFLOAT16, InputType.BFLOAT16, residual=False, threads=threads)
    assert norm.grid(m, k) == m and norm.threads == threads


@pytest.mark.parametrize("source", QuantizeSource)
def test_masked_grids_are_what_a_gpu_holds_and_no_more_than_there_may_be_rows(source: QuantizeSource) -> None:
    grid, most = quantizer_of_masked(source, InputType.BFLOAT16).grid, 132 * MASKED_CTAS_OF_SM[source]
    assert grid(256 * 128, 2048) == grid(2**30, 16) == most
    assert [grid(m, k) for m, k in ((1, 16), (4, 256), (5, 256), (4, 272), (1, 1040))] == [1, 1, 2, 2, 2]


def test_a_warp_has_more_rows_where_there_are_more() -> None:
    for k in (16, 272, 7168, 16384):
        chosen = [rows_of_warp(m, k) for m in (1, 4, 64, 256, 1024, 4096, 16384, 2**17, 2**20)]
        assert chosen == sorted(chosen) and set(chosen) <= set(ROWS_OF_WARP)
        assert chosen[0] == ROWS_OF_WARP[0] and chosen[-1] == ROWS_OF_WARP[-1], k
    for m in (1, 64, 1024):
        chosen = [rows_of_warp(m, k) for k in range(256, 16384, 256)]
        assert chosen == sorted(chosen)


def test_a_block_has_more_warps_where_blocks_are_fewer() -> None:
    chosen = [warps_of_block(n, 1024) for n in (1, 128, 1024, 2048, 2049, 4096, 2**17)]
    assert chosen == sorted(chosen, reverse=True) and sorted(set(chosen)) == sorted(WARPS_OF_BLOCK)
    assert all(128 % (2 * warps) == 0 and warps <= 32 for warps in WARPS_OF_BLOCK), "each half of a warp has whole rows"


def test_a_norm_has_whole_warps_and_no_more_than_its_row_needs() -> None:
    for k in range(16, 2**15 + 1, 16):
        by_rows = [norm_threads(m, k) for m in (1, 100, 200, 300, 1000, 2**16)]
        assert by_rows == sorted(by_rows, reverse=True), "more rows need fewer threads each"
        for threads in by_rows:
            assert threads % 32 == 0 and 32 <= threads <= 1024
            assert (threads - 32) * 8 < k, "the last warp has columns"
    for m in (1, 200, 2**16):
        below, above = ([norm_threads(m, k) for k in ks] for ks in (range(16, 4097, 16), range(4112, 16385, 16)))
        assert below == sorted(below) and above == sorted(above)


Quantise = Callable[[Tensor], tuple[Tensor, ...]]
QUANTISE: dict[str, Quantise] = {
    "rows": quantize.quantize_activation,
    "blocks": quantize.quantize_weight,
    "silu_mul": lambda x: quantize.quantize_silu_mul(torch.cat([x, x], dim=1)),
    "rms_norm": lambda x: quantize.quantize_rms_norm(x, torch.ones(x.shape[1])),
    "add_rms_norm": lambda x: quantize.quantize_add_rms_norm(x, x, torch.ones(x.shape[1], dtype=BF16)),
}
FAMILIES = {"rows": "rows", "blocks": "blocks", "silu_mul": "rows", "rms_norm": "norm", "add_rms_norm": "norm"}
every_quantiser = pytest.mark.parametrize("name", QUANTISE)


@every_quantiser
@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("m", [1, 5, 300])
def test_a_call_is_one_launch_of_its_own_kernel_into_what_it_returns(
    name: str, m: int, dtype: torch.dtype, gpu: Gpu
) -> None:
    x = torch.ones(m, K, dtype=dtype)
    codes, scales, *summed = QUANTISE[name](x)
    ((config, params, stream, grid),) = gpu.launches
    ((label, allow_compile),) = gpu.loads
    assert label.split("-")[1] == FAMILIES[name]
    assert INPUTS[dtype].value in label.split("-") and ("silu" in name) == ("silu" in label)
    assert ("residual" in label) == (name == "add_rms_norm") and allow_compile and stream == STREAM and grid >= 1
    assert (params.codes, params.scales) == (codes.data_ptr(), scales.data_ptr())
    assert (params.rows, params.k) == (*codes.shape,) == (m, K) and codes.is_contiguous()
    assert params.x_stride == K * (2 if name == "silu_mul" else 1)
    assert scales.stride() == ((3, 1) if name == "blocks" else (1, -(-m // 4) * 4))
    assert [params.summed] == [each.data_ptr() for each in summed] or not summed
    assert (params.weight is not None) == ("norm" in name) and config.programmatic is settings.current().pdl
    QUANTISE[name](x)
    assert len(gpu.loads) == 1 and len(gpu.launches) == 2, "the same kernel again"


def test_activations_go_into_memory_that_is_given(gpu: Gpu) -> None:
    codes, scales = torch.empty(5, K, dtype=torch.float8_e4m3fn), empty_mn_major(5, 3, device=torch.device("cpu"))
    quantize.activation_into(torch.ones(5, K, dtype=BF16), codes, scales)
    ((_, params, _, _),) = gpu.launches
    assert (params.codes, params.scales) == (codes.data_ptr(), scales.data_ptr())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_every_argument_of_groups_reaches_its_field(parts: int, integer: torch.dtype, gpu: Gpu) -> None:
    groups, m = 3, 5
    quantise = quantize.quantize_activation if parts == 1 else quantize.quantize_silu_mul
    x = torch.zeros(groups, 8, 800, dtype=BF16)[:, 1 : m + 1, : parts * K]
    counts = torch.tensor([2, 9, 0], dtype=integer)
    codes, scales = quantise(x, counts=counts)
    ((config, params, stream, grid),) = gpu.launches
    ((label, _),) = gpu.loads
    assert label == f"quantize-masked-{'plain' if parts == 1 else 'silu-mul'}-bf16"
    assert (params.x, params.x_stride, params.x_group_stride) == (x.data_ptr(), 800, 6400)
    assert (params.codes, params.scales, params.scales_pitch) == (codes.data_ptr(), scales.data_ptr(), 8)
    assert (params.groups, params.rows, params.k) == (groups, m, K)
    assert codes.shape == (groups, m, K) and scales.stride() == (24, 1, 8)
    assert (params.counts == counts.data_ptr()) == (integer == torch.int32) and params.counts
    assert (stream, grid, config.threads) == (STREAM, 8, 128) and config.programmatic is settings.current().pdl


def test_groups_without_rows_are_not_launched(gpu: Gpu) -> None:
    for groups, m in ((0, 5), (3, 0)):
        counts = torch.ones(groups, dtype=torch.int32)
        codes, scales = quantize.quantize_activation(torch.ones(groups, m, K), counts=counts)
        assert codes.shape == (groups, m, K) and scales.shape == (groups, m, 3)
    assert gpu.launches == gpu.loads == []


@every_quantiser
def test_no_rows_are_launched(name: str, gpu: Gpu) -> None:
    codes, scales, *summed = QUANTISE[name](torch.ones(0, K, dtype=BF16))
    assert codes.shape == (0, K) and scales.shape == (0, 3) and all(each.shape == (0, K) for each in summed)
    assert gpu.launches == []


@every_quantiser
@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("policy", settings.JIT_POLICIES)
def test_settings_reach_the_kernel(name: str, policy: str, pdl: bool, gpu: Gpu) -> None:
    with settings.scope(jit=policy, pdl=pdl):
        QUANTISE[name](torch.ones(4, K, dtype=BF16))
    assert [allowed for _, allowed in gpu.loads] == [policy == "compile"]
    assert gpu.launches[0][0].programmatic is pdl


def test_launches_of_either_kind_are_kernels_of_their_own(gpu: Gpu) -> None:
    for pdl in (False, True, False):
        with settings.scope(pdl=pdl):
            quantize.quantize_activation(torch.ones(4, K))
    assert len(gpu.loads) == 2
    assert [config.programmatic for config, *_ in gpu.launches] == [False, True, False]


ROWS_OFF: dict[str, Callable[[Tensor], Tensor]] = {
    "base": lambda x: x[:, 1 : K + 1],
    "pitch": lambda x: x.view(-1)[: 6 * (K + 1)].view(6, K + 1)[:, :K],
    "both": lambda x: x.view(-1)[3 : 3 + 6 * (K + 3)].view(6, K + 3)[:, :K],
}


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("change", ROWS_OFF.values(), ids=ROWS_OFF)
def test_rows_off_16_bytes_are_copied(change: Callable[[Tensor], Tensor], dtype: torch.dtype, gpu: Gpu) -> None:
    x = change(torch.arange(16 * K).view(8, 2 * K).to(dtype))
    copied = aligned(x)
    assert torch.equal(copied, x) and copied.data_ptr() != x.data_ptr() and copied.is_contiguous()
    assert aligned(copied) is copied
    for name in ("rows", "blocks", "rms_norm", "add_rms_norm"):
        QUANTISE[name](x)
        _, params, _, _ = gpu.launches[-1]
        assert params.x not in (None, x.data_ptr()) and params.x % 16 == 0 and params.x_stride == K, name
        assert params.residual is None or (params.residual % 16 == 0 and params.residual_stride == K)


def test_a_weight_off_16_bytes_is_copied(gpu: Gpu) -> None:
    weight = torch.ones(K + 1)[1:]
    quantize.quantize_rms_norm(torch.ones(3, K), weight)
    assert gpu.launches[0][1].weight not in (None, weight.data_ptr()) and gpu.launches[0][1].weight % 16 == 0


def test_groups_off_16_bytes_are_copied_and_others_are_not() -> None:
    x = torch.ones(3, 6, 400, dtype=BF16)
    for off in (x[:, :, 1:K], x.view(-1)[:7198].view(2, 3599).as_strided((2, 5, K), (3599, 400, 1))):
        assert aligned(off).is_contiguous() and aligned(off) is not off
    for same in (x[:, 1:, 8:K], x[:, :1].expand(3, 6, 400), x[1:2].as_strided((1, 6, K), (1, 400, 1))):
        assert aligned(same) is same


def test_rows_on_16_bytes_are_read_in_place() -> None:
    x = torch.ones(6, 400, dtype=BF16)
    for same in (x[:, 8 : K + 8], x[::2, :K], x[:1, :K].expand(6, K), x[:0], x.view(-1)[: K + 1][None, :K]):
        assert aligned(same) is same


@pytest.mark.parametrize("k", [272, 4096, 7168])
def test_threads_of_a_norm_do_not_follow_m_where_bits_may_not(k: int, gpu: Gpu) -> None:
    for invariant in (False, True):
        with settings.scope(batch_invariant=invariant):
            for m in (1, 200, 1000):
                quantize.quantize_rms_norm(torch.ones(m, k, dtype=BF16), torch.ones(k, dtype=BF16))
    several, one = (
        [config.threads for config, *_ in gpu.launches[:3]],
        [config.threads for config, *_ in gpu.launches[3:]],
    )
    assert len(set(one)) == 1 and (len(set(several)) > 1 or k == 272)
