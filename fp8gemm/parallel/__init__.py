"""Layers on several GPUs, as torch.distributed has them: styles for `parallelize_module`, and gathers of FP8 rows."""

from torch.distributed.tensor.parallel import SequenceParallel

import fp8gemm.ops.sharding  # noqa: F401  # so that the operators know DTensors, whoever calls them
from fp8gemm.parallel.collectives import gather_quantized
from fp8gemm.parallel.styles import ColwiseParallel, ExpertParallel, RowwiseParallel

__all__ = ["ColwiseParallel", "ExpertParallel", "RowwiseParallel", "SequenceParallel", "gather_quantized"]
