"""What a tensor core makes of folded codes passes the gates, however much of it is past their limits; no more does."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fp8gemm.products.folding import fold_scales
from fp8gemm.reference import gemm_reference
from tests.diagnosis import Inputs
from tests.folding import E4M3, SMALL, Operand, activations, apart, check_folded, values, weight
from tests.numerics import Data, Report, check
from tests.truncation import truncation_error

M, N, K, MOST = 128, 160, 512, 5
LIMITS: dict[Data, set[str]] = {"signed": {"rms row", "rms tile", "element"}, "heavy": {"element"}}
"""Those that truncation passes, by how normal values, and the sizes of such, are judged."""
SEEDS: dict[Data, int] = {"signed": 133, "heavy": 394}


class Product(NamedTuple):
    """Operands, and what a right kernel makes of them by the model: exact sums, and what truncation adds to them."""

    data: Data
    a: Operand
    b: Operand
    folded: Operand
    exact: Tensor
    error: Tensor

    def out(self, share: float = 1.0) -> Tensor:
        return (self.exact + share * self.error).float()

    def check(self, out: Tensor) -> Report:
        return check_folded(out, self.a, self.b, self.folded, data=self.data)

    def check_as_given(self, out: Tensor) -> Report:
        """By a model of what would have been multiplied, had nothing been folded."""
        (a, scales_a), (b, scales_b) = self.a, self.b
        return check(
            out,
            *apart(a, scales_a.repeat_interleave(128 // SMALL.columns, 1), SMALL.columns),
            *apart(b, scales_b.repeat_interleave(SMALL.rows, 0), SMALL.columns),
            data=self.data,
        )


def emulated(data: Data, seed: int) -> Product:
    a, b = activations(M, K, seed=seed + 1), weight(N, K, MOST, seed=seed)
    if data == "heavy":
        a, b = ((codes.float().abs().to(E4M3), scales) for codes, scales in (a, b))
    folded = fold_scales(*b)
    multiplied = folded.codes, folded.scales
    everywhere = torch.arange(M).repeat_interleave(N), torch.arange(N).repeat(M)
    error = truncation_error(Inputs(*a, *multiplied), *everywhere).view(M, N)
    return Product(data, a, b, multiplied, gemm_reference(*a, *multiplied, out_dtype=torch.float64), error)


@cache
def hurt_by_truncation(data: Data) -> Product:
    """Ten elements of the signed one, 14 of its 128 rows and one of two tiles are past their limits."""
    for seed in chain([SEEDS[data]], range(1000)):  # one in eight is such, of positive values one in forty
        product = emulated(data, seed)
        if LIMITS[data] <= set(product.check_as_given(product.out()).failed):
            return product
    raise AssertionError("no such product")


@pytest.mark.parametrize("data", LIMITS)
def test_what_truncation_makes_of_folded_codes_passes(data: Data) -> None:
    product = hurt_by_truncation(data)
    product.check(product.out()).raise_if_failed()


FURTHER: list[tuple[Data, float, set[str]]] = [
    ("signed", 1.2, set()),
    ("signed", 1.3, {"rms tile"}),
    ("signed", 2.1, LIMITS["signed"]),
    ("heavy", 1.9, set()),
    ("heavy", 2.1, {"element"}),
]


@pytest.mark.parametrize(("data", "share", "caught"), FURTHER)
def test_what_is_further_off_than_the_model_does_not(data: Data, share: float, caught: set[str]) -> None:
    """Nor does a tensor that is past its own limit."""
    product = hurt_by_truncation(data)
    report = product.check(product.out(share))
    assert set(report.failed) - {"rms tensor"} == caught, report
    assert share < 2 or ("rms tensor" in report.failed) is (data == "signed"), report


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_shift_that_is_off_by_one_does_not(factor: float) -> None:
    """Of the block that counts least, and of the one that counts most."""
    product = hurt_by_truncation("signed")
    x = product.a[0].double() * product.a[1].double().repeat_interleave(128, 1)
    w = values(*product.b, SMALL)
    sizes = w.unflatten(1, (-1, 32)).unflatten(0, (-1, 32)).square().sum(dim=(1, 3)).flatten()
    for block in (int(sizes.argmin()), int(sizes.argmax())):
        row, column = divmod(block, K // 32)
        rows, columns = slice(32 * row, 32 * row + 32), slice(32 * column, 32 * column + 32)
        out = product.out().double()
        out[:, rows] += (factor - 1) * x[:, columns] @ w[rows, columns].T
        report = product.check(out.float())
        assert {"rms row", "element"} <= set(report.failed), f"block ({row}, {column})\n{report}"
