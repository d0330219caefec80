"""Dataclasses that are quick to define do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from fp8gemm import frozen
from fp8gemm.driver.device import Gpu
from fp8gemm.tuning.problem import Problem


def define(dataclass: Callable[..., Any]) -> Any:
    """The same class, by one decorator or the other."""

    @dataclass(frozen=True)
    class Sample:
        """A sample."""

        size: int
        name: str = "a"
        parts: tuple[float, ...] = field(default=(0.5,), metadata={"unit": "us"})
        hidden: int = field(default=7, repr=False)
        cached: Any = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("expected a size")
            object.__setattr__(self, "cached", object())

        @property
        def twice(self) -> int:
            return 2 * self.size

    return Sample


OURS, THEIRS = define(frozen.dataclass), define(dataclasses.dataclass)
ARGUMENTS: list[tuple[Any, ...]] = [
    (3,),
    (3, "a"),
    (4,),
    (3, "b"),
    (3, "a", ()),
    (3, "a", (0.5,), 8),
    (3, "a", (0.5,), 7),
]


def test_equality_and_hashes() -> None:
    for left in ARGUMENTS:
        for right in ARGUMENTS:
            expected = THEIRS(*left) == THEIRS(*right)
            assert (OURS(*left) == OURS(*right)) is expected and (OURS(*left) != OURS(*right)) is not expected
            assert not expected or hash(OURS(*left)) == hash(OURS(*right))
    assert len({OURS(*arguments) for arguments in ARGUMENTS}) == len({THEIRS(*arguments) for arguments in ARGUMENTS})
    assert OURS(3) != THEIRS(3) and OURS(3) != (3, "a", (0.5,), 7) and OURS(3).__eq__(3) is NotImplemented


def test_what_people_and_other_functions_see() -> None:
    ours, theirs = OURS(3, name="x"), THEIRS(3, name="x")
    assert repr(ours) == repr(theirs) and "hidden" not in repr(ours)
    assert [(each.name, each.default, dict(each.metadata)) for each in fields(ours)] == [
        (each.name, each.default, dict(each.metadata)) for each in fields(theirs)
    ]
    assert asdict(ours).keys() == asdict(theirs).keys() and ours.twice == 6
    assert replace(ours, size=5) == OURS(5, "x") and OURS.__doc__ == "A sample."


@pytest.mark.parametrize("sample", [OURS, THEIRS])
def test_nothing_changes_a_field(sample: Any) -> None:
    made = sample(3)
    for name in ("size", "hidden", "cached", "other"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(made, name, 4)
    for name in ("size", "other"):
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(made, name)
    assert made == sample(3)


@pytest.mark.parametrize("sample", [OURS, THEIRS])
def test_wrong_arguments(sample: Any) -> None:
    for call in (lambda: sample(), lambda: sample(1, 2, 3, 4, 5), lambda: sample(1, colour=2)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="expected a size"):
        sample(-1)


def test_a_method_of_the_class_itself_stays() -> None:
    @frozen.dataclass(frozen=True, kw_only=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

    assert repr(Named(name="x")) == "x" and Named(name="x") == Named(name="x")
    with pytest.raises(TypeError):
        Named("x")  # type: ignore[misc]


def test_one_that_can_change_is_refused() -> None:
    decorate: Any = frozen.dataclass
    with pytest.raises(TypeError, match="frozen=True"):
        decorate(frozen=False)


@pytest.mark.parametrize("made", [Problem(1, 2, 16), Gpu("H200", (9, 0))])
def test_copies_and_pickles_are_equal(made: Any) -> None:
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made and hash(again) == hash(made) and again is not made


def test_defining_one_is_quicker() -> None:
    """Which is all that it is for. The least of many, because the machine may be busy."""

    def least(dataclass: Callable[..., Any]) -> float:
        seconds = []
        for _ in range(20):
            started = time.perf_counter()
            define(dataclass)
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    assert least(frozen.dataclass) < 0.6 * least(dataclasses.dataclass)


@pytest.mark.parametrize("module", ["settings", "tuning.problem", "cache.store", "jit.kernel", "driver.device"])
def test_what_the_first_product_needs_is_defined_so(module: str) -> None:
    found = importlib.import_module(f"fp8gemm.{module}")
    own = [each for each in vars(found).values() if isinstance(each, type) and each.__module__ == found.__name__]
    made = [each for each in own if dataclasses.is_dataclass(each)]
    assert made and all(vars(each)["__hash__"] is frozen._hash for each in made)
