"""Rendering: the exact source, and what cannot be rendered."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, IntEnum

import pytest

from fp8gemm.errors import InputError
from fp8gemm.jit.render import constant_name, render_source
from fp8gemm.jit.request import KernelRequest


class StoreKind(Enum):
    TMA = "tma"
    ROW_BY_ROW = "rows"


class Level(IntEnum):
    HIGH = 2


REQUEST = KernelRequest(
    label="dense_1d2d-n7168-k2048-128x128-s5",
    header="fp8gemm/kernels/dense_1d2d.cuh",
    family="Dense1d2d",
    config=(
        ("block_m", 128),
        ("is_fast", True),
        ("store", StoreKind.TMA),
        ("other_store", StoreKind.ROW_BY_ROW),
        ("level", Level.HIGH),
        ("shape_n", 2**32 - 1),
        ("off", False),
    ),
)

SOURCE = """\
// dense_1d2d-n7168-k2048-128x128-s5
#include "fp8gemm/kernels/dense_1d2d.cuh"

struct Config {
    static constexpr fp8gemm::uint32_t kBlockM = 128;
    static constexpr bool kIsFast = true;
    static constexpr auto kStore = fp8gemm::StoreKind::kTma;
    static constexpr auto kOtherStore = fp8gemm::StoreKind::kRowByRow;
    static constexpr auto kLevel = fp8gemm::Level::kHigh;
    static constexpr fp8gemm::uint32_t kShapeN = 4294967295;
    static constexpr bool kOff = false;
};

using Kernel = fp8gemm::Dense1d2d<Config>;

extern "C" __global__ void __launch_bounds__(Kernel::kNumThreads, 1)
fp8gemm_kernel(const __grid_constant__ Kernel::Params params) {
    Kernel::run(params);
}
"""


def test_the_source_is_exactly_this() -> None:
    assert render_source(REQUEST) == SOURCE


def test_registers_are_for_as_many_ctas_as_are_asked_for() -> None:
    assert "__launch_bounds__(Kernel::kNumThreads, 3)" in render_source(replace(REQUEST, min_ctas=3))


@pytest.mark.parametrize("number", [0, 33, -1, 2.0, True, "3"])
def test_a_number_of_ctas_that_no_sm_has_is_refused(number: object) -> None:
    with pytest.raises(InputError, match="min_ctas"):
        render_source(replace(REQUEST, min_ctas=number))


@pytest.mark.parametrize(
    ("field", "name"), [("block_m", "kBlockM"), ("m", "kM"), ("use_tma_2d", "kUseTma2d"), ("stages", "kStages")]
)
def test_constant_names(field: str, name: str) -> None:
    assert constant_name(field) == name


@pytest.mark.parametrize("value", [-1, 2**32, 1.5, "128", None])
def test_a_value_without_a_device_type_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match="kBlockM"):
        render_source(replace(REQUEST, config=(("block_m", value),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"label": "a/b"},
        {"label": ".hidden"},
        {"label": "x" * 129},
        {"label": "line\nbreak"},
        {"header": "../secret.cuh"},
        {"header": "/etc/passwd"},
        {"header": 'x"\n#include "y'},
        {"family": "A<B>"},
        {"arch": "sm_90a --x"},
        {"config": (("blockM", 1),)},
        {"config": (("block_m", 1), ("block__m", 2))},
    ],
)
def test_names_that_are_no_legal_cpp_or_file_names_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        render_source(replace(REQUEST, **changes))  # type: ignore[arg-type]
