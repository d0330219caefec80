"""What DeepGEMM's tests measure with."""

from fp8gemm.integrations.deep_gemm.testing.bench import bench_kineto
from fp8gemm.integrations.deep_gemm.testing.numeric import calc_diff, count_bytes
from fp8gemm.integrations.deep_gemm.testing.utils import get_arch_major, ignore_env, test_filter

__all__ = ["bench_kineto", "calc_diff", "count_bytes", "get_arch_major", "ignore_env", "test_filter"]
