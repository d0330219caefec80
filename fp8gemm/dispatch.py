"""From a problem to its loaded kernel, and from checked operands to the launch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.families.dense import DenseKernel, kernel_request
from fp8gemm.jit.build import is_ready
from fp8gemm.jit.kernel import is_loaded
from fp8gemm.operands import tma_scales
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem, Scaling
from fp8gemm.tuning.select import ranked_configs
from fp8gemm.tuning.table import Tables, tables_in_force

_KernelKey = tuple[Problem, TileConfig, int, int]
_kernels: dict[_KernelKey, DenseKernel] = {}


def kernel_for(problem: Problem, chip: Chip, device_index: int) -> DenseKernel:
    """The loaded kernel of the chosen config or, under the policy ``nearest``, the best of those that are ready."""
    key = _best(problem, chip, device_index, tables_in_force())
    found = _kernels.get(key)
    if found is not None:
        return found
    policy = settings.current().jit
    if policy == "nearest":
        key = _key(problem, _nearest_ready(problem, chip, device_index), chip, device_index)
        found = _kernels.get(key)
    if found is None:
        kernel = DenseKernel(
            problem, key[1], device_index=device_index, num_sms=chip.num_sms, allow_compile=policy == "compile"
        )
        found = _kernels.setdefault(key, kernel)
    return found


def launch(
    kernel: DenseKernel,
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    out: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Launch on the current stream of the operands' device; they are checked, and M is not 0."""
    scales_a = tma_scales(scales_a)
    if kernel.problem.scaling is Scaling.ROW:
        scales_b = tma_scales(scales_b)
    index = a.device.index
    with nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index):
        stream = torch.cuda.current_stream(index).cuda_stream
        kernel(a, scales_a, b, scales_b, out=out, stream=stream, c=c, bias=bias)


@lru_cache(maxsize=4096)
def _best(problem: Problem, chip: Chip, device_index: int, tables: Tables) -> _KernelKey:
    return _key(problem, ranked_configs(problem, chip, tables)[0], chip, device_index)


def _key(problem: Problem, config: TileConfig, chip: Chip, device_index: int) -> _KernelKey:
    """All that tells loaded kernels apart: not M, nor why the config was chosen."""
    return replace(problem, m=0, batch_invariant=False), config, device_index, chip.num_sms


def _nearest_ready(problem: Problem, chip: Chip, device_index: int) -> TileConfig:
    with torch.cuda.device(device_index):
        capturing = torch.cuda.is_current_stream_capturing()
    ranked = ranked_configs(problem, chip)
    for config in ranked:
        request = kernel_request(problem, config)
        if is_loaded(request, device_index) if capturing else is_ready(request):
            return config
    return ranked[0]  # which is then missed in the open
