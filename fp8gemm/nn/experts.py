"""The experts of a mixture, as in DeepSeek-V3 and Qwen3-MoE, with FP8 weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.checks.dtypes import INPUTS, check_dtype
from fp8gemm.checks.tensors import check_kept, check_tensor, check_whole
from fp8gemm.nn.checkpoint import Stored
from fp8gemm.nn.experts_checkpoint import checked_state, checked_weights
from fp8gemm.nn.experts_routed import Weights, of_hidden, of_masked, of_sorted, of_tokens
from fp8gemm.nn.experts_shape import DOWN, GATE_UP, SCALES, ExpertsShape, check_masked, check_routed, check_sorted
from fp8gemm.nn.moving import codes_from_bytes, frozen, moving_only, state_with_bytes, zero_codes
from fp8gemm.products.operands import contiguous_rows, uses_reference
from fp8gemm.products.prepared import prepare_experts
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.scales import block_count


class Fp8Experts(nn.Module):
    """``y[t] = sum_k weights[t, k] * down(silu(gate(x[t])) * up(x[t]))`` of each token's top-k experts: for inference.

    It is what transformers' Qwen3-MoE and DeepSeek-V3 blocks call ``experts``, between their router and their sum with
    shared experts. Weights are FP8 with 128x128 scales, tokens are quantised as they come, once for all their experts.
    Nothing waits for the GPU, so that it runs in CUDA graphs and under ``torch.compile(fullgraph=True)``. Gradients,
    modes and changes of dtype are as with `fp8gemm.nn.Fp8Linear`.

    The constructor makes a block whose weights are zero, on "meta" none at all; their values come from
    `load_state_dict`. From tensors that are there: `from_bfloat16`, `from_quantized`. Besides its own names, which are
    those of transformers, a state dict may have the names of FP8 checkpoints: ``{i}.gate_proj.weight`` and
    ``{i}.gate_proj.weight_scale_inv``, ``up_proj``, ``down_proj``, for i the number of an expert in the whole layer.
    There gate and up become one weight, for which I must be a multiple of a block's rows: 128, or 32 where scales are
    for 32x32, which are folded. Under either names weights in bfloat16, float16 or float32 without scales are
    quantised. All experts here must be in one state dict; those of other ranks are passed over.

    Args:
        num_experts: of the whole layer.
        hidden_size: H, a multiple of 16.
        intermediate_size: I of one expert, a multiple of 16.
        first_expert, num_local_experts: which experts are here, where ranks share a layer: ``first_expert`` and those
            behind it; by default all of them. What a router sends to others adds nothing.
        device: where, as in `torch.nn.Linear`.
        batch_invariant: as in `fp8gemm.gemm_grouped`.

    Attributes:
        gate_up_proj: (G, 2I, H) float8_e4m3fn, G the experts here; rows of the gate, then of up.
        gate_up_proj_scale_inv: (G, ceil(2I/128), ceil(H/128)) float32 multipliers.
        down_proj: (G, H, I) float8_e4m3fn.
        down_proj_scale_inv: (G, ceil(H/128), ceil(I/128)) float32 multipliers.

    Raises:
        InputError: sizes that no kernel takes, or experts that there are none of.
    """

    gate_up_proj: nn.Parameter
    gate_up_proj_scale_inv: nn.Parameter
    down_proj: nn.Parameter
    down_proj_scale_inv: nn.Parameter

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        first_expert: int = 0,
        num_local_experts: int | None = None,
        device: torch.device | str | None = None,
        batch_invariant: bool | None = None,
    ) -> None:
        super().__init__()
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.first_expert, self.batch_invariant = first_expert, batch_invariant
        self.num_local_experts = num_experts if num_local_experts is None else num_local_experts
        shape = self._shape()
        shape.check()
        for name, (n, k) in ((GATE_UP, shape.gate_up), (DOWN, shape.down)):
            blocks = self.num_local_experts, block_count(n), block_count(k)
            self.register_parameter(name, zero_codes(self.num_local_experts, n, k, device=device))
            self.register_parameter(name + SCALES, frozen(torch.ones(blocks, dtype=torch.float32, device=device)))

    @classmethod
    def from_bfloat16(
        cls,
        gate_up_proj: Tensor,
        down_proj: Tensor,
        *,
        num_experts: int | None = None,
        first_expert: int = 0,
        batch_invariant: bool | None = None,
    ) -> Fp8Experts:
        """A block with the quantised weights of some experts, where those are: transformers' parameters, say.

        Args:
            gate_up_proj: (G, 2I, H) bfloat16, float16 or float32.
            down_proj: (G, H, I), likewise.
            num_experts: of the whole layer, by default G.
            first_expert, batch_invariant: as in the constructor.

        Raises:
            InputError: a tensor is not as described, or H or I is not a multiple of 16.
        """
        for name, weight in ((GATE_UP, gate_up_proj), (DOWN, down_proj)):
            check_tensor(name, weight)
            check_dtype(name, weight.dtype, INPUTS)
        return cls._of((gate_up_proj, None), (down_proj, None), Stored(), num_experts, first_expert, batch_invariant)

    @classmethod
    def from_quantized(
        cls,
        gate_up_proj: Tensor,
        gate_up_proj_scale_inv: Tensor,
        down_proj: Tensor,
        down_proj_scale_inv: Tensor,
        *,
        block_size: tuple[int, int] = (128, 128),
        requantize: bool = False,
        num_experts: int | None = None,
        first_expert: int = 0,
        batch_invariant: bool | None = None,
    ) -> Fp8Experts:
        """A block around tensors that are quantised already; it keeps them, not copies, where they need no conversion.

        Args:
            gate_up_proj: (G, 2I, H) float8_e4m3fn.
            gate_up_proj_scale_inv: (G, ceil(2I/128), ceil(H/128)) float32, bfloat16 or float8_e8m0fnu, widened exactly.
            down_proj: (G, H, I) float8_e4m3fn.
            down_proj_scale_inv: (G, ceil(H/128), ceil(I/128)), as the others.
            block_size, requantize: as in `fp8gemm.nn.Fp8Linear.from_quantized`.
            num_experts: of the whole layer, by default G.
            first_expert, batch_invariant: as in the constructor.

        Raises:
            InputError: a tensor is not as described, or not where ``gate_up_proj`` is.
        """
        weights = (gate_up_proj, gate_up_proj_scale_inv), (down_proj, down_proj_scale_inv)
        return cls._of(*weights, Stored.of(block_size, requantize), num_experts, first_expert, batch_invariant)

    @classmethod
    def _of(
        cls,
        gate_up: tuple[Tensor, Tensor | None],
        down: tuple[Tensor, Tensor | None],
        stored: Stored,
        num_experts: int | None,
        first_expert: int,
        batch_invariant: bool | None,
    ) -> Fp8Experts:
        shape = ExpertsShape.of(down[0], num_experts, first_expert)
        merged = checked_weights(gate_up, down, shape, stored)
        block = cls(**asdict(shape), device="meta", batch_invariant=batch_invariant)
        for name, weight in zip((GATE_UP, DOWN), merged, strict=True):
            setattr(block, name, frozen(weight.codes))
            setattr(block, name + SCALES, frozen(weight.scales))
        return block

    def prepare(self, dtype: torch.dtype = torch.bfloat16, *, max_m: int = 16384) -> Fp8Experts:
        """Compile or fetch, and load, the kernels of `forward`, so that no call waits for them, and the first may be
        captured in a CUDA graph. Where the weights are on no GPU there are none.

        Args:
            dtype: of the tokens to come.
            max_m: rows up to which, of a typical expert: T * top_k / num_experts.

        Returns:
            The block.

        Raises:
            InputError: another dtype, or no rows.
            UnsupportedDeviceError, CacheMissError, CompileError, DriverError: as in `fp8gemm.gemm_grouped`.
        """
        check_dtype("dtype", dtype, INPUTS)
        check_whole("max_m", max_m, 1)
        weights = [codes for codes, _ in self.operands()]
        if not uses_reference(weights[0]):
            prepare_experts(weights, dtype, max_m=max_m, some=self._are_some(), batch_invariant=self.batch_invariant)
        return self

    def forward(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of each token's experts.

        Args:
            hidden: (T, H) bfloat16, float16 or float32, any strides, where the weights are. T may be 0.
            expert_ids: (T, top_k) int32 or int64, numbers of experts in the whole layer; others, -1 say, add nothing.
            weights: (T, top_k), of any floating dtype.

        Returns:
            (T, H) of hidden's dtype, contiguous. A token's sum is float32, in an order that depends on top_k alone.

        Raises:
            InputError: a tensor is not as described, or requires a gradient while gradients are enabled.
        """
        check_routed(hidden, expert_ids, weights, self.hidden_size, self.gate_up_proj.device)
        of, first, some = self.operands(), self.first_expert, self._are_some()
        options = self._options_of(hidden.dtype, expert_ids)
        return of_hidden(hidden, expert_ids, weights, of, first_expert=first, some=some, options=options)

    def forward_sorted(
        self, x: Tensor, offsets: Tensor, *, scales: Tensor | None = None, expected_m: int | None = None
    ) -> Tensor:
        """Each expert's output for rows that are sorted by expert already, one behind the other.

        Args:
            x: (M, H) bfloat16, float16 or float32; or float8_e4m3fn codes, with ``scales``. M may be 0.
            offsets: (G + 1,) int32 or int64, ascending: rows ``offsets[g]`` to ``offsets[g + 1]`` are those of expert g
                here; or (2, G), rows ``offsets[0, g]`` to ``offsets[1, g]``. Rows of none are not multiplied.
            scales: (M, ceil(H/128)) float32, best MN-major.
            expected_m: as in `fp8gemm.gemm_grouped`.

        Returns:
            (M, H) of x's dtype, bfloat16 for codes; rows of no expert hold anything.

        Raises:
            InputError: a tensor is not as described, or requires a gradient while gradients are enabled.
        """
        check_sorted(x, offsets, scales, self.num_local_experts, self.hidden_size, self.gate_up_proj.device)
        options = self._options(torch.bfloat16 if scales is not None else x.dtype, expected_m)
        codes, scales = quantize_activation(contiguous_rows(x)) if scales is None else (x, scales)
        return of_sorted(codes, scales, offsets, self.operands(), options, some=self._are_some())

    def forward_masked(
        self, x: Tensor, counts: Tensor, *, scales: Tensor | None = None, expected_m: int | None = None
    ) -> Tensor:
        """Each expert's output for tokens that are sorted already, as by ranks that exchange them.

        Args:
            x: (G, max_m, H) bfloat16, float16 or float32; or float8_e4m3fn codes, with ``scales``.
            counts: (G,) int32 or int64, valid rows of each expert here, clamped to 0 to max_m. Others are not read.
            scales: (G, max_m, ceil(H/128)) float32, best as `fp8gemm.scales.empty_mn_major_groups` lays them out.
            expected_m: as in `fp8gemm.gemm_masked`.

        Returns:
            (G, max_m, H) of x's dtype, bfloat16 for codes; rows past a count hold anything.

        Raises:
            InputError: a tensor is not as described, or requires a gradient while gradients are enabled.
        """
        check_masked(x, counts, scales, self.num_local_experts, self.hidden_size, self.gate_up_proj.device)
        options = self._options(torch.bfloat16 if scales is not None else x.dtype, expected_m)
        codes, scales = quantize_activation(contiguous_rows(x), counts=counts) if scales is None else (x, scales)
        return of_masked(codes, scales, counts, self.operands(), options)

    def _of_tokens(
        self, codes: Tensor, scales: Tensor, expert_ids: Tensor, weights: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """What the experts here add to the weighted sums of tokens that are quantised."""
        of, first, some = self.operands(), self.first_expert, self._are_some()
        return of_tokens(codes, scales, expert_ids, weights, of, first_expert=first, some=some, options=options)

    def operands(self) -> Weights:
        """What is multiplied by here: gate and up, then down. A block that is divided among ranks has more."""
        check_kept(GATE_UP, self.gate_up_proj)
        return (self.gate_up_proj, self.gate_up_proj_scale_inv), (self.down_proj, self.down_proj_scale_inv)

    def _are_some(self) -> bool:
        return self.num_local_experts < self.num_experts

    def _options(self, out_dtype: torch.dtype, expected_m: int | None) -> dict[str, Any]:
        return {"out_dtype": out_dtype, "expected_m": expected_m, "batch_invariant": self.batch_invariant}

    def _options_of(self, out_dtype: torch.dtype, expert_ids: Tensor) -> dict[str, Any]:
        return self._options(out_dtype, max(1, -(-expert_ids.numel() // self.num_experts)))

    def _shape(self) -> ExpertsShape:
        return ExpertsShape(**{field.name: getattr(self, field.name) for field in fields(ExpertsShape)})

    def extra_repr(self) -> str:
        text = f"{self.num_experts}, hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}"
        if self._are_some():
            text += f", first_expert={self.first_expert}, num_local_experts={self.num_local_experts}"
        return text if self.batch_invariant is None else f"{text}, batch_invariant={self.batch_invariant}"

    # Moving, loading, pickling.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fp8Experts:
        """As in `torch.nn.Module`, but `moving_only`."""
        super()._apply(moving_only(fn, bias=None), recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Check and convert this block's tensors before any of them is copied or assigned.

        Raises:
            InputError: a tensor is missing or is not what the block takes; the message begins with its whole key.
        """
        state_dict = checked_state(state_dict, prefix, self._shape(), self.gate_up_proj.device)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def __getstate__(self) -> dict[str, Any]:
        return state_with_bytes(self, GATE_UP, DOWN)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        codes_from_bytes(self, GATE_UP, DOWN)
