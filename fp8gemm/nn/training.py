"""A linear layer that is trained with FP8 products; its parameters are those of `torch.nn.Linear`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fp8gemm.checks.dtypes import INPUTS, dtype_of
from fp8gemm.checks.tensors import check_features
from fp8gemm.errors import InputError
from fp8gemm.products.training import linear


class Fp8TrainingLinear(nn.Linear):
    """`torch.nn.Linear` whose output and whose gradients are FP8 products, see `fp8gemm.linear`.

    The weight stays in the dtype that it is made in, and is quantised at each call: optimisers, state dicts, tied
    weights and FSDP2 find a plain ``weight`` and ``bias``. From a layer that is there: `from_linear`. To serve what was
    trained: `Fp8Linear.from_linear`, or `fp8gemm.nn.convert` for a model.

    Args:
        in_features: K, a multiple of 16.
        out_features: N, a multiple of 16: the gradient of the input sums over it.
        bias: whether there is one.
        device, dtype: as in `torch.nn.Linear`; bfloat16, float16 or float32.

    Attributes:
        weight: (N, K).
        bias: (N,), or None.

    Raises:
        InputError: sizes or ``dtype`` that no kernel takes.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        check_features("in_features", in_features)
        check_features("out_features", out_features)
        dtype = dtype_of("dtype", torch.get_default_dtype() if dtype is None else dtype, INPUTS)
        super().__init__(in_features, out_features, bias, device, dtype)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Fp8TrainingLinear:
        """A layer with the very parameters of ``linear``: an optimiser that has them, and a module that is tied to
        them, keep them.

        Raises:
            InputError: sizes or a dtype that no kernel takes, or a weight that is computed from others.
        """
        if not isinstance(linear.weight, nn.Parameter):
            made = type(linear.weight).__name__
            raise InputError(f"linear: expected a weight that is a parameter, got {made}, as parametrizations make it")
        n, k = linear.weight.shape
        layer = cls(k, n, linear.bias is not None, "meta", linear.weight.dtype)
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, as `fp8gemm.linear` gives it.

        Args:
            x: (..., K) bfloat16, float16 or float32, any strides, where the weight is.

        Returns:
            (..., N) of x's dtype, or of autocast's.

        Raises:
            InputError: ``x`` is not as described.
        """
        return linear(x, self.weight, self.bias)
