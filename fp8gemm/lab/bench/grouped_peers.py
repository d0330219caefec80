"""Other libraries' grouped products: DeepGEMM's where it is, and PyTorch's in bfloat16."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fp8gemm.lab.bench.grouped_operands import Scaled, in_bfloat16, indices_of, offsets_of
from fp8gemm.lab.bench.operands import Call

DEEP_GEMM, BF16 = "deepgemm", "bf16"
DEEP_GEMM_ALIGNMENT = 128
"""Rows that each of its groups is padded to in the contiguous layout."""
_DEEP_GEMM_FUNCTIONS = ("m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked")


def missing() -> dict[str, str]:
    """Why these cannot be measured on this machine, by name, of those that cannot."""
    reasons = {
        DEEP_GEMM: _deep_gemm_missing(),
        BF16: "" if hasattr(torch, "_grouped_mm") else f"torch {torch.__version__} has no grouped product",
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _deep_gemm_missing() -> str:
    try:
        module = importlib.import_module("deep_gemm")
    except Exception as error:  # NOTE: it may fail in its own ways, for instance for lack of a compiler
        return f"deep_gemm cannot be imported ({error})"
    if module.__name__ != "deep_gemm":
        return f"deep_gemm is {module.__name__} here"
    lacking = [name for name in _DEEP_GEMM_FUNCTIONS if not hasattr(module, name)]
    return f"deep_gemm has no {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class PaddedRows:
    """Rows as DeepGEMM wants them: each group begins at a multiple of 128.

    Attributes:
        places: (M,) int64, where each row goes.
        indices: (padded M,) int32, the group of each row, -1 for padding.
    """

    places: Tensor
    indices: Tensor

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device) -> PaddedRows:
        aligned = [-(-size // DEEP_GEMM_ALIGNMENT) * DEEP_GEMM_ALIGNMENT for size in sizes]
        groups = indices_of(sizes, device)
        shift = (offsets_of(aligned, device) - offsets_of(sizes, device))[groups]
        places = torch.arange(sum(sizes), device=device) + shift
        indices = torch.full((sum(aligned),), -1, dtype=torch.int32, device=device)
        indices[places] = groups
        return cls(places, indices)

    def call(self, a: Scaled, b: Scaled, n: int) -> Call:
        deep_gemm = importlib.import_module("deep_gemm")
        codes, scales = a
        rows = self.indices.shape[0]
        padded = torch.zeros((rows, codes.shape[1]), dtype=torch.uint8, device=codes.device)
        padded[self.places] = codes.view(torch.uint8)
        multipliers = torch.ones((scales.shape[1], rows), dtype=torch.float32, device=codes.device).t()
        multipliers[self.places] = scales
        out = torch.empty((rows, n), dtype=torch.bfloat16, device=codes.device)
        operand = padded.view(codes.dtype), multipliers

        def call() -> Tensor:
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(operand, b, out, self.indices)
            return out

        return call


def deep_gemm_masked(a: Scaled, b: Scaled, n: int, counts: Tensor, expected_m: int) -> Call:
    deep_gemm = importlib.import_module("deep_gemm")
    groups, max_m, _ = a[0].shape
    out = torch.empty((groups, max_m, n), dtype=torch.bfloat16, device=a[0].device)

    def call() -> Tensor:
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, out, counts, expected_m)
        return out

    return call


def deep_gemm_columns(a: Scaled, b: Scaled, sizes: Sequence[int], sums: Tensor) -> Call:
    """Added to ``sums`` in place. DeepGEMM wants each group's codes as a matrix of its own, behind the one before."""
    deep_gemm = importlib.import_module("deep_gemm")
    ks = torch.tensor(sizes, dtype=torch.int32, device=sums.device)
    operands = [(_one_behind_the_other(codes, sizes), scales) for codes, scales in (a, b)]

    def call() -> Tensor:
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*operands, sums, list(sizes), ks, sums)
        return sums

    return call


def _one_behind_the_other(codes: Tensor, sizes: Sequence[int]) -> Tensor:
    parts = codes.view(torch.uint8).split(list(sizes), 1)
    return torch.cat([part.reshape(-1) for part in parts]).view(codes.dtype)


def bf16_weights(weights: Scaled) -> Tensor:
    """(G, N, K) bfloat16."""
    codes, scales = weights
    result = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for group in range(codes.shape[0]):
        result[group] = in_bfloat16(codes[group], scales[group])
    return result


def grouped_mm(a: Tensor, b: Tensor, offsets: Tensor) -> Call:
    return partial(torch._grouped_mm, a, b.transpose(1, 2), offs=offsets[1:])
