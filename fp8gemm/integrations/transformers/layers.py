"""The FP8 linear layers of a loaded model, turned into fp8gemm's."""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError, UnsupportedDeviceError
from fp8gemm.integrations.transformers.kernel import BLOCK_SIZE, unserved_device
from fp8gemm.integrations.transformers.library import fp8_layers
from fp8gemm.nn import Conversion, ConvertedLayer, Fp8Linear, SkippedLayer

_NONE_FOUND = (
    "model: expected FP8 layers of transformers (FP8Linear), got none. Without a GPU, and with dequantize=True, "
    "from_pretrained makes layers of full precision out of FP8 weights; load_quantized does not. A model that is not "
    "quantised is for fp8gemm.nn.convert"
)


def use_fp8gemm(model: nn.Module, *, max_m: int = 16384, batch_invariant: bool | None = None) -> Conversion:
    """Turn the FP8 linear layers of a loaded transformers model into `fp8gemm.nn.Fp8Linear`, in place.

    The new layers keep the weights, not copies, and the names and shapes of the model's state dict; scales that are not
    float32 are widened. They are for inference: call the model under ``torch.no_grad()``, as ``generate`` does.

    Left alone, and reported, are experts and other modules with FP8 weights that are no plain linear layer; layers
    with blocks other than 128x128, static activation scales, a K that is no multiple of 16 or a weight that was not
    quantised; sharded and offloaded weights; and layers with hooks, except those by which accelerate moves inputs
    from GPU to GPU. All layers are checked before any is replaced.

    Args:
        model: as ``from_pretrained`` returns it, with FineGrainedFP8Config or from a block-FP8 checkpoint.
        max_m, batch_invariant: as in `fp8gemm.nn.Fp8Linear`.

    Returns:
        What was converted, what was not and why. A second call finds nothing left to do.

    Raises:
        InputError: no such layer at all, or scales that do not fit their weight, are not finite, are negative or were
            never computed; the message names the parameter.
        UnsupportedDeviceError: weights are on a GPU that is not Hopper.
        UnsupportedError: transformers is missing or too old.
    """
    linear_class = fp8_layers().FP8Linear
    if isinstance(model, linear_class):
        raise InputError("model: expected a module that holds layers, got a layer; use fp8gemm.nn.Fp8Linear")
    before = _model_bytes(model)
    replacements: dict[nn.Module, Fp8Linear] = {}
    converted: list[ConvertedLayer] = []
    skipped: list[SkippedLayer] = []
    whole_blocks = not getattr(getattr(model, "hf_quantizer", None), "pre_quantized", True)
    done = False
    for name, module in model.named_modules():
        done = done or isinstance(module, Fp8Linear)
        if not _has_fp8_weights(module, linear_class):
            continue
        reason = _reason_to_leave(module, linear_class)
        if reason:
            skipped.append(SkippedLayer(name, reason))
            continue
        if whole_blocks:
            _check_whole_blocks(name, module)
        layer = _layer(name, module, max_m, batch_invariant)
        sizes = _own_bytes(module), _own_bytes(layer)
        converted.append(ConvertedLayer(name, layer.in_features, layer.out_features, *sizes))
        replacements[module] = layer
    if not (converted or skipped or done):
        raise InputError(_NONE_FOUND)
    _replace(model, replacements)
    return Conversion(tuple(converted), tuple(skipped), before, _model_bytes(model))


def _has_fp8_weights(module: nn.Module, linear_class: Any) -> bool:
    if isinstance(module, Fp8Linear):
        return False
    own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return isinstance(module, linear_class) or any(tensor.dtype == torch.float8_e4m3fn for tensor in own)


def _reason_to_leave(module: Any, linear_class: Any) -> str:
    """Why a module with FP8 weights stays as it is, empty if it is to be replaced."""
    if type(module) is not linear_class:
        return f"it is a {type(module).__name__}, no plain linear layer"
    weight = module.weight
    if type(weight) not in (Tensor, nn.Parameter):
        return f"its weight is sharded ({type(weight).__name__})"
    if weight.is_meta or getattr(getattr(module, "_hf_hook", None), "offload", False):
        return "its weight is offloaded or not loaded"
    if weight.dtype != torch.float8_e4m3fn:
        return f"its weight is {weight.dtype}"
    if module.block_size is None or tuple(module.block_size) != BLOCK_SIZE:
        return f"its scales are for blocks of {module.block_size}, not {BLOCK_SIZE}"
    if module.activation_scheme != "dynamic":
        return f"its activation scales are {module.activation_scheme}"
    if weight.shape[1] % 16:
        return "K is not a multiple of 16"
    # An accelerate hook sits in a forward of the module's own.
    own_forward = "forward" in vars(module) and not hasattr(module, "_hf_hook")
    if module._forward_hooks or module._forward_pre_hooks or own_forward:
        return "it has hooks or a forward of its own"
    return ""


def _check_whole_blocks(name: str, module: Any) -> None:
    """A layer that was quantised as it was loaded has nothing but whole blocks.

    NOTE: where they do not fit, transformers 5.17 casts the weight to FP8 with no scale at all and leaves that of the
    layer as memory was found. Later releases keep such a weight as it is.
    """
    if any(size % block for size, block in zip(module.weight.shape, BLOCK_SIZE, strict=True)):
        raise InputError(
            f"{name}.weight_scale_inv: expected scales, got none: FineGrainedFP8Config quantises only sizes that are "
            f"multiples of {BLOCK_SIZE[0]}, and of this weight, {tuple(module.weight.shape)}, it made codes without "
            "scales. Name the layer in its modules_to_not_convert, or use fp8gemm.nn.convert on the original model"
        )


def _layer(name: str, module: Any, max_m: int, batch_invariant: bool | None) -> Fp8Linear:
    """The layer that takes the place of ``module``.

    Raises:
        InputError: its scales cannot be right; the message names the parameter.
        UnsupportedDeviceError: its GPU is not Hopper.
    """
    problem = unserved_device(module.weight.device)
    if problem:
        raise UnsupportedDeviceError(problem)
    try:
        layer = Fp8Linear.from_quantized(
            module.weight, module.weight_scale_inv, module.bias, max_m=max_m, batch_invariant=batch_invariant
        )
    except InputError as error:
        raise InputError(f"{name}.{error}") from None
    scales = layer.weight_scale_inv
    # What a loader leaves of scales that a checkpoint lacks is any memory.
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise InputError(f"{name}.weight_scale_inv: expected finite multipliers of at least 0, got others among them")
    return layer.train(module.training)


def _replace(model: nn.Module, replacements: dict[nn.Module, Fp8Linear]) -> None:
    for module, layer in replacements.items():
        hook = getattr(module, "_hf_hook", None)
        if hook is not None:
            import_module("accelerate.hooks").add_hook_to_module(layer, hook)
    for parent in list(model.modules()):
        for attribute, child in parent._modules.items():
            if child in replacements:
                setattr(parent, attribute, replacements[child])


def _own_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.parameters(recurse=False))


def _model_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
