"""fp8gemm in vLLM: a kernel of its own for linear layers with 128x128 scales, first in vLLM's list of such kernels.

vLLM asks each kernel of that list whether it can serve a layer and takes the first that can; `register` puts
`fp8gemm.integrations.vllm.linear.Fp8GemmBlockScaledMMKernel` ahead of all. The list is not part of what vLLM promises:
where it is not found as it was in 0.33.0, a warning says what is missing, and vLLM takes its own kernels as ever.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from fp8gemm.errors import UnsupportedError
from fp8gemm.frozen import dataclass
from fp8gemm.installed import installed_version

KERNEL = "Fp8GemmBlockScaledMMKernel"
"""The name that vLLM's log says, and that ``VLLM_DISABLED_KERNELS`` takes."""

REGISTRY = "vllm.model_executor.kernels.linear"
LIST = "_POSSIBLE_FP8_BLOCK_KERNELS"
_ENVIRONMENT = "FP8GEMM_ENGINES"

_problems: list[str] = []
"""Why `register` could not; one at most."""


@dataclass(frozen=True)
class LinearKernel:
    """Whether vLLM has the linear kernel.

    Attributes:
        vllm: the version that is installed; None if there is none.
        registered: whether the kernel is in vLLM's list, in this process.
        ahead_of: the kernels behind it, best first.
        problem: why it is not in the list, or will not be; empty if nothing is known against it.
    """

    vllm: str | None
    registered: bool
    ahead_of: tuple[str, ...]
    problem: str


def register() -> bool:
    """Put the kernel first in vLLM's list for CUDA, in this process. A second call changes nothing. No GPU is touched.

    Returns:
        Whether it is there. If not, a warning has said why, once, and vLLM is as it was.
    """
    if _problems:
        return False
    try:
        kernels = _kernels()
        kernel = import_module("fp8gemm.integrations.vllm.linear").Fp8GemmBlockScaledMMKernel
        _mark_compiled_graphs()
    except Exception as error:  # another vLLM may fail in any way
        _problems.append(f"{type(error).__name__}: {error}")
        warnings.warn(
            f"fp8gemm: vLLM {installed_version('vllm')} takes its own kernels for linear layers, because its list of "
            f"such kernels is not as in 0.33.0. {_problems[0]}",
            stacklevel=2,
        )
        return False
    if kernel not in kernels:
        kernels.insert(0, kernel)
    return True


def unregister() -> None:
    """Undo `register`; without one, nothing happens."""
    _problems.clear()
    if REGISTRY in sys.modules:
        kernels = _kernels()
        kernels[:] = [kernel for kernel in kernels if kernel.__name__ != KERNEL]
        import_module("vllm.envs").environment_variables.pop(_ENVIRONMENT, None)


def linear_kernel() -> LinearKernel:
    """What there is to say of it, without importing vLLM, which takes long."""
    version, names = installed_version("vllm"), []
    if not _problems and REGISTRY in sys.modules:
        names = [kernel.__name__ for kernel in _kernels()]
    registered = KERNEL in names
    problem = _problems[0] if _problems else "" if registered else _foreseen()
    return LinearKernel(version, registered, tuple(name for name in names if registered and name != KERNEL), problem)


def _kernels() -> list[Any]:
    """vLLM's list for CUDA, itself."""
    registry = import_module(REGISTRY)
    by_platform = getattr(registry, LIST, None)
    platform = import_module("vllm.platforms").PlatformEnum.CUDA
    if not isinstance(by_platform, dict) or not isinstance(by_platform.get(platform), list):
        raise UnsupportedError(f"{REGISTRY}.{LIST}: expected lists of kernels by platform, found none for CUDA")
    kernels: list[Any] = by_platform[platform]
    return kernels


def _mark_compiled_graphs() -> None:
    """Make the kernel a part of what vLLM knows compiled graphs by.

    NOTE: vLLM keeps them on disk by its configuration and its environment variables, and looks for one before any layer
    is traced. Without this, a graph from before fp8gemm was there would go on calling the kernels it was made with.
    """
    variables = import_module("vllm.envs").environment_variables
    version = import_module("fp8gemm").__version__
    variables[_ENVIRONMENT] = lambda: f"{KERNEL} {version}"


def _foreseen() -> str:
    """Why a `register` would fail, as far as vLLM's files tell."""
    try:
        found = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        return "vLLM is not installed"
    path = Path(found.submodule_search_locations[0], *REGISTRY.split(".")[1:], "__init__.py")
    try:
        text = path.read_text()
    except OSError:
        return f"{REGISTRY}: expected a module, found none"
    missing = [name for name in (LIST, "Fp8BlockScaledMMLinearKernel") if name not in text]
    return f"{REGISTRY}: expected {' and '.join(missing)} in it, found none" if missing else ""
