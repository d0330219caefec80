"""fp8gemm beside its peers: CUDA-graph replay over rotating operand sets, peers in turn, medians.

`fp8gemm.cli.bench` is the command.
"""
