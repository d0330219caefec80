"""What vLLM and SGLang load of fp8gemm, and what `fp8gemm info` says of it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import fp8gemm.integrations.deep_gemm as ours
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.integrations.engines import register, register_in_vllm
from tests.other_deep_gemm import imports, without_any, write

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("vllm.general_plugins", "sglang.srt.plugins")
"""`vllm/plugins/__init__.py` of vLLM 0.33.0, `sglang/srt/plugins/__init__.py` of SGLang 0.5.23."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with without_any(monkeypatch):
        yield


def entry_point(group: str) -> EntryPoint:
    """As an installed fp8gemm has it."""
    text = (ROOT / "pyproject.toml").read_text()
    (name, value) = re.search(
        rf'^\[project\.entry-points\."{re.escape(group)}"\]\n(\w+) = "(.+)"$', text, re.M
    ).groups()
    return EntryPoint(name, value, group)


@pytest.mark.filterwarnings("ignore:fp8gemm. vLLM None takes its own")  # there is none here
@pytest.mark.parametrize("group", GROUPS)
def test_entry_points_name_a_function_that_installs_only_where_it_is_asked_for(group: str) -> None:
    found = entry_point(group)
    assert found.name == "fp8gemm" and found.load() is (register_in_vllm if "vllm" in group else register)
    with settings.scope(engines=False):
        assert found.load()() is None and not ours.answers().installed and "deep_gemm" not in sys.modules
    with settings.scope(engines=True):
        for _ in range(2):  # engines may call it more than once in a process
            assert found.load()() is None and ours.answers().installed
    assert sys.modules.get("deep_gemm") is None, "it waits for who imports it"


PROGRAM = """
import sys
import torch, fp8gemm
fp8gemm_alone = set(sys.modules)
from importlib.metadata import EntryPoint
EntryPoint("fp8gemm", {value!r}, {group!r}).load()()
more = set(sys.modules) - fp8gemm_alone
print(sorted(name for name in more if name.split(".")[0] in ("fp8gemm", "cuda", "deep_gemm")))
assert not torch.cuda.is_initialized()
import importlib.util
spec = importlib.util.find_spec("deep_gemm")
print(spec is not None and type(spec.loader).__module__)
"""


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_process_pays_nothing_where_it_is_off_and_starts_no_gpu_where_it_is_on(value: str, tmp_path: Path) -> None:
    found = entry_point(GROUPS[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FP8GEMM_ENGINES": value}
    command = [sys.executable, "-c", PROGRAM.format(value=found.value, group=found.group)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, loader = done.stdout.splitlines()
    if value == "1":
        assert loader == "fp8gemm.integrations.deep_gemm.facade" and "fp8gemm.integrations.deep_gemm" in modules
        assert "'cuda" not in modules and "'deep_gemm" not in modules
    else:
        few = {f"fp8gemm.{name}" for name in ("integrations", "integrations.engines", "settings", "errors", "frozen")}
        assert set(ast.literal_eval(modules)) <= few
        assert loader != "fp8gemm.integrations.deep_gemm.facade"


def told(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], list[str]]:
    """What `fp8gemm info` says of DeepGEMM's functions, as JSON and as text."""
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["deep_gemm"]
    assert cli.main(["info"]) == 0
    return found, [line for line in capsys.readouterr().out.splitlines() if line.startswith("deep_gemm ")]


def test_info_says_where_functions_come_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(capsys) == (None, [])
    with settings.scope(engines=True):
        found, lines = told(capsys)
    assert not found["installed"] and found["other"] == "" and found["functions"]["fp8_gemm_nt"] == "fp8gemm"
    assert found["functions"]["mega_mhc"] == "nobody" and len(lines) == 2
    assert "fp8gemm: " in lines[0] and "fp8_gemm_nt" in lines[0]
    assert "nobody; install DeepGEMM" in lines[1] and "mega_mhc" in lines[1]

    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = write(tmp_path / "deep_gemm")
    module = ours.install()
    found, lines = told(capsys)
    assert found["installed"] and not found["loaded"] and found["functions"]["mega_mhc"] == "other"
    assert str(theirs) in lines[1] and "not imported yet" in lines[1] and not imports(theirs)
    assert module.later() == "theirs"
    found, lines = told(capsys)
    assert found["loaded"] and "not imported yet" not in lines[1]
    assert "fp8_fp4_mqa_logits" in lines[1] and "mega_mhc" in lines[2]
    ours.uninstall()

    (theirs / "_C.py").write_text("raise OSError('libcudart.so.13: not found')")
    assert not hasattr(ours.install(), "later")
    found, lines = told(capsys)
    assert found["problems"] and "libcudart.so.13: not found" in lines[-1]


VLLM = """
import importlib.util, sys, types
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
import fp8gemm.integrations.deep_gemm as ours
found = importlib.util.find_spec("vllm")
path = found and Path(found.submodule_search_locations[0]) / "utils" / "deep_gemm.py"
if not path or not path.is_file():
    print("there is no vLLM here whose utils/deep_gemm.py could be run")
    sys.exit(77)

def stub(name, **values):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(values)

class Yes:
    def __getattr__(self, name):
        return lambda *_, **__: True

platform = Yes()
platform.is_device_capability_family = lambda family: family == 90
platform.simple_compile_backend, platform.fp8_dtype = "eager", lambda: torch.float8_e4m3fn
envs = dict(VLLM_USE_DEEP_GEMM=True, VLLM_USE_DEEP_GEMM_E8M0=False, VLLM_CACHE_ROOT="/nowhere")
stub("vllm")
stub("vllm.envs", **envs)
sys.modules["vllm"].envs = sys.modules["vllm.envs"]
stub("vllm.logger", logger=Yes())
for name in ("model_executor", "model_executor.layers", "model_executor.layers.quantization", "utils"):
    stub("vllm." + name)
stub("vllm.model_executor.layers.quantization.utils")
stub("vllm.model_executor.layers.quantization.utils.quant_utils", get_fp8_min_max=lambda: (-448.0, 448.0))
stub("vllm.platforms", current_platform=platform)
stub("vllm.utils.import_utils", has_deep_gemm=lambda: importlib.util.find_spec("deep_gemm") is not None)
stub("vllm.utils.math_utils", cdiv=lambda a, b: -(-a // b))

module = ours.install()
spec = importlib.util.spec_from_file_location("vllm.utils.deep_gemm", path)
wrapper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wrapper)
assert wrapper.is_deep_gemm_supported() and wrapper._import_deep_gemm() is module
wrapper._lazy_init()
assert wrapper._fp8_gemm_nt_impl.__wrapped__ is ours.fp8_gemm_nt
assert wrapper._fp8_einsum_impl.__wrapped__ is ours.fp8_einsum and ours.get_pdl()
assert wrapper._grouped_impl.__wrapped__ is ours.m_grouped_fp8_gemm_nt_contiguous
assert wrapper._grouped_masked_impl.__wrapped__ is ours.m_grouped_fp8_gemm_nt_masked
assert wrapper.get_theoretical_mk_alignment_for_contiguous_layout(64, 8) == 128
with wrapper.mk_alignment_scope(64):
    assert wrapper.get_mk_alignment_for_contiguous_layout() == [64, 64]
assert wrapper.get_mk_alignment_for_contiguous_layout() == [128, 128]
x, w = torch.randn(4, 256).bfloat16(), torch.randn(128, 256).bfloat16()
b = wrapper.per_block_cast_to_fp8(w)
a = ours.per_token_cast_to_fp8(x, False)
wrapper.fp8_gemm_nt(a, b, d := torch.empty(4, 128, dtype=torch.bfloat16))
assert ours.calc_diff(d, x @ w.T) < 2e-3, ours.calc_diff(d, x @ w.T)
rows = torch.zeros(4, dtype=torch.int32)
grouped = b[0][None], wrapper.transform_sf_into_required_layout(b[1][None], 128, 256, (1, 128, 128), 1, is_sfa=False)
wrapper.m_grouped_fp8_gemm_nt_contiguous(a, grouped, e := torch.empty_like(d), rows)
assert torch.equal(d, e)
"""


def test_vllms_own_wrapper_calls_these_functions() -> None:
    """The file that vLLM calls DeepGEMM by, without the rest of vLLM."""
    command = [sys.executable, "-c", VLLM.format(root=str(ROOT))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
