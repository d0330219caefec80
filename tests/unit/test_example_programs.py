"""The programs in examples/ that need no more than one GPU, or none: each runs, and what it computes is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.lab.profiling.trace import roles, summarise
from tests.children import ROOT, environment

TRACE = ROOT / "docs" / "results" / "timeline-h200.json"

MOST_PERCENT = {"product.py": 4.5, "linear_layers.py": 4.0, "experts.py": 8.0}
"""Off what bfloat16 or float32 weights give: quantisation alone is 3.7 % on normal data."""
RUN_ELSEWHERE = {"serve_tp.py"}
"""In tests/distributed."""
RUN_HERE = {"cuda_graph_server.py", "hf_model.py", "read_the_trace.py", "training_step.py"}
"""Below."""


def said(name: str, cache: Path, *options: str) -> str:
    words = [sys.executable, str(ROOT / "examples" / name), *options]
    # One thread, because small products on a machine that is busy wait for each other's threads.
    variables = environment(FP8GEMM_CACHE_DIR=str(cache), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    ran = subprocess.run(words, capture_output=True, text=True, env=variables, cwd=cache, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", MOST_PERCENT)
def test_a_program_says_how_far_off_it_is(name: str, tmp_path: Path) -> None:
    assert 0.1 < percent_off(said(name, tmp_path).splitlines()[-1]) < MOST_PERCENT[name]


def percent_off(line: str) -> float:
    off = re.search(r"([\d.]+) % off", line)
    assert off is not None, line
    return float(off[1])


def test_a_server_answers_every_request_without_compiling(tmp_path: Path) -> None:
    lines = said("cuda_graph_server.py", tmp_path).splitlines()
    assert "kernels are ready" in lines[0]
    assert [line.partition(":")[0] for line in lines[-4:]] == [
        "1 requests in a batch of 1",
        "5 requests in a batch of 8",
        "30 requests in a batch of 32",
        "8 requests in a batch of 8",
    ]


@pytest.fixture
def transformers() -> ModuleType:
    for name in ("safetensors", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    module: ModuleType = pytest.importorskip("transformers", reason="transformers is not installed")
    return module


def test_a_model_of_transformers_is_made_saved_and_read_again(transformers: ModuleType, tmp_path: Path) -> None:
    lines = said("hf_model.py", tmp_path, "--tokens", "4").splitlines()
    assert "left: lm_head: it is the head, left unless head=True" in lines
    assert "saved and read again, the same logits: True" in lines
    for begins in ("the original says ", "the FP8 model "):
        (tokens,) = (line for line in lines if line.startswith(begins))
        assert len(tokens.split(", ")) == 4
    assert 1.0 < percent_off(lines[-1]) < 20.0


@pytest.mark.parametrize("is_fp8", [False, True])
def test_a_checkpoint_in_a_directory_is_read(transformers: ModuleType, is_fp8: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    from tests import transformers_models as models

    directory = tmp_path / "checkpoint"
    model = models.new_model(models.qwen3(hidden_size=512, intermediate_size=512, num_hidden_layers=1))
    if is_fp8:
        models.write_checkpoint(directory, model)
    else:
        model.save_pretrained(directory)
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(models.VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    lines = said("hf_model.py", tmp_path, "--model", str(directory), "--prompt", "w1 w7", "--tokens", "2").splitlines()
    (whole,) = (line.split() for line in lines if line.startswith("whole model"))
    layers, before, after = int(whole[2]), float(whole[3]), float(whole[4])
    # What was in FP8 before stays as it was; the narrow projections of a model that is converted stay too.
    assert (layers, before) == (7, after) if is_fp8 else layers < 7 and after < before
    assert 0.1 < percent_off(lines[-1]) < 20.0


def test_the_trace_that_is_shipped_is_told(tmp_path: Path) -> None:
    text = said("read_the_trace.py", tmp_path, "--from", str(TRACE), "--picture", "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "NVIDIA H200" in text.splitlines()[0]
    timeline = Timeline.from_json(json.loads(TRACE.read_text()))
    for summary in summarise(timeline.spans):
        assert f"   {summary.line()}\n" in text
    pictures = re.findall(r"^   (load|consumer \d|store \d) +(\S{100})$", text, re.MULTILINE)
    assert [role for role, _ in pictures] == roles(timeline.spans)
    seen = {role.split()[0]: set(line) for role, line in pictures}
    assert seen["load"] <= set("L.-") and seen["consumer"] <= set("Mp!s-") and seen["store"] <= set("S.-")
    assert "M" in seen["consumer"] and "s" in seen["consumer"]


def test_a_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    (other := tmp_path / "other.json").write_text('{"traceEvents": []}')
    for path in (other, tmp_path / "gone.json"):
        with pytest.raises(AssertionError, match=r"error: --from: .*(expected a trace|gone\.json)"):
            said("read_the_trace.py", tmp_path, "--from", str(path))


@pytest.mark.parametrize("name", ["hf_model.py", "read_the_trace.py"])
def test_a_program_says_how_it_is_run(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if name == "hf_model.py":
        request.getfixturevalue("transformers")
    text = said(name, tmp_path, "--help")
    assert f"    python examples/{name}" in text


def test_a_model_learns_as_much_with_fp8_products_as_in_bfloat16(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    written, drawn = tmp_path / "loss.json", tmp_path / "loss.png"
    last = said(
        "training_step.py", tmp_path, "--steps", "8", "--json", str(written), "--plot", str(drawn)
    ).splitlines()[-1]
    result = json.loads(written.read_text())
    for losses in result["losses"].values():
        assert len(losses) == 8 and losses[-1] < 0.8 * losses[0]
    exact, bf16, fp8 = (result["unseen"][form] for form in ("float32", "bfloat16", "fp8"))
    assert f"fp8 {fp8:.4f}" in last and abs(fp8 / exact - 1) < 0.02 and abs(bf16 / exact - 1) < 0.01
    assert result["losses"]["fp8"] != result["losses"]["bfloat16"], "nothing was FP8"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_every_program_is_run_by_a_test() -> None:
    programs = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    assert programs == {*MOST_PERCENT, *RUN_ELSEWHERE, *RUN_HERE}
