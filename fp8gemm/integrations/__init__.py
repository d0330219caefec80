"""What connects fp8gemm to other libraries. Nothing here is imported until it is asked for."""
