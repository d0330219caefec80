"""Kernels of routing on a Hopper GPU: the reference's bits, nothing else written, in graphs, compiled, and right behind
the kernels that write what they read."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.routing import CHUNK
from fp8gemm.products import routing
from fp8gemm.reference import quantize_rows
from fp8gemm.reference import routing as reference
from fp8gemm.routing import permute, quantize_permuted, unpermute
from tests.calls import bits, no_waits, same_bits

FIRST, REPLAYS = 3, 1000
CODE, SCALE = 0x55, -7.0
every_dtype = pytest.mark.parametrize("dtype", INPUTS, ids=str)


def drawn(tokens: int, top_k: int, groups: int, generator: torch.Generator, dtype: torch.dtype = torch.int64) -> Tensor:
    """Ids of groups from `FIRST` on, of others and of none; a token may name one twice."""
    options = {"generator": generator, "device": generator.device, "dtype": dtype}
    return torch.randint(-1, groups + 2 * FIRST, (tokens, top_k), **options)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, device=generator.device)


def assert_routed(found: tuple[Tensor, ...], ids: Tensor, groups: int, first: int = FIRST) -> None:
    for mine, right in zip(found, reference.route(ids.cpu(), groups, first), strict=True):
        assert mine.dtype == right.dtype and torch.equal(mine.cpu(), right), (ids.shape, groups)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("groups", [1, 8, 256, 1024])
def test_rows_are_those_of_a_stable_sort(groups, dtype, generator):
    for tokens in (0, 1, 2, 33, 128, 511, 512, 513, 5000):
        for top_k in (1, 8):
            ids = drawn(tokens, top_k, groups, generator, dtype)
            assert_routed(routing.route(ids, groups, FIRST), ids, groups)


def test_all_to_one_expert_and_chunks_that_are_full(generator):
    for count in (CHUNK, CHUNK + 1, 40 * CHUNK):
        for only in (FIRST, FIRST + 255, -1):
            ids = torch.full((count, 1), only, dtype=torch.int32, device=generator.device)
            assert_routed(routing.route(ids, 256, FIRST), ids, 256)


def test_ids_of_64_bits_are_read_as_such(device):
    ids = torch.tensor([2**32 + 1, -(2**40), 2**62, 4, -(2**63), 2**63 - 1, 3], device=device)[:, None]
    for first in (0, FIRST, 2**31 - 1):
        assert_routed(routing.route(ids, 5, first), ids, 5, first)


def test_more_experts_than_a_kernel_takes(generator):
    ids = drawn(70, 4, 3000, generator)
    assert_routed(routing.route(ids, 3000, FIRST), ids, 3000)


def test_equal_ids_give_equal_rows_every_time(generator):
    """Nothing of it depends on who comes first."""
    ids = drawn(2100, 8, 256, generator)
    first = routing.route(ids, 256, FIRST)
    wrong = torch.zeros((), dtype=torch.int64, device=ids.device)
    for _ in range(REPLAYS):
        for mine, right in zip(routing.route(ids, 256, FIRST), first, strict=True):
            wrong += (mine != right).sum()
    assert int(wrong) == 0


@every_dtype
@pytest.mark.parametrize("k", [16, 144, 2048, 7168])
def test_tokens_are_quantised_into_their_rows(k, dtype, generator):
    for tokens, top_k in ((1, 8), (33, 3), (32, 8), (8, 32), (256, 1), (33, 8), (300, 8), (5, 70)):
        wide = torch.full((tokens + 1, k + 32), math.nan, dtype=dtype, device=generator.device)
        x = wide[:-1, 16:-16].copy_(normal(tokens, k, generator=generator))
        ids = drawn(tokens, top_k, 32, generator)
        found = quantize_permuted(x, ids, 32, first_expert=FIRST)
        assert_routed((found.offsets, found.permutation.rows, found.permutation.kept), ids, 32)
        expected = permute(*quantize_rows(x.contiguous()), ids, 32, first_expert=FIRST)
        kept = int(found.offsets[-1])
        assert same_bits(found.codes[:kept], expected.codes[:kept]) and same_bits(
            found.scales[:kept], expected.scales[:kept]
        )
        assert found.scales.stride() == expected.scales.stride()


@pytest.mark.parametrize("k", [16, 144, 528, 7168])
def test_codes_and_scales_are_copied(k, generator):
    for tokens, top_k in ((1, 8), (33, 3), (300, 8)):
        codes, scales = fp8gemm.quantize_activation(normal(tokens, k, generator=generator))
        offsets, rows, _ = routing.route(drawn(tokens, top_k, 32, generator), 32, FIRST)
        expected, count = reference.copy_to_rows(codes.cpu(), scales.cpu(), rows.cpu()), int(offsets[-1])
        for given in (scales, scales.contiguous()):
            found = routing.copy_to_rows(codes, given, rows, offsets)
            for mine, right in zip(found, expected, strict=True):
                assert mine.stride() == right.stride() and same_bits(mine.cpu()[:count], right[:count])


@pytest.mark.parametrize("k", [16, 144, 528, 7168])
def test_copies_in_parts_fill_one_place_and_nothing_else(k, generator):
    """Rows of no group, rows behind all, and what lies between columns of scales keep what they held."""
    for tokens, top_k in ((2, 8), (33, 3), (300, 8), (5, 70)):
        codes, scales = fp8gemm.quantize_activation(normal(tokens, k, generator=generator))
        offsets, rows, _ = routing.route(drawn(tokens, top_k, 32, generator), 32, FIRST)
        expected, count = reference.copy_to_rows(codes, scales, rows), int(offsets[-1])
        room = rows.numel() + 6
        out = routing.empty_rows(room, k, codes.device)
        of_scales = out[1].as_strided((scales.shape[1], out[1].stride(1)), (out[1].stride(1), 1))
        out[0].view(torch.uint8).fill_(CODE)
        of_scales.fill_(SCALE)
        few = -(-tokens // 3)
        for part in (slice(few, tokens), slice(0, few)):
            routing.copy_to_rows_into(codes[part], scales[part], rows[part], offsets, out)
        assert all(same_bits(mine[:count], right[:count]) for mine, right in zip(out, expected, strict=True))
        assert (out[0][count:].view(torch.uint8) == CODE).all() and (of_scales[:, count:] == SCALE).all()


@every_dtype
@pytest.mark.parametrize("weights_dtype", [*INPUTS, torch.float64], ids=str)
def test_sums_have_the_bits_of_the_cpu(weights_dtype, dtype, generator):
    """Rows of no group are NaN, and their weights infinite."""
    for tokens, top_k, n in ((1, 8, 7168), (33, 3, 8), (300, 8, 400), (5, 21, 264)):
        offsets, rows, kept = routing.route(drawn(tokens, top_k, 32, generator), 32, FIRST)
        y = normal(tokens * top_k, n, generator=generator).to(dtype)
        weights = normal(tokens, top_k, generator=generator).to(weights_dtype)
        y[int(offsets[-1]) :], weights[~kept] = math.nan, math.inf
        found = routing.unpermute(y, rows, kept, weights)
        expected = reference.unpermute(*(each.cpu() for each in (y, rows, kept, weights)))
        assert same_bits(found.cpu(), expected) and found.isfinite().all()


@every_dtype
def test_sums_in_parts_have_the_bits_of_one_call(dtype, generator):
    """Of more rows than any of the parts has."""
    for tokens, top_k, n in ((2, 8, 7168), (33, 3, 8), (300, 8, 400), (5, 21, 264)):
        _, rows, kept = routing.route(drawn(tokens, top_k, 32, generator), 32, FIRST)
        y = normal(tokens * top_k, n, generator=generator).to(dtype)
        weights = normal(tokens, top_k, generator=generator)
        out = torch.full((tokens + 1, n), SCALE, dtype=dtype, device=y.device)
        few = -(-tokens // 3)
        for part in (slice(few, tokens), slice(0, few)):
            routing.unpermute_into(y, rows[part], kept[part], weights[part], out[part])
        assert same_bits(out[:-1], routing.unpermute(y, rows, kept, weights)) and (out[-1] == SCALE).all()


def only_kept(values: Tensor, offsets: Tensor) -> Tensor:
    """Rows as integers or floats, those of no group zero; the host need not know how many these are."""
    values = values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values
    return values.masked_fill((torch.arange(values.shape[0], device=values.device) >= offsets[-1])[:, None], 0)


def block(x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """What is defined of it, all in fixed places: a sum of what came out, and where rows are."""
    tokens = quantize_permuted(x, ids, 32, first_expert=FIRST)
    values = tokens.codes.float() * tokens.scales[:, :1]
    again = permute(*fp8gemm.quantize_activation(x), ids, 32, first_expert=FIRST)
    total = unpermute(values, tokens.permutation, weights)
    copies = only_kept(again.codes, again.offsets), only_kept(again.scales, again.offsets)
    return total, tokens.offsets, tokens.permutation.rows, tokens.permutation.kept, *copies


def inputs(tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    x = normal(tokens, 528, generator=generator).bfloat16()
    return x, drawn(tokens, 8, 32, generator), normal(tokens, 8, generator=generator)


@pytest.mark.parametrize("tokens", [1, 64, 1000])
def test_a_graph_replayed_with_changing_tokens_and_experts(tokens, device, generator):
    given = inputs(tokens, generator)
    block(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = block(*given)
    others = [inputs(tokens, generator) for _ in range(5)]
    wanted = [tuple(each.clone() for each in block(*other)) for other in others]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for i in range(REPLAYS):
        for held, value in zip(given, others[i % 5], strict=True):
            held.copy_(value)
        graph.replay()
        for mine, right in zip(outputs, wanted[i % 5], strict=True):
            wrong += (bits(mine) != bits(right)).sum()
    assert int(wrong) == 0


def test_one_compiled_graph_has_the_same_bits(device, generator):
    torch._dynamo.reset()
    function = torch.compile(block, fullgraph=True)
    for tokens in (1, 64):
        given = inputs(tokens, generator)
        for found, expected in zip(function(*given), block(*given), strict=True):
            assert found.stride() == expected.stride() and same_bits(found, expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("tokens", [8, 64, 700])
def test_what_was_written_just_before_is_what_is_read(tokens, device, generator):
    """Tokens and what is summed come out of products right ahead, and ids and weights out of kernels of torch's."""
    a = fp8gemm.quantize_activation(normal(8 * tokens, 2048, generator=generator).bfloat16())
    weights = [fp8gemm.quantize_weight(normal(528, 2048, generator=generator).bfloat16()) for _ in range(3)]
    products = [fp8gemm.gemm(*a, *weight) for weight in weights]
    routed = [(drawn(tokens, 8, 32, generator), normal(tokens, 8, generator=generator)) for _ in range(3)]
    wanted = []
    for i, (ids, factors) in enumerate(routed):
        found = quantize_permuted(products[i][:tokens], ids, 32, first_expert=FIRST)
        kept = int(found.offsets[-1])
        wanted.append((kept, found, unpermute(products[(i + 2) % 3], found.permutation, factors)))
    y, ids, factors = (torch.zeros_like(each) for each in (products[0], *routed[0]))
    torch.cuda.synchronize(device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for i in range(300):
        kept, expected, total = wanted[i % 3]
        torch.cuda._sleep(500_000)  # so that all of a round is queued before the GPU begins with it
        ids.copy_(routed[i % 3][0])
        factors.copy_(routed[i % 3][1])
        fp8gemm.gemm(*a, *weights[i % 3], out=y)
        found = quantize_permuted(y[:tokens], ids, 32, first_expert=FIRST)
        fp8gemm.gemm(*a, *weights[(i + 2) % 3], out=y)  # not what the next round begins with
        summed = unpermute(y, found.permutation, factors)
        wrong += (bits(found.codes[:kept]) != bits(expected.codes[:kept])).sum()
        wrong += (found.scales[:kept] != expected.scales[:kept]).sum() + (bits(summed) != bits(total)).sum()
    assert int(wrong) == 0


def test_nothing_waits_for_the_gpu(generator):
    given = inputs(64, generator)
    expected = block(*given)
    with no_waits():
        found = block(*given)
    assert all(same_bits(mine, right) for mine, right in zip(found, expected, strict=True))


def test_codes_past_2_31_bytes(device, generator):
    """Offsets of 64 bits: rows are written where they lie, and read where they are summed."""
    tokens, top_k, k = 40960, 8, 7168
    needed = tokens * top_k * k * 3 + 2**31
    torch.cuda.empty_cache()
    if (free := torch.cuda.mem_get_info(device)[0]) < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory, {free / 2**30:.0f} are left")
    x = torch.zeros(tokens, k, dtype=torch.bfloat16, device=device)
    x[-5:] = normal(5, k, generator=generator)
    ids = torch.arange(top_k, device=device).expand(tokens, top_k).contiguous()
    found = quantize_permuted(x, ids, top_k)
    codes, scales = fp8gemm.quantize_activation(x[-5:])
    for group in range(top_k):
        last = slice((group + 1) * tokens - 5, (group + 1) * tokens)
        assert same_bits(found.codes[last], codes) and same_bits(found.scales[last], scales), group
    y = found.codes.to(torch.bfloat16)
    total = unpermute(y, found.permutation, torch.ones(tokens, top_k, device=device))
    assert same_bits(total[-5:], (codes.float() * top_k).bfloat16()) and not total[:-5].any()
    del x, y, found, total
    torch.cuda.empty_cache()
