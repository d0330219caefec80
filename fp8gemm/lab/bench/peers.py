"""Who is measured: one function per peer, from random operands to a call that multiplies them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

import fp8gemm
from fp8gemm import settings
from fp8gemm.driver.current import current_stream
from fp8gemm.kernels.catalogue import load_kernel
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.kernels.stream import StreamKernel
from fp8gemm.lab.bench.operands import Call, Operands, quantize_whole
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.problem import packed_problem

OURS, OURS_PDL = "fp8gemm", "fp8gemm_pdl"
FLOORS = {OURS: "floor", OURS_PDL: "floor_pdl"}
"""For each of ours, the peer that only reads the weight, launched in the same way."""


@dataclass(frozen=True)
class Peer:
    """A way to multiply.

    Attributes:
        name: short name, a column of the table.
        description: what it is, for the report.
        prepare: quantises and lays out operands as the peer wants them, and returns the call to be timed.
        module: a module that must be importable; empty for none.
        attribute: what that module must have; empty for nothing.
        expected: what its result must be, up to quantisation; None for one that computes nothing.
    """

    name: str
    description: str
    prepare: Callable[[Operands], Call]
    module: str = ""
    attribute: str = ""
    expected: Callable[[Operands], Tensor] | None = Operands.product

    def why_missing(self) -> str:
        """Why it cannot be measured on this machine, or an empty string."""
        if not self.module:
            return ""
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # NOTE: an extension may fail in its own ways, for instance for lack of a compiler
            return f"{self.module} cannot be imported ({error})"
        if self.attribute and not hasattr(module, self.attribute):
            return f"{self.module} has no {self.attribute} (torch {torch.__version__})"
        return ""


def cublas_block_scales(scales_a: Tensor, scales_b: Tensor) -> tuple[Tensor, Tensor]:
    """Block scales as cuBLASLt reads them: A's (M, kb) with strides (1, M); B's transposed, with kb padded to a
    multiple of four, strides (1, padded kb)."""
    m, k_blocks = scales_a.shape
    a = torch.empty_strided((m, k_blocks), (1, m), dtype=scales_a.dtype, device=scales_a.device).copy_(scales_a)
    return a, pad(scales_b, (0, -k_blocks % 4)).t()


def scaled_mm_call(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, *, out: Tensor | None = None) -> Call:
    """torch._scaled_mm with fast accumulation, of codes and multipliers as `quantize_whole` makes them."""
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=scale_a, scale_b=scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=True, out=out
    )


def make_plan(b: Tensor, scales_b: Tensor, *, max_m: int, pdl: bool, batch_invariant: bool = False) -> fp8gemm.Plan:
    """The plan of ours: for programmatic dependent launch of a weight that does not change, or without. It launches as
    it was made, whatever the settings are then."""
    with settings.scope(pdl=pdl):
        return fp8gemm.plan(b, scales_b, max_m=max_m, batch_invariant=batch_invariant, static_weights=pdl)


def _ours(operands: Operands, *, pdl: bool = False, batch_invariant: bool = False) -> Call:
    a, scales_a, b, scales_b = operands.blocks
    plan = make_plan(b, scales_b, max_m=a.shape[0], pdl=pdl, batch_invariant=batch_invariant)
    return partial(plan, a, scales_a, out=operands.output)


def _scaled_mm(operands: Operands, *, per_row: bool) -> Call:
    codes = *quantize_whole(operands.x, per_row=per_row), *quantize_whole(operands.w, per_row=per_row)
    return scaled_mm_call(*codes)


def _cublas_block(operands: Operands) -> Call:
    from torch.nn import functional

    a, scales_a, b, scales_b = operands.blocks
    scales_a, scales_b = cublas_block_scales(scales_a, scales_b)
    rows, blocks = functional.ScalingType.BlockWise1x128, functional.ScalingType.BlockWise128x128
    return lambda: functional.scaled_mm(a, b.t(), scales_a, rows, scales_b, blocks, output_dtype=torch.bfloat16)


def _deep_gemm(operands: Operands, *, pdl: bool = False) -> Call:
    return deep_gemm_call(*operands.blocks, out=operands.output, pdl=pdl)


def deep_gemm_call(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, *, out: Tensor, pdl: bool = False) -> Call:
    """DeepGEMM's product of codes and block scales as `quantize_activation` and `quantize_weight` make them.

    Raises:
        ImportError: there is no DeepGEMM.
    """
    import deep_gemm

    switch = getattr(deep_gemm, "set_pdl", None)  # older versions have none, and launch without

    def call() -> Tensor:
        if switch is not None:
            switch(pdl)
        deep_gemm.fp8_gemm_nt((a, scales_a), (b, scales_b), out)
        return out

    return call


def _floor(operands: Operands, *, pdl: bool = False) -> Call:
    b = operands.blocks[2]
    return partial(read_weight, StreamKernel(*b.shape, device_index=b.device.index, programmatic=pdl), b)


def kernel_call(kernel: SingleKernel, operands: Operands) -> Call:
    """A launch of this kernel on the current stream, into the output that all peers share."""
    a, scales_a, b, scales_b = operands.blocks
    out = operands.output

    def call() -> Tensor:
        kernel(a, scales_a, b, scales_b, out=out, stream=current_stream(out.device.index))
        return out

    return call


def config_peer(label: str) -> Peer:
    """Ours with the config of a label, whatever the choice is."""

    def prepare(operands: Operands) -> Call:
        problem = packed_problem(*operands.x.shape[:1], *operands.w.shape)
        index = operands.x.device.index
        config, num_sms = labelled_config(label, problem), device_chip(index).num_sms
        return kernel_call(load_kernel(problem, config, device_index=index, num_sms=num_sms), operands)

    return Peer(label, "fp8gemm with this tile config", prepare)


def read_weight(kernel: StreamKernel, weight: Tensor) -> Tensor:
    """A call that computes nothing: it reads a weight once."""
    kernel(weight, current_stream(weight.device.index))
    return weight


PEERS = (
    Peer(OURS, "fp8gemm.plan, 1x128 by 128x128", _ours),
    Peer("bf16", "torch.mm", lambda operands: operands.product),
    Peer(
        "tensorwise",
        "torch._scaled_mm, one scale per tensor, fast accumulation: what FP8 costs with no block scales at all",
        partial(_scaled_mm, per_row=False),
    ),
    Peer(
        "rowwise",
        "torch._scaled_mm, one scale per row and column, fast accumulation",
        partial(_scaled_mm, per_row=True),
    ),
    Peer(
        "cublas_block",
        "torch.nn.functional.scaled_mm, 1x128 by 128x128 (cuBLASLt)",
        _cublas_block,
        module="torch.nn.functional",
        attribute="scaled_mm",
    ),
    Peer("deepgemm", "DeepGEMM, fp8_gemm_nt", _deep_gemm, module="deep_gemm", attribute="fp8_gemm_nt"),
)

INVARIANT = Peer("invariant", "fp8gemm.plan with batch_invariant=True", partial(_ours, batch_invariant=True))

PDL_PEERS = (
    Peer(OURS_PDL, "the same with static_weights=True and programmatic dependent launch", partial(_ours, pdl=True)),
    Peer(
        "deepgemm_pdl",
        "the same after deep_gemm.set_pdl(True)",
        partial(_deep_gemm, pdl=True),
        module="deep_gemm",
        attribute="set_pdl",
    ),
)

FLOOR = Peer(FLOORS[OURS], "reads the weight into shared memory once, and nothing else", _floor, expected=None)
FLOOR_PDL = Peer(
    FLOORS[OURS_PDL], "the same with programmatic dependent launch", partial(_floor, pdl=True), expected=None
)

NOT_MEASURED = {"triton": "a block-scaled Triton kernel is not part of this repository"}
"""Peers of published baselines that are never measured here, and why."""


def those_there(wanted: Sequence[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """The peers that this machine has, and of the others the reason by their names."""
    skipped = {peer.name: reason for peer in wanted if (reason := peer.why_missing())}
    return [peer for peer in wanted if peer.name not in skipped], skipped


def choose_peers(
    *,
    alone: bool = False,
    others: Sequence[str] = (),
    batch_invariant: bool = False,
    pdl: bool = False,
    floor: bool = False,
) -> tuple[list[Peer], dict[str, str]]:
    """The peers that this machine has, ours first, and the others with the reason.

    Args:
        alone: ours and no other library's.
        others: names of the other libraries' that are wanted, however launched; all of them if there are none.
        batch_invariant: ours, and beside it ours in batch-invariant mode, and no other.
        pdl: of those that there are, also the ones with programmatic dependent launch.
        floor: also what only reads the weight.
    """
    wanted = [*PEERS, *PDL_PEERS * pdl, *[FLOOR] * floor, *[FLOOR_PDL] * (pdl and floor)]
    if alone or batch_invariant:
        ours = [peer for peer in wanted if peer.name in {*FLOORS, *FLOORS.values()}]
        return ours + [INVARIANT] * batch_invariant, {}
    chosen = {*others, *(f"{name}_pdl" for name in others), *FLOORS, *FLOORS.values()}
    wanted = [peer for peer in wanted if peer.name in chosen or not others]
    there, skipped = those_there(wanted)
    return there, skipped | NOT_MEASURED
