"""SGLang's wrapper of DeepGEMM, its FP8 layers and its experts on fp8gemm: what is called, and what comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sglang.srt.layers.deep_gemm_wrapper as wrapper
import torch
from sglang.kernels.ops.quantization.fp8_kernel import sglang_per_token_group_quant_fp8
from sglang.srt.layers.deep_gemm_wrapper import compile_utils, entrypoint
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins_by_group

import fp8gemm
import fp8gemm.integrations.deep_gemm as ours
from fp8gemm.ahead.grouped import GroupedVariants
from fp8gemm.ahead.kernels import Variants, chips_named, demand
from fp8gemm.integrations.engines import register
from fp8gemm.kernels.catalogue import kernel_request, ranked
from fp8gemm.lab.bench import engine
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Operands, relative_error
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.problem import Grouping, packed_problem
from tests import numerics
from tests.engines.sglang_here import ON_GPU, configured

PLUGINS_FIRST = bool(os.environ.get("FP8GEMM_TEST_PLUGINS_FIRST"))
PRODUCTS = ("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "fp8_m_grouped_gemm_nt_masked")

Pair = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def of_one_rank() -> Iterator[None]:
    torch.manual_seed(0)
    with configured(), torch.no_grad():
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Calls of products by their names, with their operands."""
    calls: list[tuple[str, Any]] = []

    def noting(name: str, function: Any) -> Any:
        return lambda *operands, **options: calls.append((name, (operands, options))) or function(*operands, **options)

    for name in PRODUCTS:
        monkeypatch.setattr(entrypoint.deep_gemm, name, noting(name, getattr(entrypoint.deep_gemm, name)))
    return calls


def rows(*shape: int) -> Pair:
    """Codes and scales of rows, made by SGLang's quantiser."""
    *_, k = shape
    codes, scales = sglang_per_token_group_quant_fp8(torch.randn(shape, dtype=torch.bfloat16).view(-1, k), 128)
    return codes.view(shape), scales.view(*shape[:-1], k // 128)


def blocks(*shape: int) -> Pair:
    """Codes and scales of weights."""
    *groups, n, k = shape
    made = [fp8gemm.quantize_weight(torch.randn(n, k, dtype=torch.bfloat16)) for _ in range(*groups or [1])]
    codes, scales = (torch.stack(each) for each in zip(*made, strict=True))
    return (codes, scales) if groups else (codes[0], scales[0])


def exactly(a: Pair, b: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """The product of what codes and scales stand for, and how far bfloat16 of sums in float32 may be off."""
    x, w = a[0].double() * a[1].double().repeat_interleave(128, -1), b[0].double()
    spread = b[1].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    w = w * spread[: w.shape[0], : w.shape[1]]
    exact = x @ w.T
    return exact, exact.abs() * 2**-8 + x.abs() @ w.abs().T * 2**-20


def check(out: torch.Tensor, a: Pair, b: Pair) -> None:
    if ON_GPU:  # whose tensor cores truncate
        report = numerics.check(out, *a, *b)
        assert report.passed, str(report)
        return
    exact, bound = exactly(a, b)
    assert ((out.double() - exact).abs() <= bound).all()


def test_the_plugin_is_found_and_answers_for_the_wrapper() -> None:
    assert load_plugins_by_group(GENERAL_PLUGINS_GROUP)["fp8gemm"][0] is register and ours.answers().installed
    assert wrapper.ENABLE_JIT_DEEPGEMM and wrapper.DEEPGEMM_NEED_TMA_ALIGNED_SCALES
    assert not wrapper.DEEPGEMM_SCALE_UE8M0 and not wrapper.DEEPGEMM_BLACKWELL
    for name in PRODUCTS:
        assert getattr(entrypoint.deep_gemm, name).__wrapped__ is getattr(ours, name)
    kept = entrypoint._get_mn_major_tma_aligned_tensor
    assert (kept is ours.get_mn_major_tma_aligned_tensor) == PLUGINS_FIRST
    assert ours.answers().loaded is not PLUGINS_FIRST, "the other waits until it is asked"


def test_the_wrappers_dense_product(asked: list[Any]) -> None:
    for m, n, k in ((1, 64, 128), (7, 192, 384), (130, 72, 256)):
        a, b, out = rows(m, k), blocks(n, k), torch.empty(m, n, dtype=torch.bfloat16)
        wrapper.gemm_nt_f8f8bf16(a, b, out)
        check(out, a, b)
        assert torch.equal(out, fp8gemm.gemm(*a, *b))
        wrapper.gemm_nt_f8f8bf16((a[0], wrapper.get_mn_major_tma_aligned_tensor(a[1])), b, again := out.clone().zero_())
        assert torch.equal(out, again)
    assert [name for name, _ in asked] == ["fp8_gemm_nt"] * 6, "nothing is precompiled"


def test_the_wrappers_contiguous_product(asked: list[Any]) -> None:
    groups, n, k = 3, 192, 256
    alignment = wrapper.get_contiguous_layout_alignment(300, groups)
    assert alignment == 128
    lengths = (130, 0, 1)
    indices = torch.full((3 * alignment,), -1, dtype=torch.int32)
    indices[:130], indices[2 * alignment : 2 * alignment + 1] = 0, 2
    a, b, out = rows(len(indices), k), blocks(groups, n, k), torch.empty(len(indices), n, dtype=torch.bfloat16)
    with wrapper.contiguous_layout_alignment_scope(alignment):
        wrapper.grouped_gemm_nt_f8f8bf16_contig(a, b, out, indices)
    for group, length in enumerate(lengths):
        there = indices == group
        assert there.sum() == length
        check(out[there], (a[0][there], a[1][there]), (b[0][group], b[1][group]))
    wanted = fp8gemm.gemm_grouped(*a, *b, indices=indices)
    assert torch.equal(out[indices >= 0], wanted[indices >= 0])
    wrapper.grouped_gemm_nt_f8f8bf16_contig((a[0][:0], a[1][:0]), b, out[:0], indices[:0])
    assert [name for name, _ in asked] == ["m_grouped_fp8_gemm_nt_contiguous"]


def test_the_wrappers_masked_product(asked: list[Any]) -> None:
    groups, m, n, k = 3, 8, 192, 256
    a, b, counts = rows(groups, m, k), blocks(groups, n, k), torch.tensor([5, 0, 8], dtype=torch.int32)
    out = torch.full((groups, m, n), 7, dtype=torch.bfloat16)
    scales = wrapper.get_mn_major_tma_aligned_tensor(a[1])
    assert scales.stride() == (k // 128 * m, 1, m) and torch.equal(scales, a[1])
    assert wrapper.grouped_gemm_nt_f8f8bf16_masked((a[0], scales), b, out, counts, 4) is None
    for group, count in enumerate(counts.tolist()):
        check(out[group, :count], (a[0][group, :count], a[1][group, :count]), (b[0][group], b[1][group]))
        assert (out[group, count:] == 7).all()
        assert torch.equal(out[group, :count], fp8gemm.gemm_masked(*a, *b, counts)[group, :count])
    assert [name for name, _ in asked] == ["fp8_m_grouped_gemm_nt_masked"]


def test_overlap_with_communication_and_blocks_of_32_are_the_other_deep_gemms() -> None:
    a, b, counts = rows(2, 4, 256), blocks(2, 64, 256), torch.tensor([1, 2], dtype=torch.int32)
    out, theirs = torch.empty(2, 4, 64, dtype=torch.bfloat16), entrypoint.deep_gemm.asked
    theirs.clear()
    overlap = SimpleNamespace(num_sms=100, signal="signal")
    assert wrapper.grouped_gemm_nt_f8f8bf16_masked(a, b, out, counts, 2, overlap, 160) == (64, 10)
    layer = made(ReplicatedLinear, 64, 128, block=32)
    layer(torch.randn(3, 128, dtype=torch.bfloat16))
    assert theirs == [(160, "signal"), (1, 32, 32)]


def test_the_wrapper_limits_sms_for_a_while() -> None:
    before = ours.get_num_sms()
    with wrapper.configure_deep_gemm_num_sms(100):
        assert ours.get_num_sms() == 100
    assert ours.get_num_sms() == before


def made(kind: type, n: int, k: int, *, block: int = 128, **options: Any) -> Any:
    """A linear layer of SGLang's, of a checkpoint that is quantised."""
    checkpoint = Fp8Config(True, "dynamic", weight_block_size=[block, block])
    layer = kind(k, n, params_dtype=torch.bfloat16, quant_config=checkpoint, prefix="layer", **options)
    layer.weight_scale_inv.data.fill_(1)
    layer.weight.data.zero_()
    return layer


@pytest.mark.parametrize("n", [64, 192])
@pytest.mark.parametrize("k", [256, 384])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_of_sglang(n: int, k: int, bias: bool, asked: list[Any]) -> None:
    layer = made(ReplicatedLinear, n, k, bias=bias)
    assert layer.quant_method.w8a8_block_fp8_linear.__name__ == "deepgemm_w8a8_block_fp8_linear_with_fallback"
    weight = torch.randn(n, k, dtype=torch.bfloat16)
    b = fp8gemm.quantize_weight(weight)
    layer.weight.data.copy_(b[0])
    layer.weight_scale_inv.data.copy_(b[1])
    if bias:
        layer.bias.data.normal_()
    layer.quant_method.process_weights_after_loading(layer)
    added = layer.bias.data if bias else torch.zeros(n, dtype=torch.bfloat16)
    for shape in ((1,), (7,), (3, 5), (0,)):
        x = torch.randn(*shape, k, dtype=torch.bfloat16)
        out, _ = layer(x)
        a = sglang_per_token_group_quant_fp8(x.view(-1, k), 128)
        assert out.dtype is torch.bfloat16 and torch.equal(out, fp8gemm.gemm(*a, *b).view(*shape, n) + added)
        assert not len(x) or ours.calc_diff(out.float(), x.float() @ weight.float().T + added) < 2e-3
    assert {name for name, _ in asked} == {"fp8_gemm_nt"}


def test_a_layer_of_other_sizes_does_without(asked: list[Any]) -> None:
    layer = made(ReplicatedLinear, 72, 128, bias=False)
    layer(torch.randn(2, 128, dtype=torch.bfloat16))
    assert not asked


def experts(count: int, hidden: int, inner: int, top_k: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """SGLang's layer of experts, and the weights that its codes are of."""
    checkpoint = Fp8Config(True, "dynamic", weight_block_size=[128, 128])
    sizes = {"num_experts": count, "hidden_size": hidden, "intermediate_size": inner, "top_k": top_k}
    layer = FusedMoE(
        **sizes, layer_id=0, params_dtype=torch.bfloat16, quant_config=checkpoint, prefix="experts", inplace=False
    )
    weights = []
    for codes, scales in ((layer.w13_weight, layer.w13_weight_scale_inv), (layer.w2_weight, layer.w2_weight_scale_inv)):
        weights.append(torch.randn(codes.shape, dtype=torch.bfloat16) * 0.1)
        for group, weight in enumerate(weights[-1]):
            found = fp8gemm.quantize_weight(weight)
            codes.data[group], scales.data[group] = found
    layer.quant_method.process_weights_after_loading(layer)
    return layer, weights[0].float(), weights[1].float()


@pytest.mark.parametrize(("layout", "product"), [("masked", PRODUCTS[2]), ("compact", PRODUCTS[1])])
def test_experts_of_sglang(layout: str, product: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dispatch, its runner for DeepGEMM in both layouts, its combination."""
    monkeypatch.setenv("SGLANG_DEEPGEMM_STANDARD_LAYOUT", layout)
    layer, first, second = experts(4, 256, 384, 2)
    assert layer.quant_method.runner.runner_backend.is_deep_gemm()
    x, weights = torch.randn(9, 256, dtype=torch.bfloat16), torch.rand(9, 2)
    chosen = torch.stack([torch.randperm(3)[:2] for _ in range(9)]).int()  # one expert has no tokens
    out = layer(x.clone(), StandardTopKOutput(weights, chosen, None))
    wanted = torch.zeros(9, 256)
    for token, of_token in enumerate(chosen.tolist()):
        for expert, weight in zip(of_token, weights[token], strict=True):
            gate, up = (first[expert] @ x[token].float()).chunk(2)
            wanted[token] += weight * (second[expert] @ (torch.nn.functional.silu(gate) * up))
    assert out.dtype is torch.bfloat16 and ours.calc_diff(out.float(), wanted) < 4e-3
    assert [name for name, _ in asked] == [product] * 2


def test_the_benchmark_makes_a_layer_by_sglangs_own_choice(asked: list[Any]) -> None:
    operands = Operands.random(5, 192, 256, torch.Generator("cuda" if ON_GPU else "cpu").manual_seed(7))
    assert relative_error(engine.sglang_layer(operands)(), operands.product()) < MAX_RELATIVE_ERROR
    assert len(asked) == 1


@pytest.fixture
def precompiled(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """SGLang's precompilation, turned on, of products that are noted and not computed."""
    for name in PRODUCTS:
        note = lambda *operands, _name=name, **options: asked.append((_name, (operands, options)))  # noqa: E731
        monkeypatch.setattr(entrypoint.deep_gemm, name, note)
    monkeypatch.setattr(compile_utils, "_ENABLE_JIT_DEEPGEMM_PRECOMPILE", True)
    monkeypatch.setattr(compile_utils, "_BUILTIN_M_LIST", list(range(1, 301)))
    monkeypatch.setattr(compile_utils, "get_available_gpu_memory", lambda **_: 64)
    if not ON_GPU:
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(compile_utils, "_INITIALIZATION_DICT", {})
    yield asked


def test_sglangs_precompilation_finds_its_dense_products_ready(precompiled: list[Any]) -> None:
    """Every M it asks for has a kernel among those that a warmup of ours compiles, and there are few."""
    n, k = 192, 384
    a, b, out = rows(5, k), blocks(n, k), torch.empty(5, n, dtype=torch.bfloat16)
    wrapper.gemm_nt_f8f8bf16(a, b, out)
    asked = [len(operands[2]) for _, (operands, _) in precompiled]
    assert asked == [*range(1, 301), 5]
    (chip,) = chips_named("h200")
    ready = demand(Variants().problems(n, k, 300), [chip]).requests
    wanted = {kernel_request(each, ranked(each, chip)[0]) for each in (packed_problem(m, n, k) for m in asked)}
    assert wanted <= {*ready} and len(wanted) < 30


def test_sglangs_precompilation_finds_its_grouped_products_ready(precompiled: list[Any]) -> None:
    groups, n, k = 4, 192, 384
    b, counts = blocks(groups, n, k), torch.zeros(groups, dtype=torch.int32)
    wrapper.grouped_gemm_nt_f8f8bf16_contig(
        rows(256, k), b, torch.empty(256, n, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.int32)
    )
    wrapper.grouped_gemm_nt_f8f8bf16_masked(
        rows(groups, 8, k), b, torch.empty(groups, 8, n, dtype=torch.bfloat16), counts, 3
    )
    contiguous = [len(operands[2]) for name, (operands, _) in precompiled if name == PRODUCTS[1]]
    assert contiguous == [128, 256, 256]
    expected = [options.get("expected_m", 3) for name, (_, options) in precompiled if name == PRODUCTS[2]]
    assert expected == [*range(1, 301), 3]
    (chip,) = chips_named("h200")
    ready = demand(GroupedVariants().problems(groups, n, k, 300), [chip]).requests
    problems = [grouped_problem(Grouping.CONTIGUOUS, groups, -(-m // groups), n, k) for m in contiguous]
    problems += [grouped_problem(Grouping.MASKED, groups, m, n, k) for m in expected]
    assert {kernel_request(each, ranked(each, chip)[0]) for each in problems} <= {*ready}
