"""The command line where something is amiss: one line says what, whatever it is, and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8gemm.errors import InputError
from fp8gemm.kernels.recording import recorded
from tests.attacked import NO_TORCH, ROOT, attacked
from tests.isolation import take_interrupts

LISTED = ["warmup", "--nk", "512x512", "--list"]
LONG = "a" * 100_000
GEMM = {"m": 1, "n": 8, "k": 16}
NORM = {"input": "bf16", "weight": "bf16", "k": 512, "residual": False}
GROUPED = {"grouping": "masked", "groups": 1, **GEMM}


def norm(**changes: Any) -> dict[str, Any]:
    return {"quantizer": "QuantizeNorm", "config": {**NORM, **changes}}


RECORDINGS: dict[str, tuple[Any, str]] = {
    "a list": ([1], "the line to be an object; found"),
    "a number": (5, "the line to be an object; found 5"),
    "null": (None, "the line to be an object; found None"),
    "a string with the word": ("gemm", "the line to be an object; found 'gemm'"),
    "a product that is a number": ({"gemm": 5}, "gemm to be an object; found 5"),
    "a product that is a list": ({"gemm": [1]}, "gemm to be an object"),
    "a type that is a list": ({"gemm": {**GEMM, "output": []}}, "output to be one of bfloat16, float16, float32"),
    "a type that is none": ({"gemm": {**GEMM, "store": "x" * 1000}}, "store to be one of tma, predicated; found 'xxx"),
    "a mode that is a string": ({"gemm": {**GEMM, "batch_invariant": "x"}}, "batch_invariant to be true or false"),
    "a mode that is a list": ({"gemm": {**GEMM, "static_weights": []}}, "static_weights to be true or false"),
    "a size that is a truth": ({"gemm": {**GEMM, "m": True}}, "m to be a whole number; found True"),
    "a size that is a fraction": ({"gemm": {**GEMM, "n": 8.0}}, "n to be a whole number; found 8.0"),
    "a field too many": ({"gemm": {**GEMM, "colour": 1}}, "no fields but .*; found 'colour'"),
    "a field too few": ({"grouped": GEMM}, "missing"),
    "a grouping that is a list": ({"grouped": {**GROUPED, "grouping": []}}, "grouping to be one of none, contiguous"),
    "groups without end": ({"grouped": {**GROUPED, "groups": 10**99}}, "expected 1 to 1024 groups"),
    "K below 0": ({"gemm": {**GEMM, "k": -5}}, "K = -5"),
    "a quantiser that is a number": ({"quantizer": 5, "config": {}}, "quantizer to be a string; found 5"),
    "constants that are a number": ({"quantizer": "QuantizeNorm", "config": 5}, "config to be an object; found 5"),
    "constants that are a list": ({"quantizer": "QuantizeNorm", "config": [1]}, "config to be an object"),
    "a constant that is a list": (norm(input=[]), "expected input to be"),
    "K of a quantiser below 0": (norm(k=-5), "K = -5"),
    "K of a quantiser that is 0": (norm(k=0), "K = 0"),
    "K of a quantiser that is a string": (norm(k="512"), "k to be a whole number; found '512'"),
    "K of a quantiser without end": (norm(k=float("inf")), "expected k to be"),
    "a number of 400 digits": ({"gemm": {**GEMM, "m": 10**400}}, "at most 100 digits; found one of 401"),
    "K of 400 digits": (norm(k=10**400), "at most 100 digits; found one of 401"),
}


@pytest.mark.parametrize("case", RECORDINGS)
def test_a_recording_of_wrong_types_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    line, complaint = RECORDINGS[case]
    file = tmp_path / "asked.jsonl"
    file.write_text(f"{json.dumps({'gemm': GEMM})}\n{json.dumps(norm())}\n{json.dumps(line)}\n")
    wrote = r"asked\.jsonl:3: expected a line that FP8GEMM_RECORD wrote: .*"
    with pytest.raises(InputError, match=wrote + complaint) as caught:
        recorded(file)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("words", [["explain", "64", "512", "512"], ["cache", "ls"], LISTED, ["--help"], ["--version"]])
def test_a_full_standard_output_is_one_line(words: list[str], tmp_path: Path) -> None:
    done = attacked(*words, shell=">/dev/full", FP8GEMM_CACHE_DIR=str(tmp_path))
    assert done.code == 1 and done.line.endswith("[Errno 28] No space left on device")


@pytest.mark.parametrize("words", [["explain", "64", "512", "512"], ["cache", "ls"], ["--help"]])
def test_a_closed_standard_output_is_one_line(words: list[str]) -> None:
    done = attacked(*words, shell=">&-")
    assert (done.code, done.line) == (1, "fp8gemm: expected a standard output to print to; it is closed")


def test_other_streams_may_be_closed(tmp_path: Path) -> None:
    done = attacked(*LISTED, shell="2>&- <&-")
    assert done.code == 0 and "dense_1d2d-n512-k512" in done.out
    (tmp_path / "cache").mkdir(mode=0o700)
    done = attacked("cache", "clear", str(tmp_path / "cache"), shell="<&-")
    assert done.code == 0 and done.err == ""
    assert attacked("cache", "ls", str(tmp_path / "nowhere"), shell="2>&-").code == 1


@pytest.mark.parametrize(
    "words", [["cache", "ls", "here"], ["explain", "64", "512", "512"], ["warmup", "--model", "x"]]
)
def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    done = attacked(*words, cwd=tmp_path / "gone", prepare=lambda: shutil.rmtree(tmp_path / "gone"))
    assert (done.code, done.out) == (1, "")
    assert done.line == "fp8gemm: expected a working directory; the one that this was started in is gone"


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "utf-8"])
def test_names_are_printed_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    for name in ("caché", os.fsdecode(b"ca\xffche"), "鍵"):
        (tmp_path / name).mkdir(mode=0o700)
        done = attacked("cache", "ls", str(tmp_path / name), PYTHONIOENCODING=encoding)
        assert (done.code, done.err) == (0, "") and "writable, 0 kernels" in done.out
        done = attacked(*LISTED, "--model", str(tmp_path / name / "x"), PYTHONIOENCODING=encoding)
        assert done.code == 1 and "expected a config.json" in done.line


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["cache", "ls", LONG], {}),
        (["cache", "import", LONG], {}),
        (["warmup", "--list", "--model", LONG], {}),
        (["warmup", "--list", "--recorded", LONG], {}),
        (["info"], {"FP8GEMM_JIT": LONG}),
        (["explain", "64", "512", "512"], {"FP8GEMM_NUM_SMS": "9" * 5000}),
        (["cache", "ls", "~nobodyofthatname/x"], {}),
    ],
)
def test_a_name_without_end_is_quoted_in_few_characters(words: list[str], variables: dict[str, str]) -> None:
    done = attacked(*words, **variables)
    assert done.code == 1 and done.out == "" and len(done.line) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["warmup", "--nk", LONG],
        ["warmup", "--chip", LONG],
        ["explain", "9" * 100_000, "1", "16"],
        ["cache", "prune", "--max-bytes", "9" * 400],
        ["cache", "prune", "--older-than", "9" * 400 + "d"],
        [LONG],
    ],
)
def test_an_option_without_end_is_quoted_in_few_characters(words: list[str]) -> None:
    done = attacked(*words)
    assert done.code == 2 and "Traceback" not in done.err and len(done.err.splitlines()[-1]) < 700


@pytest.mark.parametrize(
    ("words", "code"),
    [(["demo", "--m", "1", "--nk", "256x256"], 1), (["bench"], 3), (["tune"], 3)],
)
def test_commands_that_need_torch_say_so_in_one_line(words: list[str], code: int) -> None:
    done = attacked(*words, startup=NO_TORCH)
    (line,) = (done.out + done.err).splitlines()
    assert done.code == code and "torch" in line and "not installed" in line


def test_info_without_torch_says_what_it_can() -> None:
    done = attacked("info", "--json", startup=NO_TORCH)
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert found["torch"] == {"version": None, "problem": "the package torch is not installed"}
    assert found["status"] == "no torch" and "warmups do not" in found["message"] and found["nvrtc"]["version"]
    text = attacked("info", startup=NO_TORCH).out
    assert "none: the package torch is not installed\n" in text


def test_a_torch_that_is_broken_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    place = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    found = json.loads(attacked("info", "--json", startup=place).out)
    assert found["torch"]["problem"] == "torch cannot be imported: libcudart.so.12: cannot open shared object file"
    done = attacked("demo", startup=place)
    assert done.code == 1 and done.line == "fp8gemm: libcudart.so.12: cannot open shared object file"


SLOW_IMPORT = """
import sys, types, time, os

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            try:
                os.write({descriptor}, b"!")
                time.sleep(30)
            except BaseException as error:  # as extension modules may
                raise ImportError("swallowed") from error

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--help"], "fp8gemm.cli.main"),
        (["explain", "64", "512", "512"], "fp8gemm.tuning"),
        (["info"], "torch"),
        (["bench"], "torch"),
        (["tune"], "torch"),
        (["demo"], "torch"),
    ],
)
def test_an_interrupt_while_modules_are_loaded_is_quiet(tmp_path: Path, words: list[str], name: str) -> None:
    reading, writing = os.pipe()
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT.format(name=name, descriptor=writing))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "fp8gemm", *words]
    child = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, pass_fds=[writing], preexec_fn=take_interrupts
    )
    os.close(writing)
    assert os.read(reading, 1) == b"!", "the import has begun"
    os.close(reading)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20)[1] == "" and child.returncode == 130
