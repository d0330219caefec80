"""A timeline as a file: Chrome's trace format, which chrome://tracing and Perfetto open, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8gemm.lab.profiling.trace import Recording, Span, roles


@dataclass(frozen=True)
class Timeline:
    """The roles of one CTA over time.

    Attributes:
        heading: what was recorded: shape, config, CTA, GPU, marks dropped.
        clock_mhz: cycles per microsecond.
        spans: role after role.
    """

    heading: dict[str, Any]
    clock_mhz: float
    spans: list[Span]

    @classmethod
    def of(cls, recording: Recording, heading: Mapping[str, Any], clock_mhz: float) -> Timeline:
        """From a recording; its own clock is used where it knows it."""
        clock = recording.clock_mhz or clock_mhz
        return cls({**heading, "dropped": recording.dropped}, clock, recording.spans())

    def as_json(self) -> dict[str, Any]:
        """In Chrome's format: one process, a thread for each role, complete events in microseconds."""
        threads = {role: index for index, role in enumerate(roles(self.spans))}
        name = " ".join(str(self.heading[key]) for key in ("shape", "config") if key in self.heading)
        events = [_metadata("process_name", 0, name=f"CTA {self.heading.get('cta', 0)} {name}".rstrip())]
        for role, index in threads.items():
            events += [
                _metadata("thread_name", index, name=role),
                _metadata("thread_sort_index", index, sort_index=index),
            ]
        events += [self._event(span, threads[span.role]) for span in self.spans]
        other = {**self.heading, "clock_mhz": self.clock_mhz}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """What `as_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            heading = dict(data["otherData"])
            clock_mhz = float(heading.pop("clock_mhz"))
            named = [event for event in data["traceEvents"] if event["name"] == "thread_name"]
            threads = {event["tid"]: event["args"]["name"] for event in named}
            spans = [_span(event, threads) for event in data["traceEvents"] if event["ph"] == "X"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected a trace that --trace wrote, but {error!r} is amiss") from error
        return cls(heading, clock_mhz, spans)

    def title(self) -> str:
        """One line for a picture."""
        parts = [str(self.heading.get(key, "")) for key in ("shape", "config", "gpu")]
        return f"{', '.join(filter(None, parts))}: CTA {self.heading.get('cta', 0)}, {self.clock_mhz:.0f} MHz"

    def _event(self, span: Span, thread: int) -> dict[str, Any]:
        arguments = {"tile": span.tile, "k_block": span.k_block, "number": span.number}
        return {
            "name": span.activity,
            "ph": "X",
            "pid": 0,
            "tid": thread,
            "ts": round(span.start / self.clock_mhz, 4),
            "dur": round(span.cycles / self.clock_mhz, 4),
            "args": {**arguments, "cycles": (span.start, span.end)},
        }


def _metadata(kind: str, thread: int, /, **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": arguments}


def _span(event: Mapping[str, Any], threads: Mapping[int, str]) -> Span:
    arguments = event["args"]
    start, end = arguments["cycles"]
    tile: Sequence[int] | None = arguments["tile"]
    return Span(
        role=threads[event["tid"]],
        activity=event["name"],
        start=start,
        end=end,
        tile=None if tile is None else (tile[0], tile[1]),
        k_block=arguments["k_block"],
        number=arguments["number"],
    )
