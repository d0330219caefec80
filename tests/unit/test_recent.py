"""The dictionary of recent calls: what it finds, what it forgets, and that threads may share it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

from fp8gemm.products.calls import Recent, identity, needs_gradient

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


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "address": lambda x: x[1:],
    "shape": lambda x: x[:3],
    "strides": lambda x: x.view(-1).as_strided(x.shape, (2, 1)),
    "dtype": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_tensor_that_a_check_can_tell_apart_has_another_identity(change: Callable[[Tensor], Tensor]) -> None:
    x = torch.zeros(4, 8)
    assert identity(x) == identity(x.view(4, 8)) == identity(x.detach())
    assert identity(change(x)) != identity(x)


def test_a_gradient_is_needed_only_where_gradients_are_enabled() -> None:
    plain, wanted = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert needs_gradient(plain, None, wanted) and not needs_gradient(plain, None)
    with torch.no_grad():
        assert not needs_gradient(wanted)
    with torch.inference_mode():
        assert not needs_gradient(wanted)
