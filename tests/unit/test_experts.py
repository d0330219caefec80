"""`Fp8Experts`: what it computes, for whose experts, from what inputs, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts
from tests import cases
from tests.calls import same_bits
from tests.experts import BF16, Tokens, block, expected, relative_error, rows_of_experts, tokens, weights

FP16, FP32 = torch.float16, torch.float32
G, H, INNER, TOP_K = 6, 272, 128, 2

dtypes = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
_ROUNDING = {BF16: 2.0**-8, FP16: 2.0**-11, FP32: 2.0**-22}


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(cases.fresh_seed())


@pytest.fixture
def experts(generator: torch.Generator) -> Fp8Experts:
    return block(G, H, INNER, generator)


def assert_right(module: Fp8Experts, given: Tokens) -> None:
    """The output is the exact weighted sum of the reference's rows, rounded once, but for a float32 sum."""
    y, wanted = module(*given), expected(module, given)
    assert y.dtype == given.hidden.dtype and y.shape == given.hidden.shape and y.is_contiguous()
    rows = rows_of_experts(module, given.hidden, given.expert_ids).double()
    terms = (rows * given.weights.double()[..., None]).abs().sum(1)
    allowed = _ROUNDING[y.dtype] * wanted.abs() + 1e-6 * terms + 1e-7
    assert bool(((y.double() - wanted).abs() <= allowed).all())


@dtypes
@pytest.mark.parametrize("count", [1, 33])
def test_output(count: int, dtype: torch.dtype, experts: Fp8Experts, generator: torch.Generator) -> None:
    given = tokens(count, H, G, TOP_K, generator, dtype)
    assert_right(experts, given)
    alone = given.alone
    assert same_bits(experts(*alone), rows_of_experts(experts, *alone[:2])[:, 0])


@pytest.mark.parametrize("sizes", [(3, 16, 16), (2, 144, 112), (4, 128, 192)], ids=str)
def test_sizes_that_are_no_multiple_of_a_block(sizes: tuple[int, int, int], generator: torch.Generator) -> None:
    count, hidden, intermediate = sizes
    assert_right(block(*sizes, generator), tokens(9, hidden, count, 2, generator))


def test_no_tokens(experts: Fp8Experts, generator: torch.Generator) -> None:
    y = experts(*tokens(0, H, G, TOP_K, generator))
    assert y.shape == (0, H) and y.dtype == BF16


def to_one(given: Tokens) -> Tokens:
    return Tokens(given.hidden, torch.full_like(given.expert_ids, 3), given.weights)


ROUTES: dict[str, Callable[[Tokens], Tokens]] = {
    "one expert gets all": to_one,
    "int32": lambda given: given._replace(expert_ids=given.expert_ids.int()),
    "weights in float64": lambda given: given._replace(weights=given.weights.double()),
    "weights that add up to anything": lambda given: given._replace(weights=torch.randn_like(given.weights) * 7),
    "ids of no expert": lambda given: given._replace(
        expert_ids=torch.where(torch.arange(TOP_K) == given.expert_ids % TOP_K, given.expert_ids, -1)
    ),
    "hidden transposed": lambda given: given._replace(hidden=given.hidden.t().contiguous().t()),
    "ids and weights transposed": lambda given: given._replace(
        expert_ids=given.expert_ids.t().contiguous().t(), weights=given.weights.t().contiguous().t()
    ),
}


@pytest.mark.parametrize("change", ROUTES.values(), ids=ROUTES)
def test_routes(change: Callable[[Tokens], Tokens], experts: Fp8Experts, generator: torch.Generator) -> None:
    assert_right(experts, change(tokens(33, H, G, TOP_K, generator)))


def test_what_is_for_no_expert_is_zero_whatever_its_weight(experts: Fp8Experts, generator: torch.Generator) -> None:
    given = tokens(5, H, G, TOP_K, generator)
    ids = torch.tensor([-1, G, G + 7, -9, 2**31 - 1])[:, None].expand(5, TOP_K)
    assert not experts(given.hidden, ids, torch.full_like(given.weights, math.nan)).any()


def test_many_experts_and_few_tokens(generator: torch.Generator) -> None:
    assert_right(block(256, 64, 32, generator), tokens(3, 64, 256, 8, generator))


def test_ranks_share_a_layer(generator: torch.Generator) -> None:
    gate_up, down = weights(G, H, INNER, generator)
    whole = Fp8Experts.from_bfloat16(gate_up, down)
    ranks = [
        Fp8Experts.from_bfloat16(gate_up[part], down[part], num_experts=G, first_expert=part.start)
        for part in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert [(rank.first_expert, rank.num_local_experts, rank.num_experts) for rank in ranks] == [
        *((0, 1, G), (1, 3, G), (4, 2, G)),
    ]
    given = tokens(33, H, G, TOP_K, generator)
    for rank in ranks:
        assert_right(rank, given)
    parts = torch.stack([rank(*given.alone) for rank in ranks])
    assert same_bits(parts.sum(0), whole(*given.alone)) and int((parts.abs().sum(2) > 0).sum()) == 33


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_masked(dtype: torch.dtype, experts: Fp8Experts, generator: torch.Generator) -> None:
    max_m, counts = 9, torch.tensor([0, 1, 9, 12, 4, -3], dtype=dtype)
    x = torch.randn(G, max_m, H, generator=generator).to(BF16)
    valid = torch.arange(max_m) < counts[:, None]
    ids = torch.arange(G).repeat_interleave(max_m)[:, None]
    wanted = experts(x.view(-1, H), ids, torch.ones(ids.shape)).view(G, max_m, H)
    poisoned = x.masked_fill(~valid[..., None], math.nan)
    for expected_m in (None, 3):
        y = experts.forward_masked(poisoned, counts, expected_m=expected_m)
        assert y.shape == (G, max_m, H) and y.dtype == BF16 and same_bits(y[valid], wanted[valid])
    codes, scales = fp8gemm.quantize_activation(poisoned, counts=counts)
    assert same_bits(experts.forward_masked(codes, counts, scales=scales)[valid], wanted[valid])
    strided = poisoned.transpose(1, 2).contiguous().transpose(1, 2)
    assert same_bits(experts.forward_masked(strided, counts)[valid], wanted[valid])


def test_sorted(experts: Fp8Experts, generator: torch.Generator) -> None:
    offsets = torch.tensor([0, 3, 3, 4, 9, 9, 12])
    ids = torch.arange(G).repeat_interleave(offsets.diff())[:, None]
    x = torch.randn(15, H, generator=generator).to(BF16)  # the last three are of no expert
    x[12:] = math.nan
    wanted = experts(x[:12], ids, torch.ones(ids.shape))
    for given, expected_m in ((offsets, None), (offsets.int(), 2)):
        y = experts.forward_sorted(x, given, expected_m=expected_m)
        assert y.shape == (15, H) and y.dtype == BF16 and same_bits(y[:12], wanted)
    codes, scales = fp8gemm.quantize_activation(x)
    assert same_bits(experts.forward_sorted(codes, offsets, scales=scales)[:12], wanted)
    assert same_bits(experts.forward_sorted(x.T.contiguous().T, offsets)[:12], wanted)
    assert experts.forward_sorted(x[:0], 0 * offsets).shape == (0, H)


def test_refused_sorted_inputs(experts: Fp8Experts) -> None:
    x, offsets = torch.zeros(4, H, dtype=BF16), torch.zeros(G + 1, dtype=torch.int32)
    for arguments, message in (
        ((x[:, 1:], offsets), r"x: expected .*\(any, 272\) = \(M, H\), got .*\(4, 271\)"),
        ((x, offsets[1:]), r"offsets: expected .*\(7\) = \(G \+ 1,\), got .*\(6,\)"),
        ((x, offsets.float()), "offsets: .* got torch.float32"),
    ):
        with pytest.raises(InputError, match=message):
            experts.forward_sorted(*arguments)


def test_all_of_a_masked_layout_empty(experts: Fp8Experts) -> None:
    counts = torch.zeros(G, dtype=torch.int32)
    assert experts.forward_masked(torch.full((G, 4, H), math.nan, dtype=BF16), counts).shape == (G, 4, H)


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
def test_transformers_own_block(kind: str, top_k: int) -> None:
    """In the place of the bfloat16 experts of a transformers block, whose error then is that of FP8."""
    models = pytest.importorskip("tests.transformers_models", reason="transformers or safetensors is not installed")
    sizes = {"moe_intermediate_size": 128, "num_experts_per_tok": top_k, "num_hidden_layers": 1}
    if kind == "deepseek_v3":
        config = models.deepseek_v3(first_k_dense_replace=0, n_routed_experts=8, **sizes)
    else:
        config = models.transformers.Qwen3MoeConfig(
            vocab_size=64, hidden_size=256, num_attention_heads=2, num_experts=8, norm_topk_prob=True, **sizes
        )
    layer = models.new_model(config).model.layers[0].mlp.requires_grad_(False)
    if not hasattr(layer.experts, "gate_up_proj"):
        pytest.skip("this transformers keeps experts one by one")
    torch.manual_seed(cases.fresh_seed())  # after the model, which seeds too
    for parameter in layer.parameters():
        parameter.normal_(std=parameter.shape[-1] ** -0.5)
    x = torch.randn(2, 33, 256, dtype=BF16)
    plain = layer(x)
    layer.experts = Fp8Experts.from_bfloat16(layer.experts.gate_up_proj, layer.experts.down_proj)
    y = layer(x)
    assert y.dtype == plain.dtype and y.shape == plain.shape
    assert 0.01 < relative_error(y, plain) < 0.08
    assert float(torch.cosine_similarity(y.float().flatten(), plain.float().flatten(), dim=0)) > 0.996


@pytest.fixture
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter), counter


def operators(counter: CompileCounterWithBackend) -> list[str]:
    nodes = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
    return [name.removeprefix("fp8gemm.").split(".")[0] for name in nodes if name.startswith("fp8gemm.")]


@pytest.mark.usefixtures("fresh_compiler")
def test_three_graphs_serve_every_number_of_tokens(experts: Fp8Experts, generator: torch.Generator) -> None:
    """By rows that are multiples of four, even or odd: torch asks whether columns of MN-major scales lie close."""
    function, counter = compiled(experts)
    for count in (7, 2, 64, 130):
        given = tokens(count, H, G, TOP_K, generator)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 0)
        assert same_bits(function(*given), experts(*given)), count
    assert counter.frame_count <= 3
    assert operators(counter)[:2] == ["quantize_permuted", "gemm_grouped"] and len(operators(counter)) % 5 == 0


@pytest.mark.usefixtures("fresh_compiler")
def test_masked_in_one_graph(experts: Fp8Experts, generator: torch.Generator) -> None:
    function, counter = compiled(experts.forward_masked)
    x, counts = torch.randn(G, 5, H, generator=generator).to(BF16), torch.tensor([0, 1, 2, 3, 4, 5])
    valid = torch.arange(5) < counts[:, None]
    assert same_bits(function(x, counts)[valid], experts.forward_masked(x, counts)[valid])
    assert counter.frame_count == 1 and len(operators(counter)) == 4


def test_it_runs_where_only_operators_can(experts: Fp8Experts) -> None:
    arguments: tuple[Any, ...] = ((7, H), {"dtype": FP16}), ((7, 2), {"dtype": torch.int64}), ((7, 2), {})
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = experts(*(torch.empty(shape, **options) for shape, options in arguments))
    assert y.shape == (7, H) and y.dtype == FP16


def test_modes_make_no_difference(experts: Fp8Experts, generator: torch.Generator) -> None:
    given = tokens(3, H, G, TOP_K, generator)
    wanted = experts.eval()(*given)
    assert same_bits(experts.train()(*given), wanted)
    with torch.inference_mode():
        assert same_bits(experts(given.hidden.clone().requires_grad_(), *given[1:]), wanted)
    assert not any(parameter.requires_grad for parameter in experts.parameters())


def changed(**others: Tensor) -> Callable[[], Tokens]:
    generator = torch.Generator().manual_seed(1)
    return lambda: tokens(3, H, G, TOP_K, generator)._replace(**others)


REFUSED_INPUTS: dict[str, tuple[Callable[[], Tokens], str]] = {
    "H": (changed(hidden=torch.zeros(3, H + 16)), r"hidden: expected .*\(any, 272\) = \(T, H\), got .*\(3, 288\)"),
    "leading dimensions": (changed(hidden=torch.zeros(1, 3, H)), r"hidden: .* got torch.float32 of shape \(1, 3, 272"),
    "dtype": (changed(hidden=torch.zeros(3, H).double()), "hidden: .* got torch.float64"),
    "gradient": (changed(hidden=torch.zeros(3, H).requires_grad_()), "hidden: .* needs no gradient"),
    "device": (changed(hidden=torch.zeros(3, H, device="meta")), "hidden: expected the device of the weights, cpu"),
    "ids of other tokens": (changed(expert_ids=torch.zeros(4, 2).long()), r"expert_ids: .*\(3, 2\).* got .*\(4, 2\)"),
    "ids that are no integers": (changed(expert_ids=torch.zeros(3, 2)), "expert_ids: .* got torch.float32"),
    "a scalar for ids": (changed(expert_ids=torch.tensor(1)), r"expert_ids: .* of shape \(\)"),
    "weights of another top_k": (changed(weights=torch.zeros(3, 1)), r"weights: .*\(3, 2\).*, got .*\(3, 1\)"),
    "weights that are integers": (changed(weights=torch.zeros(3, 2).int()), "weights: .* got torch.int32"),
    "a weight's gradient": (changed(weights=torch.ones(3, 2).requires_grad_()), "weights: .* needs no gradient"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED_INPUTS.values(), ids=REFUSED_INPUTS)
def test_refused_inputs(make: Callable[[], Tokens], message: str, experts: Fp8Experts) -> None:
    with pytest.raises(InputError, match=message):
        experts(*make())


def test_refused_masked_inputs(experts: Fp8Experts) -> None:
    x, counts = torch.zeros(G, 4, H, dtype=BF16), torch.zeros(G, dtype=torch.int32)
    for arguments, message in (
        ((x[1:], counts), r"x: expected .*\(6, any, 272\) = \(G, max_m, H\), got .*\(5, 4, 272\)"),
        ((x, counts[1:]), r"counts: expected .*\(6\) = \(G,\), got .*\(5,\)"),
        ((x, counts.float()), "counts: .* got torch.float32"),
        ((x.to(torch.float8_e4m3fn), counts), "x: .* got torch.float8_e4m3fn"),
    ):
        with pytest.raises(InputError, match=message):
            experts.forward_masked(*arguments)
    with pytest.raises(InputError, match="x: expected torch.float8_e4m3fn .* got torch.bfloat16"):
        experts.forward_masked(x, counts, scales=torch.zeros(G, 4, 3))


def test_a_new_block_is_zero_and_a_copy_is_its_own(experts: Fp8Experts, generator: torch.Generator) -> None:
    new, given = Fp8Experts(G, H, INNER, batch_invariant=True), tokens(3, H, G, TOP_K, generator)
    assert not new(*given).any()
    assert repr(new) == f"Fp8Experts({G}, hidden_size={H}, intermediate_size={INNER}, batch_invariant=True)"
    wanted, other = experts(*given), copy.deepcopy(experts)
    other.gate_up_proj.view(torch.uint8).zero_()
    assert same_bits(experts(*given), wanted) and not other(*given).any()
    assert {type(parameter) for parameter in other.parameters()} == {nn.Parameter}
