"""fp8gemm beside its peers: CUDA-graph replay over rotating operand sets, peers in turn, medians. See ``command``."""
