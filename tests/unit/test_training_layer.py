"""`Fp8TrainingLinear`: a linear layer to torch, under `torch.compile`, from and to other layers, and its warmup."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from fp8gemm import settings
from fp8gemm.ahead.models import demand_of_model
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear, Fp8TrainingLinear, convert
from fp8gemm.products import quantize
from fp8gemm.tuning.problem import OutputType
from tests.calls import same_bits
from tests.played_gpu import PlayedGpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
K, N = 272, 144


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(layer: nn.Module, function: Any, x: Tensor, dy: Tensor) -> list[Tensor | None]:
    """The output, and the gradients of x and of the layer's parameters; the layer is left without them."""
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(dy)
    found = [y.detach(), x.grad, *(each.grad for each in layer.parameters())]
    layer.zero_grad()
    return found


def same(left: list[Tensor | None], right: list[Tensor | None]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(one is not None and other is not None and same_bits(one, other) for one, other in pairs)


@pytest.mark.parametrize("of_weight", [FP32, BF16], ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_step_is_one_graph_with_the_same_bits(backend: str, of_weight: torch.dtype) -> None:
    layer = Fp8TrainingLinear(K, N, dtype=of_weight)
    x, dy = torch.randn(5, 7, K, dtype=BF16), torch.randn(5, 7, N, dtype=BF16)
    right, found = (step(layer, each, x, dy) for each in (layer, torch.compile(layer, fullgraph=True, backend=backend)))
    assert same(found[:3], right[:3])
    assert found[3] is not None and torch.allclose(found[3], right[3], rtol=1e-2)  # summed in another order


def test_a_compiled_layer_takes_any_number_of_rows_without_a_graph_for_each() -> None:
    """Torch's own for the first number; then one for a single block of rows and one for several, with and without a
    tail."""
    layer, counter = Fp8TrainingLinear(K, N), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for m in (7, 128, 130, 256, 2, 64, 384, 500):
        x, dy = torch.randn(m, K), torch.randn(m, N)
        assert same(step(layer, compiled, x, dy), step(layer, layer, x, dy))
    assert counter.frame_count <= 5


def test_optimisers_state_dicts_and_pickles_find_a_linear_layer(tmp_path: Any) -> None:
    layer, plain = Fp8TrainingLinear(K, N), nn.Linear(K, N)
    layer.load_state_dict(plain.state_dict())
    assert list(layer.state_dict()) == ["weight", "bias"] and torch.equal(layer.weight, plain.weight)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    step(layer, layer, torch.randn(3, K), torch.randn(3, N))
    layer(torch.randn(3, K)).sum().backward()
    optimiser.step()
    assert not torch.equal(layer.weight, plain.weight)
    torch.save(layer, tmp_path / "layer.pt")
    x = torch.randn(3, K)
    for other in (copy.deepcopy(layer), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert type(other) is Fp8TrainingLinear and torch.equal(other(x), layer(x))
    assert same_bits(layer.to(BF16).weight.detach(), other.to(BF16).weight.detach())
    with pytest.raises(InputError, match=r"^weight: expected .* got torch.float64"):
        layer.double()(x)


def test_the_output_follows_the_weight() -> None:
    layer, x = Fp8TrainingLinear(K, N, bias=False), torch.randn(3, K)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(layer(x), 2 * before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 144), r"^in_features: expected a multiple of 16, at least 16, got 100; 112 works$"),
        ((272, 50257), r"^out_features: expected a multiple of 16, at least 16, got 50257; 50272 works$"),
        ((272, 0), r"got 0; 16 works$"),
        ((272, 144, True, None, torch.float64), r"^dtype: expected one of torch.bfloat16"),
    ],
)
def test_what_no_kernel_takes_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Fp8TrainingLinear(*arguments)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 512)
        self.up, self.down = nn.Linear(512, 640), nn.Linear(640, 512, bias=False)
        self.odd = nn.Linear(512, 520)
        self.lm_head = nn.Linear(512, 64, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        out: Tensor = self.lm_head(x + self.down(functional.relu(self.up(x))) + self.odd(x)[..., :512])
        return out


def test_a_model_is_converted_trained_and_converted_to_serve() -> None:
    model, tokens = Model(), torch.arange(64)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)  # before, as it may be
    before, names = dict(model.named_parameters()), list(model.state_dict())
    done = convert(model, trainable=True)
    assert [layer.name for layer in done.converted] == ["up", "down"] and done.bytes_before == done.bytes_after
    assert {layer.name: layer.reason for layer in done.skipped} == {
        "odd": "N is not a multiple of 16",
        "lm_head": "it is the head, left unless head=True",
    }
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert list(model.state_dict()) == names and type(model.up) is Fp8TrainingLinear
    losses = []
    for _ in range(20):
        loss = functional.cross_entropy(model(tokens), tokens.roll(1))
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.7 * losses[0]
    assert [layer.name for layer in convert(copy.deepcopy(model), trainable=True).converted] == []
    with torch.no_grad():
        trained = model(tokens)
        assert [layer.name for layer in convert(model, skip=["odd"]).converted] == ["up", "down"]
        assert type(model.up) is Fp8Linear and same_bits(model(tokens), trained)


def test_served_layers_compute_what_trained_ones_did() -> None:
    layer, x = Fp8TrainingLinear(K, N, dtype=BF16), torch.randn(9, K, dtype=BF16)
    with torch.no_grad():
        assert same_bits(Fp8Linear.from_linear(layer)(x), layer(x))


def played(monkeypatch: pytest.MonkeyPatch) -> PlayedGpu:
    """One that has the quantisers too."""
    gpu = PlayedGpu(monkeypatch)
    monkeypatch.setattr(quantize, "uses_reference", gpu._uses_reference)
    return gpu


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "of_weight"), [(BF16, BF16), (BF16, FP32), (FP16, FP16), (FP32, FP32)], ids=str)
def test_a_step_asks_for_no_other_kernels_than_its_warmup_made(
    dtype: torch.dtype, of_weight: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Fp8TrainingLinear(K, N, bias, dtype=of_weight)
    given = [(torch.randn(m, K, dtype=dtype), torch.randn(m, N, dtype=dtype)) for m in (300, 290)]  # of as many blocks
    with settings.scope(backend="reference"):
        right = [step(layer, layer, *each) for each in given]
    gpu = played(monkeypatch)
    with torch.device("meta"):
        frame = nn.Sequential(Fp8TrainingLinear(K, N, bias, dtype=of_weight))
    ready = demand_of_model(frame, 300, "h200", OutputType(str(dtype).removeprefix("torch."))).requests
    for each, expected in zip(given, right, strict=True):
        assert same(step(layer, layer, *each), expected)
    assert len(gpu.launches) == 2 * (3 + 4) and set(gpu.loads) <= set(ready)


def test_mixed_precision_finds_its_kernels_ready_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP gathers float32 parameters as what is computed with."""
    ready = demand_of_model(Fp8TrainingLinear(K, N, dtype=FP32, device="meta"), 300, "h200").requests
    gpu, layer = played(monkeypatch), Fp8TrainingLinear(K, N, dtype=BF16)
    step(layer, layer, torch.ones(300, K, dtype=BF16), torch.ones(300, N, dtype=BF16))
    assert gpu.loads and set(gpu.loads) <= set(ready)


def test_a_warmup_of_a_model_with_layers_of_both_kinds() -> None:
    model = nn.Sequential(Fp8TrainingLinear(K, N, device="meta"), Fp8Linear(K, N, device="meta", dtype=BF16, max_m=300))
    alone = [set(demand_of_model(layer, 300, "h200").requests) for layer in model]
    assert set(demand_of_model(model, 300, "h200").requests) == alone[0] | alone[1]


def test_shapes_are_told_on_no_device() -> None:
    assert Fp8TrainingLinear(64, 48, device="meta")(torch.ones(5, 64, device="meta")).shape == (5, 48)


def test_a_layer_with_hooks_of_either_pass_is_left() -> None:
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook", "register_forward_hook"):
        model = nn.Sequential(nn.Linear(64, 48))
        getattr(model[0], register)(lambda *_: None)
        convert(model, trainable=True, min_features=1)
        assert type(model[0]) is nn.Linear, register


def test_a_weight_that_is_computed_is_refused() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(64, 48))
    with pytest.raises(InputError, match="linear: expected a weight that is a parameter, got Tensor"):
        Fp8TrainingLinear.from_linear(layer)


def test_the_gradient_of_a_weight_is_one_kernel_of_a_warmup() -> None:
    layer = Fp8TrainingLinear(1024, 4096, dtype=FP32, device="meta")
    wanted = [dict(each.config) for each in demand_of_model(layer, 8192, "h200").requests if each.family == "Dense"]
    assert len([each for each in wanted if each["scaling"].value == "1d1d"]) == 2, "of float32, and of bfloat16"
