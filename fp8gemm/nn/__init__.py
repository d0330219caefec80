"""Layers with FP8 weights: `Fp8Linear`, `Fp8Experts`, `convert` for a model, `compile_options` for `torch.compile`; and
`Fp8TrainingLinear`, which is trained."""

from fp8gemm.nn.compiling import compile_options
from fp8gemm.nn.conversion import Conversion, ConvertedLayer, SkippedLayer, convert
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.linear import Fp8Linear
from fp8gemm.nn.training import Fp8TrainingLinear

__all__ = [
    "Conversion",
    "ConvertedLayer",
    "Fp8Experts",
    "Fp8Linear",
    "Fp8TrainingLinear",
    "SkippedLayer",
    "compile_options",
    "convert",
]
