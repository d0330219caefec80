"""``fp8gemm cache``: looking after the directories of compiled kernels. It needs no GPU, no compiler and no torch."""
