"""What SM90 DeepGEMM refuses is refused by its names here, as an error of both, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm.errors import InputError, UnsupportedError

M, N, K, GROUPS = 20, 136, 272, 3
UNTOUCHED = 7.0

Arguments = dict[str, Any]


def codes(*shape: int) -> Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


def dense() -> Arguments:
    a, b = (codes(M, K), torch.ones(M, 3)), (codes(N, K), torch.ones(2, 3))
    return {"a": a, "b": b, "d": torch.full((M, N), UNTOUCHED, dtype=torch.bfloat16)}


def gradient() -> Arguments:
    a, b = (codes(M, K), torch.ones(M, 3)), (codes(N, K), torch.ones(N, 3))
    d = torch.full((M, N), UNTOUCHED)
    return {"a": a, "b": b, "d": d, "c": torch.ones(M, N), "recipe": (1, 1, 128)}


def contiguous() -> Arguments:
    b = codes(GROUPS, N, K), torch.ones(GROUPS, 2, 3)
    return {**dense(), "b": b, "grouped_layout": torch.zeros(M, dtype=torch.int32)}


def masked() -> Arguments:
    a, d = (codes(GROUPS, M, K), torch.ones(GROUPS, M, 3)), torch.full((GROUPS, M, N), UNTOUCHED, dtype=torch.bfloat16)
    return {**contiguous(), "a": a, "d": d, "masked_m": torch.ones(GROUPS, dtype=torch.int32), "expected_m": 4}


def along_k() -> Arguments:
    a, b = (codes(M * 384), torch.ones(M, 3)), (codes(N * 384), torch.ones(N, 3))
    ks = [128, 0, 256]
    d = torch.full((GROUPS, M, N), UNTOUCHED)
    layout = torch.tensor(ks, dtype=torch.int32)
    return {"a": a, "b": b, "d": d, "ks_cpu": ks, "grouped_layout": layout, "c": torch.ones(GROUPS, M, N)}


PRODUCTS: dict[str, tuple[Callable[..., None], Callable[[], Arguments]]] = {
    "dense": (deep_gemm.fp8_gemm_nt, dense),
    "gradient": (deep_gemm.fp8_gemm_nt, gradient),
    "contiguous": (deep_gemm.m_grouped_fp8_gemm_nt_contiguous, contiguous),
    "masked": (deep_gemm.m_grouped_fp8_gemm_nt_masked, masked),
    "along_k": (deep_gemm.k_grouped_fp8_gemm_nt_contiguous, along_k),
}


def call(product: str, changes: Arguments) -> Tensor:
    """Call with other arguments, which functions make of the right ones; returns d."""
    function, make = PRODUCTS[product]
    arguments = make()
    if product == "masked":
        del arguments["grouped_layout"]
    for name, value in changes.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    d: Tensor = arguments["d"]
    try:
        function(**arguments)
    except Exception:
        assert isinstance(d, Tensor) and bool((d == UNTOUCHED).all())
        raise
    return d


def first(change: Callable[[Tensor], Tensor]) -> Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    return lambda operand: (change(operand[0]), operand[1])


def second(change: Callable[[Tensor], Tensor]) -> Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    return lambda operand: (operand[0], change(operand[1]))


def not_k_major(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def every_other(x: Tensor) -> Tensor:
    """The same shape and values, with room between neighbours of the last dimension."""
    return torch.stack([x, x], dim=-1)[..., 0]


def shorter(x: Tensor) -> Tensor:
    return x[..., :-1]


WRONG: dict[str, Arguments] = {
    "no pair": {"a": lambda a: a[0]},
    "a single tensor": {"b": None},
    "bfloat16 codes": {"a": first(Tensor.bfloat16)},
    "K of A not contiguous": {"a": first(not_k_major)},
    "K of B not contiguous": {"b": first(not_k_major)},
    "another K": {"b": first(lambda b: b[..., :-16])},
    "scales of A too few": {"a": second(shorter)},
    "scales of B too few": {"b": second(shorter)},
    "scales of B for rows or for blocks": {"b": second(lambda s: s.repeat_interleave(2, -2))},
    "half scales": {"a": second(Tensor.half)},
    "float16 d": {"d": lambda d: d.half()},
    "d of another shape": {"d": shorter},
    "d of other dimensions": {"d": lambda d: d[None]},
    "N of d not contiguous": {"d": every_other},
    "recipe_a alone": {"recipe": None, "recipe_a": (1, 128)},
    "two recipes": {"recipe": (1, 128, 128), "recipe_a": (1, 128), "recipe_b": (128, 128)},
}

OF_ONE: list[tuple[str, str, Arguments]] = [
    ("dense", "float32 d with block scales", {"d": Tensor.float}),
    ("dense", "c with block scales", {"c": torch.ones(M, N, dtype=torch.bfloat16)}),
    ("dense", "rows recipe without c", {"recipe": (1, 1, 128), "b": second(lambda s: torch.ones(N, 3))}),
    ("dense", "scales of B neither contiguous nor transposed", {"b": second(every_other)}),
    ("gradient", "bfloat16 d", {"d": Tensor.bfloat16}),
    ("gradient", "bfloat16 c", {"c": Tensor.bfloat16}),
    ("gradient", "c of another shape", {"c": lambda c: c[:1]}),
    ("gradient", "N of c not contiguous", {"c": every_other}),
    ("contiguous", "int64 indices", {"grouped_layout": Tensor.long}),
    ("contiguous", "indices of too few rows", {"grouped_layout": shorter}),
    ("contiguous", "no indices", {"grouped_layout": None}),
    ("contiguous", "both names of the indices", {"m_indices": torch.zeros(M, dtype=torch.int32)}),
    ("contiguous", "indices where sums are meant", {"use_psum_layout": True}),
    ("contiguous", "expected_m without sums", {"expected_m_for_psum_layout": 4}),
    ("contiguous", "float32 d", {"d": Tensor.float}),
    ("contiguous", "one weight", {"b": lambda b: (b[0][0], b[1][0])}),
    ("masked", "int64 counts", {"masked_m": Tensor.long}),
    ("masked", "counts of too few groups", {"masked_m": shorter}),
    ("masked", "expected_m of 0", {"expected_m": 0}),
    ("masked", "groups of d apart", {"d": lambda d: torch.full((GROUPS, M + 1, N), UNTOUCHED).to(d.dtype)[:, :M]}),
    ("along_k", "no c", {"c": None}),
    ("along_k", "another recipe", {"recipe": (1, 128, 128)}),
    ("along_k", "sums of K", {"use_psum_layout": True}),
    ("along_k", "no K of groups", {"ks_cpu": None}),
    ("along_k", "K of too few groups", {"ks_cpu": [128, 256]}),
    ("along_k", "K that is no multiple of 128", {"ks_cpu": [64, 64, 256]}),
    ("along_k", "K of groups that A does not have", {"ks_cpu": [128, 128, 256]}),
    ("along_k", "bfloat16 codes", {"a": first(Tensor.bfloat16)}),
    ("along_k", "int64 layout", {"grouped_layout": Tensor.long}),
    ("along_k", "scales too few", {"b": second(shorter)}),
    ("along_k", "bfloat16 d", {"d": Tensor.bfloat16}),
]

UNSUPPORTED: list[tuple[str, str, Arguments]] = [
    *((product, "packed scales of A", {"a": second(Tensor.int)}) for product in PRODUCTS),
    *((product, "packed scales of B", {"b": second(Tensor.int)}) for product in PRODUCTS),
    *((product, "FP4", {"b": first(lambda b: b.view(torch.int8))}) for product in PRODUCTS),
    *((product, "32 columns", {"recipe": (1, 128, 32)}) for product in PRODUCTS if product != "along_k"),
    *((product, "an epilogue", {"epilogue": object()}) for product in PRODUCTS),
    *((product, "alpha", {"alpha": 2.0}) for product in ("dense", "gradient")),
    ("masked", "overlap with communication", {"enable_overlap": True}),
    ("masked", "tiles for overlap", {"max_block_n": 128}),
    ("masked", "a signal of tiles", {"signal": torch.zeros(4, dtype=torch.int32)}),
    ("dense", "blocks of A", {"recipe_a": (128, 128), "recipe_b": (128, 128)}),
    ("contiguous", "scales of rows", {"recipe": (1, 1, 128)}),
    ("masked", "scales of rows", {"recipe_a": (1, 128), "recipe_b": (1, 128)}),
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_right_arguments_are_taken(product: str) -> None:
    assert not bool((call(product, {}) == UNTOUCHED).all())


@pytest.mark.parametrize("product", ["dense", "contiguous", "masked"])
@pytest.mark.parametrize("what", WRONG)
def test_arguments_that_every_product_refuses(product: str, what: str) -> None:
    with pytest.raises(InputError, match=": expected") as raised:
        call(product, WRONG[what])
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, ValueError)
    assert not str(raised.value).startswith(("scales_", "out:", "indices:"))  # which are not DeepGEMM's words


@pytest.mark.parametrize(("product", "what", "changes"), OF_ONE)
def test_arguments_that_one_product_refuses(product: str, what: str, changes: Arguments) -> None:
    with pytest.raises(deep_gemm.RefusedError, match=": expected") as raised:
        call(product, changes)
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, InputError)


@pytest.mark.parametrize(("product", "what", "changes"), UNSUPPORTED)
def test_what_is_for_newer_gpus_alone(product: str, what: str, changes: Arguments) -> None:
    with pytest.raises(UnsupportedError, match=": expected") as raised:
        call(product, changes)
    assert isinstance(raised.value, RuntimeError)
    named = str(raised.value).partition(":")[0].partition("[")[0]
    assert named in changes or (named == "recipe" and "recipe_a" in changes), "the message begins with the argument"


def test_weight_gradients_of_operands_with_k_outside() -> None:
    arguments = along_k()
    with pytest.raises(UnsupportedError, match="expected an SM100 GPU"):
        deep_gemm.k_grouped_fp8_gemm_tn_contiguous(**arguments)
    assert bool((arguments["d"] == UNTOUCHED).all())


@pytest.mark.parametrize("name", ["fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt"])
def test_transposed_operands_that_are_not_k_major(name: str) -> None:
    a, b, d = dense().values()
    in_a, in_b = name[-2] == "t", name[-1] == "n"
    operands = [(x[0].T.contiguous(), x[1].T) if turned else x for x, turned in ((a, in_a), (b, in_b))]
    with pytest.raises(deep_gemm.RefusedError, match="expected K contiguous"):
        getattr(deep_gemm, name)(*operands, d)
    with pytest.raises(deep_gemm.RefusedError, match="expected matrices"):
        getattr(deep_gemm, name)(*((codes(K), torch.ones(3)) for _ in range(2)), d)
    assert bool((d == UNTOUCHED).all())


def test_sizes_that_do_not_fit_where_there_is_nothing_to_multiply() -> None:
    arguments = dense()
    with pytest.raises(deep_gemm.RefusedError, match=r"d: expected \(M, N\)"):
        deep_gemm.fp8_gemm_nt(arguments["a"], arguments["b"], arguments["d"][:0])
    empty = (codes(M, 0), torch.ones(M, 0)), (codes(N, 0), torch.ones(N, 0))
    with pytest.raises(deep_gemm.RefusedError, match="c: expected"):
        deep_gemm.fp8_gemm_nt(*empty, arguments["d"], torch.ones(M, N))
