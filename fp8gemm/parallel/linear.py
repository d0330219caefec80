"""Linear layers of which each rank of a mesh has whole blocks of the weight.

The parameters are DTensors, for whoever saves, loads or shards them further. The product is of this rank's own tensors,
with its own plan, so that DTensor costs nothing when the layer is called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from fp8gemm.checks.dtypes import OUTPUTS, dtype_of
from fp8gemm.checks.operands import check_call
from fp8gemm.checks.tensors import check_no_gradient, check_tensor
from fp8gemm.errors import InputError
from fp8gemm.nn.checkpoint import BIAS, SCALES, WEIGHT, checked_state
from fp8gemm.nn.linear import OPERANDS, Fp8Linear, Terms
from fp8gemm.parallel import symmetric
from fp8gemm.parallel.blocks import is_on, local, own_part
from fp8gemm.parallel.collectives import gather_quantized, gathered, summed
from fp8gemm.parallel.layouts import Layouts, given_away, is_last, redistributed
from fp8gemm.parallel.overlap import gathered_beside, summed_beside
from fp8gemm.products.linear import check_input
from fp8gemm.products.watched import goes_to_operator, is_plain, is_watched
from fp8gemm.scales import to_mn_major

FEATURES = ("out_features", "in_features")
"""By the weight's dimension."""
_CALLS = 256
"""Of a layer, that are remembered."""


class ParallelLinear(Fp8Linear):
    """What both kinds have in common. Layers become one by `fp8gemm.parallel.dividing`; they are not constructed."""

    _layouts: Layouts
    divided: int
    """The weight's dimension of which ranks have parts: 0, N, or 1, K."""
    _adds_bias: bool
    """Whether this rank does: one of those that have parts of a sum."""
    _is_direct: bool
    """Whether inputs are multiplied as they come, and nothing depends on how many dimensions they have."""
    _is_at_once: bool
    """Whether that, and what ranks send can only be sent behind the product."""
    _known: set[tuple[torch.Size, torch.dtype, torch.dtype]]
    """Calls of which that was found, by shape and dtypes. Of this process alone, as workspaces are."""
    _keeps: bool
    """Whether a product is the output."""
    _may_overlap: bool
    """As `fp8gemm.parallel.overlap` says of its layouts."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output.

        Args:
            x: (..., K) as in `Fp8Linear.forward`, placed as ``input_layouts`` says or as the DTensor that it is.

        Returns:
            (..., N) of x's dtype, placed as ``output_layouts`` says.

        Raises:
            InputError: ``x`` is not as described, or requires a gradient while gradients are enabled. Nothing was sent.
        """
        # By far the most calls; in the fewest steps.
        if self._is_direct and type(x) is Tensor and (self._is_at_once or self._was_at_once(x, x.dtype)):
            product = self._product(x, *self.operands())
            return product if self._keeps else self._placed(product)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _was_at_once(self, x: Tensor, out_dtype: torch.dtype) -> bool:
        """Whether a call like this was made before, and what ranks send was sent behind the product."""
        if is_dynamo_compiling() or (x.shape, x.dtype, out_dtype) not in self._known:
            return False
        return not symmetric.is_capturing(x.get_device())

    def _note(self, x: Tensor, out_dtype: torch.dtype) -> None:
        """Of a call that was made: it was not overlapped, and its workspace is there if it is in a CUDA graph."""
        if self._may_overlap and not is_watched() and is_plain(x) and not symmetric.is_capturing(x.get_device()):
            if len(self._known) >= _CALLS:
                self._known.clear()
            self._known.add((x.shape, x.dtype, out_dtype))

    def forward_quantized(
        self, a: Tensor, scales_a: Tensor, *, out_dtype: torch.dtype | str = torch.bfloat16
    ) -> Tensor:
        """As in `Fp8Linear`, of the rows, and with K divided the columns, that this rank multiplies."""
        return self._placed(super().forward_quantized(a, scales_a, out_dtype=out_dtype))

    def operands(self) -> Terms:
        parameters: Any = self._parameters  # to look up each of them by name takes longer
        weight, scales, bias = parameters[WEIGHT], parameters[SCALES], parameters[BIAS]
        if not is_on(weight, self._layouts.mesh):
            return weight, scales, bias  # sharded further: whoever gathers it puts another in its place
        return local(weight), local(scales), None if bias is None or not self._adds_bias else local(bias)

    def multiplied(self) -> tuple[int, int, torch.dtype | None]:
        n, k, added = super().multiplied()
        ranks = self._layouts.mesh.size()
        if self.divided == 0:
            return n // ranks, k, added
        return n, k // ranks, added if self._adds_bias else None

    def _received(self, x: Tensor) -> tuple[Tensor, Placement]:
        """This rank's part of an input that is checked, and how the whole is placed.

        NOTE: before anything is sent, and of what all ranks have alike, so that none waits for one that refuses.
        """
        layouts, place = self._layouts, self._layouts.given
        check_tensor("x", x)
        if isinstance(x, DTensor):
            if x.device_mesh != layouts.mesh:
                raise InputError(
                    f"x: expected a DTensor on the layer's mesh, {layouts.mesh}, got one on {x.device_mesh}"
                )
            (place,) = x.placements
        k = self.in_features
        if not isinstance(x, DTensor) and is_last(place, x):
            k //= layouts.mesh.size()
        check_input(x, self.weight, k)
        check_no_gradient("x", x)
        for name, each in (("input_layouts", place), ("output_layouts", layouts.wanted)):
            if isinstance(each, Shard) and not -x.dim() <= each.dim < x.dim():
                raise InputError(f"{name}: expected a dimension of x, which has {x.dim()}, got {each}")
        if not isinstance(x, DTensor):
            return x, place
        if isinstance(place, Shard) and x.shape[place.dim] % layouts.mesh.size():  # parts of different sizes
            x, place = x.redistribute(placements=[Replicate()]), Replicate()
        return x.to_local(), place

    def _overlaps(self, x: Tensor, terms: Terms) -> bool:
        """Whether a call may be overlapped: nobody traces it, and its operands are no more than memory."""
        return self._may_overlap and not goes_to_operator(OPERANDS, x, *terms)

    def _placed(self, product: Tensor) -> Tensor:
        """This rank's product as the layer's output."""
        layouts = self._layouts
        if self.divided == 1 and self._is_direct and layouts.local:
            return summed(product, layouts.group)
        return given_away(product, layouts, is_part_of_sum=self.divided == 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {FEATURES[self.divided]} divided by {self._layouts.mesh.size()}"

    # Loading, pickling.

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_known": set()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """As `Fp8Linear` does, from DTensors too; of a whole layer's tensors each rank takes its own."""
        state = checked_state(state_dict, prefix, self.out_features, self.in_features, has_bias=self.bias is not None)
        for name, parameter in self.named_parameters(recurse=False):
            value = state.get(prefix + name)
            if isinstance(value, Tensor) and not isinstance(value, DTensor) and is_on(parameter, self._layouts.mesh):
                (place,) = parameter.placements  # type: ignore[attr-defined]
                state[prefix + name] = own_part(value, self._layouts.mesh, place)
        super()._load_from_state_dict(state, prefix, *others)


class ColwiseLinear(ParallelLinear):
    """Each rank has rows of the weight: it multiplies all of x, and has some columns of the output."""

    divided = 0

    def _forward(self, x: Tensor) -> Tensor:
        x, place = self._received(x)
        terms = self.operands()
        if isinstance(place, Shard) and not is_last(place, x):
            return self._placed(self._of_all_rows(x, place.dim, terms))
        if isinstance(place, Shard):
            x = gathered(x, -1, self._layouts.group)
        elif not isinstance(place, Replicate):
            x = redistributed(x, place, Replicate(), self._layouts.mesh).to_local()
        return self._placed(self._product(x, *terms))

    def _of_all_rows(self, x: Tensor, dim: int, terms: Terms) -> Tensor:
        """The product of all ranks' rows, which are quantised where they are."""
        if self._overlaps(x, terms):

            def multiply(codes: Tensor, scales: Tensor, out: Tensor) -> None:
                self._product_of_codes(codes, scales, terms, x.dtype, out)

            beside = gathered_beside(self._layouts, x, dim, terms[0].shape[0], multiply)
            if beside is not None:
                return beside
        layouts = self._layouts
        codes, scales = gather_quantized(x, layouts.group, dim=dim, copies=layouts.copies)
        codes_of_all, scales_of_all = codes.flatten(0, -2), scales.flatten(0, -2)
        if not goes_to_operator(OPERANDS, x, *terms):
            # As kernels read them: a product that has to copy them itself is no call that can be repeated.
            scales_of_all = to_mn_major(scales_of_all)
        product = self._product_of_codes(codes_of_all, scales_of_all, terms, x.dtype)
        return product.view(*codes.shape[:-1], product.shape[1])


class RowwiseLinear(ParallelLinear):
    """Each rank has columns of the weight: it multiplies its columns of x, and has a part of each sum."""

    divided = 1

    def _forward(self, x: Tensor) -> Tensor:
        x, place = self._received(x)
        mesh = self._layouts.mesh
        if isinstance(place, Replicate):
            x = x.chunk(mesh.size(), dim=-1)[mesh.get_local_rank()]
        elif not is_last(place, x):
            x = redistributed(x, place, Shard(x.dim() - 1), mesh).to_local()
        terms = self.operands()
        if self._overlaps(x, terms):
            rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])

            def multiply(first: int, end: int, out: Tensor) -> None:
                self._plan(rows if end - first == len(rows) else rows[first:end], *terms, out)

            sizes = x.shape[:-1], self.out_features, x.shape[-1]
            total = summed_beside(self._layouts, *sizes, x.dtype, x.device, multiply)
            if total is not None:
                return total
        out = self._placed(self._product(x, *terms))
        self._note(x, x.dtype)
        return out

    def forward_quantized(
        self, a: Tensor, scales_a: Tensor, *, out_dtype: torch.dtype | str = torch.bfloat16
    ) -> Tensor:
        terms, dtype = self.operands(), dtype_of("out_dtype", out_dtype, OUTPUTS)
        is_known = type(a) is Tensor and self._was_at_once(a, dtype)
        if not is_known and self._overlaps(a, terms) and not goes_to_operator("scales_a", scales_a):
            check_call(a, scales_a, terms[0], None, None, dtype)  # all of it, before anything is sent

            def multiply(first: int, end: int, out: Tensor) -> None:
                self._product_of_codes(a[first:end], scales_a[first:end], terms, dtype, out)

            sizes = a.shape[:1], self.out_features, a.shape[1]
            total = summed_beside(self._layouts, *sizes, dtype, a.device, multiply)
            if total is not None:
                return total
        product = super().forward_quantized(a, scales_a, out_dtype=dtype)
        if not is_known:
            self._note(a, dtype)
        return product
