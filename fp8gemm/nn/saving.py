"""What transformers writes beside the weights of a converted model, so that it loads them again as what they are.

Its `save_pretrained` asks a model's quantiser before it writes anything. There a ``quantization_config`` is made of the
layers as they are then, in the form that its fine-grained FP8 quantiser reads, or the model refused.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import nn

from fp8gemm.errors import InputError
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.linear import Fp8Linear
from fp8gemm.quoting import quoted

HEAD = "lm_head"
"""What transformers calls the layer from hidden states to logits."""

_INSTEAD = "save it with torch.save, or leave these layers out of fp8gemm.nn.convert"


def describe_when_saved(model: nn.Module) -> None:
    """Let `save_pretrained` of each transformers model within ``model`` that has `Fp8Linear` layers describe them.

    The description is written into its config now, and anew each time that it is saved. One that cannot be described
    keeps its config, and `save_pretrained` raises an `InputError` before it writes a file. Of other models, and where
    transformers was never imported, nothing changes.
    """
    library = sys.modules.get("transformers.modeling_utils")
    parts = [] if library is None else [part for part in model.modules() if isinstance(part, library.PreTrainedModel)]
    parts = [part for part in parts if any(isinstance(module, Fp8Linear) for module in part.modules())]
    inner = {module for part in parts for module in part.modules() if module is not part}
    try:
        for part in parts:
            part.hf_quantizer = getattr(part, "hf_quantizer", None) or _quantizer()
            part.hf_quantizer.get_state_dict_and_metadata = _before_saving
            # NOTE: a model often shares its config with the one that holds it, whose names for layers count.
            if part not in inner:
                with suppress(InputError):
                    _describe(part)
    except (ImportError, AttributeError):
        text = "this transformers has no such FP8 layers; one of 5.17 or newer has"
        warnings.warn(f"save_pretrained will write FP8 codes that nothing says are such: {text}", stacklevel=3)


def _quantizer() -> Any:
    module = import_module("transformers.quantizers.quantizer_finegrained_fp8")
    return module.FineGrainedFP8HfQuantizer(_config([]))


def _config(left: list[str]) -> Any:
    return import_module("transformers").FineGrainedFP8Config(
        activation_scheme="dynamic", weight_block_size=(128, 128), modules_to_not_convert=left
    )


def _before_saving(model: Any, *args: Any, **options: Any) -> tuple[None, dict[str, str]]:
    """In place of a quantiser's `get_state_dict_and_metadata`: the model's own tensors, and nothing to say of them.

    Raises:
        InputError: no ``quantization_config`` describes the model.
    """
    _describe(model)
    return None, {}


def _describe(model: Any) -> None:
    left = _left(model)
    config = _config(left)
    _check_same_format(getattr(model.config, "quantization_config", None), config)
    for name, module in model.named_modules():
        if isinstance(module, Fp8Experts):
            raise InputError(f"{name}: save_pretrained has no names for the scales of Fp8Experts; {_INSTEAD}")
    if model.dtype == torch.float8_e4m3fn:
        first = next(name for name, _ in model.named_parameters())
        raise InputError(f"{first}: save_pretrained takes a first parameter's dtype for the model's; {_INSTEAD}")
    _check_patterns(model, [*left, *(model._keep_in_fp32_modules or ())])
    model.config.quantization_config = config


def _left(model: nn.Module) -> list[str]:
    """The modules that the FP8 quantiser would make FP8 ones of, and that are not.

    NOTE: a head that was not converted is named even where there is none: this may be the trunk of what is saved.
    """
    left: list[str] = []
    for name, module in model.named_modules():
        within = left and name.startswith(f"{left[-1]}.")
        if not within and (isinstance(module, nn.Linear) or name.endswith(".experts")) and not _is_fp8(module):
            left.append(name)
    heads = (name for name, module in model.named_modules() if isinstance(module, Fp8Linear) and name.endswith(HEAD))
    return left if HEAD in left or any(heads) else [*left, HEAD]


def _is_fp8(module: nn.Module) -> bool:
    return any(tensor.dtype == torch.float8_e4m3fn for tensor in module.parameters(recurse=False))


def _check_same_format(found: Any, config: Any) -> None:
    """What the model was loaded with, if it was quantised then, must be the format of the layers that joined it."""
    if found is None:
        return
    before, now = _fields(found), _fields(config)
    for field in ("quant_method", *sorted(now.keys() - {"quant_method", "modules_to_not_convert"})):
        value = before.get(field, now[field])
        if value != now[field]:
            got = f"layers of {field} {quoted(value)} and of {now[field]!r}"
            raise InputError(f"quantization_config: save_pretrained has none for a model with {got}; {_INSTEAD}")


def _fields(config: Any) -> dict[str, Any]:
    """As config.json has them: lists for tuples, strings for members of enumerations."""
    plain = config if isinstance(config, dict) else config.to_dict()
    fields: dict[str, Any] = json.loads(json.dumps(plain, default=str))
    return fields


def _check_patterns(model: nn.Module, patterns: list[str]) -> None:
    """What names a layer that was left names none that was converted: that library reads patterns, suffixes too."""
    utilities = import_module("transformers.quantizers.quantizers_utils")
    for name, module in model.named_modules():
        if isinstance(module, Fp8Linear) and not utilities.should_convert_module(name, patterns):
            why = next(pattern for pattern in patterns if not utilities.should_convert_module(name, [pattern]))
            raise InputError(
                f"{name}: save_pretrained cannot say that it is FP8: the pattern {quoted(why)}, for what is not, names "
                f"it too; {_INSTEAD}"
            )
