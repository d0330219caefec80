"""The host's side of each kernel family: one module for each file of ``include/fp8gemm/kernels``."""
