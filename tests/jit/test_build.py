"""From request to artifact: out of memory, from disk, or from the compiler."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import CUBIN, SCHEMA_VERSION, SIDECAR, SOURCE, directory_name
from fp8gemm.errors import CacheMissError
from fp8gemm.jit.artifact import metadata
from fp8gemm.jit.build import build, is_ready
from fp8gemm.jit.compiler import CompileResult, Resources, compile_options
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.problem import Problem
from fp8gemm.tuning.select import select
from tests.jit.cases import Forget, Python, RequestFor


def test_compiled_then_memory_then_disk_always_the_same(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str], forget: Forget
) -> None:
    request = request_for(7)
    compiled = build(request, include_dir=include)
    remembered = build(request, include_dir=include)
    forget()
    found = build(request, include_dir=include)
    assert [each.source for each in (compiled, remembered, found)] == ["compiled", "memory", "disk"]
    assert compiles == ["tiny-7"]
    for other in (remembered, found):
        for field in ("request", "key", "cubin", "resources", "warnings", "nvrtc_version", "directory"):
            assert getattr(other, field) == getattr(compiled, field), field
        assert other.compile_seconds == pytest.approx(compiled.compile_seconds, abs=1e-6)
        assert other.seconds < compiled.seconds
    assert compiled.directory == cache / directory_name("tiny-7", compiled.key)
    assert compiled.resources.registers > 0
    assert (compiled.directory / CUBIN).read_bytes() == compiled.cubin


def test_a_sidecar_has_the_values_of_options_by_which_people_name_them() -> None:
    """As `fp8gemm cache ls --json` prints them: "none" is no ``Addend.NONE``."""
    result = CompileResult(b"", "", "12.9", 0.5, Resources(32, 0, 0, 0, 0, 0), ())
    config = metadata(kernel_request(Problem(1, 16, 128), select(1, 16, 128)), (), result)["config"]
    assert (config["c"], config["bias"], config["output"], config["scaling"]) == ("none", "none", "bfloat16", "1d2d")
    assert {type(value) for value in config.values()} <= {bool, int, str}


def test_a_hit_is_fast_and_opens_neither_compiler_nor_lock(
    cache: Path, include: Path, request_for: RequestFor, python: Python
) -> None:
    build(request_for(7), include_dir=include)
    process = python(
        """
        import sys
        before = set(sys.modules)
        seconds = []
        for _ in range(5):
            seconds.append(build(request, include_dir=include).seconds)
            import fp8gemm.jit.build as module
            module._builders.clear()
        after = set(sys.modules)
        print(min(seconds), seconds[0])
        print([name for name in after if name.startswith(("cuda.bindings", "filelock", "tqdm"))] if "torch" not in after
              else [name for name in after - before if name.startswith(("cuda", "filelock", "tqdm"))])
        print("cuda.bindings.nvrtc" in after)
        """
    )
    output, errors = process.communicate(timeout=60)
    times, imported, nvrtc = output.splitlines()
    assert (imported, nvrtc) == ("[]", "False"), errors
    assert float(times.split()[0]) < 3e-3


def test_an_edited_header_is_noticed_even_in_a_running_process(
    cache: Path, include: Path, request_for: RequestFor
) -> None:
    before = build(request_for(7), include_dir=include)
    header = include / "fp8gemm/common/number.cuh"
    header.write_text(header.read_text().replace("kFactor = 3", "kFactor = 4"))
    after = build(request_for(7), include_dir=include)
    assert after.source == "compiled"
    assert after.key != before.key and after.cubin != before.cubin


def test_a_moved_cache_and_moved_headers_still_hit(
    cache: Path, include: Path, request_for: RequestFor, tmp_path: Path
) -> None:
    build(request_for(7), include_dir=include)
    moved = tmp_path / "moved; $(x) é"
    shutil.copytree(cache, moved / "cache")
    shutil.copytree(include, moved / "include")
    with settings.scope(cache_dirs=(moved / "cache",), jit="error"):
        assert build(request_for(7), include_dir=moved / "include").source == "disk"


def test_another_nvrtc_or_none_at_all_still_hits(
    cache: Path, include: Path, request_for: RequestFor, python: Python
) -> None:
    compiled = build(request_for(7), include_dir=include)
    process = python(
        """
        import sys
        sys.modules["cuda"] = sys.modules["filelock"] = None
        artifact = build(request, include_dir=include)
        print(artifact.source, artifact.nvrtc_version)
        """
    )
    output, errors = process.communicate(timeout=60)
    assert output.split() == ["disk", compiled.nvrtc_version], errors


def test_the_policy_error_names_the_kernel_its_key_and_the_settings(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str]
) -> None:
    with settings.scope(jit="error"), pytest.raises(CacheMissError) as caught:
        build(request_for(7), include_dir=include)
    assert compiles == [] and not cache.exists()
    key = build(request_for(7), include_dir=include).key
    for part in ("tiny-7", key, "FP8GEMM_JIT=error", "FP8GEMM_CACHE_DIR", str(cache)):
        assert part in str(caught.value)
    with settings.scope(jit="error"):
        assert build(request_for(7), include_dir=include).source == "memory"


def test_is_ready_compiles_nothing(
    cache: Path, include: Path, request_for: RequestFor, compiles: list[str], forget: Forget
) -> None:
    assert not is_ready(request_for(7), include_dir=include)
    assert compiles == []
    build(request_for(7), include_dir=include)
    assert is_ready(request_for(7), include_dir=include)
    forget()
    assert is_ready(request_for(7), include_dir=include)
    assert compiles == ["tiny-7"]


def test_the_sidecar_says_what_the_kernel_is_and_nothing_of_when_and_where(
    cache: Path, include: Path, request_for: RequestFor
) -> None:
    artifact = build(request_for(7), include_dir=include)
    assert artifact.directory is not None
    sidecar = json.loads((artifact.directory / SIDECAR).read_text())
    digests = {name: hashlib.sha256((artifact.directory / name).read_bytes()).hexdigest() for name in (SOURCE, CUBIN)}
    assert len(sidecar.pop("checksum")) == 64
    assert sidecar == {
        "arch": "sm_90a",
        "compile_seconds": pytest.approx(artifact.compile_seconds),
        "config": {"value": 7},
        "family": "Tiny",
        "header": "fp8gemm/kernels/tiny.cuh",
        "key": artifact.key,
        "label": "tiny-7",
        "min_ctas": 1,
        "nvrtc_version": artifact.nvrtc_version,
        "options": list(compile_options("sm_90a")),
        "resources": asdict(artifact.resources),
        "schema": SCHEMA_VERSION,
        "sha256": digests,
        "warnings": [],
    }
