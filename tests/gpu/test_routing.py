"""`fp8gemm.routing` on a Hopper GPU: what the CPU makes of the same tokens, in CUDA graphs too, and never a wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.routing import permute, permute_masked, unpermute
from tests.calls import no_waits, same_bits

EXPERTS, MAX_M, K = 32, 24, 1040


def block(codes: Tensor, scales: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """Both layouts and back, without what is not defined: rows of no group are made zero."""
    found = permute(codes, scales, ids, EXPERTS, first_expert=2)
    masked = permute_masked(codes, scales, ids, EXPERTS, MAX_M, first_expert=2)
    sums = [unpermute(each.codes.float() * each.scales[..., :1], each.permutation, weights) for each in (found, masked)]
    rest = (torch.arange(found.codes.shape[0], device=ids.device) >= found.offsets[-1])[:, None]
    kept = found.codes.view(torch.uint8).masked_fill(rest, 0), found.scales.masked_fill(rest, 0.0)
    return *sums, *kept, found.offsets, found.permutation.rows, masked.counts, masked.asked


def drawn(tokens: int, generator: torch.Generator) -> list[Tensor]:
    """Weights are powers of two, which fused and separate operations round alike."""
    options = {"generator": generator, "device": generator.device}
    codes, scales = fp8gemm.quantize_activation(torch.randn(tokens, K, **options))
    ids = torch.randint(-1, EXPERTS + 4, (tokens, 8), **options)
    return [codes, scales, ids, torch.randint(-2, 2, (tokens, 8), **options).float().exp2()]


@pytest.mark.parametrize("tokens", [1, 7, 128, 2000])
def test_the_same_as_on_the_cpu(tokens, device, generator):
    arguments = drawn(tokens, generator)
    expected = block(*(argument.cpu() for argument in arguments))
    with no_waits():
        found = block(*arguments)
    for on_gpu, on_cpu in zip(found, expected, strict=True):
        assert on_gpu.stride() == on_cpu.stride() and same_bits(on_gpu.cpu(), on_cpu)


def test_graph_replay_with_other_tokens(device, generator):
    given = drawn(64, generator)
    block(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = block(*given)
    for _ in range(20):
        for held, value in zip(given, drawn(64, generator), strict=True):
            held.copy_(value)
        graph.replay()
        for found, expected in zip(outputs, block(*given), strict=True):
            assert same_bits(found, expected)


def test_one_compiled_graph(device, generator):
    arguments = drawn(64, generator)
    torch._dynamo.reset()
    found = torch.compile(block, fullgraph=True)(*arguments)
    for compiled, expected in zip(found, block(*arguments), strict=True):
        assert compiled.stride() == expected.stride()
        torch.testing.assert_close(compiled.float(), expected.float())
