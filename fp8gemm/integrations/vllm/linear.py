"""The kernel for vLLM's linear layers; to be imported where vLLM is."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import vllm.envs as envs
from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels.linear import (
    DeepGemmFp8BlockScaledMMKernel,
    Fp8BlockScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from fp8gemm.checks.dtypes import INPUTS, listed
from fp8gemm.driver.device import HOPPER, dotted
from fp8gemm.errors import InputError
from fp8gemm.nn.checkpoint import Stored, bias_dtype, checked_operands
from fp8gemm.products.folding import Names
from fp8gemm.products.linear import LinearPlan, traced_linear
from fp8gemm.products.operands import uses_reference
from fp8gemm.products.plans import MAX_PLANNED_M
from fp8gemm.scales import OF_WEIGHTS
from fp8gemm.sizes import SCALE_BLOCK

_ROW = (1, SCALE_BLOCK)
_MAX_M = 16384
"""Rows up to which kernels are loaded ahead, where vLLM does not say how many there can be."""

Answer = tuple[bool, str | None]
"""Whether, and if not, why not."""


class Fp8GemmBlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]  # vLLM is not there to be checked
    """``y = x @ weight.T + bias`` for any number of rows: fp8gemm's quantiser and product, as operators, so that they
    are seen by torch.compile and captured by CUDA graphs.

    It takes activations as they are, (..., K) bfloat16, float16 or float32, with scales of their own per row and 128
    columns; weights are (N, K) e4m3 with 128x128 scales, any N, K a multiple of 16. Scales of smaller blocks, 32x32
    say, are folded while the model is loaded (`fp8gemm.fold_scales`), and activations quantised as ever. With
    ``VLLM_BATCH_INVARIANT=1`` a row's bits do not depend on the other rows.
    """

    apply_input_quant: ClassVar[bool] = False

    def __init__(self, config: FP8ScaledMMLinearLayerConfig) -> None:
        super().__init__(config)
        self._batch_invariant = True if envs.VLLM_BATCH_INVARIANT else None
        found = get_current_vllm_config_or_none()
        rows = getattr(getattr(found, "scheduler_config", None), "max_num_batched_tokens", None) or _MAX_M
        self._max_m = min(rows, MAX_PLANNED_M)

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        """Whether the GPU is a Hopper one; ``compute_capability`` is 90 for 9.0, that of the current GPU by default."""
        if not current_platform.is_cuda():
            return False, "expected a CUDA GPU"
        if compute_capability is None:
            found = current_platform.get_device_capability()
            compute_capability = found.to_int() if found is not None else None
        if compute_capability != HOPPER[0] * 10 + HOPPER[1]:
            found = "none" if compute_capability is None else dotted(divmod(compute_capability, 10))
            return False, f"expected compute capability {dotted(HOPPER)} (Hopper), found {found}"
        return True, None

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> Answer:
        """Whether a layer is one of those described above."""
        x, weight = config.activation_quant_key, config.weight_quant_key
        n, k = config.weight_shape
        block, row = tuple(weight.scale.group_shape), tuple(x.scale.group_shape)
        # NOTE: vLLM asks for activations as narrow as the weight's blocks, and finer scales than those are not needed.
        rules = (
            (x.dtype is torch.float8_e4m3fn and weight.dtype is torch.float8_e4m3fn, "e4m3 operands"),
            (not x.scale.static, "activations quantised on the fly"),
            (row in (_ROW, (1, block[-1])), f"activation scales of {_ROW}, got {row}"),
            (_stored(block) is not None, f"weight scales of (128, 128), or smaller ones as (32, 32), got {block}"),
            (config.input_dtype in INPUTS, f"input of {listed(INPUTS)}, got {config.input_dtype}"),
            (config.out_dtype == config.input_dtype, f"output of the input's dtype, got {config.out_dtype}"),
            (k % 16 == 0, f"a weight (N, K) with K a multiple of 16, got {(n, k)}"),
        )
        reason = next((f"expected {rule}" for holds, rule in rules if not holds), None)
        return reason is None, reason

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check weight and scales, widen scales to float32, or fold them, and load the kernels that the layer can ask
        for.

        Raises:
            InputError: weight or scales are not as described, or cannot be folded.
            CacheMissError, CompileError, DriverError: a kernel could not be found, built or loaded.
        """
        if getattr(layer, "is_bmm", False):  # not called: its weight is read by fp8_einsum, in DeepGEMM's layout
            DeepGemmFp8BlockScaledMMKernel(self.config).process_weights_after_loading(layer)
            return
        super().process_weights_after_loading(layer)
        params = self._get_layer_params(layer)
        n, k = params.weight.shape
        names = Names(params.WEIGHT, params.block_scale_attr)
        stored = _stored(tuple(self.config.weight_quant_key.scale.group_shape))
        assert stored is not None, "can_implement said no"
        weight, scales = checked_operands(names, params.weight.data, params.block_scale.data, n, k, stored)
        replace_parameter(layer, params.WEIGHT, weight)
        replace_parameter(layer, params.block_scale_attr, scales)
        if stored.blocks != OF_WEIGHTS:
            # NOTE: who asks for the weight itself multiplies by these.
            setattr(layer, "weight_block_size", [SCALE_BLOCK, SCALE_BLOCK])  # noqa: B010
        self._load_kernels(layer, weight, scales)

    def _load_kernels(self, layer: torch.nn.Module, weight: Tensor, scales: Tensor) -> None:
        """Compile or fetch, and load, what the layer asks for with up to as many rows as vLLM puts in a batch."""
        if uses_reference(weight):
            return
        bias = None if getattr(layer, "skip_bias_add", False) else getattr(layer, "bias", None)
        bias = None if bias is None else _added(bias.data)
        plan = LinearPlan(max_m=self._max_m, batch_invariant=self._batch_invariant)
        plan.settle(weight)
        plan.prepare(weight, scales, bias, self.config.input_dtype)
        # NOTE: products promise a static weight, which is to be written before the first of them is launched.
        torch.cuda.current_stream(weight.device).synchronize()

    def apply_weights(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
        """The layer's output, (..., N) of x's dtype; ``x`` is (..., K), and any leading dimension may be 0."""
        params = self._get_layer_params(layer)
        return traced_linear(
            x,
            params.weight,
            params.block_scale,
            None if bias is None else _added(bias),
            batch_invariant=self._batch_invariant,
            static_weights=True,
        )

    def apply_block_scaled_mm(self, A: Tensor, B: Tensor, As: Tensor, Bs: Tensor) -> Tensor:
        """The product of rows that are quantised already: (M, N) of the layer's output dtype."""
        options = self.config.out_dtype, self._batch_invariant, True
        out: Tensor = torch.ops.fp8gemm.gemm(A, As, B, Bs, None, None, *options)
        return out


def _stored(block: tuple[int, ...]) -> Stored | None:
    """How scales of such blocks are taken; None if they are not."""
    try:
        return Stored.of(block, requantize=False)
    except InputError:
        return None


def _added(bias: Tensor) -> Tensor:
    """A bias as kernels add it."""
    return bias.to(bias_dtype(bias.dtype))
