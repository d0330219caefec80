"""A linear layer among other work: programmatic launches, graphs, and a weight that is moved, replaced or copied."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fp8gemm
from fp8gemm import settings
from fp8gemm.nn import Fp8Linear
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.launching import captured, differing
from tests.gpu.faults.plans import occupy_freed_memory, spoil
from tests.gpu.faults.support import BF16, F32
from tests.numerics import check

N, K = 2112, 1040
ROWS = (1, 65, 300)
ROUNDS, REPLAYS, VARIANTS = 300, 1000, 3

every_m = pytest.mark.parametrize("m", ROWS)


def layer_of(seed: int, device: torch.device, *, n: int = N) -> Fp8Linear:
    case = cases.signed(1, n, K, seed=seed, device=device, bias=BF16)
    return Fp8Linear.from_quantized(case.b, case.scales_b, case.bias, max_m=128)


def tokens(m: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(m, K, generator=generator, device=device).to(BF16)


def raise_if_wrong(layer: Fp8Linear, x: Tensor, y: Tensor, context: object) -> None:
    weight = layer.weight, layer.weight_scale_inv
    check(y, *fp8gemm.quantize_activation(x), *weight, data="signed", bias=layer.bias).raise_if_failed(context)


@every_m
def test_fault_15_layers_in_a_row_have_the_bits_of_plain_launches(m, device, seed):
    """A slow layer ahead, and nothing between two layers: each starts while the one before it still runs."""
    outputs = []
    for pdl in (False, True):
        with settings.scope(pdl=pdl):
            wide, narrow = layer_of(seed, device, n=64 * 1040), layer_of(seed + 1, device, n=K)
            xs = [tokens(m, seed + i, device) for i in range(VARIANTS)]
            torch.cuda.synchronize(device)
            made = []
            for i in range(ROUNDS):
                if i % 20 == 0:
                    torch.cuda._sleep(1_000_000)
                made.append(narrow(narrow(wide(xs[i % VARIANTS])[:, :K])).sum(dim=1, dtype=F32))
            torch.cuda.synchronize(device)
            outputs.append(torch.stack(made))
    plain, programmatic = outputs
    assert plain.isfinite().all() and not same_bits(plain[0], plain[1])
    assert same_bits(programmatic, plain), f"M = {m}, seed {seed}"
    assert all(same_bits(plain[i], plain[i % VARIANTS]) for i in range(ROUNDS)), f"M = {m}, seed {seed}"


@every_m
def test_fault_16_replays_of_a_layer_see_inputs_and_weights_changed_in_place(m, device, seed):
    layer, x = layer_of(seed, device), tokens(m, seed, device)
    others = [layer_of(seed + i, device) for i in range(VARIANTS)]
    inputs = [tokens(m, seed + i, device) for i in range(VARIANTS)]
    expected = [other(each) for other, each in zip(others, inputs, strict=True)]
    out = torch.empty_like(expected[0])
    layer(x)
    graph = captured(lambda: out.copy_(layer(x)), device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for i in range(REPLAYS):
        x.copy_(inputs[i % VARIANTS])
        for mine, theirs in zip(layer.parameters(), others[i % VARIANTS].parameters(), strict=True):
            mine.view(torch.uint8).copy_(theirs.view(torch.uint8))
        # A layer promises that nobody writes its weight while its kernel may be running, or about to.
        torch.cuda.current_stream(device).synchronize()
        out.fill_(math.nan)
        graph.replay()
        wrong += differing(out, expected[i % VARIANTS])
    assert int(wrong) == 0, f"M = {m}, seed {seed}"


def by_data(layer: Fp8Linear, other: Fp8Linear) -> None:
    for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data.clone()


def by_replacement(layer: Fp8Linear, other: Fp8Linear) -> None:
    for name, theirs in list(other.named_parameters()):
        setattr(layer, name, nn.Parameter(theirs.detach().clone(), requires_grad=False))


def by_state_dict(layer: Fp8Linear, other: Fp8Linear) -> None:
    layer.load_state_dict(other.state_dict())


def by_assigned_state_dict(layer: Fp8Linear, other: Fp8Linear) -> None:
    layer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)


def by_a_round_trip_to_the_cpu(layer: Fp8Linear, other: Fp8Linear) -> None:
    layer.cpu().load_state_dict(other.state_dict())
    layer.to(other.weight.device)


def by_a_file(layer: Fp8Linear, other: Fp8Linear) -> None:
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file))


CHANGES = (by_data, by_replacement, by_state_dict, by_assigned_state_dict, by_a_round_trip_to_the_cpu, by_a_file)


@every_m
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_fault_21_a_layer_follows_its_weight(change, m, device, seed):
    layer, x = layer_of(seed, device), tokens(m, seed, device)
    old, new = copy.deepcopy(layer), layer_of(seed + 1, device)
    assert same_bits(layer(x), old(x))
    for other in (new, old, new):
        change(layer, other)
        alike = copy.deepcopy(other)
        if change is by_replacement:  # whose weight nobody called static: another kernel may multiply by it
            change(alike, other)
        held = occupy_freed_memory(device)
        torch.cuda.synchronize(device)  # as the layer demands of whoever writes its weight
        for _ in range(2):
            y = layer(x)
            assert same_bits(y, alike(x)), f"M = {m}, seed {seed}"
        raise_if_wrong(layer, x, y, f"M = {m}, seed {seed}")
        del held


@pytest.mark.parametrize("name", ["weight", "weight_scale_inv", "bias"])
def test_fault_21_one_parameter_of_a_layer_moved(name, device, seed):
    layer, x = layer_of(seed, device), tokens(65, seed, device)
    layer(x)
    before = getattr(layer, name).data
    getattr(layer, name).data = getattr(layer_of(seed + 1, device), name).data
    spoil(before)
    torch.cuda.synchronize(device)
    raise_if_wrong(layer, x, layer(x), f"{name}, seed {seed}")


@every_m
def test_fault_21_a_bias_of_another_dtype_where_the_old_one_lay(m, device, seed):
    layer, x = layer_of(seed, device), tokens(m, seed, device)
    storage = torch.zeros(N, device=device)
    for dtype in (F32, BF16, F32):
        values = storage.view(dtype)[:N].copy_(torch.linspace(-9, 9, N, device=device))
        layer.bias = nn.Parameter(values, requires_grad=False)
        raise_if_wrong(layer, x, layer(x), f"M = {m}, {dtype}, seed {seed}")


COPIES: dict[str, Callable[[Fp8Linear], Fp8Linear]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_fault_21_copies_are_layers_of_their_own(copied, device, seed):
    layer, new, x = layer_of(seed, device), layer_of(seed + 1, device), tokens(65, seed, device)
    expected = layer(x)
    twin = copied(layer)
    assert twin.weight.data_ptr() != layer.weight.data_ptr() and same_bits(twin(x), expected)
    by_data(layer, new)
    torch.cuda.synchronize(device)
    assert same_bits(layer(x), new(x)) and same_bits(twin(x), expected)
    del layer
    held = occupy_freed_memory(device)
    assert same_bits(twin(x), expected)
    del held
    spoil(twin.weight)
    torch.cuda.synchronize(device)
    assert twin(x).isnan().all()
