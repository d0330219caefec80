"""Layers under `torch.compile` and in CUDA graphs on a Hopper GPU: always the bits of the eager layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear, compile_options
from tests.calls import same_bits

BF16 = torch.bfloat16
K, N = 1024, 2048
REPLAYS = 1000


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Projections that read one tensor, and layers that read each other's output."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.gate, self.up = layer(N, K, generator), layer(N, K, generator)
        self.down = layer(K, N, generator)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.gate(x) * self.up(x))
        return out


def layer(n: int, k: int, generator: torch.Generator) -> Fp8Linear:
    w = torch.randn(n, k, generator=generator, device=generator.device) * k**-0.5
    bias = torch.randn(n, generator=generator, device=generator.device, dtype=BF16)
    return Fp8Linear.from_quantized(*fp8gemm.quantize_weight(w.to(BF16)), bias, max_m=512)


def tokens(m: int, generator: torch.Generator) -> Tensor:
    return torch.randn(m, K, generator=generator, device=generator.device).to(BF16)


@pytest.fixture
def model(generator: torch.Generator) -> Model:
    return Model(generator)


def assert_close(got: Tensor, expected: Tensor) -> None:
    """What inductor fuses around a layer it computes in float32, so that a model's bits may differ from eager's."""
    assert (got.float() - expected.float()).norm() <= 0.01 * expected.float().norm()


@pytest.mark.parametrize("m", [1, 7, 64, 333])
def test_a_compiled_layer_has_the_bits_of_the_eager_one(m: int, generator: torch.Generator) -> None:
    module, x = layer(N, K, generator), tokens(m, generator)
    function = torch.compile(module, fullgraph=True)
    assert same_bits(function(x), module(x)) and same_bits(function(x), module(x))


@pytest.mark.parametrize("m", [1, 64, 333])
def test_a_compiled_model(m: int, model: Model, generator: torch.Generator) -> None:
    function, exact = torch.compile(model, fullgraph=True), torch.compile(model, fullgraph=True, backend="aot_eager")
    x = tokens(m, generator)
    assert same_bits(exact(x), model(x))
    assert_close(function(x), model(x))


def test_one_graph_serves_every_number_of_rows(generator: torch.Generator) -> None:
    counter = CompileCounterWithBackend("inductor")
    module = layer(N, K, generator)
    function = torch.compile(module, fullgraph=True, backend=counter)
    first = tokens(7, generator)
    torch._dynamo.mark_dynamic(first, 0)
    for x in (first, *(tokens(m, generator) for m in (2, 64, 65, 333, 1024))):
        assert same_bits(function(x), module(x)), x.shape
    assert counter.frame_count == 1


def captured(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one call, which reads ``x``, and where it writes."""
    side = torch.cuda.Stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        for _ in range(3):
            function(x)
    torch.cuda.current_stream(x.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("m", [1, 8, 100])
def test_a_captured_layer_replayed_with_changing_inputs(m: int, compiled: bool, generator: torch.Generator) -> None:
    """A thousand times each, the input changed in place between replays and no wait in between."""
    module, x = layer(N, K, generator), tokens(m, generator)
    function = torch.compile(module, fullgraph=True) if compiled else module
    graph, y = captured(function, x)
    inputs = [tokens(m, generator) for _ in range(10)]
    expected = [module(each) for each in inputs]
    wrong = torch.zeros((), dtype=torch.int64, device=x.device)
    for i in range(REPLAYS):
        x.copy_(inputs[i % 10])
        graph.replay()
        wrong += (y.view(torch.int16) != expected[i % 10].view(torch.int16)).sum()
    assert int(wrong) == 0


def test_a_captured_model_replayed(model: Model, generator: torch.Generator) -> None:
    """Layer after layer, so that each kernel may start before the one ahead has ended."""
    x = tokens(4, generator)
    graph, y = captured(model, x)
    wrong = torch.zeros((), dtype=torch.int64, device=x.device)
    inputs = [tokens(4, generator) for _ in range(10)]
    expected = [model(each) for each in inputs]
    for i in range(REPLAYS):
        x.copy_(inputs[i % 10])
        graph.replay()
        wrong += (y.view(torch.int16) != expected[i % 10].view(torch.int16)).sum()
    assert int(wrong) == 0


@pytest.mark.parametrize("merged", [False, True])
def test_reduce_overhead(merged: bool, generator: torch.Generator) -> None:
    module = layer(N, K, generator)
    chosen = {"options": compile_options(cuda_graphs=True)} if merged else {"mode": "reduce-overhead"}
    function = torch.compile(module, fullgraph=True, **chosen)
    for i in range(20):
        x = tokens(8, generator)
        torch.compiler.cudagraph_mark_step_begin()
        assert same_bits(function(x).clone(), module(x)), i


def test_layers_that_read_one_tensor_quantise_it_once(model: Model, generator: torch.Generator) -> None:
    x = tokens(8, generator)
    function = torch.compile(model, fullgraph=True, options=compile_options())
    function(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = function(x)
    calls = {event.key: event.count for event in profile.key_averages() if event.key.startswith("fp8gemm::")}
    assert calls == {"fp8gemm::quantize_activation": 2, "fp8gemm::gemm": 3}
    assert_close(got, model(x))


def test_a_compiled_layer_follows_its_parameters(generator: torch.Generator) -> None:
    module, other, x = layer(N, K, generator), layer(N, K, generator), tokens(7, generator)
    function = torch.compile(module, fullgraph=True)
    function(x)
    module.load_state_dict(other.state_dict())
    assert same_bits(function(x), other(x))
    for mine, theirs in zip(module.parameters(), layer(N, K, generator).parameters(), strict=True):
        mine.data = theirs.data
    assert same_bits(function(x), module(x)) and not same_bits(function(x), other(x))


def test_a_gradient_is_an_error(generator: torch.Generator) -> None:
    module = layer(N, K, generator)
    x = tokens(7, generator).requires_grad_()
    with torch.enable_grad():
        with pytest.raises(InputError, match=r"x: .*\(inference only\)"):
            module(x)
        with pytest.raises(InputError, match=r"x: .*\(inference only\)"):
            torch.ops.fp8gemm.quantize_activation(x)
        with pytest.raises(InputError, match=r"x: .*\(inference only\)"):
            torch.compile(module)(x)
