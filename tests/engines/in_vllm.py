"""vLLM's FP8 layers on fp8gemm: which kernel it chooses, what it computes, what is left to vLLM's own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import vllm.config
import vllm.envs as envs
from vllm.model_executor.kernels.linear import DeepGemmFp8BlockScaledMMKernel
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.platforms.interface import DeviceCapability

import fp8gemm
from fp8gemm import settings
from fp8gemm.ahead.kernels import Variants, chips_named, demand
from fp8gemm.errors import UnsupportedError
from fp8gemm.integrations import vllm as ours
from fp8gemm.integrations.engines import register_in_vllm
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.bench import engine
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Operands, relative_error
from fp8gemm.tuning.problem import packed_problem
from fp8gemm.tuning.select import select_config
from tests import folding
from tests.cases import SCALE_DTYPES
from tests.engines.vllm_on_cpu import HopperOnCpu, configured

CHECKPOINT = {"is_checkpoint_fp8_serialized": True, "activation_scheme": "dynamic"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with settings.scope(engines=True), configured(), torch.no_grad():
        register_in_vllm()
        yield


def of_block(*block: int) -> Fp8Config:
    return Fp8Config(**CHECKPOINT, weight_block_size=list(block))


def filled(layer: Any, seed: int = 0) -> torch.Tensor:
    """The layer with a checkpoint's values in it, as vLLM's loader leaves them; the weight that they stand for."""
    torch.manual_seed(seed)
    weight = torch.randn(layer.weight.shape, dtype=torch.bfloat16)
    codes, scales = fp8gemm.quantize_weight(weight)
    layer.weight.data.copy_(codes)
    layer.weight_scale_inv.data.copy_(scales)
    if layer.bias is not None:
        layer.bias.data.normal_()
    layer.quant_method.process_weights_after_loading(layer)
    return weight


def layer_of(n: int, k: int, dtype: torch.dtype = torch.bfloat16, block: int = 128, **options: Any) -> Any:
    torch.set_default_dtype(dtype)  # as vLLM does while it makes a model
    try:
        return ReplicatedLinear(k, n, params_dtype=dtype, quant_config=of_block(block, block), prefix="p", **options)
    finally:
        torch.set_default_dtype(torch.float32)


def kernel_of(layer: Any) -> str:
    return type(layer.quant_method.fp8_linear).__name__


def test_it_is_first_of_vllms_list() -> None:
    found = ours.linear_kernel()
    assert found.registered and not found.problem and found.ahead_of[0].startswith("FlashInfer")
    assert len(found.ahead_of) == 8


@pytest.mark.parametrize("n", [1, 72, 128, 200])
@pytest.mark.parametrize("k", [16, 128, 272])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_of_vllm_computes_what_ours_does(n: int, k: int, bias: bool) -> None:
    layer = layer_of(n, k, bias=bias)
    assert kernel_of(layer) == ours.KERNEL
    weight = filled(layer)
    assert layer.weight.shape == (n, k) and layer.weight_scale_inv.dtype is torch.float32
    like = fp8gemm.nn.Fp8Linear.from_quantized(
        layer.weight.data, layer.weight_scale_inv.data, None if layer.bias is None else layer.bias.data
    )
    for shape in ((0,), (1,), (7,), (33,), (3, 5), (0, 5), (2, 0)):
        x = torch.randn(*shape, k, dtype=torch.bfloat16)
        out = layer(x)[0]
        assert out.dtype is torch.bfloat16 and out.shape == (*shape, n) and torch.equal(out, like(x))
    exact = x.new_tensor(torch.randn(64, k).tolist())
    wanted = exact.float() @ weight.float().T + (0 if layer.bias is None else layer.bias.float())
    assert fp8gemm.integrations.deep_gemm.calc_diff(layer(exact)[0].float(), wanted) < 2e-3
    assert torch.equal(layer(x.new_zeros(2, k)[:, ::1])[0], layer(x.new_zeros(4, k)[::2])[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    with configured(dtype=dtype):
        layer = layer_of(136, 256, dtype, bias=True)
    assert kernel_of(layer) == ours.KERNEL
    weight = filled(layer)
    x = torch.randn(5, 256, dtype=dtype)
    out = layer(x)[0]
    assert out.dtype is dtype and layer.bias.dtype is dtype
    wanted = x.float() @ weight.float().T + layer.bias.float()
    assert fp8gemm.integrations.deep_gemm.calc_diff(out.float(), wanted) < 2e-3


def test_merged_and_parallel_layers() -> None:
    torch.set_default_dtype(torch.bfloat16)
    merged = QKVParallelLinear(256, 128, 2, 1, bias=True, quant_config=of_block(128, 128), prefix="qkv")
    column = ColumnParallelLinear(256, 192, bias=False, quant_config=of_block(128, 128), prefix="column")
    torch.set_default_dtype(torch.float32)
    for layer in (merged, column):
        assert kernel_of(layer) == ours.KERNEL
        weight = filled(layer)
        x = torch.randn(9, 256, dtype=torch.bfloat16)
        wanted = x.float() @ weight.float().T + (0 if layer.bias is None else layer.bias.float())
        assert fp8gemm.integrations.deep_gemm.calc_diff(layer(x)[0].float(), wanted) < 2e-3


def test_torch_compile_sees_operators() -> None:
    layer = layer_of(200, 256, bias=True)
    filled(layer)
    seen: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(lambda x: layer(x)[0], fullgraph=True, backend=backend, dynamic=True)
    for rows in (3, 5, 64):
        x = torch.randn(rows, 256, dtype=torch.bfloat16)
        assert torch.equal(compiled(x), layer(x)[0])
    assert [name for name in seen if "fp8gemm" in name] == ["fp8gemm.quantize_activation", "fp8gemm.gemm"]


def test_scales_of_powers_of_two_are_widened() -> None:
    config = of_block(128, 128)
    config.is_scale_e8m0 = True
    torch.set_default_dtype(torch.bfloat16)
    layer = ReplicatedLinear(256, 136, bias=False, quant_config=config, prefix="p")
    torch.set_default_dtype(torch.float32)
    weight = torch.randn(136, 256)
    codes, scales = fp8gemm.integrations.deep_gemm.per_block_cast_to_fp8(weight, True)
    layer.weight.data.copy_(codes)
    layer.weight_scale_inv.data = scales.to(torch.float8_e8m0fnu)
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.weight_scale_inv.dtype is torch.float32 and torch.equal(layer.weight_scale_inv, scales)
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    assert fp8gemm.integrations.deep_gemm.calc_diff(layer(x)[0].float(), x.float() @ weight.T) < 2e-3


@pytest.mark.parametrize("dtype", SCALE_DTYPES, ids=str)
def test_scales_of_32x32_blocks_are_folded_once(dtype: torch.dtype) -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import get_and_maybe_dequant_weights

    config = of_block(32, 32)
    config.is_scale_e8m0 = dtype.itemsize == 1
    torch.set_default_dtype(torch.bfloat16)
    layer = MergedColumnParallelLinear(272, [96, 160], bias=False, quant_config=config, prefix="p")
    torch.set_default_dtype(torch.float32)
    assert kernel_of(layer) == ours.KERNEL and layer.weight_scale_inv.shape == (8, 9)
    codes, scales = folding.weight(256, 272, 4, seed=1)
    layer.weight.data.copy_(codes)
    layer.weight_scale_inv.data = scales.to(dtype)
    layer.quant_method.process_weights_after_loading(layer)
    like = fp8gemm.nn.Fp8Linear.from_quantized(codes, scales, block_size=(32, 32))
    assert torch.equal(layer.weight_scale_inv, like.weight_scale_inv) and layer.weight_scale_inv.shape == (2, 3)
    x = torch.randn(5, 272, dtype=torch.bfloat16)
    assert torch.equal(layer(x)[0], like(x))
    found = get_and_maybe_dequant_weights(layer, torch.float32)
    exact = folding.values(codes, scales, folding.SMALL)
    assert (found.double() - exact).norm() < 2e-5 * exact.norm()
    scales[1, 1] = 0.3
    layer = layer_of(256, 272, block=32, bias=False)
    layer.weight.data.copy_(codes)
    layer.weight_scale_inv.data = scales
    with pytest.raises(fp8gemm.InputError, match=r"^weight_scale_inv: expected positive powers .* block \(1, 1\)"):
        layer.quant_method.process_weights_after_loading(layer)


def test_batch_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    product = importlib.import_module("fp8gemm.integrations.vllm.linear").traced_linear
    monkeypatch.setattr(
        "fp8gemm.integrations.vllm.linear.traced_linear",
        lambda *args, **options: asked.append(options) or product(*args, **options),
    )
    for wanted in (None, True):
        monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", bool(wanted), raising=False)
        layer = layer_of(128, 128, bias=False)
        filled(layer)
        layer(torch.randn(3, 128, dtype=torch.bfloat16))
        assert asked[-1] == {"batch_invariant": wanted, "static_weights": True}


def test_what_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "VLLM_DISABLED_KERNELS", [ours.KERNEL], raising=False)
    assert kernel_of(layer_of(128, 256, bias=False)) == DeepGemmFp8BlockScaledMMKernel.__name__
    monkeypatch.undo()
    with configured() as config:
        config.kernel_config.linear_backend = "deep_gemm"
        assert kernel_of(layer_of(128, 256, bias=False)) == DeepGemmFp8BlockScaledMMKernel.__name__
        config.kernel_config.linear_backend = "auto"
        assert kernel_of(layer_of(128, 256, bias=False)) == ours.KERNEL
    monkeypatch.setattr(HopperOnCpu, "get_device_capability", classmethod(lambda cls, _=0: DeviceCapability(10, 0)))
    assert kernel_of(layer_of(128, 256, bias=False)) != ours.KERNEL


def test_a_weight_for_a_batched_product_is_left_as_deepgemm_has_it() -> None:
    layer = layer_of(256, 256, bias=False)
    layer.is_bmm, layer.bmm_batch_size = True, 2
    filled(layer)
    assert layer.weight.shape == (2, 128, 256) and layer.weight_scale_inv.shape == (2, 1, 2)


def test_an_attention_that_wants_the_weight_itself_gets_it() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import get_and_maybe_dequant_weights

    layer = layer_of(128, 256, bias=False)
    weight = filled(layer)
    found = get_and_maybe_dequant_weights(layer, torch.bfloat16)
    assert found.shape == (128, 256) and fp8gemm.integrations.deep_gemm.calc_diff(found.float(), weight.float()) < 1e-3


def test_the_graphs_that_vllm_keeps_are_known_apart() -> None:
    with_ours = envs.compile_factors()
    ours.unregister()
    assert with_ours.pop("FP8GEMM_ENGINES") and envs.compile_factors() == with_ours


def test_the_benchmark_makes_a_layer_by_vllms_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = Operands.random(5, 136, 256, torch.Generator().manual_seed(7))
    with configured() as config:
        monkeypatch.setattr(vllm.config, "VllmConfig", lambda **_: config)
        calls = [engine.vllm_layer(operands), engine.KERNELS["vllm"][0].prepare(operands)]
        for call in calls:
            assert relative_error(call(), operands.product()) < MAX_RELATIVE_ERROR
        with pytest.raises(UnsupportedError, match="where FlashInferFp8BlockScaledMMKernel was asked for"):
            engine.KERNELS["vllm"][3].prepare(operands)


def test_vllms_warmup_finds_all_its_products_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes by layers of our kernel; of others it asks for no kernel that a warmup of ours has not."""
    warmup = importlib.import_module("vllm.model_executor.warmup.deep_gemm_warmup")
    monkeypatch.setattr(envs, "VLLM_DEEP_GEMM_WARMUP", "full", raising=False)
    rows, (n, k) = 300, (256, 384)
    ours_alone = layer_of(n, k, bias=False)
    filled(ours_alone)
    assert warmup._count_warmup_iterations(ours_alone, rows) == 0
    with configured() as config:
        config.kernel_config.linear_backend = "deep_gemm"
        layer = layer_of(n, k, bias=False)
    filled(layer)
    asked = warmup._get_fp8_gemm_nt_m_values(layer.weight, rows)
    assert warmup._count_warmup_iterations(layer, rows) == len(asked) == rows
    (chip,) = chips_named("h200")
    ready = demand(Variants().problems(n, k, rows), [chip]).requests
    products = [packed_problem(m, n, k) for m in asked]
    missing = {kernel_request(each, select_config(each, chip)) for each in products} - {*ready}
    assert not missing
