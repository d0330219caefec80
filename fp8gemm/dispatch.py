"""From a problem to its loaded kernel, and from checked operands to the launch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.families.catalogue import kernel_request, load_kernel
from fp8gemm.families.kernel import GemmKernel
from fp8gemm.jit.build import is_ready
from fp8gemm.jit.kernel import is_loaded
from fp8gemm.operands import tma_scales
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import FEW_ROWS, Problem, Scaling
from fp8gemm.tuning.select import Config, ranked_configs
from fp8gemm.tuning.table import Tables, tables_in_force

_KernelKey = tuple[Problem, Config, int, int, bool]
_kernels: dict[_KernelKey, GemmKernel] = {}


def kernel_for(problem: Problem, chip: Chip, device_index: int) -> GemmKernel:
    """The loaded kernel of the chosen config or, under the policy ``nearest``, the best of those that are ready."""
    programmatic = settings.current().pdl
    key = _best(problem, chip, device_index, programmatic, tables_in_force())
    found = _kernels.get(key)
    if found is not None:
        return found
    policy = settings.current().jit
    if policy == "nearest":
        key = _key(problem, _nearest_ready(problem, chip, device_index), chip, device_index, programmatic)
        found = _kernels.get(key)
    if found is None:
        kernel = load_kernel(
            problem,
            key[1],
            device_index=device_index,
            num_sms=chip.num_sms,
            allow_compile=policy == "compile",
            programmatic=programmatic,
        )
        found = _kernels.setdefault(key, kernel)
    return found


def launch(
    kernel: GemmKernel,
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    out: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    static_weights: bool = False,
) -> None:
    """Launch on the current stream of the operands' device; they are checked, and M is not 0."""
    if kernel.reads_scales_by_tma:
        scales_a = tma_scales(scales_a)
    if kernel.problem.scaling is Scaling.ROW:
        scales_b = tma_scales(scales_b)
    index = a.device.index
    with nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index):
        stream = torch.cuda.current_stream(index).cuda_stream
        kernel(a, scales_a, b, scales_b, out=out, stream=stream, c=c, bias=bias, static_weights=static_weights)


@lru_cache(maxsize=4096)
def _best(problem: Problem, chip: Chip, device_index: int, programmatic: bool, tables: Tables) -> _KernelKey:
    return _key(problem, ranked_configs(problem, chip, tables)[0], chip, device_index, programmatic)


def _key(problem: Problem, config: Config, chip: Chip, device_index: int, programmatic: bool) -> _KernelKey:
    """All that tells loaded kernels apart: not M, nor why the config was chosen."""
    of_kernel = replace(problem, m=0, batch_invariant=False, static_weights=False)
    return of_kernel, config, device_index, chip.num_sms, programmatic


def _nearest_ready(problem: Problem, chip: Chip, device_index: int) -> Config:
    with torch.cuda.device(device_index):
        capturing = torch.cuda.is_current_stream_capturing()
    ranked = ranked_configs(problem, chip)
    # Any config is right for any M: those that other M choose come after its own.
    others = (replace(problem, m=m) for m in (*FEW_ROWS, 2 * FEW_ROWS[-1]))
    for config in dict.fromkeys(chain(ranked, *(ranked_configs(other, chip) for other in others))):
        request = kernel_request(problem, config)
        if is_loaded(request, device_index) if capturing else is_ready(request):
            return config
    return ranked[0]  # which is then missed in the open
