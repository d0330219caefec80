"""How large sizes may be, said once: for tensors and problems, for what a model's config states, and for what commands
are given. Needs no torch.

Each check raises `InputError` with what is too large, or is not what it should be. Sizes of tensors may be symbolic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted

if TYPE_CHECKING:
    import torch

LIMIT = 2**31
"""Rows and columns of a matrix are fewer: TMA's coordinates, and those of kernels, are signed 32-bit numbers."""
SCALE_BLOCK = 128
"""Values along K, and of weights along N, that share one scale; also the K of a block that is promoted at once."""
K_STEP = 16
"""What K of every product and quantiser is a multiple of: TMA's row pitch."""
MAX_NORM_K = 65536
"""Columns of a row that is normed. A CTA keeps it in registers, which hold a small part of a longer one; and NVRTC
takes seconds and then minutes for that (12.9: 0.8 s for 65536 columns, 5 s for 262144)."""


def holds(condition: bool | torch.SymBool) -> bool:
    """Whether something is so; of sizes that are not known before a graph runs, whether it always is."""
    if isinstance(condition, bool) or condition.node.has_hint():
        return True if condition else False  # noqa: SIM210 - torch 2.6 cannot trace bool() of a SymBool
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # here, because it imports SymPy

    return statically_known_true(condition)


def check_size(name: str, meaning: str, size: int) -> None:
    """A number of rows or columns is one that kernels can count."""
    if holds(size >= LIMIT):
        raise InputError(f"{name}: expected {meaning} < 2^31, got {meaning} = {quoted(size)}")


def check_depth(name: str, k: int) -> None:
    """K is one that TMA can read rows of."""
    if k < K_STEP or k % K_STEP:
        raise InputError(f"{name}: expected K to be a multiple of {K_STEP} and at least {K_STEP}, got K = {quoted(k)}")
    check_size(name, "K", k)


def check_norm_depth(name: str, k: int) -> None:
    """K is one whose rows can be normed."""
    check_depth(name, k)
    if holds(k > MAX_NORM_K):
        raise InputError(
            f"{name}: expected K <= {MAX_NORM_K}, because the registers of a CTA keep a row, got K = {quoted(k)}"
        )


def is_norm_depth(k: int) -> bool:
    """Whether rows of so many columns can be normed."""
    return K_STEP <= k <= MAX_NORM_K and k % K_STEP == 0


def check_weight(name: str, n: int, k: int) -> None:
    """(N, K) are the sizes of a weight."""
    if n < 1:
        raise InputError(f"{name}: expected N >= 1, got N = {quoted(n)}")
    check_size(name, "N", n)
    check_depth(name, k)


def check_rows_of_all(name: str, meaning: str, groups: int, rows: int) -> None:
    """All groups' rows are those of one matrix to TMA."""
    if holds(groups * rows >= LIMIT):
        raise InputError(
            f"{name}: expected G * {meaning} < 2^31, because all groups are one matrix to TMA, got G = {groups}, "
            f"{meaning} = {rows}"
        )


def check_whole_sizes(**sizes: object) -> None:
    """Sizes are whole numbers, of whatever range; each goes by the name that the caller knows it by."""
    for name, size in sizes.items():
        if type(size) is not int:
            raise InputError(f"{name}: expected a whole number, got {quoted(size)}")


def check_whole_number(name: str, value: object, least: int, most: int = LIMIT - 1) -> int:
    """The number that a value is: a whole one, ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"{name}: expected a whole number, {least} to {most}, got {quoted(value)}")
    return value
