"""From the names that checkpoints have for experts to the parameters of an `Fp8Experts`: checked first, then merged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.checks.tensors import check_tensor
from fp8gemm.errors import InputError
from fp8gemm.nn.checkpoint import Stored, checked_scales, checked_weight
from fp8gemm.nn.experts_shape import DOWN, GATE_UP, NAMES, SCALES, ExpertsShape
from fp8gemm.products.folding import Names, check_blocks, fold_named
from fp8gemm.products.quantize import quantize_weight
from fp8gemm.scales import OF_WEIGHTS, Blocks, block_count

_OF_AN_EXPERT = re.compile(r"(0|[1-9][0-9]*)\.((?:gate|up|down)_proj)\.(weight|weight_scale_inv)")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Quantized(NamedTuple):
    """Weights of one expert, (N, K) e4m3, or of several, (G, N, K); with their 128x128 scales."""

    codes: Tensor
    scales: Tensor


class _Found(NamedTuple):
    """A projection of one expert: a weight, and its scales with what they are for, None if it is not quantised."""

    weight: Tensor
    scales: Tensor | None
    blocks: Blocks | None


Make = Callable[[], Quantized]
"""What makes an expert's merged weight of tensors that were checked."""


def checked_state(
    state_dict: Mapping[str, Any], prefix: str, shape: ExpertsShape, device: torch.device
) -> dict[str, Any]:
    """``state_dict`` with what a block's keys, which begin with ``prefix``, stand for under its own `NAMES`, checked.

    Tensors of other ranks' experts are left out; what the block has no use for stays. Weights that are not quantised
    yet are quantised on ``device``, unless that is "meta".

    Raises:
        InputError: tensors are missing or are not what the block takes; the message begins with the whole key.
    """
    state = dict(state_dict)
    own = [prefix + name for name in NAMES if prefix + name in state]
    named = {key: match for key in state if (match := _expert_of(key, prefix, shape))}
    if not named:
        for name, size in ((GATE_UP, shape.gate_up), (DOWN, shape.down)) if own else ():
            weight, scales = prefix + name, prefix + name + SCALES
            found = _found(state, weight, own[0])
            names = Names(weight, scales)
            state[weight], state[scales] = _fused(names, found, state.get(scales), size, shape, Stored(), device)
        return state
    if own:
        raise InputError(f"{own[0]}: expected it without tensors of single experts, got {next(iter(named))} too")
    tensors = {key: state.pop(key) for key in named}
    if not any(int(match[1]) in shape.local for match in named.values()):
        return state  # nothing of it is for this rank
    pairs = [_check_expert(tensors, prefix, expert, shape, device) for expert in shape.local]
    for name, size, makes in zip((GATE_UP, DOWN), (shape.gate_up, shape.down), zip(*pairs, strict=True), strict=True):
        state[prefix + name], state[prefix + name + SCALES] = _merged(makes, size)
    return state


def checked_weights(
    gate_up: tuple[Tensor, Tensor | None], down: tuple[Tensor, Tensor | None], shape: ExpertsShape, stored: Stored
) -> tuple[Quantized, Quantized]:
    """Weights of the experts here, quantised if they have no scales: gate_up and down, where ``gate_up`` is.

    Args:
        stored: of their scales, where they have some.

    Raises:
        InputError: such a block cannot be, or a tensor is not what it takes, or not where ``gate_up`` is.
    """
    check_tensor(GATE_UP, gate_up[0])
    device = gate_up[0].device
    given = {GATE_UP: gate_up[0], GATE_UP + SCALES: gate_up[1], DOWN: down[0], DOWN + SCALES: down[1]}
    for name, tensor in given.items():
        if tensor is None:
            continue
        check_tensor(name, tensor)
        if tensor.device != device:
            raise InputError(f"{name}: expected the device of {GATE_UP}, {device}, got {tensor.device}")
        if tensor.dim() != 3 or not tensor.shape[0] or tensor.shape[0] != shape.num_local_experts:
            raise InputError(
                f"{name}: expected 3 dimensions, the first of them that of {DOWN} and at least 1, got shape "
                f"{tuple(tensor.shape)}"
            )
    shape.check()
    return (
        _fused(Names(GATE_UP, GATE_UP + SCALES), *gate_up, shape.gate_up, shape, stored, device),
        _fused(Names(DOWN, DOWN + SCALES), *down, shape.down, shape, stored, device),
    )


def _fused(
    names: Names,
    weight: Tensor,
    scales: Tensor | None,
    size: tuple[int, int],
    shape: ExpertsShape,
    stored: Stored,
    device: torch.device,
) -> Quantized:
    """The codes and scales of ``weight``, which holds the experts here or all of the layer: themselves, not copies,
    where they need no conversion.

    Args:
        names: what messages begin with.
        weight: (G, N, K) float8_e4m3fn; or bfloat16, float16 or float32, which is quantised.
        scales: (G, blocks of N, of K) float32, bfloat16 or float8_e8m0fnu; None where ``weight`` is quantised.
        size: N and K.
        shape: of the block.
        stored: which blocks.
        device: where to quantise, unless it is "meta".

    Raises:
        InputError: a tensor is not as described.
    """
    weight = _local(names.codes, weight, size, shape)
    if scales is None and weight.dtype in INPUTS:
        return _merged([_quantizing([each], device) for each in weight], size)
    checked_weight(f"{names.codes}[0]", _first(weight), *size)
    if scales is None:
        raise InputError(f"{names.scales}: expected it beside {names.codes}, got none")
    blocks = stored.blocks_of(scales, *size)
    scales = _local(names.scales, scales, blocks.counts(*size), shape)
    if blocks != OF_WEIGHTS:
        folded = fold_named(weight.detach().contiguous(), scales, blocks, stored.requantize, names)
        return Quantized(folded.codes, folded.scales)
    checked_scales(f"{names.scales}[0]", _first(scales), *size)
    return Quantized(weight.detach().contiguous(), scales.detach().to(torch.float32).contiguous())


def _merged(experts: Sequence[Make], size: tuple[int, int]) -> Quantized:
    """One tensor of the codes of all experts, (N, K) = ``size`` each, and one of their scales, where the first's are.

    NOTE: an expert is made when its turn comes, so that next to the result there is never more than one of them.
    """
    n, k = size
    codes = scales = None
    for index, make in enumerate(experts):
        expert = make()
        if codes is None or scales is None:
            device = expert.codes.device
            codes = torch.empty((len(experts), n, k), dtype=torch.uint8, device=device)
            scales = torch.empty((len(experts), block_count(n), block_count(k)), dtype=torch.float32, device=device)
        codes[index].copy_(expert.codes.view(torch.uint8))
        scales[index].copy_(expert.scales)
    assert codes is not None and scales is not None
    return Quantized(codes.view(torch.float8_e4m3fn), scales)


def _expert_of(key: str, prefix: str, shape: ExpertsShape) -> re.Match[str] | None:
    match = _OF_AN_EXPERT.fullmatch(key, len(prefix)) if key.startswith(prefix) else None
    return match if match and int(match[1]) < shape.num_experts else None


def _check_expert(
    tensors: Mapping[str, Tensor], prefix: str, expert: int, shape: ExpertsShape, device: torch.device
) -> tuple[Make, Make]:
    """What makes the merged weights, gate_up and down, of an expert whose tensors are checked here."""
    n, k = shape.intermediate_size, shape.hidden_size
    sizes = {"gate_proj": (n, k), "up_proj": (n, k), "down_proj": (k, n)}
    found = {}
    for projection in _PROJECTIONS:
        name = f"{prefix}{expert}.{projection}.weight"
        found[projection] = _check_weight(tensors, name, *sizes[projection])
    gate, up, down = (found[projection] for projection in _PROJECTIONS)
    names = {projection: f"{prefix}{expert}.{projection}.weight" for projection in _PROJECTIONS}
    make_down = _joining({names["down_proj"]: down}, device)
    if gate.blocks != up.blocks:
        raise InputError(
            f"{names['gate_proj']}: expected the dtype of {names['up_proj']}, {_kind(up)}, as the two become one "
            f"weight, got {_kind(gate)}"
        )
    if gate.blocks is not None and n % gate.blocks.rows:
        raise InputError(
            f"{names['gate_proj']}{SCALES}: expected an intermediate_size that is a multiple of {gate.blocks.rows}, "
            f"because quantised gate and up projections become one weight and would share a block, got {n}"
        )
    return _joining({names["gate_proj"]: gate, names["up_proj"]: up}, device), make_down


def _kind(found: _Found) -> str:
    return str(found.weight.dtype) if found.blocks is None else f"{found.weight.dtype} of {found.blocks}"


def _check_weight(tensors: Mapping[str, Tensor], name: str, n: int, k: int) -> _Found:
    """A weight and its scales, if it is quantised."""
    weight, scales = _found(tensors, name, "the other experts' tensors"), tensors.get(name + SCALES)
    if scales is None and weight.dtype in INPUTS:
        if tuple(weight.shape) != (n, k):
            raise InputError(f"{name}: expected shape {(n, k)} = (N, K), got {tuple(weight.shape)}")
        return _Found(weight.detach(), None, None)
    weight = checked_weight(name, weight, n, k)
    if scales is None:
        raise InputError(f"{name + SCALES}: expected it beside {name}, got a state dict without it")
    blocks = Stored().blocks_of(scales, n, k)
    if blocks == OF_WEIGHTS:
        return _Found(weight, checked_scales(name + SCALES, scales, n, k), blocks)
    check_blocks(weight, scales, blocks, Names(name, name + SCALES))
    return _Found(weight, scales.detach().float(), blocks)


def _found(tensors: Mapping[str, Tensor], name: str, beside: str) -> Tensor:
    if name not in tensors:
        raise InputError(f"{name}: expected it beside {beside}, got a state dict without it")
    return tensors[name]


def _local(name: str, tensor: Tensor, size: tuple[int, int], shape: ExpertsShape) -> Tensor:
    """Of ``tensor``, which is of the experts here or of all of the layer, what is of those here."""
    counts = dict.fromkeys((shape.num_local_experts, shape.num_experts))
    if tensor.dim() != 3 or tensor.shape[0] not in counts or tuple(tensor.shape[1:]) != size:
        expected = " or ".join(str((count, *size)) for count in counts)
        raise InputError(f"{name}: expected shape {expected}, got {tensor.dtype} of shape {tuple(tensor.shape)}")
    if tensor.shape[0] == shape.num_local_experts:
        return tensor
    # NOTE: a clone, so that it does not keep the memory of the others.
    return tensor[shape.first_expert : shape.local.stop].clone()


def _first(stacked: Tensor) -> Tensor:
    """One of several tensors, without its values: those of a DTensor may be elsewhere."""
    return torch.empty(stacked.shape[1:], dtype=stacked.dtype, device="meta")


def _quantizing(parts: Sequence[Tensor], device: torch.device) -> Make:
    """Joins weights and quantises them on ``device``; the result is where they were."""

    def make() -> Quantized:
        whole = torch.cat([part.detach() for part in parts])
        codes, scales = quantize_weight(whole if device.type == "meta" else whole.to(device))
        return Quantized(codes.to(whole.device), scales.to(whole.device))

    return make


def _joining(parts: Mapping[str, _Found], device: torch.device) -> Make:
    """Joins weights of one kind, by their names: codes, as bytes, because not every device joins FP8, and their scales,
    which are folded if they are for smaller blocks; or weights that are quantised on ``device``."""
    weights = [part.weight for part in parts.values()]
    scales = [part.scales for part in parts.values() if part.scales is not None]
    (blocks,) = {part.blocks for part in parts.values()}
    if blocks is None:
        return _quantizing(weights, device)
    names = Names(" and ".join(parts), " and ".join(name + SCALES for name in parts))

    def make() -> Quantized:
        codes = torch.cat([part.view(torch.uint8) for part in weights]).view(torch.float8_e4m3fn)
        joined = Quantized(codes, torch.cat(scales))
        if blocks == OF_WEIGHTS:
            return joined
        folded = fold_named(*joined, blocks, False, names)
        return Quantized(folded.codes, folded.scales)

    return make
