"""Block-FP8 checkpoints, loaded by that library's own loader with what it lets pass checked first.

Its quantiser turns such a checkpoint into bfloat16 where there is no GPU. And a scale that is missing is memory as it
was found, one that is transposed may be taken as it is, a weight that was never quantised is cast without a scale: all
with a line in a report at most. So the files' headers are read before, and the loader's report after.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.integrations.transformers.layers import use_fp8gemm
from fp8gemm.integrations.transformers.library import library_module
from fp8gemm.nn import Conversion
from fp8gemm.quoting import cut, quoted_path
from fp8gemm.reading import Kind, opened, parse_json, read_json
from fp8gemm.scales import OF_WEIGHTS, Blocks, weight_blocks

_METHOD = "fp8gemm"
_WEIGHT, _SCALE = ".weight", ".weight_scale_inv"
_SCALE_DTYPES = ("F32", "BF16", "F8_E8M0", "U8")
_WEIGHTS = Kind("a .safetensors file", 1 << 44)
_HEADER_LIMIT = 32 << 20
_READ_BY_LOADER = {
    "config.json": 1 << 20,
    "generation_config.json": 1 << 20,
    "adapter_config.json": 1 << 20,
    "model.safetensors.index.json": 64 << 20,
}
"""Limits in bytes."""


@dataclass(frozen=True)
class Header:
    """A tensor as its file's header describes it: safetensors' name of the dtype, and the shape."""

    dtype: str
    shape: tuple[int, ...]


def load_quantized(
    path: str | Path,
    *,
    model_class: Any = None,
    requantize: bool = False,
    max_m: int = 16384,
    batch_invariant: bool | None = None,
    **options: Any,
) -> tuple[Any, Conversion]:
    """Load a block-FP8 checkpoint (DeepSeek-V3's and Qwen3-FP8's format) with its linear layers on fp8gemm.

    Unlike that library's ``from_pretrained`` this needs no GPU, keeps the weights in FP8 without one, and refuses a
    checkpoint whose scales do not fit its weights.

    Args:
        path: a directory with config.json and .safetensors files.
        model_class: ``AutoModelForCausalLM`` by default, or any class with its ``from_pretrained``.
        requantize, max_m, batch_invariant: as in `use_fp8gemm`.
        options: for ``from_pretrained``, such as ``dtype``, ``device_map`` and ``attn_implementation``.

    Returns:
        The model, and the report of `use_fp8gemm`.

    Raises:
        InputError: no directory, no such checkpoint, or one of which a scale is missing (with ``activation_scheme``
            "static" those of activations too), transposed or otherwise of a wrong shape or dtype; the message names
            the parameter. Or scales of smaller blocks, which cannot be folded.
        UnsupportedError: transformers or safetensors is missing or too old, or scales are not for 128x128 blocks, nor
            for others of which these can be made.
    """
    directory = Path(path)
    if not os.path.isdir(directory):
        raise InputError(f"path: expected a directory with a checkpoint, got {quoted_path(directory)}")
    check_files(directory)
    if model_class is None:
        model_class = library_module("models.auto").AutoModelForCausalLM
    config = copy.deepcopy(options.pop("config", None)) or library_module("models.auto").AutoConfig.from_pretrained(
        directory, trust_remote_code=options.get("trust_remote_code")
    )
    holder, found = _quantization(config)
    blocks = _blocks(found)
    check_headers(read_headers(directory), blocks)
    _register()
    holder.quantization_config = {**found, "quant_method": _METHOD}
    model, info = model_class.from_pretrained(directory, config=config, output_loading_info=True, **options)
    _check_loaded(info)
    _restore_method(model)
    return model, use_fp8gemm(model, requantize=requantize, max_m=max_m, batch_invariant=batch_invariant)


def check_files(directory: Path) -> None:
    """What the library's loader opens, and waits for, is small JSON.

    Raises:
        InputError: naming the first file that is none.
    """
    for name, limit in _READ_BY_LOADER.items():
        if os.path.lexists(directory / name):
            read_json(directory / name, Kind(f"a {name}", limit))


def read_headers(directory: Path) -> dict[str, Header]:
    """Dtype and shape of every tensor in the .safetensors files of a directory; their data is not read.

    Raises:
        InputError: there are none, or one is no such file.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(f"path: expected .safetensors files in {quoted_path(directory)}, got none")
    return {name: header for file in files for name, header in _headers_of(file)}


def _headers_of(file: Path) -> Iterator[tuple[str, Header]]:
    with opened(file, _WEIGHTS) as stream:
        length, size = int.from_bytes(stream.read(8), "little"), os.fstat(stream.fileno()).st_size
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise _WEIGHTS.unfit(
                file, f"a header of {length} bytes, where 2 to {_HEADER_LIMIT} can be, in {size} bytes"
            )
        raw = stream.read(length)
    try:
        for name, tensor in parse_json(raw).items():
            if name != "__metadata__":
                yield name, Header(str(tensor["dtype"]), tuple(map(operator.index, tensor["shape"])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _WEIGHTS.unfit(file, f"a header that is none: {cut(str(error))}") from error


def check_headers(headers: Mapping[str, Header], blocks: Blocks = OF_WEIGHTS) -> None:
    """Every FP8 matrix has scales for its blocks, and every such scale an FP8 matrix.

    Raises:
        InputError: naming the first parameter for which this is not so.
    """
    for name, header in headers.items():
        if name.endswith(_WEIGHT) and header.dtype == "F8_E4M3" and len(header.shape) == 2:
            scale = name.removesuffix(_WEIGHT) + _SCALE
            if scale not in headers:
                raise InputError(f"{scale}: expected the scales of {name}, float8_e4m3fn, got none in the checkpoint")
            _check_scale(scale, headers[scale], header.shape, blocks)
        elif name.endswith(_SCALE):
            weight = headers.get(name.removesuffix(_SCALE) + _WEIGHT)
            if weight is None or weight.dtype != "F8_E4M3":
                got = "no such weight" if weight is None else f"one of {weight.dtype}"
                raise InputError(f"{name.removesuffix(_SCALE)}{_WEIGHT}: expected F8_E4M3, as it has scales, got {got}")


def _check_scale(name: str, scale: Header, weight: tuple[int, ...], blocks: Blocks) -> None:
    rows, columns = weight
    expected = blocks.counts(rows, columns)
    if scale.shape != expected:
        hint = "; they are transposed" if scale.shape == expected[::-1] else ""
        raise InputError(
            f"{name}: expected shape {expected}, one scale per {blocks} block of {weight}, got {scale.shape}{hint}"
        )
    if scale.dtype not in _SCALE_DTYPES:
        raise InputError(f"{name}: expected one of {', '.join(_SCALE_DTYPES)}, got {scale.dtype}")


def _quantization(config: Any) -> tuple[Any, dict[str, Any]]:
    """The part of the config that says how the checkpoint was quantised, and what it says."""
    for holder in (config, config.get_text_config()):
        found = getattr(holder, "quantization_config", None)
        if found is not None:
            break
    else:
        raise InputError("config.json: expected a quantization_config, got none: the checkpoint is not quantised")
    found = dict(found) if isinstance(found, Mapping) else found.to_dict()
    if found.get("quant_method") != "fp8":
        raise InputError(f'config.json: expected quant_method "fp8", got {found.get("quant_method")!r}')
    return holder, found


def _blocks(found: Mapping[str, Any]) -> Blocks:
    """Those that its scales are for."""
    size = found.get("weight_block_size", (128, 128))
    try:
        return weight_blocks("weight_block_size", size)
    except InputError as error:
        raise UnsupportedError(
            f"config.json: expected weight_block_size [128, 128], or divisors of 128, as [32, 32], got {size}"
        ) from error


def _register() -> None:
    """Make known to that library a quantiser that is its own for FP8, but does not ask for a GPU."""
    auto = library_module("quantizers.auto")
    if _METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    base = library_module("quantizers.quantizer_finegrained_fp8").FineGrainedFP8HfQuantizer
    quantizer = type("Fp8GemmHfQuantizer", (base,), {"validate_environment": lambda self, *args, **kwargs: None})
    auto.register_quantization_config(_METHOD)(auto.FineGrainedFP8Config)
    auto.register_quantizer(_METHOD)(quantizer)


def _restore_method(model: Any) -> None:
    """The parameters are those of the library's own method, under whose name the model is saved again."""
    model.quantization_method = model.config.quantization_config.quant_method = library_module(
        "utils.quantization_config"
    ).QuantizationMethod.FP8


def _check_loaded(info: Mapping[str, Iterable[Any]]) -> None:
    """The scales of the checkpoint and those of the model are the same ones.

    A weight whose scales the model has no place for was cast from its codes to another dtype.
    """
    missing, unexpected = sorted(map(str, info["missing_keys"])), set(map(str, info["unexpected_keys"]))
    for name in missing:
        if name.endswith("_scale_inv"):
            raise InputError(f"{name}: expected it in the checkpoint, got none")
        if name.endswith("activation_scale"):
            raise InputError(f'{name}: expected it in the checkpoint, as its activation_scheme is "static", got none')
    for name in sorted(unexpected):
        if name.endswith(_SCALE) and name.removesuffix(_SCALE) + _WEIGHT not in unexpected:
            raise InputError(f"{name}: expected no scales for a layer that stays unquantised, got some")
