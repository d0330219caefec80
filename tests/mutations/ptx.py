"""What the compiler makes of a kernel before the assembler: enough to tell programs apart, in half the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fp8gemm.errors import CompileError
from fp8gemm.jit.fingerprint import header_closure
from fp8gemm.jit.render import render_source
from fp8gemm.jit.request import KernelRequest

OPTIONS = ("--gpu-architecture=compute_90a", "--std=c++20", "--no-source-include")


def translate(request: KernelRequest, include: Path) -> bytes:
    """The PTX of a kernel with the headers below ``include``.

    Raises:
        CompileError: NVRTC refuses it; its ``log`` says why.
    """
    from cuda.bindings import nvrtc

    source = render_source(request)
    headers = header_closure(source, include)
    contents, names = [content for _, content in headers], [path.encode() for path, _ in headers]
    program = _answer(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(headers), contents, names))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), [option.encode() for option in OPTIONS])
        log = bytes(_answer(nvrtc.nvrtcGetProgramLogSize(program)))
        _answer(nvrtc.nvrtcGetProgramLog(program, log))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refuses {request.label}", log=log.decode("utf-8", "replace"))
        ptx = bytes(_answer(nvrtc.nvrtcGetPTXSize(program)))  # which the bindings write into
        _answer(nvrtc.nvrtcGetPTX(program, ptx))
        return ptx
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _answer(results: tuple[Any, ...]) -> Any:
    """What a call returned beside its status, which must be that of success."""
    status, *rest = results
    assert status.name == "NVRTC_SUCCESS", status.name
    return rest[0] if rest else None
