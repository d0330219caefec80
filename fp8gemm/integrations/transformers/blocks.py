"""Scales of the library's layers that are for smaller blocks than 128x128: folded, and the model's config with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn.experts_shape import SCALES
from fp8gemm.nn.moving import here
from fp8gemm.products.folding import Names, fold_named
from fp8gemm.scales import OF_WEIGHTS, Blocks, weight_blocks


class Operand(NamedTuple):
    """A weight, and scales of its 128x128 blocks.

    Attributes:
        error: that of `fp8gemm.Folded`, None where scales are those that there were.
    """

    codes: Tensor
    scales: Tensor
    error: float | None


def blocks_of(module: Any) -> Blocks | None:
    """Those that the scales of a layer of the library's are for; None if no 128x128 ones can be made of them."""
    try:
        return weight_blocks("block_size", module.block_size)
    except InputError:
        return None


def operand_of(module: Any, name: str, requantize: bool) -> Operand:
    """What this rank multiplies by, of a layer's or block's weight called ``name``, whose blocks `blocks_of` knows.

    Raises:
        InputError: its scales cannot be folded; the message begins with a name.
    """
    blocks = blocks_of(module)
    codes, scales = (here(module._parameters[each]).detach() for each in (name, name + SCALES))
    if blocks is None or blocks == OF_WEIGHTS:
        return Operand(codes, scales, None)
    folded = fold_named(codes, scales, blocks, requantize, Names(name, name + SCALES))
    return Operand(folded.codes, folded.scales, folded.error)


def settle_config(model: nn.Module, left: Iterable[Any]) -> None:
    """The model's config says float32 scales of 128x128 blocks, so that what `save_pretrained` writes is what there is.

    Args:
        model: of whose layers some were folded.
        left: those with FP8 weights that were not replaced. Beside one of other blocks no config describes the model,
            and `save_pretrained` raises an `InputError`.
    """
    remain = [module for module in left if getattr(module, "block_size", (128, 128)) not in ((128, 128), [128, 128])]
    if remain:
        for part in model.modules():
            quantizer: Any = getattr(part, "hf_quantizer", None)
            if quantizer is not None:
                quantizer.get_state_dict_and_metadata = _refuse_to_save
        return
    for each in _quantizations(model):
        for name, value in (("weight_block_size", (128, 128)), ("scale_fmt", "float")):
            if isinstance(each, dict):
                each[name] = value
            elif hasattr(each, name):
                setattr(each, name, value)


def _refuse_to_save(*args: Any, **options: Any) -> Any:
    raise InputError(
        "quantization_config: save_pretrained has none for a model of which some layers were left with scales of other "
        "blocks than 128x128; save it with torch.save"
    )


def _quantizations(model: nn.Module) -> Iterator[Any]:
    """What configs and quantisers of the library's models say of how they are quantised, each once."""
    found: dict[int, Any] = {}
    for part in model.modules():
        for holder in (getattr(part, "config", None), getattr(part, "hf_quantizer", None)):
            text = getattr(holder, "get_text_config", lambda: None)()
            for each in (holder, text):
                quantization = getattr(each, "quantization_config", None)
                if quantization is not None:
                    found[id(quantization)] = quantization
    yield from found.values()
