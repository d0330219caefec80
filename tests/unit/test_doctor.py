"""`fp8gemm doctor` on machines of every kind: what is a problem, what mends it, and what it ends with."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.cache.entry import Entry
from fp8gemm.cache.store import Store
from fp8gemm.cli import checkup, findings
from fp8gemm.cli import main as cli
from fp8gemm.driver.device import Gpu, Probe
from fp8gemm.errors import CompileError
from fp8gemm.jit.compiler import nvrtc_path, nvrtc_version
from tests.attacked import attacked

HOPPER, AMPERE = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
NO_DRIVER = {"driver_version": None, "driver_problem": "no libcuda.so.1", "gpus": ()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only cache directory in force; it has one kernel, and nothing else of the environment holds."""
    for name in [name for name in os.environ if name.startswith("FP8GEMM_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)
    place = tmp_path / "cache"
    token = settings.enter(settings.Settings(cache_dirs=(place,)))
    Store([place]).publish(Entry("a" * 64, "kernel", b"\x7fELF", {}), "source")
    yield place
    settings.leave(token)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the command find a machine of these facts; by default one on which all is well."""

    def pretend(nvrtc: str | None = "12.9", free: int = 1 << 40, **facts: Any) -> None:
        known = {"torch_version": "2.13.0+cu130", "torch_cuda": (13, 0), "driver_version": (13, 0), "gpus": (HOPPER,)}
        monkeypatch.setattr(findings, "probe", lambda: Probe(**{**known, **facts}))

        def version() -> str:
            if nvrtc is None:
                raise CompileError("NVRTC cannot be loaded:\nit is not there")
            return nvrtc

        monkeypatch.setattr(findings, "nvrtc_version", version)
        monkeypatch.setattr(findings, "nvrtc_path", lambda: None)
        disk = os.statvfs_result((4096, 4096, 1 << 30, free >> 12, free >> 12, 0, 0, 0, 0, 255))
        monkeypatch.setattr(checkup.os, "statvfs", lambda path: disk)

    pretend()
    return pretend


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, list[dict[str, str]]]]:
    """Runs the command; what it says that is not "ok", by name. The exit code and the counts agree with that."""

    def run(*options: str) -> dict[str, list[dict[str, str]]]:
        code = cli.main(["doctor", "--json", *options])
        found = json.loads(capsys.readouterr().out)
        verdicts = [check["verdict"] for check in found["checks"]]
        assert code == (0 if found["ok"] else 1) == min(1, verdicts.count("problem"))
        assert (found["problems"], found["warnings"]) == (verdicts.count("problem"), verdicts.count("warning"))
        names = {check["name"] for check in found["checks"]}
        assert {"settings", "torch", "driver", "GPU", "NVRTC", "new kernels", "warmup"} <= names
        odd = [check for check in found["checks"] if check["verdict"] != "ok"]
        assert all(check["mend"] for check in odd), "each says what mends it"
        assert not any("\n" in text for check in found["checks"] for text in check.values())
        return {name: same for name in names if (same := [check for check in odd if check["name"] == name])}

    return run


def test_a_healthy_machine(doctor, capsys, cache) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in cache.rglob("*"))
    assert doctor() == {}
    assert cli.main(["doctor"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "0 problems, 0 warnings" and all(line.startswith("ok  ") for line in lines)
    assert any("NVIDIA H200, compute capability 9.0" in line for line in lines)
    assert any(f"{cache}: writable, 1 kernel" in line for line in lines)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in cache.rglob("*"))


@pytest.mark.parametrize(
    ("facts", "name", "found", "mend"),
    [
        (NO_DRIVER, "driver", "no libcuda.so.1", "FP8GEMM_BACKEND=reference"),
        ({"driver_version": (12, 4)}, "driver", "CUDA 12.4", "Update the driver"),
        ({"gpus": (AMPERE,)}, "GPU", "A100", "need a Hopper GPU"),
        ({"gpus": (), "visible_devices": ""}, "GPU", "CUDA_VISIBLE_DEVICES is ''", "need a Hopper GPU"),
        ({"torch_cuda": None}, "torch", "without CUDA", "a torch built with CUDA"),
        ({"torch_version": None, "torch_problem": "it is not installed"}, "torch", "It is not", "pip install"),
        ({"nvrtc": None}, "NVRTC", "cannot be loaded: it is not there", "pip install 'nvidia-cuda-nvrtc-cu12>=12.4'"),
        ({"nvrtc": "14.0"}, "NVRTC", "serves CUDA 13.0", "update the driver"),
        ({"free": 1 << 20}, "room", "1.0 MiB free", "fp8gemm cache prune"),
    ],
)
def test_what_is_missing_is_a_problem_of_one_part(doctor, machine, facts, name, found, mend) -> None:
    machine(**facts)
    told = doctor()
    (check,) = told.pop(name)
    assert check["verdict"] == "problem" and found in check["found"] and mend in check["mend"]
    assert all(each["verdict"] == "warning" for each in told.pop("GPU", [])) and not told


def test_a_machine_that_only_compiles_needs_neither_torch_nor_driver_nor_gpu(doctor, machine) -> None:
    machine(**NO_DRIVER, torch_version=None, torch_problem="torch is not installed")
    assert {"torch", "driver"} <= doctor().keys()
    assert doctor("--build") == {}
    machine(**NO_DRIVER, nvrtc=None)
    assert doctor("--build").keys() == {"NVRTC"}
    with settings.scope(jit="error", backend="reference"):
        assert doctor("--build").keys() == {"NVRTC"}, "a warmup compiles whatever is done without a kernel"


def test_the_reference_needs_torch_alone(doctor, machine) -> None:
    with settings.scope(backend="reference"):
        machine(**NO_DRIVER, torch_cuda=None, nvrtc=None)
        assert doctor() == {}
        machine(torch_version=None, torch_problem="torch is not installed")
        assert doctor().keys() == {"torch"}


@pytest.mark.parametrize("policy", ["nearest", "error"])
def test_where_nothing_compiles_kernels_must_be_there_and_nvrtc_need_not(
    doctor, machine, cache, tmp_path, policy
) -> None:
    machine(nvrtc=None)
    cache.chmod(0o555)
    with settings.scope(jit=policy):
        assert doctor() == {}
        with settings.scope(cache_dirs=(tmp_path / "empty",)):
            (check,) = doctor()["warmup"]
    assert check["verdict"] == "problem" and f"FP8GEMM_JIT={policy}" in check["found"] and "warmup" in check["mend"]


def test_a_directory_that_others_can_write_to_is_refused_and_what_mends_it_does(doctor, tmp_path, cache) -> None:
    loose = tmp_path / "loose; rm"
    loose.mkdir()
    loose.chmod(0o777)
    with settings.scope(cache_dirs=(loose, cache)):
        (check,) = doctor()["cache"]
    assert check["verdict"] == "problem" and "0777" in check["found"]
    assert f"chmod go-w '{loose}'" in check["mend"] and f"FP8GEMM_TRUSTED_DIRS='{loose}'" in check["mend"]
    with settings.scope(cache_dirs=(loose, cache), trusted_dirs=(loose,)):
        assert doctor() == {}
    loose.chmod(stat.S_IMODE(loose.stat().st_mode) & ~0o022)
    with settings.scope(cache_dirs=(loose, cache)):
        assert doctor() == {}


@pytest.mark.parametrize("directories", [1, 0])
def test_no_directory_to_write_to_is_a_problem(doctor, cache, directories) -> None:
    cache.chmod(0o555)
    with settings.scope(cache_dirs=(cache,) * directories):
        told = doctor()
    (check,) = told["new kernels"]
    assert check["verdict"] == "problem" and "as long as the process" in check["found"]
    listed = f"{cache}:" * directories
    assert f"FP8GEMM_CACHE_DIR={listed}/a/directory/of/yours;" in check["mend"]
    assert told.keys() == {"new kernels"} | (set() if directories else {"warmup"})


def test_a_directory_that_is_not_there_is_made_if_it_is_the_last(doctor, tmp_path, cache) -> None:
    absent = tmp_path / "not" / "there"
    with settings.scope(cache_dirs=(cache, absent)):
        assert doctor() == {}
    with settings.scope(cache_dirs=(absent, cache)):
        (check,) = doctor()["cache"]
    assert check["verdict"] == "warning" and str(absent) in check["found"] and not absent.parent.exists()
    file = tmp_path / "file"
    file.write_text("")
    with settings.scope(cache_dirs=(file / "below",)):
        assert "new kernels" in doctor()


def test_settings_that_are_wrong_misspelt_or_for_debugging(doctor, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FP8GEMM_CACHEDIR", "x")
    with settings.scope(tables=(tmp_path / "gone.json",), check_groups=True):
        misspelt, gone, debugging = doctor()["settings"]
    assert misspelt["verdict"] == debugging["verdict"] == "warning" and gone["verdict"] == "problem"
    assert "FP8GEMM_CACHEDIR is no setting" in misspelt["found"] and "gone.json" in gone["found"]
    assert "unset FP8GEMM_CHECK_GROUPS" in debugging["mend"]


def test_a_value_that_is_not_allowed_is_named_and_the_rest_is_judged(tmp_path) -> None:
    wrong = {"FP8GEMM_JIT": "often", "FP8GEMM_NUM_SMS": "-1", "FP8GEMM_CACHE_DIR": str(tmp_path / "cache")}
    done = attacked("doctor", "--json", **wrong)
    checks = json.loads(done.out)["checks"]
    assert done.code == 1 and "Traceback" not in done.err
    told = [check["mend"].split("`")[1] for check in checks if check["name"] == "settings" and check["mend"]]
    assert told == ["unset FP8GEMM_JIT", "unset FP8GEMM_NUM_SMS"]
    assert any(str(tmp_path / "cache") in check["found"] for check in checks if check["name"] == "new kernels")


def test_colours_are_for_terminals(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.main(["doctor"]) == 0 and "\033" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["doctor"]) == 0 and capsys.readouterr().out.startswith("\033[32mok")
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["doctor"]) == 0 and "\033" not in capsys.readouterr().out


def test_info_names_the_file_of_nvrtc_and_takes_a_recording(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(findings, "nvrtc_version", nvrtc_version)
    monkeypatch.setattr(findings, "nvrtc_path", nvrtc_path)
    with settings.scope(record=tmp_path / "shapes"):
        assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["record"] == str(tmp_path / "shapes")
    assert "libnvrtc.so" in Path(found["nvrtc_path"]).name and Path(found["nvrtc_path"]).is_file()
