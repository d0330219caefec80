"""Layers with FP8 weights: `Fp8Linear`, `Fp8Experts`, `convert` for a model, `compile_options` for `torch.compile`."""

from fp8gemm.nn.compiling import compile_options
from fp8gemm.nn.conversion import Conversion, ConvertedLayer, SkippedLayer, convert
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.linear import Fp8Linear

__all__ = ["Conversion", "ConvertedLayer", "Fp8Experts", "Fp8Linear", "SkippedLayer", "compile_options", "convert"]
