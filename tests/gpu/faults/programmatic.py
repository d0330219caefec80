"""Programmatic dependent launch: on and off, the same bits, whoever wrote an operand and how late.

With programmatic launches each kernel of a chain may begin while the one before is still running; nothing in between
waits. Dense kernels let the next one begin shortly before they end, and swapped ones long before: writers of that kind
multiply thousands of zeros after the others have begun.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.products.quantize import quantize_activation
from fp8gemm.tuning.swap_ab import SwapAbConfig
from tests import cases
from tests.calls import same_bits
from tests.gpu.faults.chain import KINDS, OPERANDS, SPLIT, VARIANTS, WHOLE, Chain, K, M, N, sources_of
from tests.gpu.faults.launching import captured
from tests.gpu.faults.support import E4M3, F32, Kind, config_of, launch, make_kernels

ROUNDS = 300

every_operand = pytest.mark.parametrize(
    ("launched", "name"),
    [
        pytest.param(launched, name, id=f"{what}-{name}")
        for what, launched in KINDS.items()
        for name in launched.operands
    ],
)


@pytest.mark.parametrize(("written_by", "distance"), [("our kernel", 1), ("our kernel", 2), ("copy_", 1)])
@every_operand
def test_fault_15_programmatic_launch_changes_no_bit(launched, name, written_by, distance, device, seed):
    """The operand is written by the kernel before the product or by the one before that; it is not declared static."""
    case = cases.small_integers(M, N, K, seed=seed, device=device, **launched.kind.options)
    chains = [Chain.build(case, name, launched, programmatic=programmatic) for programmatic in (False, True)]
    off, on = (chain.run(written_by, distance, ROUNDS) for chain in chains)
    # What is compared with must be right itself, and the operand must matter.
    for variant, values in enumerate(chains[0].values):
        chains[0].matrix.copy_(values)
        chains[0].case.check(off[0][variant]).raise_if_failed(f"{case}, {name}, variant {variant}")
    assert not any(same_bits(x, y) for x, y in itertools.combinations(off[0][:VARIANTS], 2))
    for what, without, with_it in zip(("product", "reader"), off, on, strict=True):
        assert same_bits(with_it, without), f"{case}, {name} by {written_by}: {what}"


@every_operand
def test_fault_15_inside_a_graph(launched, name, device, seed):
    """The dependence is captured with the launches."""
    case = cases.small_integers(M, N, K, seed=seed, device=device, **launched.kind.options)
    chain = Chain.build(case, name, launched, programmatic=True)
    expected = chain.run("our kernel", 1, VARIANTS)[0]
    outputs = torch.full((VARIANTS, M, N), math.nan, device=device)

    def chained() -> None:
        for source, out in zip(chain.sources, outputs, strict=True):
            launch(chain.kernels["writer"], source, chain.matrix)
            chain.multiply(out)

    graph = captured(chained, device)
    for replay in range(100):
        outputs.fill_(math.nan)
        graph.replay()
        assert same_bits(outputs, expected), f"{case}, {name}, replay {replay}"


@pytest.mark.parametrize("static_weights", [False, True])
@pytest.mark.parametrize("m", [1, 16, 64])
def test_fault_15_plans_that_follow_each_other(m, static_weights, device, seed):
    """Four products of the same activations, each added to by the next, and new activations made of their sum; eager
    and in a graph: the same bits as with nothing else on the GPU."""
    width = 1024
    weights = [cases.signed(1, width, width, seed=seed + i, device=device) for i in range(4)]
    plans = [
        fp8gemm.plan(
            weight.b,
            weight.scales_b,
            max_m=m,
            out_dtype=F32,
            c_dtype=F32 if i else None,
            static_weights=static_weights,
        )
        for i, weight in enumerate(weights)
    ]

    def layers(x: Tensor, pause: Callable[[], None]) -> Tensor:
        for _ in range(3):
            codes, scales = quantize_activation(x)
            total: Tensor | None = None
            for plan in plans:
                total = plan(codes, scales, c=total)
                pause()
            x = total / width
        return x

    def nothing() -> None:
        pass

    inputs = [torch.randn(m, width, generator=generator_of(seed + i, device), device=device) for i in range(3)]
    expected = [layers(x, torch.cuda.synchronize) for x in inputs]
    for x, alone in zip(inputs, expected, strict=True):
        assert alone.isfinite().all() and same_bits(layers(x, nothing), alone), f"M = {m}, seed {seed}"
    x, out = inputs[0].clone(), torch.empty_like(inputs[0])
    graph = captured(lambda: out.copy_(layers(x, nothing)), device)
    for replay in range(60):
        x.copy_(inputs[replay % 3])
        out.fill_(math.nan)
        graph.replay()
        assert same_bits(out, expected[replay % 3]), f"M = {m}, seed {seed}, replay {replay}"


def generator_of(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("kinds", ["dss", "sds", "ssd", "sss"])
def test_fault_15_activations_from_the_product_ahead(kinds, device, seed):
    """Kernels of either family, dense and swapped, in turn: the first writes codes, which the second multiplies; its
    output is scales and C of the third."""
    m, n, k = 40, 264, 512
    outputs = []
    for programmatic in (False, True):
        first, second, third = (cases.signed(m, n, k, seed=seed + i, device=device) for i in range(3))
        matrix = torch.zeros(m, k // 4, device=device)
        sources = sources_of(matrix, 8192, seed)
        problems = [Kind(F32).problem(m, k // 4, 8192), Kind(F32).problem(m, n, k), Kind(F32, c=F32).problem(m, n, k)]
        tiles = [{"d": "64x64-c1x1", "s": config} for config in (SwapAbConfig(64, 64, 2), WHOLE, SPLIT)]
        wanted = [(each, config_of(each, tile[kind])) for each, tile, kind in zip(problems, tiles, kinds, strict=True)]
        writer, middle, last = make_kernels(wanted, device, programmatic=programmatic)
        sums, out = (torch.full((ROUNDS, m, n), math.nan, device=device) for _ in range(2))
        torch.cuda.synchronize(device)
        for i in range(ROUNDS):
            if i % 20 == 0:
                torch.cuda._sleep(1_000_000)
            launch(writer, sources[i % VARIANTS], matrix)
            launch(middle, replace(second, a=matrix.view(E4M3)), sums[i], static_weights=True)
            # Scales that a dense kernel can read by TMA too: four columns of the sums, as they lie.
            scales = sums[i].view(-1)[: 4 * m].view(4, m).t()
            launch(last, replace(third, a=first.a, scales_a=scales), out[i], c=sums[i], static_weights=True)
        torch.cuda.synchronize(device)
        outputs.append((sums, out))
    (sums, out), (sums_on, out_on) = outputs
    assert out.isfinite().all() and not same_bits(out[0], out[1])
    assert same_bits(sums_on, sums) and same_bits(out_on, out), f"{kinds}, seed {seed}"


@pytest.mark.parametrize("name", OPERANDS)
def test_fault_15_runs_on_the_current_stream_in_order(name, device, seed):
    """An operand comes out of a slow chain on a side stream; no stream waits for another here."""
    case = cases.signed(333, 2112, 1040, seed=seed, device=device, c=F32, bias=F32)
    expected = fp8gemm.gemm(*case.operands, **case.epilogue)
    ready = getattr(case, name)
    operand = torch.empty_strided(ready.shape, ready.stride(), dtype=ready.dtype, device=device).zero_()
    late = replace(case, **{name: operand})
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        operand.copy_(ready)
        out = fp8gemm.gemm(*late.operands, **late.epilogue)
        after = out.clone()
    stream.synchronize()
    assert same_bits(out, expected) and same_bits(after, expected), case
