"""Layers and functions under `torch.compile` and `torch.export`: one graph, the same bits, shared quantisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear, compile_options
from tests.calls import same_bits
from tests.operators import needs_the_pass

K, N = 272, 136
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def layer(n: int = N, k: int = K, **options: Any) -> Fp8Linear:
    return Fp8Linear.from_linear(nn.Linear(k, n, dtype=BF16), **options)


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    """The function in one graph without a break, and what counts how often it is compiled."""
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def targets(counter: CompileCounterWithBackend) -> list[str]:
    nodes = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
    return [name.removeprefix("fp8gemm.").split(".")[0] for name in nodes if name.startswith("fp8gemm.")]


@pytest.mark.parametrize("batch_invariant", [None, True])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
def test_a_layer_is_two_operators_of_one_graph(dtype: torch.dtype, batch_invariant: bool | None) -> None:
    module, x = layer(batch_invariant=batch_invariant), torch.randn(2, 3, K, dtype=dtype)
    function, counter = compiled(module)
    assert same_bits(function(x), module(x))
    assert targets(counter) == ["quantize_activation", "gemm"]


def test_a_model_of_layers_and_other_modules() -> None:
    model = nn.Sequential(layer(K), nn.SiLU(), layer(K), nn.LayerNorm(K, dtype=BF16), layer())
    x = torch.randn(5, K, dtype=BF16)
    function, counter = compiled(model)
    assert same_bits(function(x), model(x)) and counter.frame_count == 1


def test_one_graph_serves_every_number_of_rows() -> None:
    module = layer()
    function, counter = compiled(module)
    first = torch.randn(7, K)
    torch._dynamo.mark_dynamic(first, 0)
    for x in (first, *(torch.randn(m, K) for m in (2, 3, 64, 130))):
        assert same_bits(function(x), module(x))
    assert counter.frame_count == 1
    for m in (0, 1):  # torch compiles a graph of its own for either
        x = torch.randn(m, K)
        assert same_bits(function(x), module(x))


def test_without_a_mark_the_second_graph_serves_them_all() -> None:
    module = layer()
    function, counter = compiled(module)
    for m in (7, 9, 2, 64, 130):
        x = torch.randn(m, 2, K)
        assert same_bits(function(x), module(x))
    assert counter.frame_count == 2


def test_a_compiled_layer_follows_its_parameters() -> None:
    module, other, x = layer(), layer(), torch.randn(5, K)
    function, counter = compiled(module)
    function(x)
    module.load_state_dict(other.state_dict())
    assert same_bits(function(x), other(x)) and counter.frame_count == 1


def _gemm(x: Tensor) -> Any:
    operands = (*fp8gemm.quantize_activation(x), *fp8gemm.quantize_weight(WEIGHT))
    c, out = x.new_ones(x.shape[0], N), x.new_empty(x.shape[0], N)
    given = fp8gemm.gemm(*operands, c=c, out=out)
    return fp8gemm.gemm(*operands), given, fp8gemm.gemm(*operands, out_dtype=torch.float16, batch_invariant=True), out


def _row_major(x: Tensor) -> Any:
    return fp8gemm.quantize_activation(x, scale_layout="row_major")


def _plan(x: Tensor) -> Any:
    a, scales_a = fp8gemm.quantize_activation(x)
    out = x.new_empty(x.shape[0], N, dtype=BF16)
    return PLAN(a, scales_a), PLAN(a, scales_a, out=out), out


def _norms(x: Tensor) -> Any:
    normed = fp8gemm.quantize_rms_norm(x, NORM, eps=1e-5)
    return *normed, *fp8gemm.quantize_add_rms_norm(x, x + 1, NORM), *fp8gemm.quantize_silu_mul(torch.cat([x, x + 1], 1))


def _forward_quantized(x: Tensor) -> Any:
    return LAYER.forward_quantized(*fp8gemm.quantize_rms_norm(x, NORM), out_dtype=torch.float32)


WEIGHT, NORM = torch.randn(N, K), torch.randn(K)
PLAN = fp8gemm.plan(*fp8gemm.quantize_weight(WEIGHT), max_m=64)
LAYER = layer()
FUNCTIONS = {
    "gemm": (_gemm, {"quantize_activation", "quantize_weight", "gemm", "gemm_out"}),
    "row-major scales": (_row_major, {"quantize_activation"}),
    "plan": (_plan, {"quantize_activation", "gemm", "gemm_out"}),
    "fused": (_norms, {"quantize_rms_norm", "quantize_add_rms_norm", "quantize_silu_mul"}),
    "forward_quantized": (_forward_quantized, {"quantize_rms_norm", "gemm"}),
}


@pytest.mark.parametrize(("function", "operators"), FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_functions_become_their_operators(
    dynamic: bool, function: Callable[[Tensor], Any], operators: set[str]
) -> None:
    x = torch.randn(5, K)
    traced, counter = compiled(function, dynamic=dynamic)
    expected, got = function(x), traced(x)
    for left, right in zip(got, expected, strict=True) if isinstance(expected, tuple) else ((got, expected),):
        assert same_bits(left, right) and left.stride() == right.stride()
    assert set(targets(counter)) == operators


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    module, x = layer(), torch.randn(5, K)
    rows = torch.export.Dim("rows", min=2, max=1024)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: rows}}, strict=strict)
    for m in (2, 77):
        x = torch.randn(m, K)
        assert same_bits(program.module()(x), module(x))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_gradient_is_an_error_here_too(fullgraph: bool) -> None:
    function = torch.compile(layer(), fullgraph=fullgraph, backend="aot_eager")
    x = torch.randn(5, K, requires_grad=True)
    # With fullgraph torch does not let an exception out of a graph as it is; its own quotes it.
    with torch.enable_grad(), pytest.raises(Exception, match="InputError|needs no gradient") as caught:
        function(x)
    assert fullgraph or isinstance(caught.value, InputError)
    assert same_bits(function(x), function(x.detach()))


class Projections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.other = layer(), layer(), layer(), layer()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return self.q(x), self.k(x), self.v(x), self.other(y)


@pytest.mark.parametrize(
    ("options", "quantisations"),
    [(None, 4), pytest.param(compile_options(), 2, marks=needs_the_pass)],
    ids=["default", "merged"],
)
def test_layers_that_read_one_tensor_quantise_it_once(options: dict[str, Any] | None, quantisations: int) -> None:
    """With the options, and only then: this shows when inductor learns to do so itself."""
    model, x, y = Projections(), torch.randn(2, 3, K, dtype=BF16), torch.randn(2, 3, K, dtype=BF16)
    function = torch.compile(model, fullgraph=True, options=options, dynamic=True)
    function(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = function(x, y)
    calls = {event.key: event.count for event in profile.key_averages() if event.key.startswith("fp8gemm::")}
    assert calls == {"fp8gemm::quantize_activation": quantisations, "fp8gemm::gemm": 4}
    assert all(map(same_bits, got, model(x, y)))


def test_compile_options_with_cuda_graphs() -> None:
    options = compile_options(cuda_graphs=True)
    assert options.pop("triton.cudagraphs") is True and options.keys() == compile_options().keys()


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_number_of_rows_that_only_the_graph_knows() -> None:
    b, scales_b = fp8gemm.quantize_weight(WEIGHT)
    group = b.view(torch.uint8)[None].clone().view(b.dtype), scales_b[None].clone()

    def chosen(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        a = fp8gemm.quantize_activation(x[mask])
        ends = mask.sum()[None].int()
        return fp8gemm.gemm(*a, b, scales_b), fp8gemm.gemm_grouped(*a, *group, offsets=ends)

    function, _ = compiled(chosen)
    x, mask = torch.randn(7, K), torch.tensor([1, 0, 1, 0, 1, 0, 0]).bool()
    assert all(map(same_bits, function(x, mask), chosen(x, mask)))
