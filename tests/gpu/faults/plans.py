"""A plan whose weight, scales or bias are moved, replaced, reloaded or copied is right, and reads no freed memory."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.tuning.problem import Scaling
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import BF16, E4M3, F32, Kind

M, N, K = 65, 2112, 1040
KINDS = (Kind(bias=BF16), Kind(F32, Scaling.ROW, c=F32, bias=F32), Kind(F32, c=BF16, bias=BF16))
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
NAMES = ("b", "scales_b", "bias")


class Layer(nn.Module):
    """A weight as a module holds it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        for name in NAMES:
            self.register_parameter(name, nn.Parameter(getattr(case, name).clone(), requires_grad=False))

    def plan(self, kind: Kind) -> fp8gemm.Plan:
        options = {"out_dtype": kind.output, "c_dtype": kind.c}
        return fp8gemm.plan(self.b, self.scales_b, max_m=128, bias=self.bias, **options)


def call(plan: fp8gemm.Plan, case: Case) -> Tensor:
    terms = {} if case.c is None else {"c": case.c}
    return plan(case.a, case.scales_a, **terms)


def gemm(case: Case, kind: Kind) -> Tensor:
    return fp8gemm.gemm(*case.operands, **case.epilogue, out_dtype=kind.output)


def two_cases(kind: Kind, seed: int, device: torch.device) -> tuple[Case, Case]:
    """Products of two weights; each with its own activations."""
    old, new = (cases.signed(M, N, K, seed=seed + i, device=device, **kind.options) for i in range(2))
    return old, new


def spoil(tensor: Tensor) -> None:
    """Fill with NaN."""
    if tensor.dtype == E4M3:
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        tensor.fill_(torch.nan)


def occupy_freed_memory(device: torch.device) -> list[Tensor]:
    """Take what the allocator has got back and fill it with NaN codes, so that a stale pointer reads those."""
    sizes = (N * K, -(-N // 128) * -(-K // 128) * 4, N * -(-K // 128) * 4, N * 4, N * 2)
    return [torch.full((size,), 0x7F, dtype=torch.uint8, device=device) for size in sizes for _ in range(8)]


def by_data(layer: Layer, new: Case) -> None:
    for name in NAMES:
        getattr(layer, name).data = getattr(new, name).clone()


def by_state_dict(layer: Layer, new: Case) -> None:
    layer.load_state_dict({name: getattr(new, name) for name in NAMES})


def by_state_dict_from_the_cpu(layer: Layer, new: Case) -> None:
    layer.load_state_dict({name: getattr(new, name).cpu() for name in NAMES})


def by_assignment_of_state(layer: Layer, new: Case) -> None:
    """The way of `load_state_dict(assign=True)` for a tensor that others hold: its memory is swapped."""
    for name in NAMES:
        getattr(layer, name).set_(getattr(new, name).clone())


def by_a_round_trip_to_the_cpu(layer: Layer, new: Case) -> None:
    layer.to("cpu")
    for name in NAMES:
        getattr(layer, name).copy_(getattr(new, name).cpu())
    layer.to(new.a.device)


CHANGES = (by_data, by_state_dict, by_state_dict_from_the_cpu, by_assignment_of_state, by_a_round_trip_to_the_cpu)


@every_kind
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_fault_21_a_plan_follows_its_weight(change, kind, device, seed):
    old, new = two_cases(kind, seed, device)
    layer = Layer(old)
    plan = layer.plan(kind)
    assert same_bits(call(plan, old), gemm(old, kind))
    for other in (new, old, new):
        change(layer, other)
        held = occupy_freed_memory(device)
        out = call(plan, other)
        assert same_bits(out, gemm(other, kind)), other
        other.check(out).raise_if_failed(other)
        del held


@every_kind
def test_fault_21_changed_in_place_and_replaced(kind, device, seed):
    """Changed in place, replaced through `.data`, and its old storage overwritten: the plan sees the new values."""
    old, new = two_cases(kind, seed, device)
    layer = Layer(old)
    plan = layer.plan(kind)
    assert same_bits(call(plan, old), gemm(old, kind))
    storages = [getattr(layer, name).data for name in NAMES]
    by_data(layer, new)
    for storage in storages:
        spoil(storage)
    assert same_bits(call(plan, new), gemm(new, kind)), new
    for name in NAMES:
        getattr(layer, name).copy_(getattr(old, name))
    assert same_bits(call(plan, old), gemm(old, kind)), old


@every_kind
@pytest.mark.parametrize("name", NAMES)
def test_fault_21_one_of_the_three_moved(name, kind, device, seed):
    old, new = two_cases(kind, seed, device)
    layer = Layer(old)
    plan = layer.plan(kind)
    call(plan, old)
    before = getattr(layer, name).data
    getattr(layer, name).data = getattr(new, name).clone()
    spoil(before)
    mixed = Case(
        "signed", old.seed, old.a, old.scales_a, **{n: getattr(new if n == name else old, n) for n in NAMES}, c=old.c
    )
    assert same_bits(call(plan, old), gemm(mixed, kind)), old


@every_kind
def test_fault_21_on_the_cpu_for_a_while(kind, device, seed):
    old, _ = two_cases(kind, seed, device)
    names = ("a", "scales_a", *NAMES, "c")
    there = Case("signed", old.seed, **{n: None if getattr(old, n) is None else getattr(old, n).cpu() for n in names})
    layer = Layer(old)
    plan = layer.plan(kind)
    expected = call(plan, old)
    layer.to("cpu")
    assert plan.kernel_for(M) is None
    there.check(call(plan, there)).raise_if_failed(there)
    with pytest.raises(InputError, match="^a: expected the device of b, cpu, got cuda"):
        call(plan, old)
    layer.to(device)
    assert plan.kernel_for(M) is not None and same_bits(call(plan, old), expected)


@every_kind
def test_fault_21_a_plan_holds_what_its_owner_drops(kind, device, seed):
    old, _ = two_cases(kind, seed, device)
    expected = gemm(old, kind)
    layer = Layer(old)
    plan = layer.plan(kind)
    del layer
    held = occupy_freed_memory(device)
    assert same_bits(call(plan, old), expected), old
    del held


@every_kind
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))], ids=["deepcopy", "pickle"]
)
def test_fault_21_copies_are_plans_of_their_own(copied, kind, device, seed):
    old, new = two_cases(kind, seed, device)
    layer = Layer(old)
    plan = layer.plan(kind)
    expected = gemm(old, kind)
    assert same_bits(call(plan, old), expected)
    other = copied(plan)
    assert other is not plan and other.b.data_ptr() != plan.b.data_ptr()
    assert (other.max_m, other.out_dtype, other.c_dtype) == (plan.max_m, plan.out_dtype, plan.c_dtype)
    assert other.batch_invariant == plan.batch_invariant
    assert same_bits(call(other, old), expected)
    # Each has its own weight from now on.
    by_data(layer, new)
    assert same_bits(call(plan, new), gemm(new, kind)) and same_bits(call(other, old), expected)
    del plan, layer
    held = occupy_freed_memory(device)
    assert same_bits(call(other, old), expected)
    del held
    # And a copy follows its own weight too.
    spoil(other.b)
    assert call(other, old).isnan().all()
