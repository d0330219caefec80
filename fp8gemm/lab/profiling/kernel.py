"""From a shape and a config's label to the kernel that is looked at: bfloat16 output, B scaled by blocks, GPU 0."""

from __future__ import annotations

from fp8gemm.errors import InputError
from fp8gemm.kernels.dense import DenseKernel
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.hopper import Chip
from fp8gemm.tuning.problem import Problem, packed_problem
from fp8gemm.tuning.select import ranked_configs


def choose_config(problem: Problem, chip: Chip, label: str | None) -> TileConfig:
    """The config of that label, or the one that the library chooses.

    Of the ordinary orientation, which alone has an instrumented build.

    Raises:
        InputError: no candidate for the problem has that label.
    """
    ranked = [config for config in ranked_configs(problem, chip) if isinstance(config, TileConfig)]
    if label is None:
        return ranked[0]
    found = next((config for config in ranked if config.label == label), None)
    if found is None:
        raise InputError(f"expected a config among {', '.join(config.label for config in ranked)}; got {label!r}")
    return found


def find_kernel(m: int, n: int, k: int, *, label: str | None = None) -> tuple[DenseKernel, Chip]:
    """The kernel of a shape under the config of that label, or the chosen one, loaded; and the chip it was chosen for.

    Raises:
        InputError: no candidate has that label.
    """
    chip = device_chip(0)
    problem = packed_problem(m, n, k)
    config = choose_config(problem, chip, label)
    return DenseKernel(problem, config, device_index=0, num_sms=chip.num_sms), chip
