"""The policy ``nearest`` on a real cache directory: how often it is read. Only the compiler and the GPU are played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8gemm import settings
from fp8gemm.cache.store import Layer
from fp8gemm.jit import build as build_module
from fp8gemm.jit import job
from fp8gemm.jit.build import build
from fp8gemm.jit.compiler import CompileResult, Resources
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels import loaded
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.grouped import ranked_grouped
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import named_chip
from fp8gemm.tuning.problem import Grouping, Problem
from fp8gemm.tuning.select import ranked_configs

H200 = named_chip("h200")
OF_ONE = Problem(3, 2112, 7168)
OF_GROUPS = grouped_problem(Grouping.MASKED, 8, 3, 2048, 768)


def config_for_one(m: int) -> Any:
    return loaded.kernel_for(replace(OF_ONE, m=m), H200, 0).config


def config_for_groups(m: int) -> Any:
    return loaded.kernel_for(replace(OF_GROUPS, m=m), H200, 0).config


def request_of_one(rank: int) -> KernelRequest:
    return kernel_request(OF_ONE, ranked_configs(OF_ONE, H200)[rank])


def request_of_groups(rank: int) -> KernelRequest:
    return kernel_request(OF_GROUPS, ranked_grouped(OF_GROUPS, H200)[rank])


KINDS = pytest.mark.parametrize(
    ("config_for", "request_of"),
    [(config_for_one, request_of_one), (config_for_groups, request_of_groups)],
    ids=["one", "groups"],
)


class Disk:
    """What is asked of it: entries that are read, and keys that are computed from headers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: Counter[tuple[Path, str]] = Counter()
        self.keys = 0
        read, closure = Layer.read, job.header_closure

        def counted_read(layer: Layer, label: str, key: str) -> Any:
            self.reads[layer.path, label] += 1
            return read(layer, label, key)

        def counted_closure(*arguments: Any) -> Any:
            self.keys += 1
            return closure(*arguments)

        monkeypatch.setattr(Layer, "read", counted_read)
        monkeypatch.setattr(job, "header_closure", counted_closure)

    def add(self, request: KernelRequest, directory: Path) -> None:
        """Put a kernel there, as another process does."""
        with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
            build(request)
        build_module._builders.clear()
        self.reads.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    result = CompileResult(b"cubin", "", "12.9", 0.0, Resources(1, 0, 0, 0, 0, 0), ())
    monkeypatch.setattr(build_module, "compile_program", lambda *arguments, **options: result)
    monkeypatch.setattr(loaded, "_kernels", {})
    monkeypatch.setattr(loaded, "load_kernel", lambda problem, config, **others: SimpleNamespace(config=config))
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Disk(monkeypatch)


@KINDS
def test_calls_with_new_m_do_not_read_what_was_read(
    disk: Disk, tmp_path: Path, config_for: Callable[[int], Any], request_of: Callable[[int], KernelRequest]
) -> None:
    disk.add(request_of(5), tmp_path / "cache")
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="nearest"):
        found = config_for(3)
        assert max(disk.reads.values()) == 1 and sum(disk.reads.values()) >= 5
        reads, keys = sum(disk.reads.values()), disk.keys
        for m in (1, 2, 4, 5, 6, 7, 8, 3):
            assert config_for(m) == found
        assert (sum(disk.reads.values()), disk.keys) == (reads, keys), "nothing is asked of the disk at all"
        for m in (9, 20, 60, 100, 128, 200, 300, 16, 48, 199):
            assert config_for(m) == found, "the only one there is"
        assert max(disk.reads.values()) == 1, "no entry is read, or missed, twice"


@KINDS
def test_each_cache_is_looked_at_for_itself(
    disk: Disk, tmp_path: Path, config_for: Callable[[int], Any], request_of: Callable[[int], KernelRequest]
) -> None:
    for rank in (2, 4):
        disk.add(request_of(rank), tmp_path / str(rank))
    found = {}
    for rank in (2, 4, 2, 4):
        with settings.scope(cache_dirs=(tmp_path / str(rank),), trusted_dirs=(), jit="nearest"):
            config = config_for(3)
            assert found.setdefault(rank, config) == config
    assert found[2] != found[4] and max(disk.reads.values()) == 1


@KINDS
def test_what_this_process_compiles_for_a_product_serves_it_at_once(
    disk: Disk, tmp_path: Path, config_for: Callable[[int], Any], request_of: Callable[[int], KernelRequest]
) -> None:
    disk.add(request_of(5), tmp_path / "cache")
    place = {"cache_dirs": (tmp_path / "cache",), "trusted_dirs": ()}
    with settings.scope(**place, jit="nearest"):
        before = config_for(3)
    with settings.scope(**place, jit="compile"):
        best = config_for(3)
    with settings.scope(**place, jit="nearest"):
        assert config_for(3) == best != before


def test_what_serves_groups_of_some_rows_is_not_taken_for_the_best_of_others(disk: Disk, tmp_path: Path) -> None:
    """Choices count their rows in finer steps than those of a single product."""
    problems = [grouped_problem(Grouping.MASKED, 32, m, 4096, 2048) for m in (144, 192)]
    best = [ranked_grouped(problem, H200)[0] for problem in problems]
    assert best[0] != best[1]
    for problem, config in zip(problems, best, strict=True):
        disk.add(kernel_request(problem, config), tmp_path / "cache")
    with settings.scope(cache_dirs=(tmp_path / "cache",), trusted_dirs=(), jit="nearest"):
        assert [loaded.kernel_for(problem, H200, 0).config for problem in problems] == best
