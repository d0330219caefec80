"""The key: it changes with everything that the cubin depends on, and with nothing else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fp8gemm.errors import CompileError
from fp8gemm.jit import fingerprint
from fp8gemm.jit.compiler import compile_options
from fp8gemm.jit.fingerprint import header_closure, key_of
from fp8gemm.jit.render import render_source
from tests.jit.cases import RequestFor

SOURCE = '#include "fp8gemm/kernels/tiny.cuh"\n'
ARCH = "sm_90a"


def cache_key(source: str, options: Sequence[str], arch: str, include: Path) -> str:
    return key_of(source, header_closure(source, include), options=options, arch=arch)


def key(include: Path, source: str = SOURCE) -> str:
    return cache_key(source, compile_options(ARCH), ARCH, include)


def test_the_closure_is_what_can_be_reached_sorted(include: Path) -> None:
    (include / "fp8gemm" / "unreached.cuh").write_text("#error\n")
    files = header_closure(SOURCE, include)
    assert [path for path, _ in files] == ["fp8gemm/common/number.cuh", "fp8gemm/kernels/tiny.cuh"]
    assert dict(files)["fp8gemm/common/number.cuh"] == (include / "fp8gemm/common/number.cuh").read_bytes()


def test_conditional_indented_and_angled_includes_count_and_cycles_end(include: Path) -> None:
    (include / "a.cuh").write_text('#if 0\n  #  include <b.cuh>\n#endif\n#include "missing.cuh"\n')
    (include / "b.cuh").write_text('#include "a.cuh"\n')
    assert [path for path, _ in header_closure('#include "a.cuh"\n', include)] == ["a.cuh", "b.cuh"]


@pytest.mark.parametrize("path", ["../outside.cuh", "/etc/hostname", "fp8gemm/../../outside.cuh"])
def test_an_include_that_leaves_the_directory_is_refused(include: Path, path: str) -> None:
    with pytest.raises(CompileError, match="outside|hostname"):
        header_closure(f'#include "{path}"\n', include)


def test_the_key_does_not_depend_on_where_the_headers_are(include: Path, tmp_path: Path) -> None:
    moved = tmp_path / "another place; $(x) é"
    shutil.copytree(include, moved)
    assert key(moved) == key(include)


def test_the_key_depends_on_no_time_stamp(include: Path) -> None:
    before = key(include)
    ten_years_on = time.time() + 10 * 365 * 86400
    for path in include.rglob("*.cuh"):
        os.utime(path, (ten_years_on, ten_years_on))
    assert key(include) == before


def test_a_header_edited_to_the_same_size_and_time_makes_a_new_key(include: Path) -> None:
    before = key(include)
    header = include / "fp8gemm/common/number.cuh"
    status = header.stat()
    header.write_text(header.read_text().replace("kFactor = 3", "kFactor = 4"))
    os.utime(header, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (header.stat().st_size, header.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert key(include) != before


def test_a_header_that_is_renamed_makes_a_new_key(include: Path) -> None:
    files = header_closure(SOURCE, include)
    renamed = tuple((path.replace("number", "numbers"), content) for path, content in files)
    assert key_of(SOURCE, files, options=(), arch=ARCH) != key_of(SOURCE, renamed, options=(), arch=ARCH)


def test_everything_else_that_matters_makes_a_key_of_its_own(include: Path, request_for: RequestFor) -> None:
    request = request_for(7)
    requests = [
        request,
        request_for(8),
        replace(request, label="other"),
        replace(request, family="Other"),
        replace(request, header="fp8gemm/common/number.cuh"),
        replace(request, config=(("value", 7), ("more", 1))),
        replace(request, config=(("value", True),)),
    ]
    options = compile_options(ARCH)
    keys = [cache_key(render_source(each), options, ARCH, include) for each in requests]
    source = render_source(request)
    keys.append(cache_key(source, options, "sm_90", include))
    keys.append(cache_key(source, compile_options("sm_90"), "sm_90", include))
    keys += [cache_key(source, options[:i] + options[i + 1 :], ARCH, include) for i in range(len(options))]
    keys.append(cache_key(source, ("".join(options[:2]), *options[2:]), ARCH, include))
    assert len(set(keys)) == len(keys)
    assert all(len(each) == 64 and set(each) <= set("0123456789abcdef") for each in keys)


def test_the_schema_version_is_part_of_the_key(include: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(include)
    monkeypatch.setattr(fingerprint, "SCHEMA_VERSION", fingerprint.SCHEMA_VERSION + 1)
    assert key(include) != before
