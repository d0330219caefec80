"""Sizes of a block of experts, and the names of its parameters."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fp8gemm.checks.dtypes import CODES, INPUTS, INTEGERS, listed
from fp8gemm.checks.tensors import check_features, check_no_gradient, check_tensor, check_whole, found
from fp8gemm.errors import InputError
from fp8gemm.frozen import dataclass
from fp8gemm.sizes import LIMIT

GATE_UP, DOWN = "gate_up_proj", "down_proj"
SCALES = "_scale_inv"
NAMES = (GATE_UP, GATE_UP + SCALES, DOWN, DOWN + SCALES)
"""The parameters' names, as transformers has them."""
WithScales = tuple[Tensor, Tensor]
"""A weight and its scales."""


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Sizes of a block of experts, and which of them are here.

    Attributes:
        num_experts: of the whole layer.
        first_expert, num_local_experts: the experts here are ``first_expert`` and those behind it.
        hidden_size, intermediate_size: H and I.
    """

    num_experts: int
    first_expert: int
    num_local_experts: int
    hidden_size: int
    intermediate_size: int

    @classmethod
    def of(cls, down: Tensor, num_experts: int | None, first_expert: int) -> ExpertsShape:
        """That of a block with this down projection, (G, H, I); zeros where it has another number of dimensions.

        Args:
            num_experts: of the whole layer, by default G.
        """
        check_tensor(DOWN, down)
        count, hidden, intermediate = down.shape if down.dim() == 3 else (0, 0, 0)
        return cls(
            num_experts=count if num_experts is None else num_experts,
            first_expert=first_expert,
            num_local_experts=count,
            hidden_size=hidden,
            intermediate_size=intermediate,
        )

    def check(self) -> None:
        """Such a block can be.

        Raises:
            InputError: it cannot.
        """
        for name in ("hidden_size", "intermediate_size"):
            check_features(name, getattr(self, name))
        for name in ("num_experts", "first_expert", "num_local_experts"):
            check_whole(name, getattr(self, name), -LIMIT, LIMIT - 1)
        end = self.first_expert + self.num_local_experts
        if self.first_expert < 0 or self.num_local_experts < 1 or end > self.num_experts:
            raise InputError(
                f"first_expert and num_local_experts: expected one expert or more of 0 to {self.num_experts - 1}, got "
                f"{self.num_local_experts} from {self.first_expert} on"
            )

    @property
    def local(self) -> range:
        """The experts here."""
        return range(self.first_expert, self.first_expert + self.num_local_experts)

    @property
    def gate_up(self) -> tuple[int, int]:
        """N and K of the first product."""
        return 2 * self.intermediate_size, self.hidden_size

    @property
    def down(self) -> tuple[int, int]:
        """N and K of the second product."""
        return self.hidden_size, self.intermediate_size


def check_shaped(
    name: str,
    tensor: Tensor,
    dtypes: Collection[torch.dtype],
    shape: tuple[int | None, ...],
    meaning: str,
    device: torch.device,
) -> None:
    """``tensor`` has one of ``dtypes`` and ``shape``, in which None is any size, is on ``device``, the weights', and
    needs no gradient.

    Raises:
        InputError: it is not; the message begins with ``name``.
    """
    check_tensor(name, tensor)
    fits = tensor.dim() == len(shape) and all(
        size is None or size == found for size, found in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype not in dtypes or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{name}: expected {listed(dtypes)} of shape ({sizes}) = {meaning}, got {found(tensor)}")
    if tensor.device != device:
        raise InputError(f"{name}: expected the device of the weights, {device}, got {tensor.device}")
    check_no_gradient(name, tensor)


def check_routed(hidden: Tensor, expert_ids: Tensor, weights: Tensor, hidden_size: int, device: torch.device) -> None:
    """Tokens (T, hidden_size), and of each its experts and their weights, (T, top_k), fit together.

    Raises:
        InputError: they do not; the message begins with the name of one.
    """
    check_shaped("hidden", hidden, INPUTS, (None, hidden_size), "(T, H)", device)
    check_tensor("expert_ids", expert_ids)
    shape = hidden.shape[0], expert_ids.shape[-1] if expert_ids.dim() else 1
    check_shaped("expert_ids", expert_ids, INTEGERS, shape, "(T, top_k)", device)
    check_shaped("weights", weights, (*INPUTS, torch.float64), shape, "(T, top_k)", device)


def check_sorted(
    x: Tensor, offsets: Tensor, scales: Tensor | None, groups: int, hidden_size: int, device: torch.device
) -> None:
    """Rows (M, H), which have ``scales`` if they are codes, and offsets of so many experts fit together.

    Raises:
        InputError: as `check_routed`.
    """
    check_shaped("x", x, INPUTS if scales is None else (CODES,), (None, hidden_size), "(M, H)", device)
    check_tensor("offsets", offsets)
    shape, meaning = ((2, groups), "(2, G)") if offsets.dim() == 2 else ((groups + 1,), "(G + 1,)")
    check_shaped("offsets", offsets, INTEGERS, shape, meaning, device)


def check_masked(
    x: Tensor, counts: Tensor, scales: Tensor | None, groups: int, hidden_size: int, device: torch.device
) -> None:
    """Rows (G, max_m, H), which have ``scales`` if they are codes, and counts of so many experts fit together.

    Raises:
        InputError: as `check_routed`.
    """
    dtypes = INPUTS if scales is None else (CODES,)
    check_shaped("x", x, dtypes, (groups, None, hidden_size), "(G, max_m, H)", device)
    check_shaped("counts", counts, INTEGERS, (groups,), "(G,)", device)
