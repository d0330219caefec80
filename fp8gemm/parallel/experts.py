"""Blocks of experts of which each rank of a mesh has some, and how tokens come to them and back.

The parameters are DTensors, a part of the experts for each rank; the products are of this rank's own.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate, Shard

from fp8gemm.errors import InputError
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.experts_checkpoint import checked_state
from fp8gemm.nn.experts_routed import Weights, of_sorted, outputs_of
from fp8gemm.nn.experts_shape import NAMES, check_routed
from fp8gemm.nn.moving import frozen
from fp8gemm.parallel.blocks import become, check_divisible, distributed, is_on, local
from fp8gemm.parallel.chunks import Rows, each_gathered, product_scattered
from fp8gemm.parallel.collectives import gather_quantized, gathered, packed, summed, summed_part, unpacked
from fp8gemm.parallel.layouts import Layouts
from fp8gemm.parallel.overlap import check_overlap, may_overlap, memory_for_experts, summed_beside
from fp8gemm.products.operands import contiguous_rows
from fp8gemm.products.routing import copy_to_rows_into, empty_rows, route, unpermute_into
from fp8gemm.products.watched import goes_to_operator, is_plain
from fp8gemm.routing import Permutation, quantize_permuted, unpermute

Exchange = Literal["gather", "all_to_all"]

_PART = Shard(0)
"""Of the parameters, by experts."""


class ParallelExperts(Fp8Experts):
    """A block that `parallelize_experts` has divided; it is not constructed."""

    _layouts: Layouts
    _exchange: Exchange
    _may_overlap: bool
    """As `fp8gemm.parallel.overlap` says of its layouts."""

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
        group = self._layouts.group
        if self._exchange == "all_to_all" and not self._have_all_tokens():
            return self._sent(hidden, expert_ids, weights, group)
        of = self.operands()
        overlaps = self._may_overlap and is_plain(of[0][0])
        overlaps = overlaps and not goes_to_operator("hidden expert_ids weights", hidden, expert_ids, weights)
        if self._have_all_tokens():
            return self._summed(hidden, expert_ids, weights, of, overlaps=overlaps)
        beside = self._gathered_beside(hidden, expert_ids, weights, of) if overlaps else None
        if beside is not None:
            return beside
        codes, scales = gather_quantized(hidden, group, copies=self._layouts.copies)
        expert_ids, weights = (gathered(each, 0, group) for each in (expert_ids, weights))
        options = self._options_of(hidden.dtype, expert_ids)
        return summed_part(self._of_tokens(codes, scales, expert_ids, weights, options), 0, group)

    def _have_all_tokens(self) -> bool:
        return isinstance(self._layouts.given, Replicate)

    def _summed(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor, of: Weights, *, overlaps: bool) -> Tensor:
        """Of tokens that all ranks have."""
        options = self._options_of(hidden.dtype, expert_ids)
        y, places = outputs_of(hidden, expert_ids, of, self.first_expert, self._are_some(), options)
        if overlaps:
            # Beside what is sent only these sums are computed, each of a token's experts.
            sizes = hidden.shape[:1], self.hidden_size, expert_ids.shape[1]
            add_up = _adding_up(y, places, weights)
            total = summed_beside(self._layouts, *sizes, hidden.dtype, hidden.device, add_up)
            if total is not None:
                return total
        return summed(unpermute(y, places, weights), self._layouts.group)

    def _gathered_beside(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor, of: Weights) -> Tensor | None:
        """Of tokens that are sorted as copies between peers bring them; their sums are sent while others are added up.
        None where they are to be gathered first."""
        tokens, width = hidden.shape
        products = expert_ids.numel() * 3 * width * self.intermediate_size  # of all ranks' tokens, with experts of one
        memory = memory_for_experts(self._layouts, tokens, width, products, hidden.dtype, hidden.device)
        if memory is None:
            return None
        expert_ids, weights = (gathered(each, 0, self._layouts.group) for each in (expert_ids, weights))
        offsets, rows, kept = route(expert_ids, self.num_local_experts, self.first_expert)
        copies = empty_rows(rows.numel(), width, hidden.device)

        def sort(rank: int, codes: Tensor, scales: Tensor) -> None:
            copy_to_rows_into(codes, scales, rows[rank * tokens : (rank + 1) * tokens], offsets, copies)

        each_gathered(memory, contiguous_rows(hidden), sort)
        options = self._options_of(hidden.dtype, expert_ids)
        y = of_sorted(*copies, offsets, of, options, some=self._are_some())
        add_up = _adding_up(y, Permutation(rows, kept), weights)
        return product_scattered(memory, (len(rows), width), hidden.dtype, hidden.device, add_up)

    def _sent(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor, group: ProcessGroup) -> Tensor:
        """Rows go to the ranks that have their experts, quantised, and what comes out goes back."""
        ranks, here = self._layouts.mesh.size(), self.num_local_experts
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
        mesh, given = self._layouts.mesh, self._layouts.given
        if x.device_mesh != mesh or x.placements != (given,):
            raise InputError(
                f"{name}: expected a tensor, or a DTensor on the block's {mesh} placed as {given}, got one on "
                f"{x.device_mesh} placed as {x.placements}"
            )
        return x.to_local()

    def operands(self) -> Weights:
        pairs = super().operands()
        if not is_on(pairs[0][0], self._layouts.mesh):
            return pairs  # sharded further: whoever gathers it puts another in its place
        gate_up, down = ((local(each), local(scales)) for each, scales in pairs)
        return gate_up, down

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """As `Fp8Experts` does, from DTensors too; of a whole layer's tensors each rank takes its own."""
        if not all(self._is_placed_as(name, state_dict.get(prefix + name)) for name in NAMES):
            if not is_on(self.gate_up_proj, self._layouts.mesh):
                raise InputError(f"{prefix}{NAMES[0]}: expected DTensors placed as the block, which is sharded further")
            state_dict = checked_state(state_dict, prefix, self._shape(), self.gate_up_proj.device)
            for key in [prefix + name for name in NAMES if prefix + name in state_dict]:
                state_dict[key] = DTensor.from_local(state_dict[key], self._layouts.mesh, [_PART], run_check=False)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *others)

    def _is_placed_as(self, name: str, value: object) -> bool:
        """Whether a state dict's tensor is what and where the parameter is."""
        own: Any = getattr(self, name)
        if not isinstance(value, DTensor) or (value.dtype, value.shape) != (own.dtype, own.shape):
            return False
        return bool((value.device_mesh, value.placements) == (own.device_mesh, own.placements))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exchange={None if self._have_all_tokens() else self._exchange}"


def _adding_up(y: Tensor, places: Permutation, weights: Tensor) -> Rows:
    """What writes weighted sums of some tokens."""

    def add_up(first: int, end: int, out: Tensor) -> None:
        unpermute_into(y, places.rows[first:end], places.kept[first:end], weights[first:end], out)

    return add_up


def parallelize_experts(block: Fp8Experts, layouts: Layouts, exchange: Exchange, source: int | None) -> Fp8Experts:
    """Make a block one of which each rank of the mesh has as many experts; nothing is changed if it can't be.

    Args:
        block: with all experts of the layer, or with this rank's own.
        layouts: its mesh, of one dimension, and tokens: each rank has its own, ``Shard(0)``, or all have all,
            ``Replicate()``, as they are given and wanted.
        exchange: how tokens come to experts.
        source: the rank of the mesh whose values are sent to all; None where each rank has them.

    Raises:
        InputError: a mesh of several dimensions, a block that is divided already or has a forward of its own, other
            experts than these, a number of them that the ranks do not divide, or an overlap that cannot be.
    """
    mesh = layouts.mesh
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
    check_overlap(layouts, block.gate_up_proj.device)
    for name in NAMES:
        whole = getattr(block, name)
        if has == (0, count):
            setattr(block, name, distributed(whole, mesh, _PART, source))
        else:
            setattr(block, name, frozen(DTensor.from_local(whole.detach(), mesh, [_PART], run_check=False)))
    block.first_expert, block.num_local_experts = first, share
    become(block, ParallelExperts, Fp8Experts)
    assert isinstance(block, ParallelExperts)
    block._layouts, block._exchange, block._may_overlap = layouts, exchange, may_overlap(layouts)
    return block
