"""The streaming floor compiles to what a yardstick must be: copies and waits, and nothing that could slow them down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm.errors import CompileError, InputError
from fp8gemm.jit.build import build
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.stream import StreamConfig, kernel_request

SHARED_BYTES_OF_SM, RESERVED_BYTES_OF_CTA = 228 * 1024, 1024
SHAPES = [(2112, 7168), (576, 7168), (32768, 512), (7168, 16384), (1, 16)]


def test_kernels_do_not_spill(cache: Path) -> None:
    configs = [StreamConfig(), StreamConfig(6, 16 * 1024), StreamConfig(4, 1024), StreamConfig(1, 128)]
    artifacts = build_many([kernel_request(n, k, config) for n, k in SHAPES for config in configs])
    assert len(artifacts) == len(SHAPES) * len(configs)
    for artifact in artifacts:
        uses = artifact.resources
        assert uses.spill_store_bytes == uses.spill_load_bytes == uses.stack_bytes == uses.shared_bytes == 0, uses
        assert artifact.warnings == () and uses.registers <= 64


def test_the_next_kernel_fits_beside_this_one() -> None:
    assert 2 * (StreamConfig().shared_bytes + RESERVED_BYTES_OF_CTA) <= SHARED_BYTES_OF_SM
    assert StreamConfig().shared_bytes > 100 * 1024


def test_a_host_that_counts_other_shared_memory_is_refused(cache: Path) -> None:
    request = kernel_request(64, 128, StreamConfig())
    wrong = replace(request, config=tuple((name, 128 if name == "shared_bytes" else v) for name, v in request.config))
    with pytest.raises(CompileError, match="another size of shared memory"):
        build(wrong)


@pytest.mark.parametrize("numbers", [{"stages": 0}, {"ctas_per_sm": 0}, {"stage_bytes": 0}, {"stage_bytes": 1000}])
def test_impossible_configs_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected .* got"):
        StreamConfig(**numbers)
