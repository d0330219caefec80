"""A mutant that tests of a tile must catch changes the kernels that those tests launch.

Its sample (`test_mutations.py`) need not be one of them: after a change of tiles such a mutant may change the sample
alone, and only a GPU would tell.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.problem import Scaling
from tests.gpu.test_configs import kernels_of_k_blocks
from tests.mutations import tree
from tests.mutations.catalogue import MUTANTS
from tests.mutations.mutant import Mutant
from tests.mutations.ptx import translate
from tests.mutations.tree import INCLUDE
from tests.thirds import third_of

TEST_OF_TILE = re.compile(r"tests/gpu/test_configs\.py::test_any_number_of_k_blocks(_scaled_by_rows)?\[(.+)\]")


def launched(mutant: Mutant) -> list[KernelRequest]:
    """What the mutant's tests of tiles launch, longest K first; nothing, if it has others."""
    found = [TEST_OF_TILE.fullmatch(test) for test in mutant.tests]
    tiles = [(each[2], Scaling.ROW if each[1] else Scaling.BLOCK) for each in found if each]
    return [kernel_request(*each) for tile in tiles for each in reversed(kernels_of_k_blocks(*tile))]


@cache
def sound(request: KernelRequest) -> bytes:
    """PTX of the headers as they are: several mutants have tests of one tile."""
    return translate(request, INCLUDE)


OF_TILES = third_of([each for each in MUTANTS if launched(each)], lambda mutant: mutant.name)


@pytest.mark.parametrize("mutant", OF_TILES, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_a_kernel_that_its_tests_launch(mutant: Mutant, tmp_path: Path) -> None:
    include = tree.make(tmp_path, mutant)
    assert any(translate(request, include) != sound(request) for request in launched(mutant))
