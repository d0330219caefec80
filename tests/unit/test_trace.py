"""What an instrumented kernel recorded: decoded, added up, as a file and as a picture. Nothing here needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fp8gemm.cli import profile as command
from fp8gemm.lab.profiling import gantt
from fp8gemm.lab.profiling.gantt import window
from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.lab.profiling.trace import ACTIVITIES, BUFFER_BYTES, END, REGIONS, SLOTS, Recording, decode, summarise

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

TILE, NEXT = 3 << 14 | 7, 4 << 14


def sharing_consumer(share: int) -> tuple[Marks, Marks]:
    """The tracks multiply and epilogue of one that has every second of four K blocks of each of two tiles."""
    multiply, epilogue = [(0, "set-up", 0), (10, "tile", TILE)], [(5, "set-up", 0)]
    for begun, finished, following in ((20, TILE, NEXT), (320, NEXT, None)):
        for step in range(2):
            start, k_block = begun + 100 * step, 2 * step + share
            multiply += [
                (start, "wait full", k_block),
                (start + 10, "multiply", k_block << 8),
                (start + 80, "promote", k_block << 8),
            ]
        end = begun + 200
        multiply += [] if following is None else [(end, "tile", following)]
        multiply.append((end + 20, "add shares", finished))
        epilogue += [(end + 50, "tile", finished), (end + 60, "wait slot", 0), (end + 70, "stage", 0)]
    return [*multiply, (640, "end", 100)], [*epilogue, (620, "end", 100)]


def sharing() -> Recording:
    """Of a kernel whose consumers share K: a stage brings two K blocks."""
    load = [(0, "set-up", 0), (5, "tile", TILE)]
    for first in (0, 2):
        start = 10 + 20 * first
        load += [(start, "wait empty", first), (start + 10, "load", first), (start + 20, "load", first + 1)]
    (first, first_epilogue), (second, second_epilogue) = sharing_consumer(0), sharing_consumer(1)
    regions = {0: [*load, (90, "end", 100)], 4: first, 5: second, 8: first_epilogue, 9: second_epilogue}
    return decode(buffer_of(regions))


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


def test_consumers_that_share_k_say_which_k_blocks_are_theirs() -> None:
    spans = sharing().spans()

    def found(role: str, activity: str) -> list[tuple[tuple[int, int] | None, int | None]]:
        return [(span.tile, span.k_block) for span in spans if (span.role, span.activity) == (role, activity)]

    tiles = ((3, 7), (4, 0))
    assert found("load", "wait empty") == [((3, 7), 0), ((3, 7), 2)]
    assert found("load", "load") == [((3, 7), k_block) for k_block in range(4)]
    for share in range(2):
        of_share = [(tile, k_block) for tile in tiles for k_block in (share, share + 2)]
        for activity in ("wait full", "multiply", "promote"):
            assert found(f"consumer {share}", activity) == of_share
        # The tile whose sums they are, although the next has been begun by then.
        assert found(f"consumer {share}", "add shares") == [(tile, None) for tile in tiles]
    adding = [span for span in spans if span.activity == "add shares"]
    assert {(span.start, span.end, span.number) for span in adding} == {(240, 270, 0), (540, 570, 0)}


def test_k_blocks_that_are_worked_on_side_by_side_count_together() -> None:
    load, *consumers = summarise(sharing().spans())
    assert (load.k_blocks, load.cycles_per_k_block) == (4, pytest.approx(80 / 4))
    for consumer in consumers:
        # 100 cycles for a K block, 120 for the last one before the exchange, in which the other does one too.
        assert consumer.k_blocks == 4 and consumer.cycles_per_k_block == pytest.approx((3 * 100 + 120) / 8)
        assert "4 K blocks" in consumer.line() and "add shares 9.7 %" in consumer.line()


def test_the_closer_look_holds_the_exchange_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "_ZOOM_K_BLOCKS", 1)
    assert window(sharing().spans()) == (240 - 52, 320 + 52)


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


@pytest.mark.parametrize("source", [lambda: decode(buffer_of(REGION)), sharing], ids=["own columns", "shared K"])
def test_the_picture_is_drawn_from_a_trace(
    source: Callable[[], Recording], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "trace.json", tmp_path / "deep" / "timeline.png"
    path.write_text(json.dumps(timeline_of(source()).as_json()))
    arguments = ["--from", str(path), "--timeline", str(picture)]
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert "fp8gemm[plot]" in capsys.readouterr().err
        pytest.skip("no matplotlib to draw with")
    assert command.main(arguments) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_activity_has_a_colour_of_its_own() -> None:
    assert set(gantt.COLOURS) == set(ACTIVITIES) - {END}
    assert len(set(gantt.COLOURS.values())) == len(gantt.COLOURS)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"otherData": {"clock_mhz": 1}, "traceEvents": [{}]}'])
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(SystemExit):
        command.main(["--from", str(path), "--timeline", "x.png"])
    assert "a file that --trace wrote" in capsys.readouterr().err
