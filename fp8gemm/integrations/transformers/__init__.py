"""The FP8 linear layers and experts of transformers models, run by fp8gemm.

`use_fp8gemm` turns the linear layers of a loaded model, whole or divided among ranks, into `fp8gemm.nn.Fp8Linear`, and
has its experts compute by grouped products; `load_quantized` reads a block-FP8 checkpoint with its scales checked, on
machines without a GPU too. `install_kernel` leaves the layers as they are and puts fp8gemm under the function that they
call, for models that must keep them (adapters with gradients).

Nothing of that library is imported before one of these is called. It must be transformers 5.17 or newer.
"""

from fp8gemm.integrations.transformers.checkpoint import load_quantized
from fp8gemm.integrations.transformers.kernel import (
    block_fp8_linear,
    install_kernel,
    installed_kernel,
    uninstall_kernel,
)
from fp8gemm.integrations.transformers.layers import use_fp8gemm

__all__ = [
    "block_fp8_linear",
    "install_kernel",
    "installed_kernel",
    "load_quantized",
    "uninstall_kernel",
    "use_fp8gemm",
]
