"""``fp8gemm info``: what is installed, what the machine has, and whether kernels can run here, and if not, why."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fp8gemm import __version__
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.findings import Findings, Part, collect, setting_text
from fp8gemm.cli.interrupts import loading
from fp8gemm.cli.output import add_json, tell, tell_json
from fp8gemm.driver.device import conclude, dotted
from fp8gemm.installed import installed_version
from fp8gemm.jit.headers import include_dir
from fp8gemm.terminal.table import Column, Group, Table

EXAMPLE = "fp8gemm info --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print what there is. 0, whatever is missing.

    Raises:
        InputError: a setting has a value that is not allowed.
        CompileError: the installation holds no device headers.
    """
    with loading():  # of torch, most of all, which is all that it waits for
        findings = collect()
    document = document_of(findings)
    tell(options, "\n".join(_lines(findings, document)))
    tell_json(options, document)
    return Exit.DONE


def document_of(findings: Findings) -> dict[str, Any]:
    """Everything that ``info`` tells, as plain values."""
    probed, now, diagnosis = findings.probed, findings.settings, conclude(findings.probed)
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": asdict(Part(probed.torch_version, probed.torch_problem)),
        "torch_cuda": probed.torch_cuda and dotted(probed.torch_cuda),
        "cuda_bindings": asdict(_cuda_bindings()),
        "nvrtc": asdict(findings.nvrtc),
        "nvrtc_path": findings.nvrtc_path,
        "driver": asdict(_driver(findings)),
        "gpus": [asdict(gpu) for gpu in findings.gpus],
        "status": diagnosis.status.value,
        "message": diagnosis.message,
        "include_dir": str(include_dir()),
        "cache": [asdict(layer) for layer in findings.cache],
        "settings": {field.name: _plain(getattr(now, field.name)) for field in fields(now)},
        "deep_gemm": _deep_gemm(findings),
        "vllm": _vllm(findings),
    }


def _lines(findings: Findings, document: dict[str, Any]) -> Iterator[str]:
    """One fact a line, for people."""
    probed, now = findings.probed, findings.settings
    built = f"built with CUDA {document['torch_cuda']}" if probed.torch_cuda else "built without CUDA"
    driver, deep_gemm = _driver(findings), document["deep_gemm"]
    path = f", {findings.nvrtc_path}" if findings.nvrtc_path else ""
    facts = [
        ("fp8gemm", document["version"]),
        ("Python", document["python"]),
        ("torch", f"{probed.torch_version}, {built}" if probed.torch_version else f"none: {probed.torch_problem}"),
        ("cuda-bindings", _cuda_bindings()),
        ("NVRTC", f"{findings.nvrtc}{path}"),
        ("driver", f"CUDA {driver}" if driver.version else driver),
        *((f"GPU {gpu.index}", gpu) for gpu in findings.gpus),
        ("status", f"{document['status']}. {document['message']}"),
        ("headers", document["include_dir"]),
        *(("cache", layer) for layer in findings.cache or ("this process's memory alone",)),
        *((field.name, setting_text(getattr(now, field.name))) for field in fields(now)),
        *(("deep_gemm", line) for line in (_who_has_what(deep_gemm) if deep_gemm else ())),
        *(("vLLM", line) for line in (_of_linear_kernel(document["vllm"]) if document["vllm"] else ())),
    ]
    table = Table(Group((Column(width=15, left=True), Column(width=24, left=True))))
    for name, value in facts:
        yield table.line(name, str(value))


def _driver(findings: Findings) -> Part:
    probed = findings.probed
    return Part(probed.driver_version and dotted(probed.driver_version), probed.driver_problem)


def _deep_gemm(findings: Findings) -> dict[str, Any] | None:
    """Who has which of DeepGEMM's functions; None where fp8gemm is not in its place, and nothing in the environment
    asks for it. It needs torch."""
    now = findings.settings
    if not now.engines and "fp8gemm.integrations.deep_gemm" not in sys.modules or not findings.probed.torch_version:
        return None
    from fp8gemm.integrations.deep_gemm import answers

    found = answers()
    return asdict(found) if now.engines or found.installed else None


def _who_has_what(found: dict[str, Any]) -> Iterator[str]:
    """A line for each that has any of DeepGEMM's functions, and for each DeepGEMM that cannot be used."""
    other = (
        found["other"] if found["loaded"] else f"{found['other']}, not imported yet, if it has what DeepGEMM 2.8.1 has"
    )
    nobody = "nobody; install DeepGEMM or sgl-deep-gemm for them"
    for who, text in (("fp8gemm", "fp8gemm"), ("other", other), ("nobody", nobody)):
        names = sorted(name for name, answering in found["functions"].items() if answering == who)
        if names:
            yield f"{text}: {', '.join(names)}"
    yield from found["problems"]


def _vllm(findings: Findings) -> dict[str, Any] | None:
    """Whether vLLM has our kernel for its linear layers; None where nothing asks for it, or there is no vLLM."""
    if not findings.settings.engines:
        return None
    from fp8gemm.integrations.vllm import linear_kernel

    found = linear_kernel()
    return asdict(found) if found.vllm or found.registered else None


def _of_linear_kernel(found: dict[str, Any]) -> Iterator[str]:
    """What there is to say of it, in one line."""
    if found["problem"]:
        yield f"{found['vllm']}, linear layers by kernels of its own. {found['problem']}"
    elif found["registered"]:
        yield f"{found['vllm']}, linear layers by fp8gemm, ahead of {', '.join(found['ahead_of'])}"
    else:
        yield f"{found['vllm']}, linear layers by fp8gemm from when vLLM loads its plugins; here it is not loaded"


def _cuda_bindings() -> Part:
    version = installed_version("cuda-bindings")
    return Part(version, "" if version else "expected the package cuda-python>=12.9,<14, found no cuda-bindings")


def _plain(value: str | int | tuple[Path, ...] | Path | None) -> str | int | list[str] | None:
    if isinstance(value, tuple):
        return [str(path) for path in value]
    return str(value) if isinstance(value, Path) else value
