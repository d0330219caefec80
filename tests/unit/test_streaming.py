"""Which weights leave L2 first, and that kernel, model and choice go by the same rule."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.constants import DEFAULT
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import CHIPS, named_chip
from fp8gemm.tuning.l2 import STREAMED_FROM, streamed_rows
from fp8gemm.tuning.model import Cost, predict
from fp8gemm.tuning.problem import Grouping, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.select import invariant_wave_cols, select_config
from fp8gemm.tuning.table import NO_TABLES
from fp8gemm.tuning.tiles import MANY_ROWS, TILES

H200 = named_chip("h200")


@pytest.mark.parametrize(
    ("n", "k", "output", "rows"),
    [
        (7168, 2048, OutputType.BFLOAT16, 128),
        (576, 2048, OutputType.FLOAT32, 64),
        (4096, 7168, OutputType.BFLOAT16, 255),
        (32768, 1024, OutputType.FLOAT16, 64),
        (32768, 1008, OutputType.FLOAT16, 0),
        (64, 16, OutputType.BFLOAT16, 0),
    ],
)
def test_weights_of_outputs_an_eighth_as_large_leave_first(n: int, k: int, output: OutputType, rows: int) -> None:
    problem = Problem(1, n, k, output)
    config = labelled_config("64x128", problem)
    assert {streamed_rows(replace(problem, m=m), config) for m in (1, 4096)} == {rows}
    assert dict(kernel_request(problem, config).config)["streamed_rows"] == rows
    most = rows or STREAMED_FROM - 1
    assert rows == 0 or 8 * rows * n * output.bytes <= n * k
    assert most == 255 or 8 * (most + 1) * n * output.bytes > n * k


def test_operands_that_are_shared_or_not_weights_stay() -> None:
    problem = Problem(64, 4096, 7168)
    assert streamed_rows(problem, labelled_config("64x64-s8-c2x1", problem)) == 0
    assert streamed_rows(problem, labelled_config("64x64-s8-c1x2", problem)) == 0
    assert streamed_rows(problem, labelled_config("128x128-split2", problem)) > 0
    rows = replace(problem, scaling=Scaling.ROW, output=OutputType.FLOAT32)
    assert streamed_rows(rows, labelled_config("128x128", rows)) == 0
    for grouping in (Grouping.CONTIGUOUS, Grouping.MASKED):
        groups = GroupedProblem(grouping, 8, 128, 4096, 7168)
        config = kernel_request(groups, select_grouped(groups, H200)).config
        assert dict(config).get("streamed_rows") == 0


@pytest.mark.parametrize("m", [8, STREAMED_FROM - 8, STREAMED_FROM, 128, 192, 255, 256])
@pytest.mark.parametrize(("n", "k"), [(24576, 1536), (7168, 16384), (32768, 16384), (2112, 7168)])
def test_the_model_knows_and_a_product_takes_no_less_than_its_parts(m: int, n: int, k: int) -> None:
    problem = Problem(m, n, k)
    for config in candidate_configs(StoreKind.TMA, k=k):
        cost = predict(problem, config, H200)
        kept = predict(problem, config, H200, replace(DEFAULT, streamed_share=1.0))
        is_streamed = STREAMED_FROM <= m <= streamed_rows(problem, config)
        assert (cost.sm_us < kept.sm_us, cost.l2_us < kept.l2_us) == (is_streamed, is_streamed)
        assert cost.dram_us == kept.dram_us
        assert min(cost.total_us, cost.burst_us) >= cost.dram_us + cost.overhead_us
        assert cost.total_us >= max(getattr(cost, part.name) for part in fields(Cost) if part.metadata["part"])
        assert cost.burst_us <= cost.total_us


def test_tiles_of_192_rows_are_three_warpgroups_and_for_few_rows_of_a_weight_or_few_tiles() -> None:
    every = candidate_configs(StoreKind.TMA)
    tall = [config for config in every if config.block_m == 192 and TILES[config.tile].few]
    assert {(config.block_n, config.split_k) for config in tall} == {(96, 1), (128, 2)}
    for config in tall:
        assert (config.warpgroups_m, config.warpgroups, config.threads) == (3, 3, 512)
        worth = TILES[config.tile]
        assert worth.rounds < 3
        assert worth.many.start > 4096 if config.split_k > 1 else not worth.is_general
    chosen = {select_config(Problem(192, n, k), H200, NO_TABLES).tile for n, k in ((24576, 1536), (7168, 16384))}
    assert chosen == {config.tile for config in tall}
    of_rows = candidate_configs(StoreKind.TMA, OutputType.FLOAT32, Scaling.ROW)
    assert [config.warpgroups for config in of_rows if config.block_m == 192] == [2]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (4608, 14592), (4096, 7168)])
def test_what_is_for_few_rows_does_not_decide_for_many(chip: str, n: int, k: int) -> None:
    """A batch-invariant product has one width for every M, and tiles of few rows are none it has with many."""
    width = invariant_wave_cols(n, k, Scaling.BLOCK, named_chip(chip))
    many = {select_config(Problem(m, n, k, batch_invariant=True), named_chip(chip)) for m in (MANY_ROWS, 1024, 8192)}
    assert {config.wave_cols for config in many} == {width}  # type: ignore[union-attr]
    assert all(TILES[config.tile].many for config in many)  # type: ignore[union-attr]
    assert width != 96
