"""Linear layers with FP8 weights: `Fp8Linear`, `convert` for a whole model, `compile_options` for `torch.compile`."""

from fp8gemm.nn.compiling import compile_options
from fp8gemm.nn.conversion import Conversion, ConvertedLayer, SkippedLayer, convert
from fp8gemm.nn.linear import Fp8Linear

__all__ = ["Conversion", "ConvertedLayer", "Fp8Linear", "SkippedLayer", "compile_options", "convert"]
