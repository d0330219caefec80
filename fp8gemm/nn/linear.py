"""A linear layer whose weight is FP8 with 128x128 scales and whose inputs are quantised as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from fp8gemm.checks.dtypes import INPUTS, dtype_of
from fp8gemm.checks.tensors import check_features, check_tensor, check_whole
from fp8gemm.errors import InputError
from fp8gemm.nn.checkpoint import (
    BIAS,
    SCALES,
    WEIGHT,
    Stored,
    bias_dtype,
    checked_bias,
    checked_operands,
    checked_state,
)
from fp8gemm.nn.moving import codes_from_bytes, frozen, moving_only, state_with_bytes, zero_codes
from fp8gemm.products.dense import gemm
from fp8gemm.products.folding import Names
from fp8gemm.products.linear import LinearPlan, traced_linear
from fp8gemm.products.operands import uses_reference
from fp8gemm.products.plans import MAX_PLANNED_M
from fp8gemm.products.quantize import quantize_weight
from fp8gemm.products.watched import goes_to_operator, is_plain
from fp8gemm.scales import block_count
from fp8gemm.sizes import check_size

Terms = tuple[Tensor, Tensor, Tensor | None]
"""Weight, scales, bias."""

OPERANDS = f"x {WEIGHT} {SCALES} {BIAS}?"


class Fp8Linear(nn.Module):
    """``y = x @ weight.T + bias`` with FP8 operands: for inference, in place of `torch.nn.Linear`.

    The constructor makes a layer whose weight is zero, on "meta" none at all; its values come from `load_state_dict`.
    From a layer or tensors that are there: `from_linear`, `from_quantized`. Names, shapes and dtypes in a state dict
    are those of DeepSeek-V3's and Qwen3-FP8's checkpoints.

    ``train()`` and ``eval()`` make no difference, and no parameter ever requires a gradient; an input that requires
    one, with gradients enabled, is an error. ``half()``, ``to(dtype)`` and the like leave codes and scales alone, and
    keep the bias in a dtype that the kernels add.

    Args:
        in_features: K, a multiple of 16.
        out_features: N, at least 1.
        bias: whether there is one.
        device, dtype: as in `torch.nn.Linear`; ``dtype`` is the bias's, and float16 becomes float32.
        max_m: rows up to which a GPU's kernels are got ready ahead; more rows are computed too.
        batch_invariant: as in `fp8gemm.gemm`.

    Attributes:
        weight: (N, K) float8_e4m3fn.
        weight_scale_inv: (ceil(N/128), ceil(K/128)) float32 multipliers: ``real = weight * weight_scale_inv``.
        bias: (N,) bfloat16 or float32, or None.

    Raises:
        InputError: sizes, ``max_m`` or ``dtype`` that no kernel takes.
    """

    weight: nn.Parameter
    weight_scale_inv: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        max_m: int = 16384,
        batch_invariant: bool | None = None,
    ) -> None:
        super().__init__()
        check_features("in_features", in_features)
        check_whole("out_features", out_features, 1)
        check_size("out_features", "out_features", out_features)
        check_whole("max_m", max_m, 1, MAX_PLANNED_M)
        dtype = dtype_of("dtype", torch.get_default_dtype() if dtype is None else dtype, INPUTS)
        self.in_features, self.out_features = in_features, out_features
        self.max_m, self.batch_invariant = max_m, batch_invariant
        self._dtype = dtype
        self._plan = LinearPlan(max_m=max_m, batch_invariant=batch_invariant)
        blocks = block_count(out_features), block_count(in_features)
        self.weight = zero_codes(out_features, in_features, device=device)
        self.weight_scale_inv = frozen(torch.ones(blocks, dtype=torch.float32, device=device))
        zeros = torch.zeros(out_features, dtype=bias_dtype(dtype), device=device) if bias else None
        self.register_parameter(BIAS, None if zeros is None else frozen(zeros))

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, max_m: int = 16384, batch_invariant: bool | None = None) -> Fp8Linear:
        """A layer with the quantised weight of ``linear``, where that is, and a copy of its bias.

        On "meta" there is nothing to quantise, and the layer waits for its values there too.

        Raises:
            InputError: a weight or bias that is not bfloat16, float16 or float32, or K is not a multiple of 16.
        """
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        n, k = weight.shape
        options: dict[str, Any] = {"dtype": weight.dtype, "max_m": max_m, "batch_invariant": batch_invariant}
        layer = cls(k, n, bias is not None, device="meta", **options)
        if not weight.is_meta:
            # NOTE: a clone, so that changes of one layer's bias never show in the other.
            layer = cls.from_quantized(*quantize_weight(weight), None if bias is None else bias.clone(), **options)
        return layer.train(linear.training)

    @classmethod
    def from_quantized(
        cls,
        weight: Tensor,
        weight_scale_inv: Tensor,
        bias: Tensor | None = None,
        *,
        block_size: tuple[int, int] = (128, 128),
        requantize: bool = False,
        dtype: torch.dtype | str = torch.bfloat16,
        max_m: int = 16384,
        batch_invariant: bool | None = None,
    ) -> Fp8Linear:
        """A layer around tensors that are quantised already; it keeps them, not copies, where they need no conversion.

        Args:
            weight: (N, K) float8_e4m3fn.
            weight_scale_inv: (ceil(N/128), ceil(K/128)) float32, bfloat16 or float8_e8m0fnu, widened exactly.
            bias: (N,) bfloat16, float16 or float32, or None.
            block_size, requantize: of scales for other blocks, (32, 32) say, as in `fp8gemm.fold_scales`, which makes
                new ones and, where it must, new codes of them.
            dtype: that of the activations to come, as in the constructor; a ``bias`` keeps its own.
            max_m, batch_invariant: as in the constructor.

        Raises:
            InputError: a tensor is not as described, not where ``weight`` is, or its scales cannot be folded.
        """
        stored = Stored.of(block_size, requantize)
        for name, tensor in ((WEIGHT, weight), (SCALES, weight_scale_inv), (BIAS, bias)):
            if name != BIAS or tensor is not None:
                check_tensor(name, tensor)
        if weight.dim() != 2:
            raise InputError(f"weight: expected shape (N, K), got {tuple(weight.shape)}")
        n, k = weight.shape
        for name, tensor in ((SCALES, weight_scale_inv), (BIAS, bias)):
            if tensor is not None and tensor.device != weight.device:
                raise InputError(f"{name}: expected the device of weight, {weight.device}, got {tensor.device}")
        options: dict[str, Any] = {"max_m": max_m, "batch_invariant": batch_invariant}
        weight, scales = checked_operands(Names(WEIGHT, SCALES), weight, weight_scale_inv, n, k, stored)
        layer = cls(k, n, bias is not None, device="meta", dtype=dtype, **options)
        layer.weight, layer.weight_scale_inv = frozen(weight), frozen(scales)
        if bias is not None:
            layer.bias = frozen(checked_bias(BIAS, bias, n))
        layer._prepare()
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output.

        Args:
            x: (..., K) bfloat16, float16 or float32, any strides, where the weight is. Any leading dimension may be 0.

        Returns:
            (..., N) of x's dtype, contiguous.

        Raises:
            InputError: ``x`` is not as described, or requires a gradient while gradients are enabled.
        """
        if is_dynamo_compiling():
            return self._traced(x, self.weight, self.weight_scale_inv, self.bias)  # it cannot trace the next line
        parameters: Any = self._parameters  # itself, because to look up each of them by name takes longer than a launch
        return self._product(x, parameters[WEIGHT], parameters[SCALES], parameters[BIAS])

    def forward_quantized(
        self, a: Tensor, scales_a: Tensor, *, out_dtype: torch.dtype | str = torch.bfloat16
    ) -> Tensor:
        """The output for rows that are quantised already, as by `fp8gemm.quantize_silu_mul`.

        Args:
            a: (M, K) float8_e4m3fn.
            scales_a: (M, ceil(K/128)) float32, MN-major or, at the cost of a copy, of any strides.
            out_dtype: bfloat16, float16 or float32, as torch's or by name.

        Returns:
            (M, N) of ``out_dtype``.

        Raises:
            InputError: as `fp8gemm.gemm`, in whose words ``b`` and ``scales_b`` are the layer's weight and scales.
        """
        return self._product_of_codes(a, scales_a, self.operands(), out_dtype)

    def operands(self) -> Terms:
        """What is multiplied by and added here: weight, scales, bias or None. A layer that is divided among ranks has
        more than these."""
        return self.weight, self.weight_scale_inv, self.bias

    def multiplied(self) -> tuple[int, int, torch.dtype | None]:
        """N and K of the product that is computed here, and the dtype of the bias that is added, None without one."""
        return self.out_features, self.in_features, None if self.bias is None else self.bias.dtype

    def is_static(self) -> bool:
        """Whether the weight stays what it is between calls, and is not gathered for each, as FSDP does."""
        return is_plain(self.operands()[0])

    def _product(self, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        if goes_to_operator(OPERANDS, x, weight, scales, bias):
            return self._traced(x, weight, scales, bias)
        return self._plan(x, weight, scales, bias)

    def _product_of_codes(
        self, a: Tensor, scales_a: Tensor, terms: Terms, out_dtype: torch.dtype | str, out: Tensor | None = None
    ) -> Tensor:
        weight, scales, bias = terms
        static_weights = self._plan.is_settled(weight)
        options: dict[str, Any] = {"batch_invariant": self.batch_invariant, "static_weights": static_weights}
        return gemm(a, scales_a, weight, scales, bias=bias, out=out, out_dtype=out_dtype, **options)

    def _traced(self, x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        """`forward` as nodes of a graph, or for a tensor that is not plain."""
        invariant, static = self.batch_invariant, self._plan.is_settled(weight)
        return traced_linear(x, weight, scales, bias, batch_invariant=invariant, static_weights=static)

    def _prepare(self) -> None:
        """On a GPU: load the kernels for the inputs that are expected, and wait until the weight is written.

        NOTE: the layer promises its kernels a static weight, one that no kernel writes while they run: this one, and
        none that is put in its place, as FSDP does with what it gathers for each call.
        """
        weight, scales, bias = self.operands()
        if not is_plain(weight):  # but sharded: whoever gathers it has another tensor to multiply by
            return
        self._plan.settle(weight)
        if not uses_reference(weight):
            self._plan.prepare(weight, scales, bias, self._dtype)
            torch.cuda.current_stream(weight.device).synchronize()

    @property
    def input_dtype(self) -> torch.dtype:
        """That of the activations that are expected, and of the output: kernels for it are got ready ahead."""
        return self._dtype

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return text if self.batch_invariant is None else f"{text}, batch_invariant={self.batch_invariant}"

    # Moving, loading, pickling.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fp8Linear:
        """As in `torch.nn.Module`, but `moving_only`."""
        like_inputs = fn(torch.empty(0, dtype=self._dtype, device=self.weight.device))
        self._dtype = like_inputs.dtype if like_inputs.dtype in INPUTS else self._dtype
        super()._apply(moving_only(fn, bias=self.bias), recurse)  # type: ignore[no-untyped-call]
        self._prepare()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Check and convert this layer's tensors before any of them is copied or assigned.

        Raises:
            InputError: a tensor is not what the layer takes, or a weight comes without scales or they without it; the
                message begins with its whole key.
        """
        state_dict = checked_state(
            state_dict, prefix, self.out_features, self.in_features, has_bias=self.bias is not None
        )
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return state_with_bytes(self, WEIGHT)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        codes_from_bytes(self, WEIGHT)
        self._prepare()
