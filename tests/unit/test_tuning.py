"""Tile choice: a pure choice that is constant over steps of M, and a warmup set that covers it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.tuning.candidates import DEPTHS, candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.explain import predict_config
from fp8gemm.tuning.hopper import CHIPS, chip_name, chip_of_device, limited_chip, named_chip
from fp8gemm.tuning.problem import OutputType, Problem, Scaling, StoreKind, packed_problem
from fp8gemm.tuning.select import (
    config_by_m,
    enumerate_configs,
    invariant_wave_cols,
    ranked_configs,
    select,
    select_config,
)
from fp8gemm.tuning.swap_ab import resident_ctas, swap_ab_candidates, tiles_of
from fp8gemm.tuning.tiles import MANY_ROWS, TILES
from tests.pace import quiet_ms
from tests.ring_depths import wants_deeper_ring

LADDER = (0, 8, 16, 24, 32, 48, 64, 96, 128)
LAYERS = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048), (576, 7168)]
TMA = StoreKind.TMA
INVARIANT = {"batch_invariant": True}
MODES = [{}, {"static_weights": True}, INVARIANT, {"out_dtype": torch.float16}, {"epilogue": "bias:float32"}]

ns = st.integers(1, 40_000)
ks = st.integers(1, 1200).map(lambda sixteenths: 16 * sixteenths)
chips = st.sampled_from(sorted(CHIPS))
stores = st.sampled_from(list(StoreKind))
outputs = st.sampled_from(list(OutputType))
scalings = st.sampled_from(list(Scaling))
some = settings(max_examples=60, deadline=None)
of_any_weight = given(n=ns, k=ks, chip=chips, store=stores, output=outputs, scaling=scalings)


def ms(most: int) -> st.SearchStrategy[int]:
    """M as often among the few rows as beyond."""
    return st.integers(1, 200) | st.integers(1, most)


def step_of(m: int) -> tuple[int, int]:
    """The least and the largest M that choices count like this one."""
    for before, rows in pairwise(LADDER):
        if m <= rows:
            return before + 1, rows
    return (m - 1) // 64 * 64 + 1, -(-m // 64) * 64


@some
@given(m=ms(100_000), n=ns, k=ks, chip=chips, store=stores, static=st.booleans())
def test_select_is_pure_and_constant_over_a_step_of_rows(
    m: int, n: int, k: int, chip: str, store: StoreKind, static: bool
) -> None:
    problem, named = Problem(m, n, k, store=store, static_weights=static), named_chip(chip)
    chosen = select_config(problem, named)
    first, last = step_of(m)
    assert {select_config(replace(problem, m=same), named) for same in (first, m, last)} == {chosen}
    if store is packed_problem(m, n, k).store:
        assert select(m, n, k, chip=chip, static_weights=static) == chosen


@some
@given(m=ms(5000), n=ns, k=ks, chip=chips, store=stores, static=st.booleans())
@example(m=65, n=65, k=16, chip="h200", store=TMA, static=False)
def test_every_config_is_ranked_by_cost_and_last_come_those_that_do_not_fit(
    m: int, n: int, k: int, chip: str, store: StoreKind, static: bool
) -> None:
    problem, named = Problem(m, n, k, store=store, static_weights=static), named_chip(chip)
    ranked, (_, rows) = ranked_configs(problem, named), step_of(m)
    assert ranked[0] == select_config(problem, named)
    swapped = swap_ab_candidates(rows, n, k, named.num_sms) if m <= LADDER[-1] else ()
    assert Counter(ranked) == Counter([*candidate_configs(store, k=k), *swapped])
    order = []
    for config in ranked:
        is_last = isinstance(config, TileConfig) and (
            -(-m // config.block_m) < config.cluster_m
            or -(-n // config.block_n) < config.cluster_n
            or k not in (TILES[config.tile].many if rows >= MANY_ROWS else TILES[config.tile].few)
            or (
                rows >= MANY_ROWS
                and n not in TILES[config.tile].n
                and -(-rows // config.block_m) * -(-n // config.block_n) > TILES[config.tile].rounds * named.num_sms
            )
            or (
                (k >= 2048 if config.block_n == 256 else k < 4096)
                and store is StoreKind.TMA
                and config.tile in DEPTHS
                and (config.stages in (4, 6))
                != wants_deeper_ring(Problem(rows, n, k, store=store), config, named.num_sms)
            )
            or (
                config.split_k > 1
                and -(-rows // config.block_m) * -(-n // config.block_n) > named.clusters(config.split_k)
            )
        )
        order.append((is_last, predict_config(problem, config, named).total_us))
    assert order[1:] == sorted(order[1:]) and (rows >= MANY_ROWS or order == sorted(order))
    assert not order[0][0] and order[0][1] > 0


def test_select_differs_where_it_should() -> None:
    """A choice that ignored M, N, K or the chip would pass every test of consistency."""
    assert len({select(m, 7168, 2048) for m in (1, 256, 1024, 4096)}) > 1
    assert len({select(4096, n, 2048) for n in (64, 576, 2112, 7168)}) > 1
    assert any(select(m, n, k) != select(m, n, k, chip="h20") for n, k in LAYERS for m in range(64, 4097, 64))
    assert any(select(m, n, k) != select(m, n, k, static_weights=True) for n, k in LAYERS for m in LADDER[1:])


def test_select_at_the_ends_of_m() -> None:
    assert select(0, 7168, 2048) == select(1, 7168, 2048)
    assert select(2**31 - 1, 7168, 2048) == select(2**31 - 64, 7168, 2048)


@some
@given(n=ns, k=ks, max_m=ms(3000), chip=chips, mode=st.sampled_from(MODES))
@example(n=7168, k=2048, max_m=1, chip="h200", mode={})
@example(n=100, k=2048, max_m=300, chip="h200", mode={"out_dtype": "float32", "epilogue": "c+bias"})
def test_the_warmup_set_is_what_select_returns(n: int, k: int, max_m: int, chip: str, mode: dict[str, Any]) -> None:
    configs = enumerate_configs(n, k, max_m, chip=chip, **mode)
    assert list(configs) == list(dict.fromkeys(select(m, n, k, chip=chip, **mode) for m in range(1, max_m + 1)))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_the_warmup_set_of_a_layer_is_small(n: int, k: int, chip: str, static: bool) -> None:
    """At half a second a kernel, on one core. One for each step of few rows, one for the step between, and ten from
    there on are promised; at most 18 were needed when this was written."""
    assert 1 <= len(enumerate_configs(n, k, 16384, chip=chip, static_weights=static)) <= 8 + 1 + 10


@some
@of_any_weight
def test_batch_invariant_choices_share_one_instruction_shape(
    n: int, k: int, chip: str, store: StoreKind, output: OutputType, scaling: Scaling
) -> None:
    """For every M, output and store, and the candidates for a missing kernel too."""
    named = named_chip(chip)
    width = invariant_wave_cols(n, k, scaling, named)
    for m in (1, 64, 65, 700, 5000):
        problem = Problem(m, n, k, output, store, scaling, batch_invariant=True)
        ranked = ranked_configs(problem, named)
        assert {(config.wave_cols, config.warpgroups_k) for config in ranked} == {(width, 1)}
        assert ranked[0] == select_config(problem, named)
        costs = [predict_config(replace(problem, m=step_of(m)[1]), config, named).total_us for config in ranked]
        free = select_config(replace(problem, batch_invariant=False), named)
        assert free not in ranked or costs[0] <= costs[ranked.index(free)]


def test_the_instruction_shape_follows_the_layer() -> None:
    """One shape for all would be right too, and slow: few columns want narrow tiles, many wide ones."""
    h200 = named_chip("h200")
    widths = {layer: invariant_wave_cols(*layer, Scaling.BLOCK, h200) for layer in LAYERS}
    assert widths[2112, 7168] < widths[32768, 512]


def test_an_unknown_chip_is_refused() -> None:
    calls = (
        lambda: select(64, 128, 128, chip="b200"),
        lambda: enumerate_configs(128, 128, 64, chip="b200"),
        lambda: fp8gemm.select(64, 128, 128, chip=""),
        *(
            lambda name=name: named_chip(name)
            for name in ("b200:132", "h200:0", "h200:-1", "h200:", "h200:x", "h200:²", "h200:145", "h200:" + "9" * 5000)
        ),
    )
    for call in calls:
        with pytest.raises(
            InputError, match=r"h100-pcie, h20, perhaps with its SMs, 1 to 144, as h200:60, got '"
        ) as caught:
            call()
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("m", "n", "k", "found"),
    [
        (1, 128, 0, "K = 0"),
        (1, 128, 8, "K = 8"),
        (1, 128, -16, "K = -16"),
        (1, 128, 100, "K = 100"),
        (1, 128, 2**31, "K = 2147483648"),
        (1, 0, 128, "N = 0"),
        (1, 2**31, 128, "N = 2147483648"),
        (-1, 128, 128, "M = -1"),
        (2**31 + 1, 128, 128, "M = 2147483649"),
    ],
)
def test_an_impossible_shape_is_refused(m: int, n: int, k: int, found: str) -> None:
    for call in (lambda: select(m, n, k), lambda: enumerate_configs(n, k, m)):
        with pytest.raises(InputError, match="expected") as caught:
            call()
        assert found in str(caught.value)


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GH200 480GB", "h200"),
        ("NVIDIA H800", "h100"),
    ],
)
def test_a_device_is_the_chip_that_its_name_says(device: str, chip: str) -> None:
    known = CHIPS[chip]
    assert chip_of_device(device, known.num_sms) == known == named_chip(chip_name(known))
    found = chip_of_device(device, known.num_sms // 2)
    assert found == named_chip(chip_name(found)) == named_chip(f"{chip}:{known.num_sms // 2}")
    assert found == replace(known, num_sms=known.num_sms // 2, l2_bytes=known.l2_bytes // 2)
    more = chip_of_device(device, known.num_sms + 10)
    assert more == named_chip(chip_name(more)) == replace(known, num_sms=known.num_sms + 10)


def test_a_limit_on_sms_holds_where_there_are_more() -> None:
    chip = CHIPS["h200"]
    assert limited_chip(chip, 132) is limited_chip(chip, 500) is chip
    assert limited_chip(chip, 100) == replace(chip, num_sms=100, limited=True)


def test_a_known_device_gets_the_choices_of_its_name() -> None:
    """Otherwise a warmup on a machine without a GPU would build kernels that the GPU machine does not ask for."""
    device = chip_of_device("NVIDIA H200", CHIPS["h200"].num_sms)
    shapes = [(random.randrange(1, 9000), n, k) for n, k in LAYERS for _ in range(20)]
    assert [select_config(Problem(*shape), device) for shape in shapes] == [select(*shape) for shape in shapes]


@some
@given(m=ms(20_000), n=ns, k=ks, chip=chips, store=stores)
def test_a_cluster_is_never_more_than_the_sms_hold_at_once(m: int, n: int, k: int, chip: str, store: StoreKind) -> None:
    """On one SM that is none of persistent CTAs; of small ones, all that there are."""
    alone = replace(named_chip(chip), num_sms=1)
    config = select_config(Problem(m, n, k, store=store), alone)
    if isinstance(config, TileConfig):
        assert config.cluster_size == 1
    else:
        assert tiles_of(config, m, n) * config.cluster_size <= resident_ctas(config, k)


@some
@of_any_weight
def test_many_rows_of_one_weight_need_at_most_ten_kernels(
    n: int, k: int, chip: str, store: StoreKind, output: OutputType, scaling: Scaling
) -> None:
    from_few_rows = config_by_m(Problem(2**20, n, k, output, store, scaling), named_chip(chip))
    assert len({config for m, config in from_few_rows if m >= MANY_ROWS}) <= 10


def test_a_first_choice_takes_a_millisecond_and_the_first_for_many_rows_of_a_weight_some_six() -> None:
    """What it imports and reads comes once in a process; and which kernels a weight needs, once for all M."""
    select(64, 64, 128)
    assert quiet_ms(partial(select, 4097, n, 2048) for n in range(4160, 5440, 64)) < 9
    assert quiet_ms(partial(select, 5001, n, 2048) for n in range(4160, 5440, 64)) < 1
    assert quiet_ms(partial(select, 192, n, 2048) for n in range(5440, 6720, 64)) < 1
