"""The store on disk: what verifies is served, what does not is moved aside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fp8gemm.cache.entry import CUBIN, SIDECAR, SOURCE, Entry
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cache.store import Store
from tests.jit.cases import ENTRY, KEY, LABEL, NAME, OTHER_KEY, TEXT, seal, snapshot, warned


def test_what_is_published_is_found_and_says_what_it_is(place: Path) -> None:
    found = Store([place]).find(LABEL, KEY).entry
    assert found is not None
    assert (found.cubin, found.directory) == (ENTRY.cubin, place / NAME)
    assert dict(ENTRY.metadata).items() <= dict(found.metadata).items()
    assert (place / NAME / SOURCE).read_text() == TEXT
    assert sorted(path.name for path in (place / NAME).iterdir()) == sorted([SOURCE, CUBIN, SIDECAR])
    sidecar = (place / NAME / SIDECAR).read_text()
    assert list(json.loads(sidecar)) == sorted(json.loads(sidecar))


def test_what_was_not_published_is_not_found(place: Path) -> None:
    assert Store([place]).find(LABEL, OTHER_KEY).entry is None
    assert Store([place.parent / "nowhere"]).find(LABEL, KEY).entry is None
    assert Store([]).find(LABEL, KEY).entry is None


@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
@pytest.mark.parametrize("length", [0, 3, 0.5, -1])
def test_a_truncated_file_is_no_hit(place: Path, file: str, length: float) -> None:
    path = place / NAME / file
    content = path.read_bytes()
    keep = int(length * len(content)) if isinstance(length, float) else length
    path.write_bytes(content[:keep])
    found = Store([place]).find(LABEL, KEY)
    assert found.entry is None
    assert [damage.layer.path for damage in found.damaged] == [place]


@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
def test_a_flipped_bit_is_no_hit(place: Path, file: str) -> None:
    path = place / NAME / file
    content = path.read_bytes()
    store = Store([place])
    for position in range(0, len(content), max(1, len(content) // 150)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert store.find(LABEL, KEY).entry is None, f"bit {position % 8} of byte {position} of {file}"
    path.write_bytes(content)
    assert store.find(LABEL, KEY).entry is not None


@pytest.mark.parametrize("file", [SOURCE, CUBIN, SIDECAR])
def test_a_missing_file_is_damage(place: Path, file: str) -> None:
    (place / NAME / file).unlink()
    (damage,) = Store([place]).find(LABEL, KEY).damaged
    assert file in damage.reason


def test_an_entry_under_another_key_is_no_hit(place: Path) -> None:
    other = OTHER_KEY
    (place / NAME).rename(place / f"{LABEL}.{other}")
    (damage,) = Store([place]).find(LABEL, other).damaged
    assert other in damage.reason and KEY in damage.reason


def test_a_damaged_entry_is_moved_aside_with_one_warning_and_replaced(place: Path) -> None:
    (place / NAME / CUBIN).write_bytes(b"junk")
    store = Store([place])
    with warned(CacheEvent.HEALED) as found:
        for damage in store.find(LABEL, KEY).damaged:
            store.quarantine(LABEL, KEY, damage)
        assert store.publish(ENTRY, TEXT) == place / NAME
    assert found[0].place == place / NAME
    assert CUBIN in found[0].reason
    assert Store([place]).find(LABEL, KEY).entry is not None
    (aside,) = place.glob(".quarantine-*")
    assert (aside / CUBIN).read_bytes() == b"junk"


def test_quarantine_keeps_one_specimen_of_a_kernel(place: Path) -> None:
    for content in (b"first", b"second"):
        (place / NAME / CUBIN).write_bytes(content)
        store = Store([place])
        with warned(CacheEvent.HEALED):
            for damage in store.find(LABEL, KEY).damaged:
                store.quarantine(LABEL, KEY, damage)
        store.publish(ENTRY, TEXT)
    (aside,) = place.glob(".quarantine-*")
    assert (aside / CUBIN).read_bytes() == b"second"


def test_the_loser_of_a_publishing_race_changes_nothing(place: Path) -> None:
    before = snapshot(place / NAME)
    assert Store([place]).publish(ENTRY, "// another source\n") == place / NAME
    assert snapshot(place / NAME) == before
    assert not list(place.glob(".tmp-*"))


def test_a_cache_can_be_moved(place: Path, tmp_path: Path) -> None:
    moved = tmp_path / "a b;$(touch x) é\n" / "cache"
    moved.parent.mkdir()
    shutil.copytree(place, moved)
    assert Store([moved]).find(LABEL, KEY).entry is not None
    with warned():
        assert Store([moved]).publish(Entry(OTHER_KEY, LABEL, b"x", {}), TEXT)


def test_layers_are_read_in_order_and_the_last_is_written(place: Path, tmp_path: Path) -> None:
    seal(place)
    writable = tmp_path / "writable"
    store = Store([place, writable])
    hit = store.find(LABEL, KEY).entry
    assert hit is not None and hit.directory == place / NAME
    other = Entry(OTHER_KEY, LABEL, b"other", {})
    assert store.publish(other, TEXT) == writable / f"{LABEL}.{other.key}"
    (place / NAME / CUBIN).chmod(0o600)
    (place / NAME / CUBIN).write_bytes(b"junk")
    assert store.publish(ENTRY, TEXT) == writable / NAME
    hit = store.find(LABEL, KEY).entry
    assert hit is not None and hit.directory == writable / NAME


def test_of_two_writable_layers_the_last_is_written(tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    first.mkdir(mode=0o700)
    assert Store([first, last]).publish(ENTRY, TEXT) == last / NAME
    assert list(first.iterdir()) == []


def test_rejected_bytes_are_never_served_again_but_others_are(place: Path) -> None:
    store = Store([place])
    store.reject(KEY, ENTRY.cubin, "the driver says no")
    (damage,) = store.find(LABEL, KEY).damaged
    assert damage.reason == "the driver says no"
    with warned(CacheEvent.HEALED):
        store.quarantine(LABEL, KEY, damage)
    better = Entry(KEY, LABEL, b"better", {})
    store.publish(better, TEXT)
    found = store.find(LABEL, KEY).entry
    assert found is not None and found.cubin == b"better"


def test_foreign_files_are_left_alone(place: Path) -> None:
    for name in ("notes.txt", ".tmp-of-somebody"):
        (place / name).write_text("keep")
    (place / NAME / CUBIN).write_bytes(b"junk")
    store = Store([place])
    with warned(CacheEvent.HEALED), store.lock(LABEL, KEY):
        for damage in store.find(LABEL, KEY).damaged:
            store.quarantine(LABEL, KEY, damage)
        store.publish(ENTRY, TEXT)
    assert {(place / name).read_text() for name in ("notes.txt", ".tmp-of-somebody")} == {"keep"}
