"""`fp8gemm.nn.convert`: which layers of a model change, which stay and why, and what the report says of it."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Linear, convert
from tests.calls import same_bits

K, N = 512, 640


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(K, N), nn.Linear(N, K, bias=False)
        self.gate = nn.Linear(K, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x) * self.gate(x).sum(-1, keepdim=True))


class Model(nn.Module):
    """Two blocks, the second twice, and a head whose weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(600, K)
        first, second = Block(), Block()
        self.layers = nn.ModuleList([first, second, second])
        self.lm_head = nn.Linear(K, 600, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.lm_head(x)
        return out


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().bfloat16().eval()


def names(model: nn.Module) -> set[str]:
    found = model.named_modules(remove_duplicate=False)
    return {name for name, module in found if isinstance(module, Fp8Linear)}


@torch.no_grad()
def test_a_model_with_shared_layers_and_a_tied_head(model: Model) -> None:
    tokens = torch.arange(7)
    exact = model(tokens).float()
    conversion = convert(model, max_m=64, batch_invariant=True)
    assert names(model) == {f"layers.{i}.{name}" for i in range(3) for name in ("up", "down")}
    assert model.layers[1] is model.layers[2]
    assert model.lm_head.weight is model.embedding.weight
    assert [layer.name for layer in conversion.converted] == [
        f"layers.{i}.{name}" for i in (0, 1) for name in ("up", "down")
    ]
    assert {layer.name: layer.reason for layer in conversion.skipped} == {
        "layers.0.gate": "fewer than min_features = 512 features",
        "layers.1.gate": "fewer than min_features = 512 features",
        "lm_head": "it is the head, left unless head=True",
    }
    up = model.layers[0].up
    assert (up.max_m, up.batch_invariant, up.training) == (64, True, False)
    assert (model(tokens).float() - exact).norm() < 0.06 * exact.norm()


def test_one_layer_in_several_places_stays_one() -> None:
    shared = nn.Linear(K, N)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleDict({"c": shared}), "d": nn.Sequential(shared)})
    (layer,) = convert(model).converted
    assert layer.name == "a"
    assert isinstance(model["a"], Fp8Linear)
    assert model["a"] is model["b"]["c"] is model["d"][0]


def test_tied_weights_are_left_however_they_are_tied() -> None:
    model = nn.ModuleDict({name: nn.Linear(K, K) for name in ("a", "b", "c", "d", "free")})
    model["b"].weight = model["a"].weight
    model["d"].weight.data = model["c"].weight.data
    conversion = convert(model)
    reasons = {layer.name: layer.reason for layer in conversion.skipped}
    assert reasons == {
        "a": "its weight is b.weight too",
        "b": "its weight is a.weight too",
        "c": "its weight is d.weight too",
        "d": "its weight is c.weight too",
    }
    assert names(model) == {"free"} and model["a"].weight is model["b"].weight


def test_a_tied_head_is_left_even_if_no_pattern_names_it(model: Model) -> None:
    conversion = convert(model, head=True)
    assert {layer.name: layer.reason for layer in conversion.skipped}["lm_head"] == "its weight is embedding.weight too"


class Special(nn.Linear):
    pass


def with_hook(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda module, args, output: output + 1)
    return layer


def with_forward(layer: nn.Linear) -> nn.Linear:
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return layer


LEFT: dict[str, tuple[Any, str]] = {
    "subclass": (lambda: Special(K, N), "it is a Special, not exactly torch.nn.Linear"),
    "attention's output": (lambda: nn.MultiheadAttention(K, 4), "it is a NonDynamicallyQuantizableLinear, not exactly"),
    "K": (lambda: nn.Linear(K + 8, N), "K is not a multiple of 16"),
    "few outputs": (lambda: nn.Linear(K, 511), "fewer than min_features = 512 features"),
    "few inputs": (lambda: nn.Linear(496, N), "fewer than min_features = 512 features"),
    "float64": (lambda: nn.Linear(K, N).double(), "its weight is torch.float64"),
    "hook": (lambda: with_hook(nn.Linear(K, N)), "it has hooks or a forward of its own"),
    "forward": (lambda: with_forward(nn.Linear(K, N)), "it has hooks or a forward of its own"),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(K, N)),
        "it is a ParametrizedLinear, not exactly torch.nn.Linear",
    ),
}


@pytest.mark.parametrize(("make", "reason"), LEFT.values(), ids=LEFT)
def test_what_is_left_and_why(make: Any, reason: str) -> None:
    model = nn.ModuleDict({"part": make()})
    before = {name: type(module) for name, module in model.named_modules()}
    conversion = convert(model)
    assert [layer.reason[: len(reason)] for layer in conversion.skipped] == [reason] and not conversion.converted
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert conversion.bytes_before == conversion.bytes_after


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("up", {"layers.0.up", "layers.1.up"}),
        ("layers.0", {"layers.0.up", "layers.0.down"}),
        ("0.up", {"layers.0.up"}),
        ("layers.*.down", {"layers.0.down", "layers.1.down"}),
        ("*", {"layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"}),
        ("layers.[1-9]", {"layers.1.up", "layers.1.down"}),
        ("2.up", {"layers.1.up"}),
        ("p", set()),
        ("ayers.0", set()),
        ("UP", set()),
        ("layers.0.u", set()),
    ],
)
def test_patterns(pattern: str, left: set[str], model: Model) -> None:
    """Whole components, any of a layer's names, or those of what it is part of."""
    with warnings.catch_warnings(record=True) as caught:
        conversion = convert(model, skip=(pattern,))
    unmatched = () if left else (pattern,)
    assert conversion.unmatched == unmatched
    assert [str(warning.message) for warning in caught] == [
        f"skip: {each!r} names no module of the model" for each in unmatched
    ]
    others = {"layers.0.gate", "layers.1.gate", "lm_head"}
    assert {layer.name for layer in conversion.skipped if repr(pattern) in layer.reason} - others == left
    assert len(conversion.converted) == 4 - len(left)


def test_a_pattern_that_names_no_linear_layer_but_another_module_matched(model: Model) -> None:
    """Where a router is a linear layer in one release and none in the next, one call does for both."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convert(model, skip=("embedding",)).unmatched == ()


def test_patterns_that_match_nothing_are_warned_of_where_convert_is_called_and_reported(model: Model) -> None:
    long = "x" * 10_000
    with pytest.warns(UserWarning) as caught:
        conversion = convert(model, skip=("mlp.gat", "down", long))
    assert str(caught[0].message) == "skip: 'mlp.gat' names no module of the model"
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert conversion.unmatched == conversion.as_json()["unmatched"] == ("mlp.gat", long)
    lines = str(conversion).splitlines()
    assert "skip: 'mlp.gat' names no module of the model" in lines and max(map(len, lines)) < 120


def test_patterns_are_skipped_besides_the_head() -> None:
    def make() -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.Linear(K, N) for name in ("up", "down", "lm_head")})

    for options, left in (
        ({}, {"lm_head"}),
        ({"skip": ("up",)}, {"up", "lm_head"}),
        ({"skip": ("up",), "head": True}, {"up"}),
        ({"skip": ("lm_head",), "head": True}, {"lm_head"}),
        ({"head": True}, set()),
    ):
        made = make()
        conversion = convert(made, **options)  # type: ignore[arg-type]
        assert {layer.name for layer in conversion.skipped} == left
        assert names(made) == {"up", "down", "lm_head"} - left


def test_min_features(model: Model) -> None:
    assert len(convert(model, min_features=N).converted) == 0
    assert len(convert(model, min_features=1).converted) == 6
    assert len(convert(model, min_features=1).converted) == 0


def test_a_model_on_meta_becomes_the_frame_of_an_fp8_checkpoint(model: Model) -> None:
    with torch.device("meta"):
        frame = Model().bfloat16()
    frame.lm_head.weight = frame.embedding.weight
    assert convert(frame).bytes_before == convert(model).bytes_before
    assert names(frame) == names(model) and frame.layers[0].up.weight.is_meta
    frame.load_state_dict(model.state_dict(), assign=True)
    tokens = torch.arange(5)
    with torch.no_grad():
        assert same_bits(frame(tokens), model(tokens))


def test_weights_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is converted, those before it are gone; a model needs no room for two of itself."""
    model = nn.Sequential(*(nn.Linear(K, K) for _ in range(4)))
    alive = [weakref.ref(layer.weight) for layer in model]
    seen = []
    from_linear = Fp8Linear.from_linear.__func__  # type: ignore[attr-defined]

    def spying(cls: Any, linear: nn.Linear, **options: Any) -> Fp8Linear:
        gc.collect()
        seen.append(sum(weight() is not None for weight in alive))
        made: Fp8Linear = from_linear(cls, linear, **options)
        return made

    monkeypatch.setattr(Fp8Linear, "from_linear", classmethod(spying))
    convert(model)
    assert seen == [4, 3, 2, 1]
    gc.collect()
    assert not any(weight() is not None for weight in alive)


def test_the_report(model: Model) -> None:
    conversion = convert(model)
    weight, codes, scales, bias = 2 * K * N, K * N, 4 * 4 * 5, 2 * N
    up, down = conversion.converted[:2]
    assert (up.name, up.in_features, up.out_features) == ("layers.0.up", K, N)
    assert (up.bytes_before, up.bytes_after) == (weight + bias, codes + scales + bias)
    assert (down.bytes_before, down.bytes_after) == (weight, codes + scales)
    assert conversion.bytes_before - conversion.bytes_after == 4 * (weight - codes - scales)
    unique = {id(parameter): parameter for parameter in model.parameters()}
    assert conversion.bytes_after == sum(parameter.nbytes for parameter in unique.values())
    as_json = json.loads(json.dumps(conversion.as_json()))
    assert as_json["converted"][0]["name"] == "layers.0.up" and as_json["skipped"][-1]["name"] == "lm_head"
    assert as_json["bytes_after"] == conversion.bytes_after
    lines = str(conversion).splitlines()
    assert lines[1].split() == ["640", "x", "512", "2", "1.31", "0.66"]
    assert lines[3].split()[:3] == ["whole", "model", "4"]
    assert lines[-1] == "left: lm_head: it is the head, left unless head=True"
    assert all(len(line) < 120 for line in lines) and len(lines) == 6


def test_many_skipped_layers_make_one_line() -> None:
    lines = str(convert(nn.Sequential(*(nn.Linear(K, 8) for _ in range(5))))).splitlines()
    assert lines[-1] == "left: 0, 1, 2 and 2 more: fewer than min_features = 512 features"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"model": nn.Linear(K, N)}, "model: .* use Fp8Linear.from_linear"),
        (lambda: {"model": nn.Sequential(nn.Linear(K, N)), "skip": "lm_head"}, "skip: .* got the string 'lm_head'"),
        (lambda: {"model": nn.Sequential(nn.Linear(K, N)), "skip": ("0", 1)}, "skip: .* got 1 among them"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert(**arguments())
