"""Warmups with a real compiler: what is ready afterwards, and what an interruption, a fault or a second one does."""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import fp8gemm
from fp8gemm import settings
from fp8gemm.ahead import warming
from fp8gemm.ahead.kernels import Demand
from fp8gemm.cli import warmup as ahead_command
from fp8gemm.errors import CacheError, CompileError, InputError
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import build
from fp8gemm.jit.request import KernelRequest

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (128, 128)


def command(cache: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fp8gemm", "warmup", "--cache-dir", str(cache), *arguments]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def test_a_warmup_compiles_once_and_then_finds_everything(cache: Path, tiny: Any) -> None:
    first, second = (warming.make_ready(tiny(3)) for _ in range(2))
    assert (first.kernels, first.compiled, first.hits) == (3, 3, 0)
    assert (second.kernels, second.compiled, second.hits) == (3, 0, 3)
    assert first.bytes == second.bytes > 0 and first.directory == str(cache)
    assert first.as_json()["chips"] == {"h200": 3}
    assert "3 compiled, 0 found" in str(first)


def test_it_goes_on_from_where_another_ended(cache: Path, tiny: Any, forget: Any) -> None:
    build(tiny(3).requests[1])
    forget()
    assert (warming.make_ready(tiny(3)).compiled, warming.make_ready(tiny(4)).compiled) == (2, 1)


def test_the_policy_of_a_server_does_not_hold_for_it(cache: Path, tiny: Any) -> None:
    with settings.scope(jit="error"):
        assert warming.make_ready(tiny(1)).compiled == 1
        assert settings.current().jit == "error"


def test_recompiling_replaces_what_is_there(cache: Path, tiny: Any, forget: Any) -> None:
    warming.make_ready(tiny(2))
    inodes = {path.name: path.stat().st_ino for path in cache.iterdir() if not path.name.startswith(".")}
    forget()
    done = warming.make_ready(tiny(2), again=True)
    assert (done.compiled, done.hits) == (2, 0)
    assert {path.name for path in cache.iterdir() if not path.name.startswith(".")} == set(inodes)
    assert all((cache / name).stat().st_ino != inode for name, inode in inodes.items())
    forget()
    assert warming.make_ready(tiny(2)).hits == 2


def test_without_a_directory_that_can_be_written_it_is_refused(tmp_path: Path, tiny: Any) -> None:
    (tmp_path / "file").write_text("")
    for places in ((), (tmp_path / "file",)):
        with (
            settings.scope(cache_dirs=places),
            pytest.warns(RuntimeWarning),
            pytest.raises(CacheError, match="expected a cache directory that can be written"),
        ):
            warming.make_ready(tiny(1))


def test_a_kernel_that_does_not_compile_is_an_error_and_the_others_stay(
    cache: Path, tiny: Any, forget: Any, include: Path
) -> None:
    warming.make_ready(tiny(2))
    forget()
    bad = KernelRequest("bad", "fp8gemm/kernels/tiny.cuh", "NoSuchFamily", ())
    with pytest.raises(CompileError):
        warming.make_ready(Demand({"h200": (*tiny(2).requests, bad)}))
    forget()
    assert warming.make_ready(tiny(2)).hits == 2


def test_bad_arguments_are_refused_before_anything_is_compiled(cache: Path) -> None:
    for call in (
        lambda: fp8gemm.warmup([SHAPE], chips=("b200",)),
        lambda: fp8gemm.warmup([SHAPE], out_dtype="int8"),
        lambda: fp8gemm.warmup([SHAPE], epilogue="d"),
        lambda: fp8gemm.warmup([(128, 100)]),
        lambda: fp8gemm.warmup([SHAPE], 0),
        lambda: fp8gemm.warmup([SHAPE], jobs=0),
    ):
        with pytest.raises(InputError, match="expected|must be"):
            call()
    assert not [path for path in cache.glob("*") if not path.name.startswith(".")]


def test_the_command_from_nothing_and_again(cache: Path) -> None:
    """With the real kernels of a small shape, and of groups of it; the second has them without NVRTC."""
    arguments = ("--nk", "128x128", "--max-m", "8", "--calls", "layer", "--chip", "h200", "--json")
    arguments += ("--grouped", "2x128x128")
    runs = []
    for _ in range(2):
        done = subprocess.run(
            command(cache, *arguments), env=environment(), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    first, second = runs
    assert first["kernels"] == first["compiled"] == second["hits"] == first["chips"]["h200"] + first["quantizers"]
    assert second["compiled"] == 0 and second["bytes"] == first["bytes"] and second["directory"] == str(cache)
    listed = subprocess.run(
        command(cache, *arguments, "--list"), env=environment(), capture_output=True, text=True, timeout=120
    )
    assert len(json.loads(listed.stdout)) == first["kernels"]


def test_what_is_above_a_directory_is_open_to_those_whom_it_serves(tmp_path: Path, tiny: Any) -> None:
    parser = argparse.ArgumentParser()
    ahead_command.add_arguments(parser)
    before = os.umask(0o022)
    try:
        arguments = ["--quantizers", "128", "--cache-dir", str(tmp_path / "opt" / "x" / "kernels"), "--list"]
        assert ahead_command.run(parser.parse_args(arguments)) == 0
        assert [stat.S_IMODE(each.stat().st_mode) for each in sorted((tmp_path / "opt").rglob("x"))] == [0o755]
        (tmp_path / "file").write_text("")
        arguments[3] = str(tmp_path / "file" / "x" / "kernels")
        with pytest.raises(CacheError, match="expected a directory that can be made"):
            ahead_command.run(parser.parse_args(arguments))
    finally:
        os.umask(before)


def test_an_interrupted_command_leaves_whole_kernels_and_the_next_one_goes_on(cache: Path) -> None:
    arguments = ("--nk", "2112x7168", "--max-m", "64", "--calls", "layer", "--chip", "h200", "--jobs", "1", "--json")
    started = subprocess.Popen(
        command(cache, *arguments),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may ignore it, and children do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (ready := list(cache.glob("[!.]*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 130 and "Traceback" not in told
    left = len(list(cache.glob("[!.]*")))
    assert ready and not list(cache.glob(".tmp-*"))
    done = subprocess.run(command(cache, *arguments), env=environment(), capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["hits"] == left and found["compiled"] == found["kernels"] - left > 0


GROUP = """
    import json, os, sys, warnings
    import torch.distributed as dist
    from pathlib import Path
    from fp8gemm import settings
    from fp8gemm.ahead import warming
    from fp8gemm.ahead.kernels import Demand
    from fp8gemm.errors import CompileError
    from fp8gemm.cache import store
    from fp8gemm.jit.request import KernelRequest
    import fp8gemm.jit.headers

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    rank, where, include = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    fp8gemm.jit.headers.include_dir = lambda: include
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=4)

    def request(value):
        return KernelRequest(f"tiny-{value}", "fp8gemm/kernels/tiny.cuh", "Tiny", (("value", value),))

    def warm(requests):
        return warming.make_ready(Demand({"h200": tuple(requests)}), group=dist.group.WORLD, jobs=1)

    wanted = [request(value) for value in range(1, 10)]
    done = warm(wanted)
    wanted[5] = KernelRequest("bad", "fp8gemm/kernels/tiny.cuh", "NoSuchFamily", ())
    try:
        told = warm(wanted).as_json()
    except CompileError as error:
        told = str(error)
    full = Path(sys.argv[4]) / str(rank)
    with settings.scope(cache_dirs=(full,)), warnings.catch_warnings():  # machines of their own, one of them full
        warnings.simplefilter("ignore")
        if rank == 2:
            store.publish_directory = no_space
        apart = warm(wanted[:5])
    print(json.dumps([done.as_json(), told, apart.as_json()]))
    dist.barrier()
    dist.destroy_process_group()
    # Once in some forty processes gloo's threads abort while the interpreter ends, when all is said and done.
    sys.stdout.flush()
    os._exit(0)
"""


def test_the_ranks_of_a_group_share_the_work(cache: Path, include: Path, tmp_path: Path) -> None:
    """And if one fails, all of them raise, and none waits for ever; if one cannot write, all of them say so."""
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(GROUP),
                str(rank),
                str(tmp_path / "meet"),
                str(include),
                str(tmp_path),
            ],
            env=environment(FP8GEMM_CACHE_DIR=str(cache)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    told = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, told
    results = [json.loads(out.splitlines()[-1]) for out, _ in told]
    assert [done["kernels"] for done, *_ in results] == [9] * 4
    assert [done["compiled"] for done, *_ in results] == [9] * 4, "each kernel once, by all of them together"
    assert len(list(cache.glob("[!.]*"))) == 9
    assert all("NoSuchFamily" in error for _, error, _ in results)
    assert sum("rank 1: CompileError" in error for _, error, _ in results) == 3
    names = [{each["label"] for each in apart["missing"]} for *_, apart in results]
    assert names == [{f"tiny-{value}" for value in range(1, 6)}] * 4, "what one lacks is missing for all"
    assert [(apart["compiled"], apart["hits"]) for *_, apart in results] == [(0, 0)] * 4


def test_what_is_ready_is_known_to_be(cache: Path, tiny: Any) -> None:
    warming.make_ready(tiny(1))
    assert build_module.is_ready(tiny(1).requests[0]) and not build_module.is_ready(tiny(2).requests[1])
