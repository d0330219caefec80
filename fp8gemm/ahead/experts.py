"""Which weights the routed experts of a model have, read off its ``config.json``. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fp8gemm.ahead.architectures import find_architecture, hidden_layers, hidden_size, qwen_layer_kinds
from fp8gemm.ahead.model_config import Fields
from fp8gemm.errors import InputError
from fp8gemm.sizes import K_STEP, check_whole_number
from fp8gemm.tuning.grouped_problem import MAX_GROUPS

_Routed = tuple[int, int, int | None]
"""How many experts a layer has, their intermediate features, and how many layers have them."""


@dataclass(frozen=True)
class GroupedShape:
    """Weights (G, N, K) of experts, or the part of them that one rank holds.

    Attributes:
        name: the end of their name in the model, for people.
        groups: experts.
        n, k: output and input features of each.
        layers: how many of the model's layers have such weights; None where the configuration does not say.
        experts: of a layer, on all ranks together; 0 where nobody says.
        experts_per_token: of these, those that a token goes to; None where the configuration does not say.
    """

    name: str
    groups: int
    n: int
    k: int
    layers: int | None = field(default=None, compare=False)
    experts: int = field(default=0, compare=False)
    experts_per_token: int | None = field(default=None, compare=False)


def experts_of_config(config: Mapping[str, Any], *, tp: int = 1, ep: int = 1) -> tuple[GroupedShape, ...]:
    """The weights of the routed experts, gate and up as one: none, or ``gate_up_proj`` and ``down_proj``.

    Args:
        config: as in `fp8gemm.ahead.architectures.linears_of_config`.
        tp: ranks that share each layer.
        ep: ranks over which experts are divided. Where these are fewer than ``tp``, ``tp / ep`` ranks share each
            expert, by its intermediate features; else each rank has whole experts.

    Raises:
        InputError: a field is missing or is not what it should be, experts or their features do not divide over the
            ranks, or the features of a rank are no multiple of 16.
        UnsupportedError: as `linears_of_config`.
    """
    for name, ranks in (("tp", tp), ("ep", ep)):
        check_whole_number(name, ranks, 1)
    fields, _ = find_architecture(config)
    reader = _READERS.get(fields.model_type)
    experts, intermediate, layers = (0, 0, None) if reader is None else reader(fields)
    if not experts:
        return ()
    if experts % ep:
        raise InputError(f"experts: expected a number that divides over ep = {ep} ranks, got {experts}")
    sharing = _ranks_of_an_expert(tp, ep)
    check_whole_number(f"experts (ep = {ep})", experts // ep, 1, MAX_GROUPS)
    hidden, share = hidden_size(fields), intermediate // sharing
    if hidden % K_STEP or intermediate % sharing or share % K_STEP:
        raise InputError(
            f"experts: expected hidden and, on each of {sharing} ranks, intermediate features that are multiples of "
            f"{K_STEP}, got {hidden} and {intermediate}"
        )
    routed = layers, experts, fields.size_or_null("num_experts_per_tok", None)
    return (
        GroupedShape("experts.gate_up_proj", experts // ep, 2 * share, hidden, *routed),
        GroupedShape("experts.down_proj", experts // ep, hidden, share, *routed),
    )


def _ranks_of_an_expert(tp: int, ep: int) -> int:
    if tp <= ep:
        return 1
    if tp % ep:
        raise InputError(f"expected tp to be a multiple of ep where it is larger, got tp = {tp}, ep = {ep}")
    return tp // ep


def _mixtral(fields: Fields) -> _Routed:
    return fields.size("num_local_experts", least=0), fields.size("intermediate_size"), hidden_layers(fields)


def _qwen(fields: Fields) -> _Routed:
    _, sparse = qwen_layer_kinds(fields)
    if not sparse:
        return 0, 0, None
    # transformers writes the first name and, for some of its classes, the second.
    experts = fields.size_or_null("num_experts", fields.size_or_null("num_local_experts", None, least=0), least=0)
    return fields.size("num_experts") if experts is None else experts, fields.size("moe_intermediate_size"), sparse


def _deepseek(fields: Fields) -> _Routed:
    dense, layers = fields.size("first_k_dense_replace", least=0), fields.size("num_hidden_layers")
    if dense >= layers:
        return 0, 0, None
    return fields.size("n_routed_experts", least=0), fields.size("moe_intermediate_size"), layers - dense


_READERS: dict[str, Callable[[Fields], _Routed]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen,
    "qwen3_moe": _qwen,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""For each model type that has experts, what is to know of them."""
