"""A package in the place of another DeepGEMM, for tests of what happens beside one; and a place without any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import fp8gemm.integrations.deep_gemm as ours
from fp8gemm.integrations.deep_gemm import other, runtime

PACKAGE = {
    "__init__.py": """
import os
with open(os.path.join(os.path.dirname(__file__), "imports"), "a") as file:
    file.write(__name__ + "\\n")
from . import _C, mega, utils
from ._C import get_num_sms, set_num_sms, set_pdl, set_tc_util
from .utils import *
def fp8_gemm_nt(*_, **__):
    return "theirs"
def m_grouped_fp8_gemm_nt_masked(*_, **__):
    return "theirs, masked"
def fp8_fp4_mqa_logits(q):
    return "theirs", q, _C.values
def k_grouped_fp8_gemm_tn_contiguous():
    return "theirs"
def later():
    from .utils.dist import init_dist
    return init_dist()
""",
    "_C.py": """
values = {}
def get_num_sms():
    return values["num_sms"]
def set_num_sms(n):
    values["num_sms"] = n
def set_pdl(enabled):
    values["pdl"] = enabled
def set_tc_util(percent):
    if percent == 13:
        raise RuntimeError("13")
    values["tc_util"] = percent
""",
    "mega/__init__.py": "def mega_moe():\n    return 'theirs'\n",
    "legacy/__init__.py": "from ..mega import mega_moe\n",
    "utils/__init__.py": "from . import layout\nfrom .layout import *\n",
    "utils/layout.py": (
        "def get_mn_major_tma_aligned_tensor(sf):\n    return 'theirs'\n"
        "def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf):\n    return 'theirs'\n"
    ),
    "utils/dist.py": "def init_dist():\n    return 'theirs'\n",
}
"""A package with DeepGEMM's habits: a compiled part that keeps values, modules that import each other relatively."""


def write(directory: Path) -> Path:
    for name, text in PACKAGE.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def imports(directory: Path) -> list[str]:
    noted = directory / "imports"
    return noted.read_text().split() if noted.exists() else []


@contextmanager
def without_any(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No DeepGEMM of this machine's, and afterwards everything as it was."""
    for name in ("_num_sms", "_pdl", "_tc_util", "_mk_alignment", "_made"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("deep_gemm", "vllm")}
    before, find = [Path(name) for name in sys.path if name], other._spec

    def find_new(name: str) -> ModuleSpec | None:
        spec = find(name)
        origin = spec and spec.origin
        return None if origin and any(Path(origin).is_relative_to(place) for place in before) else spec

    monkeypatch.setattr(other, "_spec", find_new)
    finders = list(sys.meta_path)
    yield
    ours.uninstall()
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith("_other_deep_gemm")]
    for name in [name for name in sys.modules if name.split(".")[0] in ("deep_gemm", "vllm")]:
        del sys.modules[name]
    sys.modules.update(kept)
