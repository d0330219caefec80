"""Every entry point, every operand: what goes to the operators, and that what is no dense tensor is said by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts, Fp8Linear
from fp8gemm.products.watched import goes_to_operator
from fp8gemm.routing import Permutation, permute, permute_masked, unpermute
from tests import cases
from tests.grouped import contiguous_case, in_order, k_grouped_case, masked_case

BF16, F32 = torch.bfloat16, torch.float32
M, N, K, G = 5, 136, 272, 3
NAMES = ("a", "scales_a", "b", "scales_b")

Operands = dict[str, Any]


def _gemm() -> Operands:
    case = cases.signed(M, N, K, seed=1, c=BF16, bias=F32)
    named = dict(zip(NAMES, case.operands, strict=True))
    return {**named, "c": case.c, "bias": case.bias, "out": torch.zeros(M, N, dtype=BF16)}


def _grouped() -> Operands:
    case = contiguous_case(in_order((M - 2, 0, 2)), N, K, seed=1)
    named = dict(zip(NAMES, case.operands, strict=True))
    return {**named, "offsets": case.offsets(), "out": torch.zeros(M, N, dtype=BF16)}


def _indexed() -> Operands:
    given = _grouped()
    del given["offsets"]
    return {**given, "indices": torch.tensor([0, 0, 0, 2, 2])}


def _masked() -> Operands:
    case = masked_case((2, 0, M), M, N, K, seed=1)
    named = dict(zip(NAMES, case.operands, strict=True))
    return {**named, "counts": case.counts(), "out": torch.zeros(G, M, N, dtype=BF16)}


def _k_grouped() -> Operands:
    case = k_grouped_case((128, 0, 256), M, N, seed=1, c=True)
    named = dict(zip(NAMES, case.operands, strict=True))
    return {**named, "offsets": case.offsets(), "c": case.c, "out": torch.zeros(G, M, N)}


def _planned(a: Tensor, scales_a: Tensor, b: Tensor, scales_b: Tensor, bias: Tensor | None, **others: Any) -> Tensor:
    plan = fp8gemm.plan(b, scales_b, max_m=M, bias=bias, c_dtype=BF16)
    return plan(a, scales_a, **others)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape).to(BF16)


def _of_groups(columns: int) -> Operands:
    return {"x": _x(G, M, columns), "counts": torch.tensor([1, 0, 3])}


ENTRIES: dict[str, tuple[Callable[..., Any], Callable[[], Operands]]] = {
    "gemm": (fp8gemm.gemm, _gemm),
    "plan": (_planned, _gemm),
    "gemm_grouped": (fp8gemm.gemm_grouped, _grouped),
    "gemm_grouped by indices": (fp8gemm.gemm_grouped, _indexed),
    "gemm_masked": (fp8gemm.gemm_masked, _masked),
    "gemm_k_grouped": (fp8gemm.gemm_k_grouped, _k_grouped),
    "quantize_activation": (fp8gemm.quantize_activation, lambda: {"x": _x(M, K)}),
    "quantize_activation of groups": (fp8gemm.quantize_activation, lambda: _of_groups(K)),
    "quantize_weight": (fp8gemm.quantize_weight, lambda: {"w": _x(N, K)}),
    "quantize_with_transpose": (fp8gemm.quantize_with_transpose, lambda: {"x": _x(M, K)}),
    "quantize_silu_mul": (fp8gemm.quantize_silu_mul, lambda: {"x": _x(M, 2 * K)}),
    "quantize_silu_mul of groups": (fp8gemm.quantize_silu_mul, lambda: _of_groups(2 * K)),
    "quantize_rms_norm": (fp8gemm.quantize_rms_norm, lambda: {"x": _x(M, K), "weight": _x(K)}),
    "quantize_add_rms_norm": (
        fp8gemm.quantize_add_rms_norm,
        lambda: {"x": _x(M, K), "residual": _x(M, K), "weight": _x(K)},
    ),
}
PLACES = [(entry, name) for entry, (_, make) in ENTRIES.items() for name in make()]
every_entry = pytest.mark.parametrize("entry", ENTRIES)
every_place = pytest.mark.parametrize(("entry", "name"), PLACES)


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, around one that has some; keeps the operators that it was given to."""

    seen: list[str] = []
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        args, kwargs = tree_map(lambda x: x.inner if isinstance(x, Wrapped) else x, (args, kwargs or {}))
        return func(*args, **kwargs)


@every_place
def test_an_operand_that_is_more_than_memory_sends_a_call_to_its_operator(entry: str, name: str) -> None:
    function, make = ENTRIES[entry]
    Wrapped.seen.clear()
    given = make()
    function(**{**given, name: Wrapped(given[name])})
    assert [each for each in Wrapped.seen if each.startswith("fp8gemm.")], Wrapped.seen


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@every_entry
def test_a_mode_that_watches_operators_sees_it(entry: str) -> None:
    function, make = ENTRIES[entry]
    given = make()
    with Watching() as mode:
        function(**given)
    assert [each for each in mode.seen if each.startswith("fp8gemm.")], mode.seen


@every_entry
def test_fake_tensors_on_a_gpu_need_none(entry: str) -> None:
    """Where there is no driver, and no memory behind any operand."""
    function, make = ENTRIES[entry]
    real = make()
    with FakeTensorMode():
        given = {
            name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for name, x in real.items()
        }
        made = function(**given)
    for tensor in made if isinstance(made, tuple) else (made,):
        assert tensor.device.type == "cuda"


def test_a_layer_on_fake_weights_needs_no_gpu() -> None:
    layer = Fp8Linear(K, N, device="meta")
    x = _x(M, K)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for name in ("weight", "weight_scale_inv", "bias"):
            fake = mode.from_tensor(torch.empty_like(getattr(layer, name), device="cpu"))
            layer._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
    assert layer(x).shape == (M, N) and type(layer(x)).__name__ == "FakeTensor"


def test_functional_tensors_are_for_the_operator() -> None:
    def choose(x: Tensor) -> Tensor:
        assert type(x) is Tensor and goes_to_operator("x", x)
        return x + 1

    torch.func.functionalize(choose)(torch.zeros(2))
    torch.func.vmap(choose)(torch.zeros(2, 2))
    assert not goes_to_operator("x", torch.zeros(2))


NO_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda x: None,
    "a number": lambda x: 3,
    "a list": lambda x: x.float().tolist(),
    "an array": lambda x: np.zeros(tuple(x.shape), dtype=np.float32),
    "a sparse tensor": lambda x: torch.zeros(x.shape).to_sparse(),
    "a compressed tensor": lambda x: torch.zeros(2, 2).to_sparse_csr(),
    "a nested tensor": lambda x: torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)]),
}
MAY_BE_NONE = {"c", "bias", "out", "counts", "indices", "offsets"}


@every_place
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", NO_TENSORS)
def test_what_is_no_dense_tensor_is_said_by_name(entry: str, name: str, what: str) -> None:
    function, make = ENTRIES[entry]
    given = make()
    wrong = NO_TENSORS[what](given[name])
    if (
        wrong is None
        and name in MAY_BE_NONE
        and (entry, name)
        not in (
            ("gemm_masked", "counts"),
            ("gemm_k_grouped", "offsets"),
        )
    ):
        return
    with pytest.raises(InputError, match=f"^{name}: expected .*got ") as caught:
        function(**{**given, name: wrong})
    assert "data pointer" not in str(caught.value)


DTYPES: dict[str, tuple[str, Callable[[], Any]]] = {
    "gemm": ("out_dtype", lambda: fp8gemm.gemm(**_gemm() | {"out": None}, out_dtype="half")),
    "plan": ("out_dtype", lambda: _plan_of(out_dtype="half")),
    "plan's c": ("c_dtype", lambda: _plan_of(c_dtype="half")),
    "grouped": ("out_dtype", lambda: fp8gemm.gemm_grouped(**_grouped() | {"out": None}, out_dtype="half")),
    "masked": ("out_dtype", lambda: fp8gemm.gemm_masked(**_masked() | {"out": None}, out_dtype="half")),
    "a list": ("out_dtype", lambda: fp8gemm.gemm(**_gemm() | {"out": None}, out_dtype=[BF16])),
    "a subclass": (
        "out_dtype",
        lambda: fp8gemm.gemm(**_gemm() | {"out": None, "b": Wrapped(_gemm()["b"])}, out_dtype="half"),
    ),
    "layer": ("dtype", lambda: Fp8Linear(K, N, dtype="half")),
    "forward_quantized": (
        "out_dtype",
        lambda: Fp8Linear(K, N).forward_quantized(*fp8gemm.quantize_activation(_x(M, K)), out_dtype="half"),
    ),
}


def _plan_of(**options: Any) -> Any:
    given = _gemm()
    return fp8gemm.plan(given["b"], given["scales_b"], max_m=M, **options)


@pytest.mark.parametrize(("name", "call"), DTYPES.values(), ids=DTYPES)
def test_what_names_no_dtype_is_refused(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected one of torch.bfloat16.*got .*no torch.dtype"):
        call()


CODES, SCALES = torch.zeros(N, K).to(torch.float8_e4m3fn), torch.ones(2, 3)
WEIGHT = torch.zeros(G, 32, 16).to(torch.float8_e4m3fn), torch.ones(G, 1, 1)
DOWN = torch.zeros(G, 16, 16).to(torch.float8_e4m3fn), torch.ones(G, 1, 1)
TOKENS = fp8gemm.quantize_activation(_x(M, K))
IDS = torch.zeros(M, 2, dtype=torch.int32)
OTHERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "max_m as text": ("max_m", lambda: fp8gemm.plan(CODES, SCALES, max_m="8")),
    "max_m as a fraction": ("max_m", lambda: fp8gemm.plan(CODES, SCALES, max_m=8.5)),
    "plan without b": ("b", lambda: fp8gemm.plan(None, SCALES, max_m=8)),
    "plan without scales_b": ("scales_b", lambda: fp8gemm.plan(CODES, None, max_m=8)),
    "plan with a list for a bias": ("bias", lambda: fp8gemm.plan(CODES, SCALES, max_m=8, bias=[0.0])),
    "expected_m as text": ("expected_m", lambda: fp8gemm.gemm_grouped(**_grouped(), expected_m="4")),
    "expected_m as a fraction": ("expected_m", lambda: fp8gemm.gemm_masked(**_masked(), expected_m=1.5)),
    "eps as text": ("eps", lambda: fp8gemm.quantize_rms_norm(_x(M, K), _x(K), eps="small")),
    "to_mn_major": ("scales", lambda: fp8gemm.to_mn_major(None)),
    "in_features as text": ("in_features", lambda: Fp8Linear("272", N)),
    "out_features as a fraction": ("out_features", lambda: Fp8Linear(K, 1.5)),
    "layer without a weight": ("weight", lambda: Fp8Linear.from_quantized(None, SCALES)),
    "layer without scales": ("weight_scale_inv", lambda: Fp8Linear.from_quantized(CODES, None)),
    "layer with a list for a bias": ("bias", lambda: Fp8Linear.from_quantized(CODES, SCALES, [0.0])),
    "layer without an input": ("x", lambda: Fp8Linear(K, N)(None)),
    "layer of an array": ("x", lambda: Fp8Linear(K, N)(np.zeros((M, K), dtype=np.float32))),
    "layer of a sparse tensor": ("x", lambda: Fp8Linear(K, N)(torch.zeros(M, K).to_sparse())),
    "layer of a compressed tensor": ("x", lambda: Fp8Linear(K, N)(torch.zeros(M, K).to_sparse_csr())),
    "hidden_size as text": ("hidden_size", lambda: Fp8Experts(G, "16", 16)),
    "num_experts as a fraction": ("num_experts", lambda: Fp8Experts(2.5, 16, 16)),
    "experts without a weight": ("gate_up_proj", lambda: Fp8Experts.from_quantized(None, WEIGHT[1], *DOWN)),
    "experts without the other": ("down_proj", lambda: Fp8Experts.from_quantized(*WEIGHT, None, DOWN[1])),
    "experts of no bfloat16": ("down_proj", lambda: Fp8Experts.from_bfloat16(_x(G, 32, 16), None)),
    "experts without tokens": ("hidden", lambda: Fp8Experts(G, 16, 16)(None, IDS, IDS.float())),
    "experts without weights": ("weights", lambda: Fp8Experts(G, 16, 16)(_x(M, 16), IDS, [1.0])),
    "permute without codes": ("codes", lambda: permute(None, TOKENS[1], IDS, G)),
    "permute without scales": ("scales", lambda: permute(TOKENS[0], None, IDS, G)),
    "permute without ids": ("expert_ids", lambda: permute(*TOKENS, None, G)),
    "permute to experts as text": ("num_experts", lambda: permute(*TOKENS, IDS, "3")),
    "unpermute without y": ("y", lambda: unpermute(None, Permutation(IDS.long(), IDS.bool()), IDS.float())),
    "unpermute without a permutation": ("permutation", lambda: unpermute(_x(2 * M, N), IDS, IDS.float())),
    "unpermute without weights": ("weights", lambda: unpermute(_x(10, N), Permutation(IDS.long(), IDS.bool()), None)),
    "permute_masked to a fraction": ("max_m", lambda: permute_masked(*TOKENS, IDS, G, max_m=1.5)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "call"), OTHERS.values(), ids=OTHERS)
def test_other_arguments_are_said_by_name_too(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected .*got "):
        call()


def test_a_bad_c_of_groups_of_columns_is_not_called_out() -> None:
    given = _k_grouped()
    for c in (given["c"][:, :, :1].expand(G, M, N), given["c"].clone().requires_grad_(), given["c"].to("meta")):
        with pytest.raises(InputError, match="^c: expected "):
            fp8gemm.gemm_k_grouped(**{**given, "c": c})
