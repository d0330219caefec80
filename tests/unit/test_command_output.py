"""Where commands tell what, and with which code they end: the same of every one, and of the scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.cli import profile
from fp8gemm.cli.exits import Exit
from fp8gemm.driver import device
from fp8gemm.driver.device import DeviceStatus, Diagnosis
from tests.scripts import load_script

DOCUMENTED = {
    "demo": ["demo", "--m", "1", "--nk", "128x128"],
    "info": ["info"],
    "doctor": ["doctor", "--build"],
    "explain": ["explain", "64", "256", "512"],
    "report": ["report", "--nk", "256x512", "--m", "8", "--max-m", "8", "--no-measure"],
    "warmup --list": ["warmup", "--nk", "128x128", "--max-m", "8", "--list"],
    "warmup --check": ["warmup", "--quantizers", "128", "--check"],
    "cache ls": ["cache", "ls"],
    "cache verify": ["cache", "verify"],
    "cache clear": ["cache", "clear", "--yes"],
}
"""Commands that have something to tell without a GPU."""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache directory of the test's own: by the settings, because the environment may have been read before."""
    with settings.scope(cache_dirs=(tmp_path / "cache",)):
        yield tmp_path / "cache"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_json_is_all_of_standard_output_or_goes_to_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = cli.main([*DOCUMENTED[name], "--json"])
    printed = json.loads(capsys.readouterr().out)
    file = tmp_path / "new" / "out.json"
    assert cli.main([*DOCUMENTED[name], "--json", str(file)]) == code
    told, written = capsys.readouterr().out, json.loads(file.read_text())
    assert told and not told.startswith(("{", "[")), "people are told the same as ever"
    assert type(written) is type(printed) and (isinstance(written, list) or written.keys() == printed.keys())


@pytest.mark.usefixtures("cache")
def test_values_of_kernels_are_words_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["warmup", "--nk", "128x128", "--max-m", "8", "--chip", "h200", "--calls", "gemm"]
    assert cli.main([*words, "--epilogue", "none,bias"]) == 0 and capsys.readouterr()
    assert cli.main(["cache", "ls", "--json"]) == 0
    configs = [
        kernel["config"] for each in json.loads(capsys.readouterr().out)["directories"] for kernel in each["kernels"]
    ]
    assert {config["bias"] for config in configs if "bias" in config} == {"none", "bfloat16"}
    texts = {value for config in configs for value in config.values() if isinstance(value, str)}
    assert texts and not [text for text in texts if "." in text], "no value is Python's name of it"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "diagnose", lambda index=0: Diagnosis(DeviceStatus.NO_GPU, "no GPU here"))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("words", [["bench"], ["tune"], ["report", "--nk", "256x512", "--measure"]])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_a_gpu_a_command_that_needs_one_ends_with_3(
    words: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, *more]) == 3
    told = capsys.readouterr()
    assert not told.out and told.err == f"{words[0]}: no GPU here\n"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["profile", "decoder", "coldstart", "compare_headers", "release_order"])
def test_without_a_gpu_a_script_that_needs_one_ends_with_3(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"profile": ["64x128x128"], "compare_headers": ["--headers", "old=."]}.get(name, [])
    monkeypatch.setattr(sys, "argv", [name, *words, "--json"])
    main = profile.main if name == "profile" else load_script(name).main
    assert main() == Exit.NO_GPU
    told = capsys.readouterr()
    assert not told.out and told.err == f"{name}: no GPU here\n"
