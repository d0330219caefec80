"""Calls that were made before: what tells them apart, what is found and forgotten, and that threads may share it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.products import calls
from fp8gemm.products.calls import Recent, RepeatedCalls, key_of_call, key_of_input

SIZE = 4


def kept(count: int, size: int = SIZE) -> Recent[str]:
    recent: Recent[str] = Recent(size)
    for key in range(count):
        recent.keep(key, str(key))
    return recent


@pytest.mark.parametrize("count", [0, 1, SIZE, SIZE + 1, 10 * SIZE])
def test_the_latest_are_found_and_all_others_are_forgotten(count: int) -> None:
    recent = kept(count)
    found = [key for key in range(count) if recent.get(key) is not None]
    assert found == list(range(count))[-SIZE:]
    assert all(recent.get(key) == str(key) for key in found)


def test_what_was_never_kept_is_not_found() -> None:
    assert kept(3).get("3") is None and kept(0).get(0) is None


def test_of_one_key_the_last_value_counts() -> None:
    recent = kept(SIZE - 1)
    recent.keep(0, "again")
    assert recent.get(0) == "again" and recent.get(SIZE - 2) == str(SIZE - 2)


def test_keys_are_equal_as_values_are() -> None:
    """Calls make new tuples and shapes every time."""
    recent: Recent[int] = Recent(SIZE)
    recent.keep((torch.Size([2, 3]), (3, 1), torch.float32, None), 1)
    assert recent.get(((2, 3), (3, 1), torch.float32, None)) == 1
    assert recent.get(((2, 3), (3, 1), torch.float32, 0)) is None


def test_threads_that_keep_and_find_at_once_get_their_own_values_and_no_error() -> None:
    """More keys than there is room for, so that everybody evicts what the others look for."""
    threads, rounds = 8, 2000
    recent: Recent[tuple[int, int]] = Recent(SIZE)
    barrier = Barrier(threads)

    def work(thread: int) -> None:
        barrier.wait()
        for i in range(rounds):
            key = thread, i % 3
            found = recent.get(key)
            assert found in (None, key)
            recent.keep(key, key)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    left = sum(recent.get((thread, i)) is not None for thread in range(threads) for i in range(3))
    assert 0 < left <= SIZE


class OnGpu(Tensor):
    """A tensor that says it is on a GPU."""

    def get_device(self) -> int:
        return 0


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stream that is current on every GPU, which may be changed."""
    current = [17]
    monkeypatch.setattr(calls, "current_stream", lambda index: current[0])
    monkeypatch.setattr(calls, "current_device", lambda: 0)
    return current


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "address": lambda x: x[1:],
    "shape": lambda x: x[:3],
    "strides": lambda x: x.view(-1).as_strided(x.shape, (2, 1)),
    "dtype": lambda x: x.view(torch.int32),
    "type": lambda x: torch.nn.Parameter(x, requires_grad=False),
}


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_call_that_a_check_can_tell_apart_has_another_key(
    change: Callable[[Tensor], Tensor], place: int, stream: list[int]
) -> None:
    x = torch.zeros(4, 8)
    operands = [OnGpu(torch.zeros(4, 8))] + [torch.zeros(4, 8) for _ in range(6)]
    operands[place] = x.as_subclass(OnGpu) if place == 0 else x
    key = key_of_call(("option",), *operands)
    assert key is not None and key == key_of_call(("option",), *operands)
    same = [each.view(4, 8) for each in operands]
    assert key_of_call(("option",), *same) == key
    changed = (
        change(operands[place]) if place else change(x).as_subclass(OnGpu if change is not CHANGES["type"] else Again)
    )
    assert key_of_call(("option",), *operands[:place], changed, *operands[place + 1 :]) != key
    if place > 1:
        assert key_of_call(("option",), *operands[:place]) != key, "an operand that is not there"


class Again(OnGpu):
    """Another type of tensor."""


def test_options_streams_and_gpus_tell_calls_apart(stream: list[int]) -> None:
    x = torch.zeros(4, 8).as_subclass(OnGpu)
    keys = [key_of_input((), x), key_of_input((1,), x)]
    stream[0] = 18
    keys.append(key_of_input((), x))
    assert None not in keys and len(set(keys)) == 3


@pytest.mark.parametrize("change", CHANGES, ids=CHANGES)
def test_a_call_of_one_operand_has_another_key_too(change: str, stream: list[int]) -> None:
    x = torch.zeros(4, 8)
    changed = CHANGES[change](x).as_subclass(Again if change == "type" else OnGpu)
    key = key_of_input((), x.as_subclass(OnGpu))
    assert key == key_of_input((), x.view(4, 8).as_subclass(OnGpu)) != key_of_input((), changed)


def test_rows_further_apart_are_another_call(stream: list[int]) -> None:
    """Where neither is contiguous."""
    memory = torch.zeros(256)
    near, far = (memory.as_strided((4, 8), (pitch, 1)).as_subclass(OnGpu) for pitch in (16, 24))
    assert key_of_input((), near) != key_of_input((), far)
    assert key_of_call((), near, memory) != key_of_call((), far, memory)
    for place in range(2, 7):
        before = [near, *[memory] * (place - 1)]
        assert key_of_call((), *before, near) != key_of_call((), *before, far)


def test_the_stream_is_that_of_the_operands_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(calls, "current_stream", lambda index: asked.append(index) or 17)
    x = torch.zeros(2).as_subclass(OnGpu)
    assert key_of_input((), x) is not None and key_of_call((), x, x) is not None
    assert asked == [0, 0]


def test_calls_that_cannot_be_repeated_have_no_key(stream: list[int]) -> None:
    x, plain = torch.zeros(4, 8).as_subclass(OnGpu), torch.zeros(2)
    assert key_of_input((), plain) is None, "on no GPU"
    sparse: Any = torch.zeros(4, 8).to_sparse()
    assert key_of_call((), x, sparse) is None and key_of_call((), x, "a") is None  # type: ignore[arg-type]
    assert key_of_input((), None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(7))
def test_a_gradient_is_wanted_only_where_gradients_are_enabled(place: int, stream: list[int]) -> None:
    operands = [torch.zeros(2).as_subclass(OnGpu)] + [torch.zeros(2) for _ in range(6)]
    assert key_of_call((), *operands) is not None
    operands[place].requires_grad_()
    assert key_of_call((), *operands) is None
    with torch.no_grad():
        assert key_of_call((), *operands) is not None
    with torch.inference_mode():
        assert key_of_call((), *operands) is not None


class Launch:
    """Counts how often it is launched."""

    count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_call_is_repeated_into_the_output_that_it_was_given(stream: list[int]) -> None:
    known, x, out, launch = RepeatedCalls(4), torch.zeros(2).as_subclass(OnGpu), torch.zeros(3), Launch()
    key = key_of_call((), x, out)
    assert known.repeat(key, out) == (None, None) == known.repeat(None, out) and not known.knows(key)
    known.keep(key, out, launch, given=True)  # type: ignore[arg-type]
    assert known.repeat(key, out) == (out, None) and known.knows(key) and launch.count == 1
    known.keep(None, out, launch, given=True)  # type: ignore[arg-type]
    assert not known.knows(None)


def test_a_call_that_makes_its_output_is_launched_by_the_address_of_that(
    stream: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = [torch.zeros(3, 5) for _ in range(2)]
    asked: list[Any] = []

    def give(*arguments: Any, **options: Any) -> Tensor:
        asked.append((*arguments, options))
        return outputs[0]

    monkeypatch.setattr(torch, "empty_strided", give)
    known, key, first, second = RepeatedCalls(4), key_of_input((), outputs[0].as_subclass(OnGpu)), Launch(), Launch()
    known.keep(key, outputs[0], first, given=False)  # type: ignore[arg-type]
    assert known.repeat(key, None) == (outputs[0], None) and (first.count, second.count) == (1, 0)
    assert asked == [((3, 5), (5, 1), {"dtype": torch.float32, "device": torch.device("cpu")})]
    outputs.reverse()
    assert known.repeat(key, None) == (None, outputs[0]) and known.knows(key), "its launch into that one is not known"
    known.keep(key, outputs[0], second, given=False)  # type: ignore[arg-type]
    for _ in range(2):
        assert known.repeat(key, None) == (outputs[0], None)
        outputs.reverse()
    assert (first.count, second.count) == (2, 1)


def test_a_launch_into_a_new_output_is_not_one_into_a_given_output(stream: list[int]) -> None:
    known, out = RepeatedCalls(4), torch.zeros(3)
    key = key_of_input((), out.as_subclass(OnGpu))
    known.keep(key, out, Launch(), given=False)  # type: ignore[arg-type]
    assert known.repeat(key, torch.zeros(3)) == (None, None)


def test_settings_that_chose_another_kernel_are_another_call(stream: list[int]) -> None:
    out, key = torch.zeros(3), key_of_input((), torch.zeros(2).as_subclass(OnGpu))
    chosen, fixed = RepeatedCalls(4), RepeatedCalls(4, by_settings=False)
    for known in (chosen, fixed):
        known.keep(key, out, Launch(), given=True)  # type: ignore[arg-type]
    with settings.scope(pdl=False):
        assert chosen.repeat(key, out)[0] is None and not chosen.knows(key) and fixed.repeat(key, out)[0] is out
    assert chosen.repeat(key, out)[0] is out


def test_a_call_that_was_only_checked_is_known_and_not_launched(stream: list[int]) -> None:
    known, key = RepeatedCalls(4), key_of_input((), torch.zeros(2).as_subclass(OnGpu))
    known.note(key)
    assert known.knows(key) and known.repeat(key, None) == (None, None) == known.repeat(key, torch.zeros(3))
    known.note(None)
    assert not known.knows(None)


def test_the_oldest_call_makes_room_even_for_one_that_was_found_last(stream: list[int]) -> None:
    known, out = RepeatedCalls(2), torch.zeros(3)
    keys = [key_of_input((number,), out.as_subclass(OnGpu)) for number in range(4)]
    for key in keys:
        known.keep(key, out, Launch(), given=True)  # type: ignore[arg-type]
        assert known.repeat(key, out)[0] is out
    assert [known.knows(key) for key in keys] == [False, False, True, True]


@pytest.mark.parametrize("option", [[1], {}, torch.tensor([3, 4])], ids=repr)
def test_options_that_have_no_hash_or_are_no_one_value_make_no_call_that_is_known(
    option: Any, stream: list[int]
) -> None:
    """Checks refuse them, or do not care."""
    known, out = RepeatedCalls(4), torch.zeros(3)
    x = out.as_subclass(OnGpu)
    for key in (key_of_input((7, 8), x), key_of_input((option, 8), x)):
        assert known.repeat(key, out) == (None, None) and not known.knows(key)
        known.keep(key, out, Launch(), given=True)  # type: ignore[arg-type]
        known.note(key)
    assert known.knows(key_of_input((7, 8), x))


@pytest.mark.parametrize("place", [2, 4, 5], ids=["of a plan", "of gemm", "of groups of columns"])
def test_a_c_that_negates_is_another_call(place: int, stream: list[int]) -> None:
    numbers = torch.zeros(4, 8, dtype=torch.complex64)
    operands = [OnGpu(torch.zeros(4, 8))] + [torch.zeros(4, 8) for _ in range(6)]
    operands[place] = numbers.imag
    key = key_of_call((), *operands)
    operands[place] = numbers.conj().imag
    assert operands[place].is_neg() and operands[place].data_ptr() == numbers.imag.data_ptr()
    assert key_of_call((), *operands) != key
