"""Where the demo computes: on a Hopper GPU or, without one, with the reference backend on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fp8gemm import settings
from fp8gemm.driver.device import HOPPER, DeviceInfo, DeviceStatus, conclude, hopper_info, probe
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.tuning.hopper import Chip, named_chip

ABSENT_CHIP = "h200"
"""The chip to compile for where there is none."""

REFERENCE_ROWS = 16
"""Rows that the reference backend computes, so that the demo takes seconds on a laptop."""


@dataclass(frozen=True)
class Target:
    """What the products run on.

    Attributes:
        device: where the operands are.
        chip: what kernels are chosen for.
        gpu: None for the reference backend.
        reason: for people: which GPU, or why there is none.
    """

    device: torch.device
    chip: Chip
    gpu: DeviceInfo | None
    reason: str

    @property
    def backend(self) -> str:
        return "reference" if self.gpu is None else "hopper"

    def rows(self, m: int) -> int:
        """How many of M rows are computed."""
        return m if self.gpu is not None else min(m, REFERENCE_ROWS)

    def introduction(self) -> str:
        """What the reader of the table must know."""
        if self.gpu is not None:
            return f"{self.reason} Kernels are chosen for {self.chip.num_sms} SMs of the chip {self.chip.name}."
        return (
            f"{self.reason}\nKernels are compiled for sm_90a, for each M as on the chip {self.chip.name}, and not run: "
            f"errors are those of the reference backend on min(M, {REFERENCE_ROWS}) rows, and nothing is timed."
        )


def find_target() -> Target:
    """The first Hopper GPU, unless there is none or FP8GEMM_BACKEND asks for the reference."""
    facts = probe()
    diagnosis = conclude(facts)
    if settings.current().backend == "reference":
        return _reference("FP8GEMM_BACKEND=reference asks for the reference backend.")
    if diagnosis.status is not DeviceStatus.READY:
        return _reference(diagnosis.message)
    gpu = hopper_info(next(index for index, found in enumerate(facts.gpus) if found.capability == HOPPER))
    return Target(torch.device("cuda", gpu.index), device_chip(gpu.index), gpu, diagnosis.message)


def _reference(reason: str) -> Target:
    return Target(torch.device("cpu"), named_chip(ABSENT_CHIP), None, reason)
