"""Linear layers as serving engines compute them, each by its own choice of kernels."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fp8gemm.errors import UnsupportedError
from fp8gemm.lab.bench.operands import Call, Operands
from fp8gemm.lab.bench.peers import Peer
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.sizes import SCALE_BLOCK

_BLOCK = [SCALE_BLOCK, SCALE_BLOCK]
_VLLM = "vllm.model_executor.kernels.linear"
DEEP_GEMM_IN_VLLM = "vllm_deepgemm"


def vllm_layer(operands: Operands, *, module: str = "", kernel: str = "") -> Call:
    """A layer with the weight, by the kernel that vLLM chooses for it, or by the one of this name in this module.

    Raises:
        UnsupportedError: vLLM says that the kernel of this name cannot serve the layer.

    NOTE: of a weight of its own, because kernels of vLLM may quantise theirs anew, in place.
    """
    keys = import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    config = import_module("vllm.config")
    kernels = import_module(_VLLM)
    codes, scales = (nn.Parameter(each.clone(), requires_grad=False) for each in operands.blocks[2:])
    layer: Any = nn.Module()
    layer.weight, layer.weight_scale_inv, layer.weight_block_size, layer.input_scale = codes, scales, _BLOCK, None
    # NOTE: without this its quantiser is PyTorch's operators, for a compiler that is not here.
    ours = config.VllmConfig(compilation_config=config.CompilationConfig(custom_ops=["+quant_fp8"]))
    model_type = SimpleNamespace(model_type=None)
    ours.model_config = SimpleNamespace(dtype=torch.bfloat16, hf_text_config=model_type, is_moe=False)
    forced = getattr(import_module(module), kernel) if kernel else None
    with config.set_current_vllm_config(ours):
        chosen = kernels.init_fp8_linear_kernel(
            keys.kFp8Dynamic128Sym,
            keys.kFp8Static128BlockSym,
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
            weight_shape=tuple(codes.shape),
            force_kernel=forced,
        )
        if forced is not None and type(chosen) is not forced:
            raise UnsupportedError(f"vLLM has {type(chosen).__name__} for this layer where {kernel} was asked for")
        chosen.process_weights_after_loading(layer)
    return partial(chosen.apply_weights, layer, operands.x)


def sglang_layer(operands: Operands) -> Call:
    """The function that SGLang chooses for a layer with such scales."""
    functions = import_module("sglang.srt.layers.quantization.fp8_utils")
    product: Any = functions.dispatch_w8a8_block_fp8_linear(_BLOCK)
    codes, scales = (each.clone() for each in operands.blocks[2:])
    return partial(product, operands.x, codes, _BLOCK, scales)


def deep_gemm_layer(operands: Operands) -> Call:
    """DeepGEMM's product after our quantiser, because its own is plain PyTorch."""
    product = import_module("deep_gemm").fp8_gemm_nt
    weight = operands.blocks[2:]

    def call() -> torch.Tensor:
        out = operands.empty_product()
        product(quantize_activation(operands.x), weight, out)
        return out

    return call


ENGINES = {
    peer.name: peer
    for peer in (
        Peer(
            "vllm",
            "a linear layer by vLLM's own choice of kernel",
            vllm_layer,
            _VLLM,
            "init_fp8_linear_kernel",
        ),
        Peer(
            "sglang",
            "a linear layer by SGLang's own choice of function",
            sglang_layer,
            "sglang.srt.layers.quantization.fp8_utils",
            "dispatch_w8a8_block_fp8_linear",
        ),
        Peer("deep_gemm", "DeepGEMM's fp8_gemm_nt after our quantiser", deep_gemm_layer, "deep_gemm", "fp8_gemm_nt"),
    )
}


def _on_kernel(name: str, module: str, kernel: str, *, needs: tuple[str, str] | None = None) -> Peer:
    """vLLM's linear layer on a kernel of its list, whichever it would choose; ``needs`` is a module and a name in it,
    without which the kernel is nothing."""
    prepare = partial(vllm_layer, module=module, kernel=kernel)
    return Peer(name, f"a linear layer of vLLM on {kernel}", prepare, *(needs or (module, kernel)))


KERNELS = {
    "vllm": (
        _on_kernel("vllm_fp8gemm", "fp8gemm.integrations.vllm.linear", "Fp8GemmBlockScaledMMKernel"),
        ENGINES["vllm"],
        _on_kernel(DEEP_GEMM_IN_VLLM, _VLLM, "DeepGemmFp8BlockScaledMMKernel"),
        _on_kernel(
            "vllm_flashinfer",
            f"{_VLLM}.scaled_mm.flashinfer",
            "FlashInferFp8BlockScaledMMKernel",
            needs=("flashinfer.gemm", "fp8_blockscale_gemm_sm90"),
        ),
    ),
}
"""By engine: ours behind the engine's own layer, what the engine chooses, and others that it can be told to choose."""
