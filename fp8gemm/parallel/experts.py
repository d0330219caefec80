"""Blocks of experts of which each rank of a mesh has some, and how tokens come to them and back.

The parameters are DTensors, a part of the experts for each rank; the products are of this rank's own.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from fp8gemm.errors import InputError
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.experts_checkpoint import checked_state
from fp8gemm.nn.experts_shape import NAMES, WithScales
from fp8gemm.nn.moving import frozen
from fp8gemm.parallel.blocks import check_mesh, distributed, local
from fp8gemm.parallel.collectives import gather_quantized, gathered, packed, summed, summed_part, unpacked
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.routing import permute, unpermute

Exchange = Literal["gather", "all_to_all"]

_PART = Shard(0)
"""Of the parameters, by experts."""


class ParallelExperts(Fp8Experts):
    """A block that `parallelize_experts` has divided; it is not constructed."""

    _mesh: DeviceMesh
    _group: ProcessGroup
    _given: Placement
    _exchange: Exchange

    def forward(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of each token's experts, on whichever ranks these are.

        Args:
            hidden, expert_ids, weights: as in `Fp8Experts.forward`, of this rank's tokens, or of all where these are
                replicated. With the exchange "gather" each rank has as many.

        Returns:
            (T, H) of hidden's dtype, of the same tokens. Parts of a sum are rounded to it before ranks add them; with
            "all_to_all" the sum is made where the token is, as by one rank.

        Raises:
            InputError: a tensor is not as described, or requires a gradient while gradients are enabled.
        """
        self._check_routed(hidden, expert_ids, weights)
        hidden = hidden if hidden.stride(1) == 1 else hidden.contiguous()
        if isinstance(self._given, Shard) and self._exchange == "all_to_all":
            return self._sent(hidden, expert_ids, weights)
        if isinstance(self._given, Replicate):
            codes, scales = quantize_activation(hidden)
        else:
            codes, scales = gather_quantized(hidden, self._group)
            expert_ids, weights = (gathered(each, 0, self._group) for each in (expert_ids, weights))
        options = self._options_of(hidden.dtype, expert_ids)
        part = self._of_tokens(codes, scales, expert_ids, weights, options)
        return summed(part, self._group) if isinstance(self._given, Replicate) else summed_part(part, 0, self._group)

    def _sent(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Rows go to the ranks that have their experts, quantised, and what comes out goes back."""
        ranks, here, group = self._mesh.size(), self.num_local_experts, self._group
        tokens = permute(*quantize_activation(hidden), expert_ids, self.num_experts)
        counts = tokens.offsets.diff().view(ranks, here)
        counts_here = torch.empty_like(counts)
        dist.all_to_all_single(counts_here, counts, group=group)
        # The host has to know how many rows go and come.
        go, come = torch.stack((counts.sum(1), counts_here.sum(1))).tolist()
        sent = packed(tokens.codes[: sum(go)], tokens.scales[: sum(go)])
        received = sent.new_empty((sum(come), sent.shape[1]))
        dist.all_to_all_single(received, sent, come, go, group=group)
        numbers = torch.arange(self.first_expert, self.first_expert + here, device=hidden.device).repeat(ranks)
        ids = numbers.repeat_interleave(counts_here.flatten().long())[:, None]
        # Each row by itself, with a weight of one: its output is put where it came from.
        options = self._options(hidden.dtype, max(1, -(-sum(come) // here)))
        ones = torch.ones_like(ids, dtype=torch.float32)
        mine = self._of_tokens(*unpacked(received, hidden.shape[1]), ids, ones, options)
        back = hidden.new_empty((tokens.codes.shape[0], hidden.shape[1]))
        dist.all_to_all_single(back[: sum(go)], mine, go, come, group=group)
        return unpermute(back, tokens.permutation, weights)

    def operands(self) -> tuple[WithScales, WithScales]:
        pairs = super().operands()
        weight, mesh = pairs[0][0], self._mesh
        if not isinstance(weight, DTensor) or not (weight.device_mesh is mesh or weight.device_mesh == mesh):
            return pairs  # sharded further: whoever gathers it puts another in its place
        gate_up, down = ((local(each), local(scales)) for each, scales in pairs)
        return gate_up, down

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """As `Fp8Experts` does, from DTensors too; of a whole layer's tensors each rank takes its own."""
        parts = {key: self._part(value) for key, value in state_dict.items()}
        state = checked_state(parts, prefix, self._shape(), self.gate_up_proj.device)
        for key in [prefix + name for name in NAMES]:
            if key in state and not isinstance(state[key], DTensor):
                state[key] = DTensor.from_local(state[key], self._mesh, [_PART], run_check=False)
        nn.Module._load_from_state_dict(self, state, prefix, *others)

    def _part(self, value: Any) -> Any:
        if isinstance(value, DTensor) and value.device_mesh == self._mesh and value.placements == (_PART,):
            return local(value)
        return value

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exchange={self._exchange if isinstance(self._given, Shard) else None}"


def parallelize_experts(
    block: Fp8Experts, mesh: DeviceMesh, given: Placement, exchange: Exchange, source: int | None
) -> Fp8Experts:
    """Make a block one of which each rank of the mesh has as many experts; nothing is changed if it can't be.

    Args:
        block: with all experts of the layer, or with this rank's own.
        mesh: of one dimension.
        given: whether each rank has tokens of its own, ``Shard(0)``, or all have all, ``Replicate()``.
        exchange: how tokens come to experts.
        source: the rank of the mesh whose values are sent to all; None where each rank has them.

    Raises:
        InputError: a mesh of several dimensions, a block that is divided already, other experts than these, or a number
            of them that the ranks do not divide.
    """
    check_mesh(mesh, block.gate_up_proj)
    ranks, count = mesh.size(), block.num_experts
    if count % ranks:
        works = max(each for each in range(1, ranks) if count % each == 0)
        raise InputError(
            f"num_experts: expected a multiple of the {ranks} ranks, got {count}; they can be on {works} "
            f"rank{'s' * (works > 1)}"
        )
    share = count // ranks
    first = mesh.get_local_rank() * share
    has = block.first_expert, block.num_local_experts
    if has not in ((0, count), (first, share)):
        raise InputError(
            f"module: expected all {count} experts, or the {share} of this rank from {first} on, got {has[1]} from "
            f"{has[0]} on"
        )
    for name in NAMES:
        whole = getattr(block, name)
        if has == (0, count):
            setattr(block, name, distributed(whole, mesh, _PART, source))
        else:
            setattr(block, name, frozen(DTensor.from_local(whole.detach(), mesh, [_PART], run_check=False)))
    block.first_expert, block.num_local_experts = first, share
    block.__class__ = ParallelExperts
    assert isinstance(block, ParallelExperts)
    block._mesh, block._group, block._given, block._exchange = mesh, mesh.get_group(), given, exchange
    return block
