"""Settings: what the environment may say, and who sees an override."""

from __future__ import annotations

import threading
from contextvars import Context, copy_context
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.settings import Settings, from_environment


def test_an_empty_environment_gives_the_defaults_and_no_cache() -> None:
    assert from_environment({}) == Settings(
        cache_dirs=(),
        trusted_dirs=(),
        jit="compile",
        backend="auto",
        num_sms=None,
        batch_invariant=False,
        pdl=True,
        tables=(),
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/ada"}, ["/home/ada/.cache/fp8gemm"]),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/scratch"}, ["/scratch/fp8gemm"]),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "relative"}, ["/home/ada/.cache/fp8gemm"]),
        ({"HOME": "", "XDG_CACHE_HOME": ""}, []),
        ({"HOME": "."}, []),
        ({"HOME": "/home/ada", "FP8GEMM_CACHE_DIR": ""}, ["/home/ada/.cache/fp8gemm"]),
        ({"HOME": "/home/ada", "FP8GEMM_CACHE_DIR": "/sealed:/writable"}, ["/sealed", "/writable"]),
        ({"FP8GEMM_CACHE_DIR": ":/a b;$(c)/é::"}, ["/a b;$(c)/é"]),
    ],
)
def test_cache_directories(environment: dict[str, str], expected: list[str]) -> None:
    assert from_environment(environment).cache_dirs == tuple(Path(path) for path in expected)


def test_a_relative_path_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = from_environment({"FP8GEMM_CACHE_DIR": "kernels", "FP8GEMM_TABLES": "tuned.json"})
    monkeypatch.chdir("/")
    assert found.cache_dirs == (tmp_path / "kernels",) and found.tables == (tmp_path / "tuned.json",)


def test_every_other_variable_is_read() -> None:
    found = from_environment(
        {
            "FP8GEMM_TRUSTED_DIRS": "/x:/y",
            "FP8GEMM_JIT": "nearest",
            "FP8GEMM_BACKEND": "reference",
            "FP8GEMM_NUM_SMS": "100",
            "FP8GEMM_BATCH_INVARIANT": "1",
            "FP8GEMM_PDL": "0",
            "FP8GEMM_ENGINES": "1",
            "FP8GEMM_TABLES": ":/mine.json:/theirs.json",
        }
    )
    assert found.tables == (Path("/mine.json"), Path("/theirs.json"))
    assert found.trusted_dirs == (Path("/x"), Path("/y"))
    assert (found.jit, found.backend, found.num_sms) == ("nearest", "reference", 100)
    assert found.batch_invariant is True and found.pdl is False and found.engines is True


@pytest.mark.parametrize("switch", ["batch_invariant", "pdl", "engines"])
@pytest.mark.parametrize(
    ("value", "meaning"), [("1", True), ("true", True), ("0", False), ("false", False), ("", None)]
)
def test_a_switch_is_on_or_off(value: str, meaning: bool | None, switch: str) -> None:
    default = getattr(Settings(), switch)
    found = from_environment({f"FP8GEMM_{switch.upper()}": value})
    assert getattr(found, switch) is (default if meaning is None else meaning)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("FP8GEMM_JIT", "yes", "compile, nearest, error"),
        ("FP8GEMM_BACKEND", "cpu", "auto, reference"),
        ("FP8GEMM_NUM_SMS", "0", "a positive integer"),
        ("FP8GEMM_NUM_SMS", "-4", "a positive integer"),
        ("FP8GEMM_NUM_SMS", "1_32", "a positive integer"),
        ("FP8GEMM_NUM_SMS", "all", "a positive integer"),
        ("FP8GEMM_BATCH_INVARIANT", "yes", "one of 1, true, 0, false"),
        ("FP8GEMM_BATCH_INVARIANT", "True", "one of 1, true, 0, false"),
        ("FP8GEMM_BATCH_INVARIANT", "2", "one of 1, true, 0, false"),
        ("FP8GEMM_PDL", "no", "one of 1, true, 0, false"),
        ("FP8GEMM_PDL", "2", "one of 1, true, 0, false"),
        ("FP8GEMM_CACHE_DIR", "~nobody-of-this-name/x", "paths that can be made absolute"),
    ],
)
def test_a_bad_value_names_the_variable_what_is_allowed_and_what_came(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        from_environment({variable: value})
    for part in (variable, allowed, value.lstrip("0-") or value):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_sms": True},
        {"num_sms": 1.0},
        {"cache_dirs": "/one"},
        {"tables": "/one.json"},
        {"jit": None},
        {"batch_invariant": 1},
        {"batch_invariant": "true"},
        {"pdl": 0},
        {"pdl": None},
    ],
)
def test_a_scope_refuses_what_the_environment_would(changes: dict[str, object]) -> None:
    with pytest.raises(InputError), settings.scope(**changes):
        pass


def test_a_scope_names_an_unknown_setting() -> None:
    with pytest.raises(InputError, match="found jitt"), settings.scope(jitt="error"):
        pass


def test_scopes_nest_and_end_even_by_an_exception() -> None:
    before = settings.current()
    with settings.scope(num_sms=7) as outer:
        with pytest.raises(ZeroDivisionError), settings.scope(jit="error"):
            assert (settings.current().num_sms, settings.current().jit) == (7, "error")
            raise ZeroDivisionError
        assert settings.current() == outer
    assert settings.current() == before


def test_a_scope_holds_in_a_thread_that_runs_in_its_context_and_in_no_other() -> None:
    seen: dict[str, int | None] = {}

    def look(name: str) -> None:
        seen[name] = settings.current().num_sms

    with settings.scope(num_sms=7):
        threads = [
            threading.Thread(target=copy_context().run, args=(look, "inside")),
            threading.Thread(target=Context().run, args=(look, "outside")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen["inside"] == 7
    assert seen["outside"] != 7


def test_reload_reads_the_environment_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP8GEMM_NUM_SMS", "5")
    try:
        assert settings.reload().num_sms == 5
        assert settings.current().num_sms == 5
        monkeypatch.setenv("FP8GEMM_NUM_SMS", "6")
        assert settings.current().num_sms == 5, "the environment is read once"
    finally:
        monkeypatch.undo()
        settings.reload()
