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
from fp8gemm.nn.experts_routed import Weights, of_hidden
from fp8gemm.nn.experts_shape import NAMES, check_routed
from fp8gemm.nn.moving import frozen
from fp8gemm.parallel.blocks import become, check_divisible, distributed, is_on, local
from fp8gemm.parallel.collectives import gather_quantized, gathered, packed, summed, summed_part, unpacked
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.routing import quantize_permuted, unpermute

Exchange = Literal["gather", "all_to_all"]

_PART = Shard(0)
"""Of the parameters, by experts."""


class ParallelExperts(Fp8Experts):
    """A block that `parallelize_experts` has divided; it is not constructed."""

    _mesh: DeviceMesh
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
        hidden, expert_ids, weights = (
            self._mine(name, each)
            for name, each in (("hidden", hidden), ("expert_ids", expert_ids), ("weights", weights))
        )
        check_routed(hidden, expert_ids, weights, self.hidden_size, self.gate_up_proj.device)
        group = self._mesh.get_group()
        if isinstance(self._given, Shard) and self._exchange == "all_to_all":
            return self._sent(hidden, expert_ids, weights, group)
        if isinstance(self._given, Replicate):
            first, options = self.first_expert, self._options_of(hidden.dtype, expert_ids)
            y = of_hidden(hidden, expert_ids, weights, self.operands(), first_expert=first, options=options)
            return summed(y, group)
        codes, scales = gather_quantized(hidden, group)
        expert_ids, weights = (gathered(each, 0, group) for each in (expert_ids, weights))
        options = self._options_of(hidden.dtype, expert_ids)
        return summed_part(self._of_tokens(codes, scales, expert_ids, weights, options), 0, group)

    def _sent(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor, group: ProcessGroup) -> Tensor:
        """Rows go to the ranks that have their experts, quantised, and what comes out goes back."""
        ranks, here = self._mesh.size(), self.num_local_experts
        tokens = quantize_permuted(contiguous_rows(hidden), expert_ids, self.num_experts)
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

    def _mine(self, name: str, x: Tensor) -> Tensor:
        """This rank's part of an argument."""
        if not isinstance(x, DTensor):
            return x
        if x.device_mesh != self._mesh or x.placements != (self._given,):
            raise InputError(
                f"{name}: expected a tensor, or a DTensor on the block's {self._mesh} placed as {self._given}, got one "
                f"on {x.device_mesh} placed as {x.placements}"
            )
        return x.to_local()

    def operands(self) -> Weights:
        pairs = super().operands()
        if not is_on(pairs[0][0], self._mesh):
            return pairs  # sharded further: whoever gathers it puts another in its place
        gate_up, down = ((local(each), local(scales)) for each, scales in pairs)
        return gate_up, down

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """As `Fp8Experts` does, from DTensors too; of a whole layer's tensors each rank takes its own."""
        if not all(self._is_placed_as(name, state_dict.get(prefix + name)) for name in NAMES):
            if not is_on(self.gate_up_proj, self._mesh):
                raise InputError(f"{prefix}{NAMES[0]}: expected DTensors placed as the block, which is sharded further")
            state_dict = checked_state(state_dict, prefix, self._shape(), self.gate_up_proj.device)
            for key in [prefix + name for name in NAMES if prefix + name in state_dict]:
                state_dict[key] = DTensor.from_local(state_dict[key], self._mesh, [_PART], run_check=False)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *others)

    def _is_placed_as(self, name: str, value: object) -> bool:
        """Whether a state dict's tensor is what and where the parameter is."""
        own: Any = getattr(self, name)
        if not isinstance(value, DTensor) or (value.dtype, value.shape) != (own.dtype, own.shape):
            return False
        return bool((value.device_mesh, value.placements) == (own.device_mesh, own.placements))

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
        InputError: a mesh of several dimensions, a block that is divided already or has a forward of its own, other
            experts than these, or a number of them that the ranks do not divide.
    """
    check_divisible(block, mesh, block.gate_up_proj, Fp8Experts)
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
    become(block, ParallelExperts, Fp8Experts)
    assert isinstance(block, ParallelExperts)
    block._mesh, block._given, block._exchange = mesh, given, exchange
    return block
