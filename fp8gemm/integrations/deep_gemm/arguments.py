"""What SM90 DeepGEMM takes and what it refuses, beyond what fp8gemm's own products check."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from fp8gemm.checks.tensors import check_tensor
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.products.folding import Names, fold_named
from fp8gemm.quoting import quoted
from fp8gemm.scales import Blocks, block_count, widened
from fp8gemm.sizes import SCALE_BLOCK

Pair = tuple[Tensor, Tensor]
"""Codes and their scales."""

Recipe = tuple[int, int, int]
"""Rows of A, rows of B, and columns of both that share one scale."""

OperandRecipe = tuple[int, int]
"""Rows and columns of one operand that share one scale."""

FOR_SM100 = "DeepGEMM has it for SM100 alone"

_BLOCKS, ROWS = (SCALE_BLOCK, SCALE_BLOCK), (1, SCALE_BLOCK)
_OF_KERNELS = ((ROWS, _BLOCKS), (ROWS, ROWS))
FOLDED = (1, 32), (32, 32)
"""A recipe of DeepGEMM's for SM100, of operands that can be made ones of kernels here."""
_NAMES = {"a": "a[0]", "scales_a": "a[1]", "b": "b[0]", "scales_b": "b[1]", "out": "d"}
_NAMES |= {"indices": "grouped_layout", "offsets": "grouped_layout", "counts": "masked_m"}


class RefusedError(InputError, RuntimeError):
    """An argument that DeepGEMM refuses too. It raises `RuntimeError`, which this is as well."""


def in_deep_gemm_words(message: str) -> str:
    """An error of fp8gemm's products with its argument called what DeepGEMM calls it."""
    name, colon, rest = message.partition(":")
    return f"{_NAMES.get(name, name)}{colon}{rest}"


def pair(name: str, value: Pair) -> Pair:
    """``value`` is codes and float32 scales; float8_e8m0fnu ones are widened, in a kernel of their own.

    Raises:
        UnsupportedError: packed UE8M0 scales, or packed FP4 codes, which SM90 has no instructions for.
        RefusedError: anything else.
    """
    try:
        codes, scales = value
        of_codes, of_scales = codes.dtype, scales.dtype
    except (TypeError, ValueError, AttributeError) as error:
        raise RefusedError(
            f"{name}: expected a pair of tensors, codes and scales, got {type(value).__name__}"
        ) from error
    if of_codes is torch.int8:
        raise UnsupportedError(f"{name}[0]: expected torch.float8_e4m3fn, got torch.int8, packed FP4: not on SM90")
    if of_scales is torch.int32:
        raise UnsupportedError(f"{name}[1]: expected torch.float32, got torch.int32, packed UE8M0 scales: not on SM90")
    return codes, widened(scales)


def refuse(name: str, value: object, *, without: object = None, why: str) -> None:
    """Refuse an argument that is there for its name's sake.

    Raises:
        UnsupportedError: ``value`` is not ``without``, its default.
    """
    if value is without:
        return
    plain = isinstance(value, (bool, int, float, str))
    if plain and value == without:
        return
    found = quoted(value) if plain else type(value).__name__  # a tensor's elements would wait for the GPU
    raise UnsupportedError(f"{name}: expected {without}, got {found}: {why}")


def transposed(name: str, value: Pair) -> Pair:
    """The last two dimensions of codes and of scales, exchanged; nothing is copied."""
    codes, scales = pair(name, value)
    if codes.dim() < 2 or scales.dim() < 2:
        raise RefusedError(f"{name}: expected matrices, got shapes {tuple(codes.shape)} and {tuple(scales.shape)}")
    return codes.mT, scales.mT


_P = ParamSpec("_P")
_Product = Callable[Concatenate[Pair, Pair, _P], None]


def of_transposed(
    product: _Product[_P], name: str, given: str, operands: str, *, without: str = "", **defaults: object
) -> _Product[_P]:
    """A product of operands that are given with their last two dimensions exchanged.

    Args:
        product: of operands that are given as (rows, K).
        name: of the new one.
        given: how it is given them.
        operands: which of "ab" those are.
        without: a parameter that the new one lacks.
        defaults: of parameters that have others.
    """

    def transposing(a: Pair, b: Pair, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if without in kwargs:
            raise TypeError(f"{name}() got an unexpected keyword argument {without!r}")
        a, b = transposed("a", a) if "a" in operands else a, transposed("b", b) if "b" in operands else b
        product(a, b, *args, **kwargs)

    of_all = inspect.signature(product)
    parameters = [each for each in of_all.parameters.values() if each.name != without]
    parameters = [each.replace(default=defaults.get(each.name, each.default)) for each in parameters]
    signature = of_all.replace(parameters=parameters)
    transposing.__name__ = transposing.__qualname__ = name
    transposing.__module__, transposing.__doc__ = (
        product.__module__,
        (f"`{product.__name__}`; {given}, K contiguous, as SM90 needs it."),
    )
    transposing.__signature__ = signature  # type: ignore[attr-defined]
    return transposing  # type: ignore[return-value]  # its operands may be named


def scaled_by_rows(recipe: Recipe | None, recipe_a: OperandRecipe | None, recipe_b: OperandRecipe | None) -> bool:
    """Whether B has one scale per row and 128 columns (1D1D), and not one per 128x128 block (1D2D).

    Raises:
        RefusedError, UnsupportedError: as `operand_recipes`.
    """
    return operand_recipes(recipe, recipe_a, recipe_b)[1] == ROWS


def whole_recipe(of_a: OperandRecipe, of_b: OperandRecipe) -> Recipe:
    """What DeepGEMM's argument ``recipe`` says instead of one for each operand."""
    return of_a[0], *of_b


def operand_recipes(
    recipe: Recipe | None,
    recipe_a: OperandRecipe | None,
    recipe_b: OperandRecipe | None,
    *more: tuple[OperandRecipe, OperandRecipe],
) -> tuple[OperandRecipe, OperandRecipe]:
    """That of A and that of B: (1, 128) and (128, 128) by default.

    Args:
        recipe, recipe_a, recipe_b: as DeepGEMM's products take them.
        more: what is taken besides (1, 128) with (128, 128) or (1, 128).

    Raises:
        RefusedError: not one recipe, or one for each operand.
        UnsupportedError: scales of other blocks, which DeepGEMM has for SM100 alone.
    """
    if recipe is None and recipe_a is None and recipe_b is None:
        return ROWS, _BLOCKS
    if (recipe_a is None) != (recipe_b is None) or (recipe is None) == (recipe_a is None):
        raise RefusedError(
            f"recipe: expected recipe, or recipe_a and recipe_b, got {recipe}, {recipe_a} and {recipe_b}"
        )
    asked: tuple[object, object]
    if recipe is not None:
        asked = (recipe[0], *recipe[2:]), tuple(recipe[1:])
    else:
        assert recipe_a is not None and recipe_b is not None
        asked = tuple(recipe_a), tuple(recipe_b)
    known = next((each for each in (*_OF_KERNELS, *more) if each == asked), None)
    if known is None:
        found = recipe if recipe is not None else (recipe_a, recipe_b)
        whole = " or ".join(str(whole_recipe(*each)) for each in (*_OF_KERNELS, *more))
        raise UnsupportedError(
            f"recipe: expected {whole}, or these as recipe_a and recipe_b, (1, 128) with (128, 128) say, got {found}"
        )
    return known


def folded(name: str, codes: Tensor, scales: Tensor, recipe: OperandRecipe) -> Pair:
    """An operand with scales of small blocks as kernels here take it.

    Raises:
        UnsupportedError: the current stream is being captured, and to fold waits for it.
        RefusedError: the scales cannot be folded, or do not fit.
    """
    if codes.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "recipe: expected scales of 128 columns while a CUDA graph is captured, got those of 32, which have to be "
            "read first: fp8gemm.fold_scales makes such operands ahead"
        )
    try:
        made = fold_named(codes, scales, Blocks(*recipe), False, Names(f"{name}[0]", f"{name}[1]"))
    except InputError as error:
        raise RefusedError(str(error)) from None
    return made.codes, made.scales


def check_is_tensor(name: str, value: object) -> None:
    """``value`` is a dense tensor."""
    try:
        check_tensor(name, value)
    except InputError as error:
        raise RefusedError(str(error)) from None


def check_output(d: Tensor, dimensions: int, *dtypes: torch.dtype) -> None:
    """``d`` has so many dimensions, the last contiguous, groups packed, and one of ``dtypes``."""
    check_is_tensor("d", d)
    shape, strides = d.shape, d.stride()
    if len(shape) != dimensions or d.dtype not in dtypes:
        expected = " or ".join(map(str, dtypes))
        raise RefusedError(f"d: expected {expected} of {dimensions} dimensions, got {d.dtype} of shape {tuple(shape)}")
    if strides[-1] != 1 or (dimensions == 3 and strides[0] != shape[1] * shape[2]):
        raise RefusedError(f"d: expected N contiguous and groups packed, got strides {strides} for {tuple(shape)}")


def check_matrix(name: str, codes: Tensor) -> None:
    """``codes`` has two dimensions."""
    if codes.dim() != 2:
        raise RefusedError(f"{name}: expected 2 dimensions, got shape {tuple(codes.shape)}")


def check_shapes(codes_a: Tensor, codes_b: Tensor, d: Tensor) -> None:
    """The matrices of a product without elements fit together; of others the products themselves check it."""
    (m, k), (n, of_b) = codes_a.shape, codes_b.shape
    if k != of_b or d.shape != (m, n):
        raise RefusedError(f"d: expected (M, N) of (M, K) and (N, K), got {tuple(d.shape)} of {(m, k)} and {(n, of_b)}")


def check_addend(c: Tensor, d: Tensor) -> None:
    """``c`` can be added into ``d``: the same shape and dtype, N contiguous."""
    check_is_tensor("c", c)
    if c.shape != d.shape or c.dtype != d.dtype or c.stride(-1) != 1:
        raise RefusedError(
            f"c: expected {d.dtype} of shape {tuple(d.shape)} as d, N contiguous, got {c.dtype} of shape "
            f"{tuple(c.shape)}, strides {c.stride()}"
        )


def block_scales(scales: Tensor, codes_b: Tensor) -> Tensor:
    """128x128 scales of (.., N, K) codes as fp8gemm reads them; those that lie transposed are copied.

    Raises:
        RefusedError: another shape, or neither they nor their transpose are contiguous.
    """
    *groups, n, k = codes_b.shape
    expected = (*groups, block_count(n), block_count(k))
    if scales.shape != expected:
        raise RefusedError(f"b[1]: expected shape {expected}, one scale per 128x128 block, got {tuple(scales.shape)}")
    if scales.is_contiguous():
        return scales
    if not scales.mT.is_contiguous():
        raise RefusedError(
            f"b[1]: expected scales that are contiguous or lie transposed, got strides {scales.stride()}"
        )
    return scales.contiguous()


def check_layout(name: str, layout: Tensor, shape: tuple[int, ...]) -> None:
    """``layout`` is contiguous int32 of ``shape``."""
    check_is_tensor(name, layout)
    if layout.dtype != torch.int32 or layout.shape != shape or not layout.is_contiguous():
        raise RefusedError(
            f"{name}: expected contiguous torch.int32 of shape {shape}, got {layout.dtype} of shape "
            f"{tuple(layout.shape)}, strides {layout.stride()}"
        )
