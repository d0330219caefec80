"""A sealed directory that is not as it was when it was sealed: what differs is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.cache import files
from fp8gemm.cache.entry import CUBIN, SOURCE, Entry, encode_document
from fp8gemm.cache.manifest import MANIFEST
from fp8gemm.cache.seal import find_problems, seal_layer
from fp8gemm.cache.store import Layer, Store
from fp8gemm.errors import CacheError
from tests.jit.caches import METADATA, fill, kernel, look, name_of
from tests.jit.cases import snapshot

Harm = Callable[[Path], object]


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    layer = fill(tmp_path / "cache", 1, 2, 3)
    seal_layer(layer, version="1.2")
    return layer.path


def thaw(place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)


def swap(place: Path) -> None:
    """Put another kernel that verifies in the place of one."""
    shutil.rmtree(place / name_of(2))
    entry = kernel(2)
    Store([place]).publish(Entry(entry.key, entry.label, b"another cubin", METADATA), "")


def forge(place: Path) -> None:
    document = json.loads((place / MANIFEST).read_text())
    del document["entries"][name_of(1)]
    (place / MANIFEST).write_bytes(encode_document(document))


HARM: dict[str, tuple[Harm, str]] = {
    "missing": (lambda place: shutil.rmtree(place / name_of(2)), f"{name_of(2)} is missing"),
    "extra": (lambda place: fill(place, 4), f"{name_of(4)} is extra"),
    "changed": (swap, f"{name_of(2)} was changed: {CUBIN}"),
    "damaged": (lambda place: (place / name_of(2) / SOURCE).write_bytes(b"x"), f"{name_of(2)} is damaged: {SOURCE}"),
    "file missing": (
        lambda place: (place / name_of(2) / CUBIN).unlink(),
        f"{name_of(2)} is damaged: {CUBIN} is missing",
    ),
    "foreign": (lambda place: (place / "notes").write_text("x"), "notes is extra"),
    "leftover": (lambda place: (place / f".tmp-{name_of(1)}-01234567").mkdir(), f".tmp-{name_of(1)}-01234567 is extra"),
    "no manifest": (lambda place: (place / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "flipped manifest": (lambda place: (place / MANIFEST).write_text("{}"), f"{MANIFEST} does not have the checksum"),
    "forged manifest": (forge, f"{MANIFEST} is not as this version writes it"),
}


@pytest.mark.parametrize("case", HARM)
def test_what_is_not_as_it_was_is_named(sealed: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAUSES_S", ())
    harm, reason = HARM[case]
    thaw(sealed)
    harm(sealed)
    for path in sorted(sealed.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    sealed.chmod(0o555)
    problems = find_problems(look(sealed))
    assert len(problems) == 1 and problems[0].startswith(reason), problems
    with pytest.raises(CacheError, match="chmod u\\+w") as error:
        seal_layer(Layer(sealed), version="1.2")
    assert problems[0] in str(error.value)


@pytest.mark.parametrize("path", ["", f"/{CUBIN}"])
def test_an_open_mode_under_a_seal_is_named(sealed: Path, path: str) -> None:
    (sealed / f"{name_of(2)}{path}").chmod(0o700)
    (problem,) = find_problems(look(sealed))
    assert problem.startswith(f"{name_of(2)}{path} has mode 0700")


@pytest.mark.parametrize("case", [case for case in HARM if case not in ("foreign", "leftover", "no manifest")])
def test_a_directory_that_has_lost_its_modes_is_compared_with_its_manifest(sealed: Path, case: str) -> None:
    thaw(sealed)
    assert find_problems(look(sealed)) == (), "that it can be written is no fault"
    harm, reason = HARM[case]
    harm(sealed)
    (problem,) = find_problems(look(sealed))
    assert problem.startswith(reason)


def test_a_broken_seal_can_be_made_anew(sealed: Path) -> None:
    sealed.chmod(0o700)
    fill(sealed, 4)
    assert seal_layer(Layer(sealed), version="2.0").manifest.count == 4
    assert find_problems(look(sealed)) == ()


def test_a_seal_without_a_kernel_that_was_sealed_before_must_be_meant(sealed: Path) -> None:
    thaw(sealed)
    shutil.rmtree(sealed / name_of(2))
    fill(sealed, 4)
    before = snapshot(sealed)
    for _ in range(2):
        with pytest.raises(CacheError, match="was not changed") as error:
            seal_layer(Layer(sealed), version="2.0")
        (line,) = str(error.value).splitlines()[1:]
        assert line == f"  {name_of(2)} is missing: {MANIFEST} lists it; --anew seals what there is"
        assert snapshot(sealed) == before
    assert seal_layer(Layer(sealed), version="2.0", anew=True).manifest.count == 3
    assert find_problems(look(sealed)) == ()
