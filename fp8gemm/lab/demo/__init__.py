"""``fp8gemm demo``: the whole path on the machine at hand, checked and timed. See ``command``."""
