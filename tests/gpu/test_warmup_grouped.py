"""Grouped products on a Hopper GPU that find every kernel ready after a warmup, and a tuning run of them."""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fp8gemm
from fp8gemm import nn, settings
from fp8gemm.cli import main as cli
from fp8gemm.cli import warmup as command
from fp8gemm.errors import CacheMissError
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.tuning.hopper import chip_name
from tests.grouped import contiguous_case, in_order, k_grouped_case, masked_case

GROUPS, N, K, MOST = 5, 248, 400, 700
"""Sizes that no other test has, so that no kernel is loaded yet."""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """The only cache directory in force; no table is."""
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="compile", backend="auto", tables=()):
        yield tmp_path / "cache"


def warm(device: torch.device, *words: str) -> None:
    """``fp8gemm warmup`` for the GPU that is here."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([*words, "--chip", chip_name(device_chip(device.index))])) == 0


def test_any_expected_rows_find_their_kernel(cache: Path, device: torch.device, seed: int) -> None:
    rows = contiguous_case(in_order((3, 0, 70, 1, 9)), N, K, seed=seed, device=device)
    room = masked_case((3, 0, 70, 1, 9), 72, N, K, seed=seed, device=device)
    with settings.scope(jit="error"), pytest.raises(CacheMissError, match=f"--grouped {GROUPS}x{N}x{K}"):
        fp8gemm.gemm_grouped(*rows.operands, offsets=rows.offsets())
    warm(device, "--grouped", f"{GROUPS}x{N}x{K}", "--max-m", str(MOST))
    with settings.scope(jit="error"):
        for expected in (1, 8, 9, 64, 65, 128, 129, MOST, *random.Random(seed).sample(range(1, MOST), 20)):
            out = rows.poison()
            rows.check(fp8gemm.gemm_grouped(*rows.operands, indices=rows.indices(), out=out, expected_m=expected))
            out = room.poison()
            room.check(fp8gemm.gemm_masked(*room.operands, room.counts(), out=out, expected_m=expected))


def test_gradients_find_their_kernels(cache: Path, device: torch.device, seed: int) -> None:
    warm(device, "--grouped", f"3x{N}x{K}", "--layout", "columns")
    for c in (False, True):
        case = k_grouped_case((256, 0, 128), N, K, seed=seed, device=device, c=c)
        with settings.scope(jit="error"):
            case.check(fp8gemm.gemm_k_grouped(*case.operands, case.offsets(), c=case.c))


def test_a_recording_makes_ready_what_was_asked_for(cache: Path, device: torch.device, seed: int) -> None:
    case = contiguous_case(in_order((30, 1, 2, 0, 0, 9)), N, K, seed=seed, device=device)
    file = cache.parent / "asked.jsonl"
    with settings.scope(jit="error", record=file), pytest.raises(CacheMissError):
        fp8gemm.gemm_grouped(*case.operands, offsets=case.offsets())
    warm(device, "--recorded", str(file))
    with settings.scope(jit="error"):
        case.check(fp8gemm.gemm_grouped(*case.operands, offsets=case.offsets(), out=case.poison()))


def test_a_block_of_experts_finds_its_kernels(cache: Path, device: torch.device, generator: torch.Generator) -> None:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)

    block = nn.Fp8Experts.from_bfloat16(normal(6, 2 * 144, K), normal(6, K, 144))
    fp8gemm.warmup(block, 600)
    with settings.scope(jit="error"):
        for tokens in (1, 7, 300, 600):
            ids = torch.randint(0, 6, (tokens, 2), device=device, generator=generator)
            weights = torch.rand(tokens, 2, device=device, generator=generator)
            assert block(normal(tokens, K), ids, weights).isfinite().all()
        counts = torch.tensor([3, 0, 64, 1, 2, 9], device=device)
        assert block.forward_masked(normal(6, 64, K), counts)[2].isfinite().all()


def test_candidates_are_timed(cache: Path, device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    words = "tune --grouped 6x512x256 --m 4,200 --candidates 2 --measure-ms 1 --json"
    assert cli.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["layout"], row["m"]) for row in found["rows"]] == [
        (layout, m) for layout in ("contiguous", "masked") for m in (4, 200)
    ]
    assert found["failed"] == 0 and found["regret_mean"] >= 0
    for row in found["rows"]:
        assert len(row["us"]) >= 2 and all(1 < us < 1000 for us in row["us"].values())
