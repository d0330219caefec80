"""Quantisers amid other work: streams, graphs, GPUs, and kernels that start before the one ahead of them has ended.

Where kernels may overlap, each is right as often as it is launched: its input is of another variant every time, so that
what is read too early, or written over too early, shows. Counts of wrong bits are added up on the GPU, without a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.nn import Fp8Linear
from tests.calls import bits, same_bits

BF16 = torch.bfloat16
ROUNDS, REPLAYS, VARIANTS = 2000, 1000, 3
BURST, NAP = 50, 1_000_000
"""Launches that are queued behind a sleep of so many cycles, so that they then run without a gap."""
K = 1024

Outputs = tuple[Tensor, ...]
Quantise = Callable[[Tensor], Outputs]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def normal(*shape: int, generator: torch.Generator, size: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=generator, device=generator.device) * size).to(BF16)


@cache
def norm_weight(device: torch.device) -> Tensor:
    """One for all calls, so that nothing else is launched for them."""
    return torch.linspace(0.5, 2.0, K, device=device).to(BF16)


QUANTISERS: dict[str, Quantise] = {
    "rows": fp8gemm.quantize_activation,
    "blocks": fp8gemm.quantize_weight,
    "with_transpose": fp8gemm.quantize_with_transpose,
    "silu_mul": lambda x: fp8gemm.quantize_silu_mul(x),
    "rms_norm": lambda x: fp8gemm.quantize_rms_norm(x, norm_weight(x.device)),
    "add_rms_norm": lambda x: fp8gemm.quantize_add_rms_norm(x, x, norm_weight(x.device)),
}
every_quantiser = pytest.mark.parametrize("quantise", QUANTISERS.values(), ids=QUANTISERS)


class Count:
    """Wrong bytes, counted on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)

    def compare(self, found: Outputs, expected: Outputs) -> None:
        for mine, right in zip(found, expected, strict=True):
            self._wrong += (bits(mine) != bits(right)).sum()

    def __int__(self) -> int:
        return int(self._wrong)


@every_quantiser
def test_on_a_stream_of_its_own_in_order(quantise, device, generator):
    """The input comes out of a slow chain on that stream; no stream waits for another here."""
    ready = normal(65, K, generator=generator)
    expected = quantise(ready)
    x = torch.zeros_like(ready)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(ready)
        found = quantise(x)
        after = tuple(each.clone() for each in found)
    stream.synchronize()
    for one, two, right in zip(found, after, expected, strict=True):
        assert same_bits(one, right) and same_bits(two, right)


@every_quantiser
@pytest.mark.parametrize("m", [1, 65])
def test_a_thousand_replays_of_a_graph(m, quantise, device, generator):
    """The input is changed in place between replays; the outputs of one are full of something else before the next."""
    inputs = [normal(m, K, generator=generator, size=2.0**i) for i in range(VARIANTS)]
    expected = [quantise(each) for each in inputs]
    x = inputs[0].clone()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantise(x)
    wrong = Count(device)
    for variant in islice(cycle(range(VARIANTS)), REPLAYS):
        x.copy_(inputs[variant])
        for each in found:
            each.zero_() if each.dtype == torch.float32 else each.view(torch.uint8).fill_(0x7F)
        graph.replay()
        wrong.compare(found, expected[variant])
    assert int(wrong) == 0


@every_quantiser
def test_another_current_device(quantise, device, generator):
    others = [index for index in range(torch.cuda.device_count()) if index != device.index]
    if not others:
        pytest.skip("needs two GPUs")
    x = normal(33, K, generator=generator)
    expected = quantise(x)
    with torch.cuda.device(others[0]):
        found = quantise(x)
        assert torch.cuda.current_device() == others[0]
    torch.cuda.synchronize(device)
    for one, right in zip(found, expected, strict=True):
        assert one.device == device and same_bits(one, right)


def products(m: int, n: int, generator: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Operands of long products (m, n), one for each variant."""
    k = 8192
    return [
        (
            *fp8gemm.quantize_activation(normal(m, k, generator=generator, size=2.0**i)),
            *fp8gemm.quantize_weight(normal(n, k, generator=generator)),
        )
        for i in range(VARIANTS)
    ]


@every_quantiser
@pytest.mark.parametrize("m", [8, 65])
def test_what_a_product_wrote_just_before(m, quantise, device, generator):
    """The product lets the next kernel start at once, long before it writes what that one reads."""
    operands = products(m, K, generator)
    x = torch.empty(m, K, dtype=BF16, device=device)
    with settings.scope(pdl=False):
        expected = [quantise(fp8gemm.gemm(*each, static_weights=True)) for each in operands]
    assert not same_bits(expected[0][0], expected[1][0])
    wrong = Count(device)
    for i in range(ROUNDS // 5):
        if i % BURST == 0:
            torch.cuda._sleep(NAP)
        fp8gemm.gemm(*operands[i % VARIANTS], out=x, static_weights=True)
        wrong.compare(quantise(x), expected[i % VARIANTS])
    assert int(wrong) == 0


@pytest.mark.parametrize("m", [8, 300])
def test_a_weight_that_is_quantised_just_before_its_product(m, device, generator):
    """Not declared static: the product waits for the quantiser, and that one for the product ahead of it, which reads
    codes in the same memory."""
    a = fp8gemm.quantize_activation(normal(m, K, generator=generator))
    weights = [normal(512, K, generator=generator, size=2.0**i) for i in range(VARIANTS)]
    with settings.scope(pdl=False):
        expected = [fp8gemm.gemm(*a, *fp8gemm.quantize_weight(w)) for w in weights]
    found = torch.empty(BURST, m, 512, dtype=BF16, device=device)
    wrong = Count(device)
    for i in range(ROUNDS // 2):
        if i % BURST == 0:
            torch.cuda._sleep(NAP)
        # Nothing but kernels of this library follow each other until the burst is over.
        fp8gemm.gemm(*a, *fp8gemm.quantize_weight(weights[i % VARIANTS]), out=found[i % BURST])
        if (i + 1) % BURST == 0:
            for j in range(BURST):
                wrong.compare((found[j],), (expected[(i + 1 - BURST + j) % VARIANTS],))
    assert int(wrong) == 0


class Block:
    """What a decoder does with its activations: product, gated product, norm, each quantised on its way."""

    def __init__(self, generator: torch.Generator) -> None:
        def layer(n: int, k: int) -> Fp8Linear:
            weight = normal(n, k, generator=generator, size=k**-0.5)
            bias = normal(n, generator=generator)
            return Fp8Linear.from_quantized(*fp8gemm.quantize_weight(weight), bias, max_m=512)

        self.gate_up, self.down, self.out = layer(2 * K, K), layer(K, K), layer(K, K)
        self.norm = norm_weight(generator.device)

    def __call__(self, x: Tensor, wait: Callable[[], object]) -> Outputs:
        """``wait`` is called after each launch."""
        gated = self.gate_up(x)
        wait()
        a = fp8gemm.quantize_silu_mul(gated)
        wait()
        down = self.down.forward_quantized(*a)
        wait()
        *a, summed = fp8gemm.quantize_add_rms_norm(down, x, self.norm)
        wait()
        y = self.out.forward_quantized(*a)
        wait()
        last = self.out(y)
        wait()
        return summed, y, last


def blocks(generator: torch.Generator) -> tuple[Block, Block]:
    """The same block without and with programmatic launches."""
    state = generator.get_state()
    made: list[Any] = []
    for pdl in (False, True):
        generator.set_state(state)
        with settings.scope(pdl=pdl):
            made.append(Block(generator))
    return made[0], made[1]


def nothing() -> None:
    """No wait."""


@pytest.mark.parametrize("m", [1, 8, 100])
def test_chains_of_quantisers_and_products_have_the_bits_of_plain_launches(m, device, generator):
    plain, programmatic = blocks(generator)
    inputs = [normal(m, K, generator=generator, size=2.0**i) for i in range(VARIANTS)]
    with settings.scope(pdl=False):
        expected = [plain(x, torch.cuda.synchronize) for x in inputs]
    assert all(each.isfinite().all() for outputs in expected for each in outputs)
    wrong = Count(device)
    with settings.scope(pdl=True):
        for i in range(ROUNDS):
            if i % BURST == 0:
                torch.cuda._sleep(NAP)
            wrong.compare(programmatic(inputs[i % VARIANTS], nothing), expected[i % VARIANTS])
    assert int(wrong) == 0


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("m", [1, 33, 300])
def test_layers_in_a_row_that_share_a_workspace(m, pdl, device, generator):
    """Nothing lies between a layer and the next: its codes take the memory of those that the last product may still
    read, and its input that of the output before."""
    with settings.scope(pdl=pdl):
        block = Block(generator)
        inputs = [normal(m, K, generator=generator, size=2.0**i) for i in range(VARIANTS)]
        expected = []
        for x in inputs:
            for layer in (block.down, block.out) * 4:
                x = layer(x)
                torch.cuda.synchronize(device)
            expected.append(x)
        wrong = Count(device)
        for i in range(ROUNDS // 4):
            if i % 20 == 0:
                torch.cuda._sleep(NAP)
            x = inputs[i % VARIANTS]
            for layer in (block.down, block.out) * 4:
                x = layer(x)
            wrong.compare((x,), (expected[i % VARIANTS],))
    assert int(wrong) == 0
