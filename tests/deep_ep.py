"""A stand-in for DeepEP's buffers, with its signatures and layouts: ranks are objects of one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fp8gemm.products.quantize import quantize_activation


@dataclass
class World:
    """What ranks have sent: by the rank that receives it, in the order of the ranks that sent it."""

    ranks: int
    inbox: dict[int, list[Any]] = field(default_factory=dict)

    def put(self, rank: int, what: Any) -> None:
        self.inbox.setdefault(rank, []).append(what)

    def take(self, rank: int) -> list[Any]:
        return self.inbox.pop(rank, [])


@dataclass
class Buffer:
    """V1, in its low-latency mode. What is received is there once the hook was called."""

    world: World
    rank: int

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor, tuple[Any, ...], Any, Callable[[], None]]:
        assert return_recv_hook and not (round_scale or use_ue8m0)
        here, rows, hidden = (
            num_experts // self.world.ranks,
            num_max_dispatch_tokens_per_rank * self.world.ranks,
            x.shape[1],
        )
        for token, ids in enumerate(topk_idx.tolist()):
            for slot, expert in enumerate(ids):
                if expert >= 0:
                    self.world.put(expert // here, (expert % here, x[token], (self.rank, token, slot)))
        codes = torch.full((here, rows, hidden), float("nan")).to(torch.float8_e4m3fn if use_fp8 else torch.bfloat16)
        scales = torch.full((here, hidden // 128, rows), float("nan")).transpose(1, 2)
        counts, sources = torch.zeros(here, dtype=torch.int32), {}

        def hook() -> None:
            for expert, row, source in self.world.take(self.rank):
                place = int(counts[expert])
                if use_fp8:
                    (codes[expert, place],), (scales[expert, place],) = quantize_activation(row[None])
                else:
                    codes[expert, place] = row
                sources[expert, place] = source
                counts[expert] += 1

        handle = sources, num_max_dispatch_tokens_per_rank, hidden, num_experts
        return (codes, scales) if use_fp8 else codes, counts, handle, None, hook

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, Any, Callable[[], None]]:
        assert return_recv_hook and not (use_logfmt or zero_copy) and x.dtype == torch.bfloat16 and x.is_contiguous()
        for (expert, place), (rank, token, slot) in handle[0].items():
            self.world.put(rank, (token, slot, x[expert, place]))
        combined = torch.zeros(topk_idx.shape[0], x.shape[2], dtype=torch.bfloat16)

        def hook() -> None:
            total = torch.zeros(combined.shape)
            for token, slot, row in self.world.take(self.rank):
                total[token] += topk_weights[token, slot] * row.float()
            combined.copy_(total)

        return combined, None, hook


@dataclass
class EPHandle:
    """What V2's dispatch leaves for its combine."""

    do_expand: bool
    num_experts: int
    expert_alignment: int
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor
    slots: Tensor


@dataclass
class ElasticBuffer:
    """V2, of one rank, which sends to itself."""

    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, Tensor | None, Tensor | None, EPHandle, Any]:
        assert do_expand and topk_idx is not None and topk_weights is not None and num_experts is not None
        rows, scales = x if isinstance(x, tuple) else (x, None)
        alignment = expert_alignment or 1
        counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=num_experts)
        padded = (counts + alignment - 1) // alignment * alignment
        begins = padded.cumsum(0) - padded
        # Without do_cpu_sync there is room for all that could come.
        room = int(padded.sum()) if do_cpu_sync in (None, True) else topk_idx.numel() + num_experts * alignment
        slots, taken = torch.full_like(topk_idx, -1), torch.zeros_like(counts)
        for token, slot in (topk_idx >= 0).nonzero().tolist():
            expert = topk_idx[token, slot]
            slots[token, slot] = begins[expert] + taken[expert]
            taken[expert] += 1
        tokens, _ = (slots >= 0).nonzero(as_tuple=True)
        places = slots[slots >= 0]
        received = torch.full((room, rows.shape[1]), float("nan")).to(rows.dtype)
        received.view(torch.uint8)[places] = rows.view(torch.uint8)[tokens]
        weights = torch.full((room,), float("nan")).index_put_((places,), topk_weights[slots >= 0])
        ends = (begins + counts).int()
        handle = EPHandle(do_expand, num_experts, alignment, ends, counts.int(), slots)
        if scales is None:
            return received, None, weights, handle, None
        pitch = -(-room // 4) * 4 if use_tma_aligned_col_major_sf else room
        by_columns = torch.full((scales.shape[1], pitch), float("nan")).t()[:room]
        of_rows = by_columns if use_tma_aligned_col_major_sf else by_columns.contiguous()
        of_rows[places] = scales[tokens]
        return (received, of_rows), None, weights, handle, None

    def combine(
        self, x: Tensor, handle: EPHandle, topk_weights: Tensor | None = None, bias: Any = None
    ) -> tuple[Tensor, Tensor | None, Any]:
        assert x.dtype == torch.bfloat16 and x.is_contiguous() and bias is None
        rows = torch.where((handle.slots >= 0)[..., None], x[handle.slots].float(), 0.0)
        return rows.sum(1).bfloat16(), None, None
