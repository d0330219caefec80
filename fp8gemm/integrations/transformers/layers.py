"""The FP8 linear layers and experts of a loaded model, put on fp8gemm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError, UnsupportedDeviceError
from fp8gemm.integrations.transformers import experts
from fp8gemm.integrations.transformers.blocks import Operand, blocks_of, operand_of, settle_config
from fp8gemm.integrations.transformers.kernel import unserved_device
from fp8gemm.integrations.transformers.library import fp8_layers
from fp8gemm.nn import Conversion, ConvertedLayer, Fp8Experts, Fp8Linear, SkippedLayer
from fp8gemm.nn.checkpoint import WEIGHT
from fp8gemm.nn.experts_shape import DOWN, GATE_UP, SCALES
from fp8gemm.nn.moving import here
from fp8gemm.scales import OF_WEIGHTS

_NONE_FOUND = (
    "model: expected FP8 layers of transformers (FP8Linear, FP8Experts), got none. Without a GPU, and with "
    "dequantize=True, from_pretrained makes layers of full precision out of FP8 weights; load_quantized does not. A "
    "model that is not quantised is for fp8gemm.nn.convert"
)


def use_fp8gemm(
    model: nn.Module, *, requantize: bool = False, max_m: int = 16384, batch_invariant: bool | None = None
) -> Conversion:
    """Put the FP8 linear layers and experts of a loaded transformers model on fp8gemm, in place.

    Linear layers become `fp8gemm.nn.Fp8Linear`. Experts stay that library's blocks, and compute by grouped products.
    Weights are kept, not copied, and so are the names and shapes of the model's state dict; scales that are not
    float32 are widened. Scales of smaller blocks, 32x32 say, become those of 128x128 (`fp8gemm.fold_scales`), which the
    model's config says from then on. All is for inference: call the model under ``torch.no_grad()``, as ``generate``
    does.

    Of a model whose layers ranks share (``tp_plan``, expert plans), each rank calls it, and multiplies its own parts.
    The new linear layers are those that `fp8gemm.parallel` divides; what they and experts send stays what it was.

    Left alone, and reported, are other modules with FP8 weights; layers with blocks that no 128x128 ones can be made
    of, or smaller ones where ranks share the weight; static activation scales, a K that is no multiple of 16 or a
    weight that was not quantised; experts whose gate is not SiLU's; weights that are offloaded, or sharded by FSDP; and
    layers with hooks, except those by which accelerate moves inputs from GPU to GPU. All is checked before anything is
    replaced.

    Args:
        model: as ``from_pretrained`` returns it, with FineGrainedFP8Config or from a block-FP8 checkpoint.
        requantize: as in `fp8gemm.fold_scales`, for scales of smaller blocks.
        max_m, batch_invariant: as in `fp8gemm.nn.Fp8Linear`.

    Returns:
        What was converted, what was not and why. A second call finds nothing left to do.

    Raises:
        InputError: no such layer at all; scales that do not fit their weight, are not finite, are negative, were never
            computed or cannot be folded; or blocks of scales that are cut where ranks share a layer. The message names
            the parameter or layer, and a number of ranks that cuts none.
        UnsupportedDeviceError: weights are on a GPU that is not Hopper.
        UnsupportedError: transformers is missing or too old.
    """
    library = fp8_layers()
    if isinstance(model, library.FP8Linear):
        raise InputError("model: expected a module that holds layers, got a layer; use fp8gemm.nn.Fp8Linear")
    before = _model_bytes(model)
    modules = dict(model.named_modules())
    found = {name: module for name, module in modules.items() if _has_fp8_weights(module, library)}
    reasons = {name: _reason_to_leave(module, library) for name, module in found.items()}
    taken = {name: module for name, module in found.items() if not reasons[name]}
    _check_divided(taken)
    whole_blocks = not getattr(getattr(model, "hf_quantizer", None), "pre_quantized", True)
    replacements: dict[nn.Module, Fp8Linear | Fp8Experts] = {}
    converted: list[ConvertedLayer] = []
    for name, module in taken.items():
        if whole_blocks and isinstance(module, library.FP8Linear):
            _check_whole_blocks(name, module)
        new, errors = _replacement(name, module, requantize, max_m, batch_invariant)
        replacements[module] = new
        converted += _entries(name, module, new, errors)
    if not (found or any(isinstance(module, Fp8Linear) or experts.are_ours(module) for module in modules.values())):
        raise InputError(_NONE_FOUND)
    _replace(model, replacements)
    if any(layer.fold_error is not None for layer in converted):
        settle_config(model, [module for name, module in found.items() if reasons[name]])
    skipped = tuple(SkippedLayer(name, reason) for name, reason in reasons.items() if reason)
    return Conversion(tuple(converted), skipped, before, _model_bytes(model))


def _has_fp8_weights(module: nn.Module, library: Any) -> bool:
    if isinstance(module, Fp8Linear) or experts.are_ours(module):
        return False
    own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return isinstance(module, library.FP8Linear) or any(tensor.dtype == torch.float8_e4m3fn for tensor in own)


def _reason_to_leave(module: Any, library: Any) -> str:
    """Why a module with FP8 weights stays as it is, empty if it does not."""
    kinds = {library.FP8Linear: _reason_to_leave_linear, library.FP8Experts: experts.reason_to_leave}
    if type(module) not in kinds:
        return f"it is a {type(module).__name__}, neither a plain linear layer nor experts"
    weight = module.weight if isinstance(module, library.FP8Linear) else module.down_proj
    if weight.is_meta or getattr(getattr(module, "_hf_hook", None), "offload", False):
        return "its weight is offloaded or not loaded"
    if weight.dtype != torch.float8_e4m3fn:
        return f"its weight is {weight.dtype}"
    blocks = blocks_of(module)
    if blocks is None:
        return f"its scales are for blocks of {module.block_size}, of which (128, 128) cannot be made"
    if module.activation_scheme != "dynamic":
        return f"its activation scales are {module.activation_scheme}"
    if _is_sharded(weight) and blocks != OF_WEIGHTS:
        return f"its scales are for blocks of {module.block_size}, and it is sharded ({type(weight).__name__})"
    if _is_sharded(weight) and not _divided().is_known(module):
        return f"its weight is sharded ({type(weight).__name__}), and not by a plan of transformers that is known here"
    return kinds[type(module)](module)


def _reason_to_leave_linear(module: Any) -> str:
    if module.weight.shape[1] % 16:
        return "K is not a multiple of 16"
    # An accelerate hook sits in a forward of the module's own, and so does what a plan puts around it.
    own_forward = "forward" in vars(module) and not hasattr(module, "_hf_hook")
    if module._forward_hooks or module._forward_pre_hooks or own_forward and not _divided().is_known(module):
        return "it has hooks or a forward of its own"
    return ""


def _is_sharded(weight: Tensor) -> bool:
    return type(weight) not in (Tensor, nn.Parameter)


def _divided() -> Any:
    """The module for layers that ranks share, which takes a while to import."""
    return import_module("fp8gemm.integrations.transformers.divided")


def _check_divided(modules: Mapping[str, nn.Module]) -> None:
    """Ranks have whole scale blocks of every layer that they share.

    Raises:
        InputError: they have not.
    """
    shared = {name: module for name, module in modules.items() if any(map(_is_sharded, module.parameters(False)))}
    if shared:
        _divided().check_whole_blocks_of(shared)


def _check_whole_blocks(name: str, module: Any) -> None:
    """A layer that was quantised as it was loaded has nothing but whole blocks.

    NOTE: where they do not fit, transformers 5.17 casts the weight to FP8 with no scale at all and leaves that of the
    layer as memory was found. Later releases keep such a weight as it is.
    """
    if any(size % block for size, block in zip(module.weight.shape, module.block_size, strict=True)):
        raise InputError(
            f"{name}.weight_scale_inv: expected scales, got none: FineGrainedFP8Config quantises only sizes that are "
            f"multiples of {module.block_size[0]}, and of this weight, {tuple(module.weight.shape)}, it made codes "
            "without scales. Name the layer in its modules_to_not_convert, or use fp8gemm.nn.convert on the original "
            "model"
        )


def _replacement(
    name: str, module: Any, requantize: bool, max_m: int, batch_invariant: bool | None
) -> tuple[Fp8Linear | Fp8Experts, list[float | None]]:
    """The layer that takes the place of ``module``, or the block that computes for it; and what folding moved its
    weights by, None where there was nothing to fold.

    Raises:
        InputError: its scales cannot be right; the message names the parameter.
        UnsupportedDeviceError: its GPU is not Hopper.
    """
    weight, *_ = module.parameters(recurse=False)
    problem = unserved_device(weight.device)
    if problem:
        raise UnsupportedDeviceError(problem)
    made: Fp8Linear | Fp8Experts
    operands: list[Operand] = []
    options: dict[str, Any] = {"max_m": max_m, "batch_invariant": batch_invariant}
    try:
        if not isinstance(module, fp8_layers().FP8Linear):
            operands = [operand_of(module, each, requantize) for each in (GATE_UP, DOWN)]
            made = experts.block_around(operands, batch_invariant)
        elif _is_sharded(weight):
            made = _divided().layer_around(module, **options)
        else:
            operands = [operand_of(module, WEIGHT, requantize)]
            made = Fp8Linear.from_quantized(operands[0].codes, operands[0].scales, module.bias, **options)
    except InputError as error:
        raise InputError(f"{name}.{error}") from None
    for each, scales in made.named_parameters():
        part = here(scales)
        # What a loader leaves of scales that a checkpoint lacks is any memory.
        if each.endswith(SCALES) and not bool((part.isfinite() & (part >= 0)).all()):
            raise InputError(f"{name}.{each}: expected finite multipliers of at least 0, got others among them")
    return made.train(module.training), [operand.error for operand in operands] or [None]


def _entries(
    name: str, module: Any, new: Fp8Linear | Fp8Experts, errors: Sequence[float | None]
) -> list[ConvertedLayer]:
    """What the report says of a layer, or of the products of a block."""
    if isinstance(new, Fp8Linear):
        sizes = new.in_features, new.out_features, _own_bytes(module), _own_bytes(new)
        return [ConvertedLayer(name, *sizes, errors[0])]
    entries = []
    for weight, error in zip((GATE_UP, DOWN), errors, strict=True):
        codes, scales = (module._parameters[each] for each in (weight, weight + SCALES))
        _, n, k = codes.shape
        # NOTE: widened, if not folded; this rank's, of all that ranks share.
        counts = scales.numel() if error is None else getattr(new, weight + SCALES).numel()
        entries.append(
            ConvertedLayer(f"{name}.{weight}", k, n, codes.nbytes + scales.nbytes, codes.nbytes + 4 * counts, error)
        )
    return entries


def _replace(model: nn.Module, replacements: dict[nn.Module, Fp8Linear | Fp8Experts]) -> None:
    for module, layer in replacements.items():
        if isinstance(layer, Fp8Experts):
            experts.use_block(module, layer)
            continue
        hook = getattr(module, "_hf_hook", None)
        if hook is not None:
            import_module("accelerate.hooks").add_hook_to_module(layer, hook)
    for parent in list(model.modules()):
        for attribute, child in parent._modules.items():
            new = None if child is None else replacements.get(child)
            if isinstance(new, Fp8Linear):
                setattr(parent, attribute, new)


def _own_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.parameters(recurse=False))


def _model_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
