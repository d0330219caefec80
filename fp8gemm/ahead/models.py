"""What a model's FP8 layers and experts will ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fp8gemm.ahead.grouped import GroupedVariants
from fp8gemm.ahead.kernels import (
    CHIPS,
    INPUTS,
    Demand,
    Variants,
    chips_named,
    demand,
    masked_quantizers,
    routing_kernels,
    row_quantizers,
    weight_quantizers,
)
from fp8gemm.errors import InputError
from fp8gemm.kernels.hints import MAX_M
from fp8gemm.kernels.quantize import QuantizeSource, quantizer_with_transpose
from fp8gemm.sizes import SCALE_BLOCK
from fp8gemm.tuning.grouped_problem import AnyProblem, GroupedProblem
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import NO_EPILOGUE, Addend, OutputType, Problem, Scaling, epilogue_text, parse_output

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fp8gemm.nn import Fp8Experts, Fp8Linear, Fp8TrainingLinear


def demand_of_model(
    model: nn.Module, max_m: int | None, chips: str | Sequence[str] | None, output: OutputType = OutputType.BFLOAT16
) -> Demand:
    """The kernels of its `Fp8Linear`, `Fp8TrainingLinear` and `Fp8Experts` modules, on the GPU where they are if no
    chips are named.

    Args:
        output: what experts and layers that are trained will put out, and take in.

    Raises:
        InputError: it has none.
    """
    from fp8gemm.nn import Fp8Experts, Fp8Linear, Fp8TrainingLinear

    layers = [module for module in model.modules() if isinstance(module, Fp8Linear)]
    experts = [module for module in model.modules() if isinstance(module, Fp8Experts)]
    trained = [module for module in model.modules() if isinstance(module, Fp8TrainingLinear)]
    if not layers and not experts and not trained:
        raise InputError(
            f"model: expected a module with Fp8Linear layers, as fp8gemm.nn.convert makes, Fp8TrainingLinear ones, or "
            f"Fp8Experts, got {type(model).__name__} without one"
        )
    problems: list[AnyProblem] = [problem for layer in layers for problem in problems_of_layer(layer, max_m)]
    dtypes = dict.fromkeys(problem.output for problem in problems)
    quantizers = [request for dtype in dtypes for request in row_quantizers(INPUTS[dtype], [QuantizeSource.PLAIN])]
    problems += [problem for block in experts for problem in problems_of_experts(block, max_m, output)]
    if experts:
        quantizers += row_quantizers(INPUTS[output]) + masked_quantizers(INPUTS[output])
        quantizers += routing_kernels(INPUTS[output])
    gradients: list[Problem] = []
    for layer in trained:
        tokens = MAX_M if max_m is None else max_m
        problems += problems_of_training(layer, tokens, output)
        gradients += gradients_of_training(layer, tokens, output)
        quantizers += row_quantizers(INPUTS[output], [QuantizeSource.PLAIN])
        quantizers.append(quantizer_with_transpose(INPUTS[output]).request)
        quantizers += weight_quantizers(INPUTS[parse_output(layer.weight.dtype)]) + weight_quantizers(INPUTS[output])
    weights = [layer.weight for layer in layers] + [layer.weight for layer in trained]
    weights += [block.gate_up_proj for block in experts]
    return demand(problems, _chips_of(weights) if chips is None else chips_named(chips), quantizers, gradients)


def problems_of_layer(layer: Fp8Linear, max_m: int | None) -> list[Problem]:
    """What a layer asks for, each with the largest M."""
    n, k, added = layer.multiplied()
    variants = Variants(
        outputs=(parse_output(layer.input_dtype),),
        epilogues=(_epilogue_of(added),),
        static_weights=(layer.is_static(),),
        batch_invariant=layer.batch_invariant,
    )
    return variants.problems(n, k, layer.max_m if max_m is None else max_m)


def problems_of_training(layer: Fp8TrainingLinear, tokens: int, output: OutputType) -> list[Problem]:
    """What a step of up to ``tokens`` rows of ``output`` asks for with the weight, each with the largest M.

    NOTE: parameters as they are, and as mixed precision of FSDP gathers them: as what is computed with.
    """
    import torch

    from fp8gemm.nn.checkpoint import bias_dtype

    n, k = layer.weight.shape
    computed_with: torch.dtype = getattr(torch, output.value)
    added: list[torch.dtype | None] = [None]
    if layer.bias is not None:
        added = [bias_dtype(layer.bias.dtype), bias_dtype(computed_with)]
    epilogues = tuple(dict.fromkeys(map(_epilogue_of, added)))
    of_output = Variants(outputs=(output,), epilogues=epilogues, static_weights=(False,))
    without = replace(of_output, epilogues=(NO_EPILOGUE,))
    return [*of_output.problems(n, k, tokens), *without.problems(k, n, tokens)]


def gradients_of_training(layer: Fp8TrainingLinear, tokens: int, output: OutputType) -> list[Problem]:
    """The gradients of the weight in a step of ``tokens`` rows, which are their K; M is the weight's own N."""
    n, k = layer.weight.shape
    outputs = tuple(dict.fromkeys((parse_output(layer.weight.dtype), output)))
    variants = Variants(outputs=outputs, scaling=Scaling.ROW, static_weights=(False,))
    return variants.problems(k, -(-tokens // SCALE_BLOCK) * SCALE_BLOCK, n)


def _epilogue_of(bias: torch.dtype | None) -> str:
    addend = Addend.NONE if bias is None else Addend(str(bias).removeprefix("torch."))
    return epilogue_text(Addend.NONE, addend)


def problems_of_experts(block: Fp8Experts, max_m: int | None, output: OutputType) -> list[GroupedProblem]:
    """What a block of experts asks for, each with the largest M of a typical group."""
    variants = GroupedVariants(outputs=(output,), batch_invariant=block.batch_invariant)
    return [
        problem
        for weight in (block.gate_up_proj, block.down_proj)
        for n, k in [weight.shape[1:]]
        for problem in variants.problems(block.num_local_experts, n, k, MAX_M if max_m is None else max_m)
    ]


def _chips_of(weights: Sequence[Tensor]) -> list[Chip]:
    from fp8gemm.kernels.loaded import device_chip

    indices = dict.fromkeys(weight.device.index for weight in weights if weight.is_cuda)
    return list(dict.fromkeys(map(device_chip, indices))) or chips_named(CHIPS)
