"""Fault 19 of the cache: what makes a key of its own, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.jit import build as build_module
from fp8gemm.jit.build import build
from fp8gemm.jit.compiler import CompileResult, compile_options
from fp8gemm.jit.fingerprint import header_closure, key_of
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import ConfigValue, KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.quantize import (
    QuantizeSource,
    quantizer_of_blocks,
    quantizer_of_norm,
    quantizer_of_rows,
)
from fp8gemm.tuning.problem import InputType, Problem
from fp8gemm.tuning.select import select
from tests.jit.cases import Forget, RequestFor, told

ARCH = "sm_90a"


def test_fault_19_each_byte_of_each_header_counts(include: Path, request_for: RequestFor) -> None:
    source = render_source(request_for(7))
    headers = header_closure(source, include)
    keys = [key_of(source, headers, options=(), arch=ARCH)]
    for index, (path, content) in enumerate(headers):
        for position in range(len(content)):
            for changed in (
                content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :],
                content[:position] + content[position + 1 :],
            ):
                files = (*headers[:index], (path, changed), *headers[index + 1 :])
                keys.append(key_of(source, files, options=(), arch=ARCH))
    # To leave out either of two equal neighbours gives one text.
    twins = sum(a == b for _, content in headers for a, b in zip(content, content[1:], strict=False))
    assert len(keys) - len(set(keys)) == twins and len(keys) > 900


def test_fault_19_each_option_and_the_architecture_count(include: Path, request_for: RequestFor) -> None:
    source = render_source(request_for(7))
    headers = header_closure(source, include)
    options = compile_options(ARCH)
    sets = [
        options,
        compile_options("sm_90"),
        options[::-1],
        (*options, "--use_fast_math"),
        *(options[:index] + options[index + 1 :] for index in range(len(options))),
        *((*options[:index], options[index] + "x", *options[index + 1 :]) for index in range(len(options))),
    ]
    keys = [key_of(source, headers, options=each, arch=arch) for each in sets for arch in ("sm_90", ARCH, "sm_100a")]
    assert len(set(keys)) == len(keys) == 3 * len(sets)


def kernels() -> Iterator[tuple[KernelRequest, object]]:
    """A kernel of each family, and the config that it was made from."""
    for m in (1, 4096):
        config = select(m, 7168, 2048)
        yield kernel_request(Problem(m, 7168, 2048), config), config
    for quantizer in (
        quantizer_of_rows(QuantizeSource.PLAIN, InputType.BFLOAT16, 1),
        quantizer_of_blocks(InputType.BFLOAT16, 4),
        quantizer_of_norm(2048, InputType.BFLOAT16, InputType.FLOAT32, residual=True, threads=128),
    ):
        yield quantizer.request, None


@pytest.mark.parametrize(("request_", "config"), list(kernels()), ids=lambda each: getattr(each, "label", ""))
def test_fault_19_each_config_field_counts(request_: KernelRequest, config: object) -> None:
    if config is not None:
        assert {field.name for field in fields(config)} <= {name for name, _ in request_.config}  # type: ignore[arg-type]
    requests = [
        request_,
        replace(request_, family="Other"),
        replace(request_, arch="sm_90"),
        replace(request_, min_ctas=4),
    ]
    for index, (name, value) in enumerate(request_.config):
        for changed in ((name, another(value)), (name + "_more", value)):
            requests.append(
                replace(request_, config=(*request_.config[:index], changed, *request_.config[index + 1 :]))
            )
    keys = [key_of(render_source(each), (), options=(), arch=each.arch) for each in requests]
    assert len(set(keys)) == len(keys) > 5


def another(value: ConfigValue) -> ConfigValue:
    """A value of the same type."""
    if isinstance(value, Enum):
        return next(each for each in type(value) if each is not value)
    return not value if isinstance(value, bool) else value + 1


@pytest.mark.parametrize("version", ["11.8", "12.9", "99.0"])
def test_fault_19_another_nvrtc_has_the_same_key_and_what_it_compiled_hits(
    cache: Path,
    include: Path,
    request_for: RequestFor,
    compiled: CompileResult,
    monkeypatch: pytest.MonkeyPatch,
    forget: Forget,
    version: str,
) -> None:
    other = replace(compiled, nvrtc_version=version, cubin=b"by " + version.encode())
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "compile_program", lambda *_, **__: other)
        first = build(request_for(7), include_dir=include)
    forget()
    with settings.scope(jit="error"):
        found, events = told(lambda: build(request_for(7), include_dir=include))
    assert (found.source, found.key, found.nvrtc_version, events) == ("disk", first.key, version, [])
    source = render_source(request_for(7))
    assert first.key == key_of(source, header_closure(source, include), options=compile_options(ARCH), arch=ARCH), (
        "nothing of the compiler goes into a key"
    )
