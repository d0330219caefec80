"""Layers that the library has divided among ranks (``tp_plan``), and ours in their place.

Its loader makes a layer's parameters DTensors, and puts a forward of its own around the layer's that brings inputs and
outputs to their places. What that does is read off the style that it belongs to; ours do it themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from fp8gemm.frozen import dataclass
from fp8gemm.integrations.transformers.library import fp8_layers, library_module
from fp8gemm.nn import Fp8Linear
from fp8gemm.nn.checkpoint import BIAS, SCALES, WEIGHT
from fp8gemm.nn.experts_shape import NAMES
from fp8gemm.parallel.blocks import check_whole_blocks
from fp8gemm.parallel.dividing import of_parts
from fp8gemm.parallel.layouts import Layouts
from fp8gemm.parallel.linear import FEATURES, ColwiseLinear, ParallelLinear, RowwiseLinear


@dataclass(frozen=True)
class Division:
    """How ranks share a linear layer.

    Attributes:
        kind: which of our layers is divided so.
        layouts: where its input comes from and its output goes.
    """

    kind: type[ParallelLinear]
    layouts: Layouts


_OF_EXPERTS = ("MoeExpertsParallel", "EpDispatchExpertsParallel")
"""Styles that hand a block this rank's parts, and move tokens and sums themselves. Names, as some releases lack one."""


def is_known(module: Any) -> bool:
    """Whether a plan of the library's is around a module, and ours know what it does there."""
    style, _ = _around(module)
    styles = library_module("integrations.tensor_parallel")
    if isinstance(module, fp8_layers().FP8Experts):
        parts = [module._parameters[name] for name in NAMES]
        return type(style).__name__ in _OF_EXPERTS and all(_is_on_a_line(part) for part in parts)
    if not isinstance(module._parameters[WEIGHT], DTensor):
        return type(style) is styles.MlaKvAProjParallel  # which is for gradients alone
    return division_of(module) is not None


def division_of(module: Any) -> Division | None:
    """How ranks share a linear layer, None if they do not, or by a style that is not known here."""
    styles = library_module("integrations.tensor_parallel")
    style, mesh = _around(module)
    kinds: Mapping[type, type[ParallelLinear]] = {
        styles.ColwiseParallel: ColwiseLinear,
        styles.RowwiseParallel: RowwiseLinear,
    }
    kind = kinds.get(type(style))
    if kind is None or not isinstance(mesh, DeviceMesh):
        return None
    for name in (WEIGHT, SCALES):
        part = module._parameters[name]
        if not _is_on_a_line(part) or (part.device_mesh, part.placements) != (mesh, (Shard(kind.divided),)):
            return None
    return Division(kind, Layouts(mesh, style.input_layouts, style.output_layouts, style.use_local_output))


def check_whole_blocks_of(modules: Mapping[str, Any]) -> None:
    """Each rank has whole scale blocks of every layer that ranks share.

    NOTE: the library divides a weight and its scales each by their own rows, so that where blocks are cut a rank
    multiplies by scales of others, or by none, without a word.

    Args:
        modules: such layers, all of a kind that `is_known`, by their names.

    Raises:
        InputError: naming the first that is cut, and a number of ranks that cuts none.
    """
    sizes: dict[str, int] = {}
    ranks = 1
    for name, module in modules.items():
        if division := division_of(module):
            ranks = division.layouts.mesh.size()
            sizes[f"{name}.{FEATURES[division.kind.divided]}"] = module._parameters[WEIGHT].shape[division.kind.divided]
        elif isinstance(module, fp8_layers().FP8Experts) and module.down_proj.placements != (Shard(0),):
            ranks = module.down_proj.device_mesh.size()
            sizes[f"{name}.intermediate_size"] = module.down_proj.shape[2]
    check_whole_blocks(sizes, ranks)


def layer_around(module: Any, *, max_m: int, batch_invariant: bool | None) -> Fp8Linear:
    """Our layer around this rank's parts of the library's.

    Raises:
        InputError: they are not as `Fp8Linear.from_quantized` takes them.
    """
    division = division_of(module)
    assert division is not None
    weight, scales, bias = (module._parameters[name] for name in (WEIGHT, SCALES, BIAS))
    options: dict[str, Any] = {"max_m": max_m, "batch_invariant": batch_invariant}
    return of_parts(weight, scales, bias, division.kind, division.layouts, **options)


def _around(module: nn.Module) -> tuple[Any, Any]:
    """The style and the mesh of the forward that the library put around a module's own; None where it put none."""
    forward = vars(module).get("forward")
    found = inspect.getclosurevars(forward).nonlocals if inspect.isfunction(forward) else {}
    return found.get("self"), found.get("mesh")


def _is_on_a_line(parameter: object) -> bool:
    """Whether the ranks that have parts of a parameter are those of a mesh of one dimension."""
    return isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1
