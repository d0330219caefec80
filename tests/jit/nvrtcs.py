"""NVRTC libraries to compile kernels with: the one that is loaded anyway, and others in directories of their own.

A compiler's version decides the order of instructions, so what is claimed of machine code is looked for under several.
``FP8GEMM_TEST_NVRTC`` names directories, separated by ``:``, into which a wheel of another NVRTC was unpacked; the
environment that `make test` builds has one. A process can load one NVRTC alone, so each gets a process of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fp8gemm.jit.compiler import nvrtc_version
from fp8gemm.jit.request import KernelRequest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "FP8GEMM_TEST_NVRTC"

_PROGRAM = """\
import ctypes, pickle, sys
from pathlib import Path
library, requests, target = sys.argv[1], pickle.loads(sys.stdin.buffer.read()), Path(sys.argv[2])
if library:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
from fp8gemm import settings
from fp8gemm.jit import build
from fp8gemm.jit.compiler import nvrtc_version
from fp8gemm.jit.parallel import build_many
from tests import remembered
build.compile_program = remembered.compile_program
include = Path(sys.argv[3])
with settings.scope(cache_dirs=(target / "cache",), trusted_dirs=(), jit="compile"):
    for index, artifact in enumerate(build_many(requests, include_dir=include)):
        (target / f"{index}.cubin").write_bytes(artifact.cubin)
(target / "version").write_text(nvrtc_version())
"""


def libraries() -> list[str]:
    """Paths of the NVRTC libraries besides the one that is loaded anyway."""
    places = [Path(place) for place in os.environ.get(VARIABLE, "").split(":") if place]
    places += sorted(ROOT.glob(".venv/nvrtc-*"))
    return [str(path) for place in places for path in sorted(place.rglob("libnvrtc.so.*"))]


def is_older(library: str) -> bool:
    """Whether this NVRTC is of an earlier version than the one that is found anyway."""
    if not library:
        return False
    asked = "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); major, minor = ctypes.c_int(), ctypes.c_int(); "
    asked += "library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)); print(major.value, minor.value)"
    done = subprocess.run([sys.executable, "-c", asked, library], capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split())) < tuple(map(int, nvrtc_version().split(".")))


def compile_with(
    library: str, requests: Sequence[KernelRequest], target: Path, include: Path
) -> tuple[str, list[Path]]:
    """Compile kernels in a process that has loaded an NVRTC; "" is the one that it finds.

    Returns:
        The version, as "13.0", and the cubins in the order of the requests.
    """
    target.mkdir(parents=True)
    command = [sys.executable, "-c", _PROGRAM, library, str(target), str(include)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    if library:  # it opens another one of its own
        variables["LD_LIBRARY_PATH"] = os.path.dirname(library)
    done = subprocess.run(command, input=pickle.dumps(list(requests)), capture_output=True, cwd=ROOT, env=variables)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return (target / "version").read_text(), [target / f"{index}.cubin" for index in range(len(requests))]
