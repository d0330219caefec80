"""Everything of several ranks, on gloo and the CPU: a world of two and one of four, each started once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.distributed import world
from tests.distributed.checks import CHECKS, DYING
from tests.distributed.models import Mlp, inputs, mlp
from tests.distributed.states import load, same_values

ALL = [(ranks, name) for ranks, checks in CHECKS.items() for name in checks]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def found(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """What went wrong, by the number of ranks; the smaller world ends before the larger begins."""
    place = tmp_path_factory.mktemp("worlds")
    return {ranks: world.outcomes(world.start(ranks, place / str(ranks), kept), place / str(ranks)) for ranks in CHECKS}


@pytest.mark.parametrize(("ranks", "name"), ALL, ids=[f"{name}-{ranks}" for ranks, name in ALL])
def test_it_holds_on_all_ranks(ranks: int, name: str, found: dict[int, dict[str, str]]) -> None:
    of_world = found[ranks]
    failed = "\n".join(wrong for wrong in of_world.values() if wrong)
    assert name in of_world, f"not begun:\n{failed}"
    if world.SKIPPED in of_world[name]:
        pytest.skip(of_world[name])
    assert of_world[name] == "", of_world[name]


def test_a_rank_that_dies_is_an_error_of_the_others_soon(tmp_path: Path) -> None:
    started = time.monotonic()
    processes = world.start(2, tmp_path, tmp_path, DYING.__name__)
    said = world.outcomes(processes, tmp_path)
    assert [process.returncode for process in processes] == [0, 3], said
    assert (tmp_path / "died").exists() and (tmp_path / "noticed").exists()
    assert time.monotonic() - started < world.COLLECTIVE_S + 20


@pytest.mark.parametrize("name", ["of two", "of four"])
def test_one_process_loads_what_several_saved(name: str, kept: Path, found: dict[int, dict[str, str]]) -> None:
    assert found
    model = Mlp()
    load(kept / name, model)
    same_values(model, mlp())
    assert model(inputs(2)).equal(mlp()(inputs(2)))
