"""``fp8gemm warmup --check``, and warmups that find everything: no compiler, no write, whatever may be written."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fp8gemm import settings
from fp8gemm.ahead import warming
from fp8gemm.ahead.kernels import Demand
from fp8gemm.cache.entry import CUBIN
from fp8gemm.cache.seal import seal_layer
from fp8gemm.cache.store import Layer
from fp8gemm.cli import main as cli
from fp8gemm.cli import warmup as command
from fp8gemm.cli.exits import Exit
from fp8gemm.errors import CacheError
from fp8gemm.jit import build as build_module
from tests.jit import children
from tests.jit.cases import snapshot
from tests.jit.test_cache_faults_disk import watched

Tiny = Callable[[int], Demand]
ASKED = ("warmup", "--nk", "128x128")


@pytest.fixture
def filled(cache: Path, tiny: Tiny, compile_quickly: list[str]) -> Path:
    """A cache directory with three kernels, of which this process knows nothing any more."""
    assert warming.make_ready(tiny(3)).compiled == 3
    build_module._builders.clear()
    return cache


def no_compiler(*_: object, **__: object) -> NoReturn:
    raise AssertionError("nothing is to be compiled")


def thaw(place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("how", ["writable", "sealed", "mounted read-only"])
@pytest.mark.parametrize("work", [warming.check_ready, warming.make_ready], ids=["check", "warmup"])
def test_a_complete_cache_is_all_hits_and_is_not_written(
    filled: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, how: str, work: Callable[[Demand], warming.Warmup]
) -> None:
    if how == "mounted read-only":
        children.require_mounts()
    elif how == "sealed":
        seal_layer(Layer(filled), version="1")
    monkeypatch.setattr(build_module, "compile_program", no_compiler)
    wanted, before = tiny(3), snapshot(filled)

    def look() -> tuple[warming.Warmup, list[str]]:
        if how == "mounted read-only":
            children.own_mounts()
            children.mount_read_only(filled)
        warnings.simplefilter("error")
        writes = watched()
        return work(wanted), writes

    done, writes = children.run(look)
    assert (done.kernels, done.compiled, done.hits, done.missing, writes) == (3, 0, 3, (), [])
    assert done.directory == str(filled) and done.bytes > 0 and snapshot(filled) == before
    thaw(filled)


@pytest.mark.usefixtures("compile_quickly")
def test_where_there_is_nothing_nothing_is_made(cache: Path, tiny: Tiny) -> None:
    done = warming.check_ready(tiny(2))
    assert [each.problem for each in done.missing] == ["not there"] * 2 and done.directory == str(cache)
    assert not cache.exists()


@pytest.mark.filterwarnings("ignore:fp8gemm kernel cache.*healed")
def test_a_damaged_kernel_is_missing_and_stays_where_it_is(filled: Path, tiny: Tiny) -> None:
    (damaged,) = filled.glob("tiny-2.*")
    (damaged / CUBIN).write_bytes(b"x")
    before = snapshot(filled)
    (missing,) = warming.check_ready(tiny(3)).missing
    assert missing.label == "tiny-2" and f"{damaged.name}" == f"{missing.label}.{missing.key}"
    assert str(filled) in missing.problem and CUBIN in missing.problem and snapshot(filled) == before
    assert (warming.make_ready(tiny(3)).compiled, warming.check_ready(tiny(3)).missing) == (1, ())


def test_memory_does_not_count(filled: Path, tiny: Tiny) -> None:
    warming.make_ready(tiny(4))
    shutil.rmtree(filled)
    assert len(warming.check_ready(tiny(4)).missing) == 4


def test_only_the_configured_directories_count_and_only_the_trusted_ones(
    filled: Path, tiny: Tiny, tmp_path: Path
) -> None:
    """One that a group can write to, and that is closed to this process."""
    with settings.scope(cache_dirs=(tmp_path / "other",)):
        assert len(warming.check_ready(tiny(3)).missing) == 3
    for path in filled.rglob("*"):
        path.chmod(0o575 if path.is_dir() else 0o464)
    filled.chmod(0o575)
    above = tmp_path / "above"
    with settings.scope(cache_dirs=(filled, above)), pytest.warns(match="refused"):
        assert len(warming.check_ready(tiny(3)).missing) == 3
    with settings.scope(cache_dirs=(filled, above), trusted_dirs=(filled,)):
        assert warming.check_ready(tiny(3)).directory == str(filled)
        done = warming.make_ready(tiny(4))
        assert (done.compiled, done.hits, done.missing, done.directory) == (1, 3, (), f"{filled}:{above}")
    thaw(filled)


def test_an_incomplete_cache_that_cannot_be_written_is_refused_by_a_warmup_alone(filled: Path, tiny: Tiny) -> None:
    seal_layer(Layer(filled), version="1")
    (missing,) = warming.check_ready(tiny(4)).missing
    assert missing.label == "tiny-4"
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(CacheError, match="expected a cache directory that can be written"),
    ):
        warming.make_ready(tiny(4))
    thaw(filled)


def test_the_command_tells_by_its_exit_code(
    filled: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(build_module, "compile_program", no_compiler)

    def check(count: int, *words: str) -> tuple[int, Any, str]:
        monkeypatch.setattr(command, "demand_of", lambda _: tiny(count))
        code = cli.main([*ASKED, "--check", *words])
        out, told = capsys.readouterr()
        return code, out, told

    assert check(3)[0] == 0
    code, out, told = check(5)
    assert code == Exit.INCOMPLETE and out.startswith(f"3 of 5 kernels are ready in {filled}")
    assert told == f"fp8gemm: 2 of 5 kernels are not ready in {filled}: tiny-4, tiny-5\n"
    code, out, _ = check(5, "--json", "--cache-dir", str(tmp_path / "none" / "x"))
    assert code == Exit.INCOMPLETE and [each["label"] for each in json.loads(out)["missing"]] == [
        f"tiny-{n}" for n in range(1, 6)
    ]
    assert not (tmp_path / "none").exists()
    for other in ("--recompile", "--list"):
        with pytest.raises(SystemExit) as caught:
            check(3, other)
        assert caught.value.code == 2 and "not allowed with" in capsys.readouterr().err
