"""Experts that ranks have parts of: the sums of one process, by either exchange, from checkpoints of any kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from fp8gemm.ahead.models import problems_of_experts
from fp8gemm.errors import InputError
from fp8gemm.nn import Fp8Experts
from fp8gemm.parallel import ExpertParallel
from fp8gemm.tuning.problem import OutputType
from tests import experts
from tests.calls import same_bits
from tests.distributed.models import SENT, fsdp_of_several_dtypes, part, sent
from tests.distributed.world import Check, Rank
from tests.experts import relative_error

EXPERTS, H, INNER, TOP_K = 8, 256, 128, 3
EXCHANGES: tuple[Any, ...] = ("gather", "all_to_all")


def block() -> Fp8Experts:
    return experts.block(EXPERTS, H, INNER, torch.Generator().manual_seed(5))


def routed(count: int) -> experts.Tokens:
    """Tokens, of which one in four has an expert less."""
    given = experts.tokens(count, H, EXPERTS, TOP_K, torch.Generator().manual_seed(6))
    given.expert_ids[::4, 1] = -1
    return given


def divided(world: Rank, module: Fp8Experts, **options: Any) -> Fp8Experts:
    return parallelize_module(module, world.mesh(), ExpertParallel(**options))


def mine(world: Rank, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [part(each, 0, world.number, world.ranks) for each in tensors]


def tokens_come_to_their_experts(world: Rank) -> None:
    for count in (0, 4 * world.ranks, 64):
        given = routed(count)
        right = block()(*given)
        for exchange in EXCHANGES:
            module = divided(world, block(), exchange=exchange)
            out, wanted = module(*mine(world, given)), part(right, 0, world.number, world.ranks)
            assert out.shape == wanted.shape and out.dtype == wanted.dtype
            if exchange == "all_to_all":
                assert torch.equal(out, wanted)
            else:
                assert not count or relative_error(out, wanted) < SENT
        replicated = divided(world, block(), input_layouts=Replicate())(*given)
        assert replicated.shape == right.shape and (not count or relative_error(replicated, right) < SENT)
    module = divided(world, block())
    assert module.gate_up_proj.shape == (EXPERTS, 2 * INNER, H)
    assert module.gate_up_proj.to_local().shape[0] == EXPERTS // world.ranks == module.num_local_experts
    assert "exchange=gather" in repr(module)


def ranks_may_have_other_numbers_of_tokens(world: Rank) -> None:
    """Where rows are sent; and none, and all to experts of one rank."""
    module, whole = divided(world, block(), exchange="all_to_all"), block()
    for count in (3 * world.number, 5 * (world.number == 0)):
        hidden, ids, weights = routed(20)
        given = hidden[:count], ids[:count], weights[:count]
        assert torch.equal(module(*given), whole(*given))
        there = given[0], torch.zeros_like(given[1]), given[2]
        assert torch.equal(module(*there), whole(*there))


def rows_are_sent_quantised(world: Rank) -> None:
    hidden, ids, weights = mine(world, routed(16 * world.ranks))
    row = H + 16  # codes, two scales, and what is left to the next 16 bytes
    module = divided(world, block())
    with sent() as found:
        module(hidden, ids, weights)
    of_routing = [("allgather_base", ids.nbytes), ("allgather_base", weights.nbytes)]
    summed = ("reduce_scatter_base", 16 * world.ranks * H * 2)
    assert found == [("allgather_base", 16 * row), *of_routing, summed], found
    module = divided(world, block(), exchange="all_to_all")
    with sent() as found:
        module(hidden, ids, weights)
    names = [name for name, _ in found]
    assert names == ["alltoall_base"] * 3, found
    assert found[1][1] == int((ids >= 0).sum()) * row
    whole = divided(world, block(), input_layouts=Replicate())
    with sent() as found:
        whole(hidden, ids, weights)
    assert found == [("allreduce", hidden.nbytes)]


def warmups_are_of_the_experts_of_a_rank(world: Rank) -> None:
    problems = problems_of_experts(divided(world, block()), 64, OutputType.BFLOAT16)
    share = EXPERTS // world.ranks
    assert {(each.groups, each.n, each.k) for each in problems} == {(share, 2 * INNER, H), (share, H, INNER)}


def compiled_experts_are_whole(world: Rank) -> None:
    given = mine(world, routed(16 * world.ranks))
    module = divided(world, block())
    with torch.no_grad():
        right = module(*given)
        torch._dynamo.reset()
        out = torch.compile(module, fullgraph=True, backend="aot_eager")(*given)
    assert relative_error(out, right) < SENT


def checkpoints_come_to_the_ranks(world: Rank) -> None:
    """Tensors of the whole layer, of this rank's experts, and DTensors."""
    whole = block()
    share = EXPERTS // world.ranks
    own = Fp8Experts(EXPERTS, H, INNER, first_expert=share * world.number, num_local_experts=share)
    own.load_state_dict(whole.state_dict())
    given = mine(world, routed(8 * world.ranks))
    right = divided(world, block(), exchange="all_to_all")(*given)
    state = divided(world, block()).state_dict()
    filled = [(start, {}) for start in (block(), own)]
    empty = [(None, loaded) for loaded in (whole.state_dict(), own.state_dict(), state)]
    for start, loaded in (*filled, *empty):
        module = divided(world, Fp8Experts(EXPERTS, H, INNER) if start is None else start, exchange="all_to_all")
        module.load_state_dict(loaded, strict=bool(loaded))
        assert torch.equal(module(*given), right)
        for name, parameter in module.named_parameters():
            assert isinstance(parameter, DTensor) and same_bits(parameter.to_local(), state[name].to_local())


def whole_experts_are_sharded_by_fsdp(world: Rank) -> None:
    given = mine(world, routed(8 * world.ranks))
    sharded = block()
    fully_shard(sharded, mesh=world.mesh())
    with fsdp_of_several_dtypes():
        assert torch.equal(sharded(*given), block()(*given))
    sharded.load_state_dict(sharded.state_dict())
    assert torch.equal(sharded(*given), block()(*given))


def divided_experts_are_sharded_by_fsdp(world: Rank) -> None:
    mesh = world.mesh(2, world.ranks // 2, names=("dp", "ep"))
    given = mine(world, routed(8 * world.ranks))
    right = block()(*given)
    module = parallelize_module(block(), mesh["ep"], ExpertParallel(exchange="all_to_all"))
    fully_shard(module, mesh=mesh["dp"])
    with fsdp_of_several_dtypes():
        assert torch.equal(module(*given), right)
    place = str(world.kept / "experts of two dimensions")
    dcp.save({"experts": module.state_dict()}, checkpoint_id=place)
    other = parallelize_module(Fp8Experts(EXPERTS, H, INNER), mesh["ep"], ExpertParallel(exchange="all_to_all"))
    fully_shard(other, mesh=mesh["dp"])
    with pytest.raises(InputError, match="gate_up_proj: expected DTensors placed as the block"):
        other.load_state_dict(block().state_dict())
    state = {"experts": other.state_dict()}
    dcp.load(state, checkpoint_id=place)
    other.load_state_dict(state["experts"])
    assert torch.equal(other(*given), right)
    problems = problems_of_experts(other, 64, OutputType.BFLOAT16)
    assert {each.groups for each in problems} == {EXPERTS // mesh["ep"].size()}


def saved_experts_are_loaded(world: Rank) -> None:
    place = str(world.kept / f"experts of {world.ranks}")
    dcp.save({"experts": divided(world, block()).state_dict()}, checkpoint_id=place)
    module = divided(world, Fp8Experts(EXPERTS, H, INNER))
    state = {"experts": module.state_dict()}
    dcp.load(state, checkpoint_id=place)
    module.load_state_dict(state["experts"])
    given = mine(world, routed(8 * world.ranks))
    assert torch.equal(module(*given), divided(world, block())(*given))


def experts_that_do_not_fit_are_refused(world: Rank) -> None:
    mesh = world.mesh()
    odd = Fp8Experts(world.ranks + 1, H, INNER)
    before = dict(odd.named_parameters())
    with pytest.raises(InputError, match=f"num_experts: expected a multiple of the {world.ranks} ranks, got"):
        parallelize_module(odd, mesh, ExpertParallel())
    assert type(odd) is Fp8Experts and dict(odd.named_parameters()) == before
    other = Fp8Experts(EXPERTS, H, INNER, first_expert=1, num_local_experts=EXPERTS // world.ranks)
    with pytest.raises(InputError, match="module: expected all 8 experts, or the"):
        parallelize_module(other, mesh, ExpertParallel())
    with pytest.raises(InputError, match="module: expected fp8gemm.nn.Fp8Experts, got Linear"):
        parallelize_module(nn.Linear(4, 4), mesh, ExpertParallel())
    with pytest.raises(InputError, match="not divided among ranks yet"):
        parallelize_module(parallelize_module(block(), mesh, ExpertParallel()), mesh, ExpertParallel())
    module = divided(world, block())
    hidden, *others = mine(world, routed(8 * world.ranks))
    placed = DTensor.from_local(hidden, mesh, [Shard(0)], run_check=False)
    assert torch.equal(module(placed, *others), module(hidden, *others))
    with pytest.raises(InputError, match="hidden: expected a tensor, or a DTensor on the block's"):
        module(DTensor.from_local(hidden, mesh, [Replicate()], run_check=False), *others)
    again = copy.deepcopy(module)
    assert torch.equal(again(hidden, *others), module(hidden, *others))
    for options, message in (
        ({"input_layouts": Shard(1)}, "input_layouts: expected"),
        ({"input_layouts": Partial()}, "input_layouts: expected"),
        ({"exchange": "deep"}, "exchange: expected 'gather' or 'all_to_all', got 'deep'"),
    ):
        with pytest.raises(InputError, match=message):
            ExpertParallel(**options)


CHECKS: tuple[Check, ...] = (
    tokens_come_to_their_experts,
    ranks_may_have_other_numbers_of_tokens,
    rows_are_sent_quantised,
    warmups_are_of_the_experts_of_a_rank,
    compiled_experts_are_whole,
    checkpoints_come_to_the_ranks,
    whole_experts_are_sharded_by_fsdp,
    saved_experts_are_loaded,
    experts_that_do_not_fit_are_refused,
)
OF_FOUR: tuple[Check, ...] = (divided_experts_are_sharded_by_fsdp,)
