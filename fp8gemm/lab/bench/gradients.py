"""Weight gradients: products of operands that are both scaled 1x128, in float32, added to what is there or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.kernels.loaded import device_chip, kernel_for
from fp8gemm.lab.bench.gates import Gate, Gates
from fp8gemm.lab.bench.operands import Call, Operands
from fp8gemm.lab.bench.peers import Peer, those_there
from fp8gemm.lab.bench.report import Row
from fp8gemm.products.operands import uses_reference
from fp8gemm.tuning.problem import OutputType, Scaling, packed_problem

OURS, NEW, BF16, DEEP_GEMM = "fp8gemm", "fp8gemm_new", "bf16", "deepgemm"


def _sums(operands: Operands) -> Tensor:
    """What gradients are added to, in place: zeros at first, so that the first product is all there is."""
    return operands.x.new_zeros(operands.x.shape[0], operands.w.shape[0], dtype=torch.float32)


def _ours(operands: Operands) -> Call:
    sums = _sums(operands)
    return partial(fp8gemm.gemm, *operands.rows, c=sums, out=sums)


def _new(operands: Operands) -> Call:
    return partial(fp8gemm.gemm, *operands.rows, out=_sums(operands))


def _deep_gemm(operands: Operands) -> Call:
    return deep_gemm_call(*operands.rows, sums=_sums(operands))


def deep_gemm_call(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, *, sums: Tensor) -> Call:
    """DeepGEMM's product of codes and scales as `quantize_activation` makes them, added to ``sums`` in place.

    Raises:
        ImportError: there is no DeepGEMM.
    """
    import deep_gemm

    def call() -> Tensor:
        deep_gemm.fp8_gemm_nt((a, scales_a), (b, scales_b), sums, c=sums, recipe=(1, 1, 128))
        return sums

    return call


PEERS = (
    Peer(OURS, "fp8gemm.gemm, 1x128 by 1x128, float32, added in place", _ours),
    Peer(NEW, "the same without C", _new),
    Peer(BF16, "torch.mm, bfloat16, not added", lambda operands: operands.product),
    Peer(
        DEEP_GEMM,
        "DeepGEMM, fp8_gemm_nt with recipe (1, 1, 128), float32, added in place",
        _deep_gemm,
        module="deep_gemm",
        attribute="fp8_gemm_nt",
    ),
)


def choose_peers(*, alone: bool) -> tuple[list[Peer], dict[str, str]]:
    """The peers that this machine has, and the others with the reason; ``alone``: ours."""
    return those_there(PEERS[:2] if alone else PEERS)


def config_label(operands: Operands) -> str:
    """The tile config that ours adds with."""
    if uses_reference(operands.x):
        return "reference"
    (m, k), n, index = operands.x.shape, operands.w.shape[0], operands.x.device.index
    invariant = settings.current().batch_invariant
    problem = packed_problem(m, n, k, OutputType.FLOAT32, Scaling.ROW, batch_invariant=invariant)
    label: str = kernel_for(problem.accumulating(), device_chip(index), index).config.label
    return label


def _speeds(rows: Sequence[Row]) -> Mapping[str, float | None]:
    return {row.at(row.shape): row.time_ratio(DEEP_GEMM, OURS) for row in rows}


GATES: Gates[Row] = Gates(
    (
        Gate("speed relative to DeepGEMM", 1.0, _speeds),
        Gate("speed relative to DeepGEMM, mean", 1.08, _speeds, mean=True),
    )
)
