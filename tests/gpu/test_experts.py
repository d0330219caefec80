"""`Fp8Experts` on a Hopper GPU: what it computes, without a wait, in graphs and compiled, and as its weights change."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import fp8gemm
from fp8gemm.nn import Fp8Experts
from fp8gemm.nn.experts_routed import of_hidden
from tests.calls import no_waits, same_bits
from tests.experts import BF16, Tokens, block, expected, relative_error, rows_of_experts, tokens, weights

G, H, INNER, TOP_K = 32, 1024, 384, 4
REPLAYS = 1000

COUNTS = (1, 2, 7, 64, 333, 1500)  # tokens: a quarter of a row an expert, up to more than a tile


@pytest.fixture
def experts(generator: torch.Generator) -> Fp8Experts:
    return block(G, H, INNER, generator)


def routed(count: int, generator: torch.Generator, dtype: torch.dtype = BF16) -> Tokens:
    return tokens(count, H, G, TOP_K, generator, dtype)


def limit(given: Tokens) -> float:
    """On the relative error of all rows together: that of one, or what is left of it on average over many."""
    return 0.01 + 0.04 / math.sqrt(given.hidden.shape[0])


def assert_right(experts: Fp8Experts, given: Tokens) -> None:
    """Against the reference from end to end.

    A sum's last bit, and the exponential's, can move the code of what lies between the products, which is one part in
    16 of a value: rare, so that all in all the error stays near that of rounding. Where it moves the largest value of
    128, it moves their scale, and they are rounded anew: one row may differ by as much as quantisation does, 3.7 % for
    two roundings. (Of the same codes products differ by 0.08 %, and codes not at all; H200, 2026-11-22.) A wrong
    block is 10 times beyond.
    """
    y = experts(*given)
    assert y.dtype == given.hidden.dtype and y.shape == given.hidden.shape and y.is_contiguous()
    assert relative_error(y, expected(experts, given)) < limit(given)
    rows = experts(*given.alone), rows_of_experts(experts, *given.alone[:2])[:, 0]
    error, size = (each.double().norm(dim=1) for each in (rows[0].double() - rows[1].double(), rows[1]))
    assert bool((error <= 0.05 * size).all()), f"token {int((error / size).argmax())}"


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
def test_output(dtype: torch.dtype, experts: Fp8Experts, generator: torch.Generator) -> None:
    for count in COUNTS if dtype == BF16 else COUNTS[1::3]:
        assert_right(experts, routed(count, generator, dtype))
    assert experts(*routed(0, generator, dtype)).shape == (0, H)


def test_a_layer_of_256_experts(generator: torch.Generator) -> None:
    experts = block(256, 1024, 256, generator)
    for count in (1, 64):  # an expert in 32 is touched; two rows an expert
        assert_right(experts, tokens(count, 1024, 256, 8, generator))


def test_routes(experts: Fp8Experts, generator: torch.Generator) -> None:
    given = routed(333, generator)
    assert_right(experts, given._replace(expert_ids=torch.full_like(given.expert_ids, G - 1)))
    assert_right(experts, given._replace(expert_ids=given.expert_ids.int()))
    some = torch.where(given.expert_ids % 2 == 0, given.expert_ids, -1)
    some[:, 0] = given.expert_ids[:, 0]
    assert_right(experts, given._replace(expert_ids=some))
    none = torch.tensor([-1, G, 2**31 - 1], device=given.hidden.device)[:, None].expand(3, TOP_K)
    y = experts(given.hidden[:3], none, torch.full_like(given.weights[:3], math.nan))
    assert not y.any()


def test_ranks_share_a_layer(generator: torch.Generator) -> None:
    gate_up, down = weights(G, H, INNER, generator)
    parts = [slice(first, first + 8) for first in range(0, G, 8)]
    ranks = [
        Fp8Experts.from_bfloat16(gate_up[part], down[part], num_experts=G, first_expert=part.start) for part in parts
    ]
    for count in (7, 333):
        given = routed(count, generator)
        for rank in ranks:
            assert relative_error(rank(*given), expected(rank, given)) < limit(given)
        alone = torch.stack([rank(*given.alone) for rank in ranks])
        assert int((alone.abs().sum(2) > 0).sum()) == count, "each token is one rank's"


def test_rows_that_are_kept_have_the_bits_that_they_have_among_all(generator: torch.Generator) -> None:
    """Between the products of some of the experts, which quantise no other rows there."""
    experts = block(8, H, INNER, generator, num_experts=G, first_expert=8)
    for count in COUNTS:
        given, options = routed(count, generator), experts._options(BF16, 2)
        of_all, of_kept = (
            of_hidden(*given, experts.operands(), first_expert=8, some=some, options=options) for some in (False, True)
        )
        assert same_bits(of_kept, of_all), count


@pytest.mark.parametrize("max_m", [8, 130])
def test_masked(max_m: int, experts: Fp8Experts, generator: torch.Generator) -> None:
    x = torch.randn(G, max_m, H, generator=generator, device=generator.device).to(BF16)
    counts = torch.randint(-1, max_m + 2, (G,), generator=generator, device=x.device)
    counts[:3] = torch.tensor([0, max_m, max_m + 9])
    valid = torch.arange(max_m, device=x.device) < counts[:, None]
    ids = torch.arange(G, device=x.device).repeat_interleave(max_m)[:, None]
    wanted = rows_of_experts(experts, x.view(-1, H), ids).view(G, max_m, H)[valid]
    poisoned = x.masked_fill(~valid[..., None], math.nan)
    for expected_m in (None, 4):
        y = experts.forward_masked(poisoned, counts, expected_m=expected_m)
        assert relative_error(y[valid], wanted) < 0.01
        codes, scales = fp8gemm.quantize_activation(poisoned, counts=counts)
        again = experts.forward_masked(codes, counts.int(), scales=scales, expected_m=expected_m)
        assert same_bits(again[valid], y[valid])


def test_bits_do_not_depend_on_the_other_tokens(generator: torch.Generator) -> None:
    experts = block(G, H, INNER, generator, batch_invariant=True)
    given = routed(333, generator)
    whole = experts(*given)
    assert same_bits(experts(*given), whole)
    for count in (1, 7, 64):
        assert same_bits(experts(*(each[:count] for each in given)), whole[:count]), count


def test_nothing_waits_for_the_gpu(experts: Fp8Experts, generator: torch.Generator) -> None:
    given, x = routed(64, generator), torch.ones(G, 8, H, dtype=BF16, device=generator.device)
    counts = torch.ones(G, dtype=torch.int32, device=x.device)
    wanted = experts(*given), experts.forward_masked(x, counts)
    with no_waits():
        again = experts(*given), experts.forward_masked(x, counts)
    assert same_bits(again[0], wanted[0]) and same_bits(again[1][:, 0], wanted[1][:, 0])


def captured(function: Callable[[], Tensor], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function()
    return graph, y


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("count", [4, 100])
def test_a_graph_replayed_with_changing_tokens_and_experts(
    count: int, compiled: bool, experts: Fp8Experts, generator: torch.Generator
) -> None:
    """A thousand times, all inputs changed in place between replays and no wait in between."""
    given = routed(count, generator)
    function = torch.compile(experts, fullgraph=True) if compiled else experts
    graph, y = captured(lambda: function(*given), generator.device)
    inputs = [routed(count, generator) for _ in range(8)]
    inputs.append(inputs[0]._replace(expert_ids=torch.full_like(given.expert_ids, 5)))
    inputs.append(inputs[1]._replace(expert_ids=torch.full_like(given.expert_ids, -1)))
    wanted = [function(*each).clone() for each in inputs]
    wrong = torch.zeros((), dtype=torch.int64, device=generator.device)
    for i in range(REPLAYS):
        for mine, theirs in zip(given, inputs[i % 10], strict=True):
            mine.copy_(theirs)
        graph.replay()
        wrong += (y.view(torch.int16) != wanted[i % 10].view(torch.int16)).sum()
    assert int(wrong) == 0


@pytest.mark.parametrize(("layer", "hidden"), [(12, 384), (24, 400)], ids=["all", "some"])
def test_a_prepared_block_is_captured_without_a_call_before(
    layer: int, hidden: int, generator: torch.Generator
) -> None:
    """Of sizes that no other test has, so that nobody has loaded its kernels; of all of a layer's experts or some."""
    experts = block(12, hidden, 144, generator, num_experts=layer)
    given = tokens(40, hidden, layer, 3, generator)
    experts.prepare(max_m=64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = experts(*given)
    graph.replay()
    assert same_bits(y, experts(*given)) and relative_error(y, expected(experts, given)) < limit(given)


def test_a_masked_graph_replayed_with_changing_counts(experts: Fp8Experts, generator: torch.Generator) -> None:
    max_m = 24
    x = torch.randn(G, max_m, H, generator=generator, device=generator.device).to(BF16)
    counts = torch.zeros(G, dtype=torch.int32, device=x.device)
    graph, y = captured(lambda: experts.forward_masked(x, counts, expected_m=4), generator.device)
    every = [torch.randint(0, max_m + 1, (G,), generator=generator, device=x.device) for _ in range(8)]
    every += [torch.zeros_like(every[0]), torch.full_like(every[0], max_m)]
    counts.fill_(max_m)
    wanted = experts.forward_masked(x, counts, expected_m=4).clone()
    wrong = torch.zeros((), dtype=torch.int64, device=x.device)
    for i in range(REPLAYS):
        counts.copy_(every[i % 10])
        y.fill_(math.nan)
        graph.replay()
        valid = torch.arange(max_m, device=x.device) < counts[:, None]
        wrong += ((y.view(torch.int16) != wanted.view(torch.int16)) & valid[..., None]).sum()
        wrong += (y.isfinite() & ~valid[..., None]).sum()
    assert int(wrong) == 0


@pytest.mark.usefixtures("fresh_compiler")
def test_three_graphs_serve_every_number_of_tokens(experts: Fp8Experts, generator: torch.Generator) -> None:
    """By rows that are multiples of four, even or odd: torch asks whether columns of MN-major scales lie close."""
    counter = CompileCounterWithBackend("inductor")
    function = torch.compile(experts, fullgraph=True, backend=counter)
    for count in (7, 2, 64, 333, 1024):
        given = routed(count, generator).alone
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 0)
        assert same_bits(function(*given), experts(*given)), count
    assert counter.frame_count <= 3


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("count", [1, 64])
def test_a_compiled_block_of_several_experts_a_token(
    count: int, experts: Fp8Experts, generator: torch.Generator
) -> None:
    """Inductor may join a product and a sum to one operation that rounds once: in float32, and then to bfloat16."""
    given = routed(count, generator)
    assert relative_error(torch.compile(experts, fullgraph=True)(*given), experts(*given)) < 2**-9


MOVES: dict[str, Callable[[Fp8Experts, Fp8Experts], object]] = {
    "load": lambda mine, theirs: mine.load_state_dict(theirs.state_dict()),
    "assign": lambda mine, theirs: mine.load_state_dict(copy.deepcopy(theirs).state_dict(), assign=True),
    "there and back": lambda mine, theirs: mine.cpu().cuda().load_state_dict(theirs.state_dict()),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_block_follows_its_parameters(
    move: Callable[[Fp8Experts, Fp8Experts], object], experts: Fp8Experts, generator: torch.Generator
) -> None:
    other, given = block(G, H, INNER, generator), routed(7, generator)
    wanted = other(*given)
    assert not same_bits(experts(*given), wanted)
    move(experts, other)
    assert same_bits(experts(*given), wanted)


def test_the_cpu_computes_the_same_block_and_quantises_the_same_weights(generator: torch.Generator) -> None:
    plain, given = weights(4, 512, 128, generator), tokens(7, 512, 4, 2, generator)
    experts, on_cpu = Fp8Experts.from_bfloat16(*plain), Fp8Experts.from_bfloat16(*(each.cpu() for each in plain))
    for mine, theirs in zip(experts.parameters(), on_cpu.parameters(), strict=True):
        assert same_bits(mine.cpu(), theirs.detach())
    # Sums in another order change few of the first product's last bits. Where one is a row's largest value, its scale
    # changes, and every code of the row is rounded anew.
    found, wanted = experts(*given).cpu(), on_cpu(*(each.cpu() for each in given))
    errors = sorted(relative_error(*rows) for rows in zip(found, wanted, strict=True))
    assert errors[len(errors) // 2] < 0.02 and errors[-1] < 0.06, errors
    loaded = Fp8Experts(4, 512, 128, device=generator.device)
    loaded.load_state_dict({"gate_up_proj": plain[0].cpu(), "down_proj": plain[1].cpu()})  # quantised on the GPU
    assert same_bits(loaded(*given), experts(*given))
