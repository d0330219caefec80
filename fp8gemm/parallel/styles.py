"""Styles for `torch.distributed.tensor.parallel.parallelize_module` that know our layers.

Keywords and defaults are torch's, and so is what becomes of layers that are not ours.
"""

from __future__ import annotations

from typing import ClassVar, get_args

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, parallel

from fp8gemm.errors import InputError
from fp8gemm.nn.experts import Fp8Experts
from fp8gemm.nn.linear import Fp8Linear
from fp8gemm.parallel.dividing import parallelize
from fp8gemm.parallel.experts import Exchange, parallelize_experts
from fp8gemm.parallel.layouts import Layouts
from fp8gemm.parallel.linear import ColwiseLinear, ParallelLinear, RowwiseLinear
from fp8gemm.quoting import quoted


class _OfLinear:
    """What is ours of both styles of linear layers; ahead of torch's among the bases of a class.

    NOTE: no style by itself, so that to a type checker a plan of both is one of torch's styles.
    """

    _kind: ClassVar[type[ParallelLinear]]
    input_layouts: tuple[Placement]
    output_layouts: tuple[Placement]
    use_local_output: bool

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        overlap: bool | None = None,
    ) -> None:
        options = {"input_layouts": input_layouts, "output_layouts": output_layouts}
        super().__init__(**options, use_local_output=use_local_output)  # type: ignore[call-arg]  # torch's style is next
        self.overlap = _checked(overlap)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Fp8Linear):
            return super()._apply(module, device_mesh)  # type: ignore[misc, no-any-return]
        (given,), (wanted,) = self.input_layouts, self.output_layouts
        layouts = Layouts(device_mesh, given, wanted, self.use_local_output, self.overlap)
        return parallelize(module, self._kind, layouts, _source(self))


class ColwiseParallel(_OfLinear, parallel.ColwiseParallel):
    """Each rank has rows of the weight of an `fp8gemm.nn.Fp8Linear`, and columns of its output.

    An input that is sharded along other dimensions than its last is quantised where it is, and gathered in FP8. Weight
    and scales are divided together, whole blocks only.

    Args:
        input_layouts: placement of inputs that are no DTensors, `Replicate` by default.
        output_layouts: placement of the output, ``Shard(-1)`` by default.
        use_local_output: whether the output is a tensor, this rank's, else a DTensor.
        overlap: whether chunks of rows are multiplied while others are gathered, through torch's symmetric memory.
            Its workspaces, which all layers of a group share, are less than four times what the largest call sends.
            None: where that was measured to win and ranks' GPUs reach each other. Never where calls are traced or
            watched, in which ranks must be alike.

    Raises (when `parallelize_module` applies it):
        InputError: the layer's N is not a multiple of 128 for each rank, or ``overlap=True`` where ranks do not reach
            each other's memory; nothing was changed. A call that cannot be overlapped is refused then, too.
    """

    _kind = ColwiseLinear


class RowwiseParallel(_OfLinear, parallel.RowwiseParallel):
    """Each rank has columns of the weight of an `fp8gemm.nn.Fp8Linear`, and a part of each sum of its output.

    The parts, rounded to the output's dtype, are summed by an all-reduce, or a reduce-scatter where the output is
    sharded. The bias is added by one rank, ahead of the rounding.

    Args:
        input_layouts: placement of inputs that are no DTensors, ``Shard(-1)`` by default.
        output_layouts: placement of the output, `Replicate` by default.
        use_local_output: whether the output is a tensor, this rank's, else a DTensor.
        overlap: whether chunks of a sharded output are sent while others are computed, and sums of few rows read where
            they were computed, through torch's symmetric memory.
            Its workspaces, which all layers of a group share, are less than four times what the largest call sends.
            None: where that was measured to win and ranks' GPUs reach each other. Never where calls are traced or
            watched, in which ranks must be alike.

    Raises (when `parallelize_module` applies it):
        InputError: the layer's K is not a multiple of 128 for each rank, or ``overlap=True`` where ranks do not reach
            each other's memory; nothing was changed. A call that cannot be overlapped is refused then, too.
    """

    _kind = RowwiseLinear


class ExpertParallel(parallel.ParallelStyle):
    """Each rank has as many of the experts of an `fp8gemm.nn.Fp8Experts`, and a token goes to those that it is sent to.

    Args:
        input_layouts: ``Shard(0)``, each rank has tokens of its own, by default; or ``Replicate()``, all ranks have all
            tokens. The output is placed as the input is.
        exchange: how tokens come to experts of other ranks. "gather": all ranks get all tokens, quantised, and parts
            of sums are reduced and scattered; shapes are static and nothing waits for the GPU, so that CUDA graphs can
            have it. "all_to_all": each row goes, quantised, to the rank that has its expert, and its output comes back;
            the host waits for the counts. Replicated tokens need neither.
        overlap: whether tokens of "gather" are sorted while others come, and sums sent while others are added up, or
            sums of replicated tokens read where they were added up; as in `RowwiseParallel`.

    Raises:
        InputError: placements or exchanges other than these, or an "all_to_all" that shall be overlapped; and when
            `parallelize_module` applies it, a module that is no `Fp8Experts`, experts that the ranks do not divide, or
            ``overlap=True`` where ranks do not reach each other's memory; nothing was changed.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        exchange: Exchange = "gather",
        overlap: bool | None = None,
    ) -> None:
        super().__init__()
        self.input_layouts = Shard(0) if input_layouts is None else input_layouts
        self.exchange, self.overlap = exchange, _checked(overlap)
        if self.input_layouts not in (Shard(0), Replicate()):
            raise InputError(f"input_layouts: expected Shard(0) or Replicate(), got {input_layouts}")
        if exchange not in get_args(Exchange):
            raise InputError(f"exchange: expected {' or '.join(map(repr, get_args(Exchange)))}, got {exchange!r}")
        if overlap and exchange == "all_to_all" and isinstance(self.input_layouts, Shard):
            raise InputError("overlap: expected None or False, because an all_to_all is not overlapped; got True")

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Fp8Experts):
            raise InputError(f"module: expected fp8gemm.nn.Fp8Experts, got {type(module).__name__}")
        layouts = Layouts(device_mesh, self.input_layouts, self.input_layouts, local=True, overlap=self.overlap)
        return parallelize_experts(module, layouts, self.exchange, _source(self))


def _checked(overlap: object) -> bool | None:
    if overlap is None or isinstance(overlap, bool):
        return overlap
    raise InputError(f"overlap: expected True, False or None, got {quoted(overlap)}")


def _source(style: object) -> int | None:
    """The rank whose values are sent to all: newer than torch 2.6, where it is the first."""
    return getattr(style, "src_data_rank", 0)
