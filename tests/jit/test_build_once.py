"""Threads and processes that ask for the same kernel together: one compiles, nobody waits for ever."""

from __future__ import annotations

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.errors import CacheMissError, CompileError, InputError
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import Artifact, build
from fp8gemm.jit.compiler import CompileResult
from fp8gemm.jit.parallel import build_many
from fp8gemm.jit.request import KernelRequest
from tests.jit.cases import Python, RequestFor


def test_thirty_two_threads_compile_once(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str]
) -> None:
    start = threading.Barrier(32)

    def ask() -> Artifact:
        start.wait()
        with settings.scope(cache_dirs=(cache,)):
            return build(request_for(7), include_dir=include)

    with ThreadPoolExecutor(32) as pool:
        artifacts = [future.result() for future in [pool.submit(ask) for _ in range(32)]]
    assert compiles == ["tiny-7"]
    assert sorted(each.source for each in artifacts) == ["compiled"] + ["memory"] * 31
    assert len({each.cubin for each in artifacts}) == 1


def test_threads_that_wait_for_a_failing_compile_all_get_its_error(
    cache: Path, include: Path, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    def slow_failure(*_args: object, **_kwargs: object) -> CompileResult:
        attempts.append(time.monotonic())
        time.sleep(0.3)
        raise CompileError("broken")

    monkeypatch.setattr(build_module, "compile_program", slow_failure)
    start = threading.Barrier(4)

    def ask() -> str:
        start.wait()
        with settings.scope(cache_dirs=(cache,)), pytest.raises(CompileError) as caught:
            build(request_for(7), include_dir=include)
        return str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        assert [future.result() for future in [pool.submit(ask) for _ in range(4)]] == ["broken"] * 4
    assert len(attempts) == 1
    monkeypatch.undo()
    with settings.scope(cache_dirs=(cache,)):
        assert build(request_for(7), include_dir=include).source == "compiled", "a failure is not remembered"


def test_eight_processes_compile_once(cache: Path, python: Python) -> None:
    process = python(
        """
        import os
        ready, go = os.pipe()
        for _ in range(8):
            if os.fork() == 0:
                os.close(go)
                os.read(ready, 1)
                artifact = build(request, include_dir=include)
                os.write(1, f"{artifact.source} {artifact.key}\\n".encode())
                os._exit(0)
        os.close(go)
        for _ in range(8):
            os.wait()
        """
    )
    output, errors = process.communicate(timeout=120)
    lines = [line.split() for line in output.splitlines()]
    assert sorted(source for source, _ in lines) == ["compiled"] + ["disk"] * 7, errors
    assert len({key for _, key in lines}) == 1
    assert not list(cache.glob(".tmp-*"))


def test_a_killed_lock_holder_holds_nobody_up(
    cache: Path, include: Path, request_for: RequestFor, python: Python
) -> None:
    process = python(
        """
        import time
        import fp8gemm.jit.build as module
        def stuck(*args, **kwargs):
            print("locked", flush=True)
            time.sleep(600)
        module.compile_program = stuck
        build(request, include_dir=include)
        """
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
    finally:
        process.kill()
        process.communicate()
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(request_for(7), include_dir=include).source == "compiled"
    assert time.monotonic() - started < 10


def test_build_many_keeps_the_order_reports_each_and_sees_the_scope(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str]
) -> None:
    requests = [request_for(value) for value in (5, 3, 5, 1, 4)]
    seen: list[Artifact] = []
    here = threading.get_ident()

    def progress(artifact: Artifact) -> None:
        assert threading.get_ident() == here
        seen.append(artifact)

    artifacts = build_many(requests, jobs=3, progress=progress, include_dir=include)
    assert [each.request for each in artifacts] == requests
    assert sorted(each.request.label for each in seen) == sorted(each.label for each in requests)
    assert sorted(compiles) == ["tiny-1", "tiny-3", "tiny-4", "tiny-5"]
    assert {each.directory.parent for each in artifacts if each.directory} == {cache}
    assert build_many([], include_dir=include) == []
    with settings.scope(jit="error"), pytest.raises(CacheMissError):
        build_many([request_for(9)], include_dir=include)


def test_build_many_gives_up_on_the_first_error(cache: Path, include: Path, request_for: RequestFor) -> None:
    with pytest.raises(InputError, match="label"):
        build_many([KernelRequest("a/b", "x.cuh", "X", ())], include_dir=include)
    with pytest.raises(InputError, match="jobs"):
        build_many([request_for(7)], jobs=0, include_dir=include)


def test_a_forked_child_builds_although_its_parent_was_compiling(
    cache: Path, include: Path, request_for: RequestFor, python: Python
) -> None:
    process = python(
        """
        import os, threading, time
        import fp8gemm.jit.build as module
        real, inside = module.compile_program, threading.Event()
        def slow(*args, **kwargs):
            inside.set()
            time.sleep(1)
            return real(*args, **kwargs)
        module.compile_program = slow
        thread = threading.Thread(target=build, args=(request,), kwargs={"include_dir": include})
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            module.compile_program = real
            print(build(request, include_dir=include).source, flush=True)
            os._exit(0)
        thread.join()
        print(os.waitpid(child, 0)[1])
        """
    )
    output, errors = process.communicate(timeout=60)
    # The lock's descriptor came with the fork, so that the child may only go on when its parent has published.
    assert output.split() == ["disk", "0"], errors
