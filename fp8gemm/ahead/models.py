"""What a model's FP8 layers will ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fp8gemm.ahead.kernels import CHIPS, INPUTS, Demand, Variants, chips_named, demand, row_quantizers
from fp8gemm.errors import InputError
from fp8gemm.families.quantize import QuantizeSource
from fp8gemm.tuning.epilogue import epilogue_text, parse_output
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Addend, Problem

if TYPE_CHECKING:
    from torch import nn

    from fp8gemm.nn import Fp8Linear


def demand_of_model(model: nn.Module, max_m: int | None, chips: Sequence[str] | None) -> Demand:
    """The kernels of its `Fp8Linear` layers, on the GPU where they are if no chips are named.

    Raises:
        InputError: it has none.
    """
    from fp8gemm.nn import Fp8Linear

    layers = [module for module in model.modules() if isinstance(module, Fp8Linear)]
    if not layers:
        raise InputError(
            f"model: expected a module with Fp8Linear layers, as fp8gemm.nn.convert makes, got {type(model).__name__} "
            f"without one"
        )
    problems = [problem for layer in layers for problem in problems_of_layer(layer, max_m)]
    dtypes = dict.fromkeys(problem.output for problem in problems)
    quantizers = [request for dtype in dtypes for request in row_quantizers(INPUTS[dtype], [QuantizeSource.PLAIN])]
    return demand(problems, _chips_of(layers) if chips is None else chips_named(chips), quantizers)


def problems_of_layer(layer: Fp8Linear, max_m: int | None) -> list[Problem]:
    """What a layer asks for, each with the largest M."""
    bias = Addend.NONE if layer.bias is None else Addend(str(layer.bias.dtype).removeprefix("torch."))
    variants = Variants(
        outputs=(parse_output(layer.input_dtype),),
        epilogues=(epilogue_text(Addend.NONE, bias),),
        static_weights=(True,),
        batch_invariant=layer.batch_invariant,
    )
    return variants.problems(layer.out_features, layer.in_features, layer.max_m if max_m is None else max_m)


def _chips_of(layers: Sequence[Fp8Linear]) -> list[Chip]:
    from fp8gemm.dispatch import device_chip

    indices = dict.fromkeys(layer.weight.device.index for layer in layers if layer.weight.is_cuda)
    return list(dict.fromkeys(map(device_chip, indices))) or chips_named(CHIPS)
