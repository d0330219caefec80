"""Which outputs are stored to leave L2 first: the device header's own function, on the host."""

from __future__ import annotations

import ctypes

import pytest

from tests.host_compiler import compile_for_host

SOURCE = """\
#include "fp8gemm/common/math.cuh"
extern "C" bool is_larger(unsigned rows, unsigned cols, unsigned bytes) {
    return fp8gemm::is_larger_than_l2(rows, cols, bytes);
}
"""
MIB = 2**20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loaded = compile_for_host(SOURCE, tmp_path_factory.mktemp("l2"))
    loaded.is_larger.restype = ctypes.c_bool
    return loaded


@pytest.mark.parametrize(
    ("rows", "cols", "element_bytes"),
    [(60 * MIB // 2048, 1024, 2), (60 * MIB // 4096, 1024, 4), (2**16, 2**17, 2), (2**31 - 1, 8, 4), (1, 8, 2)],
)
def test_outputs_of_more_than_60_mib_are_larger(library: ctypes.CDLL, rows: int, cols: int, element_bytes: int) -> None:
    """Two of them have more bytes than 32 bits count."""
    for more in (0, 1):
        is_larger = (rows + more) * cols * element_bytes > 60 * MIB
        assert library.is_larger(rows + more, cols, element_bytes) == is_larger
