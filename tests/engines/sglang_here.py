"""SGLang in this process, on a CPU that it takes for a Hopper GPU, with fp8gemm's reference for kernels; or, with
FP8GEMM_TEST_ON_GPU=1, on the GPU that is there.

A plugin of pytest (``-p tests.engines.sglang_here``), or imported before anything of SGLang. SGLang's own are its
plugins, its layers, its choice among functions, its wrapper of DeepGEMM, its runner of experts. What stands in is all
below, and in `tests.engines.sglangs_compiled`: on a GPU too, unless tvm_ffi is there, by which SGLang compiles. On a
CPU its Triton kernels are interpreted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomllib

ON_GPU = os.environ.get("FP8GEMM_TEST_ON_GPU") == "1"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ["SGLANG_JIT_DEEPGEMM_PRECOMPILE"] = "0"
scratch = tempfile.TemporaryDirectory()  # until the process ends
os.environ["SGLANG_CACHE_DIR"] = os.path.join(scratch.name, "cache")

import torch  # noqa: E402
import transformers.models.llama.modeling_llama  # noqa: E402, F401  # before a torchvision that only stands in

from tests.children import ROOT  # noqa: E402
from tests.engines import packages, place  # noqa: E402
from tests.engines.cuda_on_cpu import redirect  # noqa: E402
from tests.engines.sglangs_compiled import compiled  # noqa: E402
from tests.engines.stand_ins import StandIns  # noqa: E402

PACKAGES = {"IPython", "partial_json_parser", "sentencepiece", "sgl_kernel", "starlette", "torchvision", "tvm_ffi"}
GROUP = "sglang.srt.plugins"
THEIRS = """
asked = []
def fp8_gemm_nt(*operands, recipe=None):
    if recipe != (1, 32, 32):
        raise AssertionError("fp8gemm has it")
    asked.append(recipe)
    operands[2].zero_()
def m_grouped_fp8_gemm_nt_contiguous(*_, **__):
    raise AssertionError("fp8gemm has it")
def fp8_m_grouped_gemm_nt_masked(*operands, enable_overlap=False, max_block_n=256, signal=None):
    if not enable_overlap:
        raise AssertionError("fp8gemm has it")
    asked.append((max_block_n, signal))
    return 64, 10
from . import utils
"""
"""sgl-deep-gemm's products that are reached: those that fp8gemm has not."""

LAYOUT = """
def get_mn_major_tma_aligned_tensor(scales):
    rows = scales.shape[-2]
    out = scales.new_empty(*scales.shape[:-2], scales.shape[-1], -(-rows // 4) * 4).mT[..., :rows, :]
    return out.copy_(scales)
"""
"""What SGLang takes out of it while it is imported, and then keeps."""


def write_packages(directory: Path) -> None:
    """Another DeepGEMM, as sgl-deep-gemm is one beside SGLang; and fp8gemm's entry points, as where it is installed."""
    package = directory / "deep_gemm"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").write_text(THEIRS)
    (package / "utils" / "__init__.py").write_text("from . import layout\n")
    (package / "utils" / "layout.py").write_text(LAYOUT)
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    installed = directory / "fp8gemm-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fp8gemm\nVersion: 0\n")
    lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in entry_points.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")


def say_hopper() -> None:
    """What torch tells of the GPU, which SGLang asks while it is imported."""
    found: Any = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        total_memory=1 << 37,
    )
    torch.version.cuda = "12.9"  # type: ignore[assignment]
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: found  # type: ignore[assignment]
    torch.cuda.get_device_name = lambda *_: found.name
    torch.cuda.mem_get_info = lambda *_: (1 << 36, 1 << 37)  # type: ignore[assignment]


theirs = Path(scratch.name, "theirs")
write_packages(theirs)
sys.path[:0] = [str(theirs), str(place("sglang"))]
sys.path.append(str(packages()))
stand_ins = StandIns(PACKAGES, set())
stand_ins.install()
sys.modules["sgl_kernel.scalar_type"] = None  # type: ignore[assignment]  # SGLang has values for where it is not
if not ON_GPU:
    say_hopper()

import sglang.kernels.jit.utils as jit  # noqa: E402
import sglang.srt.utils.common as common  # noqa: E402


class OnCpu(torch.library.Library):
    """SGLang's operators, which it has for CUDA."""

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        super().impl(op_name, fn, "CPU" if dispatch_key == "CUDA" else dispatch_key, **options)


if not ON_GPU:
    common.sglang_lib = OnCpu("sglang", "FRAGMENT")  # noqa: TOR901
    jit.get_jit_cuda_arch = lambda: SimpleNamespace(major=9, minor=0, suffix="a")
if not ON_GPU or "tvm_ffi" in stand_ins.used:
    jit.load_jit = compiled

from sglang.srt.plugins import load_plugins  # noqa: E402

if os.environ.get("FP8GEMM_TEST_PLUGINS_FIRST"):  # SGLang's main process; its schedulers load them after these imports
    load_plugins()

import sglang.srt.layers.deep_gemm_wrapper  # noqa: E402, F401
import sglang.srt.layers.linear  # noqa: E402, F401
import sglang.srt.layers.moe.fused_moe_triton  # noqa: E402, F401
from sglang.kernels.ops.moe import ep_moe_kernels  # noqa: E402
from sglang.srt.layers.moe.utils import initialize_moe_config  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # noqa: E402

load_plugins()
if ON_GPU:
    torch.set_default_device("cuda")
else:
    from tests.engines import triton_on_cpu

    triton_on_cpu.extend(ep_moe_kernels)
    redirect()


@contextmanager
def configured() -> Iterator[None]:
    """With SGLang's configuration of a server whose experts have DeepGEMM, of one rank."""
    ranks = dict.fromkeys(("tp_rank", "attn_tp_rank", "moe_ep_rank", "moe_tp_rank"), 0)
    with get_context().override_server_args(moe_runner_backend="deep_gemm"):
        initialize_moe_config()
        with get_parallel().override(**ranks, tp_group=None):
            yield
