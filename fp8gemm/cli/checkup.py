"""What findings mean: each part of a machine is well, odd or in the way, and what mends it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fp8gemm.cache.access import State
from fp8gemm.cli.findings import ABSENT, REFUSED, UNREADABLE, CacheLayer, Findings
from fp8gemm.driver.device import DeviceStatus, Diagnosis, dotted, judge_driver, judge_gpus, judge_torch
from fp8gemm.quoting import counted, size_text
from fp8gemm.settings import Settings

LITTLE_ROOM, FAIR_ROOM = 64 << 20, 512 << 20
"""Bytes free where kernels go. DeepSeek-V3's take 11 MiB; below the first a few such models do not fit."""

_INSTALL_NVRTC = "`pip install 'nvidia-cuda-nvrtc-cu12>=12.4' 'cuda-python>=12.9,<14'`"
_WARM_UP = "`fp8gemm warmup --model config.json`, or `--nk 7168x2048` for a weight"


class Verdict(Enum):
    """What a check comes to."""

    OK = "ok"
    WARNING = "warning"  #: it works, though perhaps not as meant
    PROBLEM = "problem"  #: what the settings ask for does not work


@dataclass(frozen=True)
class Check:
    """One part, judged.

    Attributes:
        name: of the part.
        found: what is there.
        mend: a command or a setting that helps; empty where nothing is to be done.
    """

    name: str
    verdict: Verdict
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Spared:
    """What a machine does without, each with the reason; empty where it is needed.

    Attributes:
        gpu: it runs no kernels.
        torch: it computes no products.
        compiler: it compiles nothing.
    """

    gpu: str = ""
    torch: str = ""
    compiler: str = ""

    @classmethod
    def by(cls, now: Settings, *, build: bool) -> Spared:
        """By the settings in force, or as a machine that compiles kernels for others."""
        if build:
            return cls(gpu="--build", torch="--build")
        if now.backend == "reference":
            return cls(gpu="FP8GEMM_BACKEND=reference", compiler="FP8GEMM_BACKEND=reference")
        return cls(compiler="" if now.jit == "compile" else f"FP8GEMM_JIT={now.jit}")


def examine(found: Findings, spared: Spared) -> Iterator[Check]:
    """Everything but the settings, which come before there are findings."""
    probed = found.probed
    built = f", built with CUDA {dotted(probed.torch_cuda)}" if probed.torch_cuda else ""
    torch_spared = spared.gpu if probed.torch_version else spared.torch
    yield _judged("torch", judge_torch(probed), f"torch {probed.torch_version}{built}", torch_spared)
    problem = judge_driver(probed)
    yield _judged("driver", problem, f"serves CUDA {dotted(probed.driver_version or (0, 0))}", spared.gpu)
    yield _gpu(found, spared, driver_runs=problem is None)
    yield _nvrtc(found, spared)
    yield from _cache(found, spared)
    yield _warmup(found, spared)


def _judged(name: str, problem: Diagnosis | None, well: str, spared: str) -> Check:
    return Check(name, Verdict.OK, well) if problem is None else _needed(name, problem.found, problem.advice, spared)


def _needed(name: str, found: str, mend: str, spared: str, verdict: Verdict = Verdict.PROBLEM) -> Check:
    """A problem, or a warning, unless the machine does without the part."""
    if spared:
        return Check(name, Verdict.OK, f"{found.rstrip('.')} (not needed: {spared})")
    return Check(name, verdict, found, mend)


def _gpu(found: Findings, spared: Spared, *, driver_runs: bool) -> Check:
    if not driver_runs and not found.probed.gpus:
        return _needed("GPU", "not looked for without a driver", "the driver first", spared.gpu, Verdict.WARNING)
    diagnosis = judge_gpus(found.probed)
    well = "; ".join(f"GPU {gpu.index}: {gpu}" for gpu in found.gpus)
    return _judged("GPU", None if diagnosis.status is DeviceStatus.READY else diagnosis, well, spared.gpu)


def _nvrtc(found: Findings, spared: Spared) -> Check:
    version, driver = found.nvrtc.version, found.probed.driver_version
    if version is None:
        return _needed("NVRTC", found.nvrtc.problem, _INSTALL_NVRTC, spared.compiler)
    text = f"{version}, {found.nvrtc_path}" if found.nvrtc_path else version
    if driver is not None and int(version.split(".")[0]) > driver[0]:
        return _needed(
            "NVRTC",
            f"{text}: the driver, which serves CUDA {dotted(driver)}, takes no kernel that it compiles",
            f"update the driver; or `pip uninstall nvidia-cuda-nvrtc`, {_INSTALL_NVRTC} and `fp8gemm warmup "
            "--recompile`",
            spared.gpu or spared.compiler,
        )
    return Check("NVRTC", Verdict.OK, text)


def _cache(found: Findings, spared: Spared) -> Iterator[Check]:
    """Each directory, then where new kernels go, and whether there is room."""
    for layer in found.cache:
        yield _layer(layer, last=layer is found.cache[-1])
    place = _receives(found.cache)
    if place is None:
        listed = os.pathsep.join(layer.path for layer in found.cache)
        yield _needed(
            "new kernels",
            "no cache directory can be written: what is compiled lasts as long as the process",
            f"FP8GEMM_CACHE_DIR={shlex.quote(f'{listed}:/a/directory/of/yours'.lstrip(':'))}; or FP8GEMM_JIT=error, if "
            "all kernels are there",
            spared.compiler,
        )
    elif spared.compiler:
        yield Check("new kernels", Verdict.OK, f"none are compiled: {spared.compiler}")
    else:
        yield Check("new kernels", Verdict.OK, f"go to {place}")
        yield _room(place)


def _layer(layer: CacheLayer, *, last: bool) -> Check:
    path, quoted = layer.path, shlex.quote(layer.path)
    if layer.state == REFUSED:
        mend = (
            f"give it to the user who runs this, or to root, and `chmod go-w {quoted}`; or, if whoever can write there "
            f"may run code in this process, FP8GEMM_TRUSTED_DIRS={quoted}"
        )
        return Check("cache", Verdict.PROBLEM, f"{path}: {layer.note}", mend)
    if layer.state == UNREADABLE:
        mend = f"look at the disk, the mount and the permissions of what is above it: `namei -l {quoted}`"
        return Check("cache", Verdict.PROBLEM, f"{path}: {layer.note}", mend)
    if layer.state == ABSENT and not last:
        mend = "mount or make it, or take it out of FP8GEMM_CACHE_DIR"
        return Check("cache", Verdict.WARNING, f"{path}: not there; only the last directory is made when needed", mend)
    what = layer.note if layer.state == ABSENT else layer.state
    return Check("cache", Verdict.OK, f"{path}: {what}, {counted(layer.kernels, 'kernel')}, {size_text(layer.bytes)}")


def _receives(layers: tuple[CacheLayer, ...]) -> Path | None:
    """Where `Store.writable_layer` would put a kernel; unlike that, it makes nothing."""
    for layer in reversed(layers):
        absent = layer.state == ABSENT and layer is layers[-1]
        if layer.state == State.WRITABLE.value or (absent and _can_be_made(Path(layer.path))):
            return Path(layer.path)
    return None


def _can_be_made(path: Path) -> bool:
    parent = _nearest(path)
    return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def _nearest(path: Path) -> Path:
    """The path, or what of the directories above it is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _room(place: Path) -> Check:
    try:
        status = os.statvfs(_nearest(place))
    except OSError as error:
        return Check("room", Verdict.WARNING, f"{place}: {error}", f"`df -h {shlex.quote(str(place))}`")
    free = status.f_bavail * status.f_frsize
    found = f"{size_text(free)} free for {place}"
    if free >= FAIR_ROOM:
        return Check("room", Verdict.OK, found)
    mend = "make room, as by `fp8gemm cache prune --older-than 30d`, or name another disk in FP8GEMM_CACHE_DIR"
    return Check("room", Verdict.PROBLEM if free < LITTLE_ROOM else Verdict.WARNING, found, mend)


def _warmup(found: Findings, spared: Spared) -> Check:
    kernels = sum(layer.kernels for layer in found.cache)
    if kernels:
        text = f"{counted(kernels, 'kernel')} ready; the same warmup with --check says whether a model needs more"
        return Check("warmup", Verdict.OK, text)
    if spared.gpu:
        return _needed("warmup", "no kernel is ready", _WARM_UP, spared.gpu)
    if spared.compiler:
        text = f"no kernel is ready, and {spared.compiler} compiles none: every product is an error"
        return Check("warmup", Verdict.PROBLEM, text, _WARM_UP)
    text = "no kernel is ready: each is compiled when a product first needs it"
    return Check("warmup", Verdict.WARNING, text, _WARM_UP)
