"""What an instrumented kernel recorded: decoded, added up, as a file and as a picture. Nothing here needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fp8gemm.profiling import command
from fp8gemm.profiling.gantt import window
from fp8gemm.profiling.timeline import Timeline
from fp8gemm.profiling.trace import ACTIVITIES, BUFFER_BYTES, REGIONS, SLOTS, Recording, decode, summarise

Marks = Sequence[tuple[int, str, int]]


def buffer_of(regions: Mapping[int, Marks], made: Mapping[int, int] | None = None) -> bytes:
    """What the device would have written: by region (clock, activity, number)."""
    buffer = bytearray(BUFFER_BYTES)
    for region, marks in regions.items():
        for slot, (clock, activity, number) in enumerate(marks):
            word = ACTIVITIES.index(activity) | number << 4
            struct.pack_into("<II", buffer, (region * SLOTS + slot) * 8, clock % 2**32, word)
        count = (made or {}).get(region, len(marks))
        struct.pack_into("<I", buffer, REGIONS * SLOTS * 8 + region * 4, count)
    return bytes(buffer)


START = 2**32 - 50  # the clock's low word wraps soon after
LOAD = [
    (START, "set-up", 1000),
    (START + 10, "tile", 3 << 14 | 7),
    (START + 20, "wait empty", 0),
    (START + 30, "load", 0),
    (START + 60, "wait empty", 1),
    (START + 100, "load", 1),
    (START + 150, "end", 101_000),
]
CONSUMER = [
    (START + 5, "set-up", 1000),
    (START + 12, "tile", 3 << 14 | 7),
    (START + 20, "wait full", 0),
    (START + 50, "multiply", 0),
    (START + 80, "promote", 0),
    (START + 90, "multiply", 1),
    (START + 110, "wait full", 1),
    (START + 115, "multiply", 1 << 8),
    (START + 130, "promote", 1),
    (START + 140, "tile", 4 << 14),  # the next, before the epilogue of the first
    (START + 170, "promote", 1 << 8),
    (START + 250, "end", 100_000),
]
EPILOGUE = [
    (START + 6, "set-up", 1000),
    (START + 178, "tile", 3 << 14 | 7),
    (START + 180, "wait slot", 0),
    (START + 190, "stage", 0),
    (START + 240, "end", 100_000),
]
# Tracks load, multiply and epilogue; of the consumers the second.
REGION = {0: LOAD, 4 + 1: CONSUMER, 8 + 1: EPILOGUE}


@pytest.fixture(scope="module")
def recording() -> Recording:
    return decode(buffer_of(REGION))


def test_marks_become_spans_with_tile_and_k_block(recording: Recording) -> None:
    assert list(recording.marks) == ["load", "consumer 1"] and recording.dropped == {}
    assert recording.clock_mhz == pytest.approx(150 / 100_000 * 1e3)
    spans = recording.spans()
    load = [span for span in spans if span.role == "load"]
    assert [(span.activity, span.start, span.end) for span in load[:3]] == [
        ("set-up", 0, 10),
        ("tile", 10, 20),
        ("wait empty", 20, 30),
    ]
    assert load[0].tile is None and {span.tile for span in load[1:]} == {(3, 7)}
    consumer = [span for span in spans if span.role == "consumer 1"]
    kinds = ("multiply", "promote", "stage")
    waves = [(span.activity, span.k_block, span.number) for span in consumer if span.activity in kinds]
    # The first wave of a K block may be started before the last of the one before is promoted.
    assert waves == [
        ("multiply", 0, 0),
        ("promote", 0, 0),
        ("multiply", 0, 1),
        ("multiply", 1, 0),
        ("promote", 0, 1),
        ("promote", 1, 0),
        ("stage", None, 0),
    ]
    # Each track says by itself at which tile it is.
    assert consumer[-1].tile == (3, 7) and consumer[-4].tile == (4, 0)
    # Two tracks of one thread are one row without gaps or overlaps.
    assert all(a.end == b.start for a, b in zip(consumer, consumer[1:], strict=False))
    assert consumer[-1].activity == "stage" and consumer[-1].end == 240


def test_shares_and_cycles_per_k_block(recording: Recording) -> None:
    load, consumer = summarise(recording.spans())
    assert (load.cycles, load.tiles, load.k_blocks, load.cycles_per_k_block) == (150, 1, 2, 65.0)
    assert load.shares["load"] == pytest.approx(80 / 150) and sum(load.shares.values()) == pytest.approx(1)
    # From the first wait to the epilogue, less the next tile's beginning: 128 cycles, of K blocks 0 and 1.
    assert consumer.k_blocks == 3 and consumer.shares["promote"] == pytest.approx(28 / 235)
    assert "wait slot 4.3 %" in consumer.line()


def test_marks_without_room_are_counted(recording: Recording) -> None:
    full = [(index, "wait empty", index) for index in range(SLOTS - 1)]
    marks = [(0, "set-up", 0), *full[1:], (10**6, "end", 10**8)]
    found = decode(buffer_of({0: marks}, {0: SLOTS + 11}))
    assert found.dropped == {"load": 11} and found.marks["load"][-1].activity == "end"
    assert decode(bytes(BUFFER_BYTES)) == Recording({}, {}, None) and decode(bytes(BUFFER_BYTES)).spans() == []
    short = [(0, "set-up", 0), (100, "end", 900)]
    assert decode(buffer_of({0: short})).clock_mhz is None, "too short to tell"
    with pytest.raises(ValueError, match=str(BUFFER_BYTES)):
        decode(b"")


def test_the_closer_look_is_at_the_first_epilogue(recording: Recording) -> None:
    spans = recording.spans()
    first, last = window(spans)
    assert (first, last) == (0, 240) and window([]) == (0, 1)
    later = [span for span in spans if span.activity != "stage"]
    assert window(later) == (0, max(span.end for span in later))


def timeline_of(recording: Recording) -> Timeline:
    return Timeline.of(recording, {"shape": "1x2x3", "config": "64x64", "gpu": "H200", "cta": 5}, 1500.0)


def test_the_trace_is_in_chromes_format_and_can_be_read_back(recording: Recording) -> None:
    timeline = timeline_of(recording)
    data = json.loads(json.dumps(timeline.as_json()))
    events = data["traceEvents"]
    names = {event["args"].get("name") for event in events if event["ph"] == "M"}
    assert {"CTA 5 1x2x3 64x64", "load", "consumer 1"} <= names
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(timeline.spans)
    for event, span in zip(complete, timeline.spans, strict=True):
        assert event["ts"] == pytest.approx(span.start / timeline.clock_mhz, abs=1e-3)
        assert event["dur"] == pytest.approx(span.cycles / timeline.clock_mhz, abs=1e-3)
        assert {"pid", "tid", "name", "args"} <= set(event)
    assert data["otherData"]["dropped"] == {}
    assert Timeline.from_json(data) == timeline


def test_a_short_launch_takes_the_clock_that_it_is_given(recording: Recording) -> None:
    assert Timeline.of(Recording(recording.marks, {}, None), {}, 1234.0).clock_mhz == 1234.0


def test_the_picture_is_drawn_from_a_trace(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "trace.json", tmp_path / "deep" / "timeline.png"
    path.write_text(json.dumps(timeline_of(recording).as_json()))
    arguments = ["--from", str(path), "--timeline", str(picture)]
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert "fp8gemm[plot]" in capsys.readouterr().err
        pytest.skip("no matplotlib to draw with")
    assert command.main(arguments) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"otherData": {"clock_mhz": 1}, "traceEvents": [{}]}'])
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(SystemExit):
        command.main(["--from", str(path), "--timeline", "x.png"])
    assert "a file that --trace wrote" in capsys.readouterr().err
