"""What the warps of a kernel do over time, and how to read it: who loads, who multiplies, where the rest goes.

    python examples/read_the_trace.py                          # recorded here; without a Hopper GPU that of an H200
    python examples/read_the_trace.py --shape 512x7168x16384   # another product, on a Hopper GPU
    python examples/read_the_trace.py --from docs/results/timeline-h200.json --picture timeline.png

The trace is one CTA's, of an instrumented build of the very kernel (docs/profiling.md); chrome://tracing shows it too.
A warp loads stages of a ring; two warpgroups multiply what is there; warps of their own store. A kernel is as fast as
its tensor cores are busy, so one question is behind all others: what do those who multiply do when they do not?
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fp8gemm.cli.arguments import parse_mnk
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import lacks_gpu
from fp8gemm.lab.labels import labelled_config
from fp8gemm.lab.profiling.gantt import draw, window
from fp8gemm.lab.profiling.timeline import Timeline
from fp8gemm.lab.profiling.trace import BY_K_BLOCK, Span, roles, summarise
from fp8gemm.reading import Kind, read_json
from fp8gemm.tuning.hopper import TENSOR_MACS_PER_CYCLE
from fp8gemm.tuning.problem import packed_problem

SHAPE = (4096, 7168, 2048)
SHIPPED = Path(__file__).resolve().parent.parent / "docs" / "results" / "timeline-h200.json"
LETTERS = {
    **{"wait empty": ".", "load": "L"},  # of the warp that loads
    **{"wait full": "!", "multiply": "M", "promote": "p", "add shares": "a", "wait slot": "!", "stage": "s"},
    **{"wait staged": ".", "store": "S", "set-up": "-", "tile": "-"},
}
"""In the picture; lower case is work that tensor cores do not do, ``!`` a wait that stops those who multiply."""
COLUMNS = 100


def recorded(m: int, n: int, k: int) -> Timeline:
    """Of the kernel that the library chooses, launched here; prints each role's shares."""
    from fp8gemm.lab.profiling.kernel import find_kernel
    from fp8gemm.lab.profiling.run import Subject

    timeline, same = Subject(*find_kernel(m, n, k)).trace(0, None)
    assert same, "the instrumented kernel computes the same bytes"
    return timeline


def picture(spans: Sequence[Span], first: int, last: int) -> list[str]:
    """A line for each role from one cycle to another: the activity that has most of each column."""
    lines = []
    for role in roles(spans):
        line = ""
        for column in range(COLUMNS):
            begin, end = (first + (last - first) * at // COLUMNS for at in (column, column + 1))
            shares: dict[str, int] = {}
            for span in spans:
                if span.role == role and span.start < end and span.end > begin:
                    part = min(span.end, end) - max(span.start, begin)
                    shares[span.activity] = shares.get(span.activity, 0) + part
            line += LETTERS[max(shares, key=lambda name: shares[name])] if shares else " "
        lines.append(f"{role:<11}{line}")
    return lines


def tell(timeline: Timeline) -> None:
    """The trace in words and letters."""
    spans, heading = timeline.spans, timeline.heading
    shape, label = parse_mnk(heading["shape"]), heading["config"]
    config = labelled_config(label, packed_problem(*shape))
    tensor = config.block_m * config.block_n * config.block_k / TENSOR_MACS_PER_CYCLE
    print(f"{timeline.title()}, {heading.get('date', 'now')}\n")
    print("1. Who does what, and for how much of the time:")
    for summary in summarise(spans):
        print(f"   {summary.line()}")

    # A K block of a tile is 128 columns of A and of B: at full rate the tensor cores need a known time for it. The
    # consumers divide the tile, and take turns: each one's "multiply" holds the other's tensor work too.
    print(f"\n2. Tensor work of a K block of {label}: {tensor:.0f} cycles at full rate. Of a consumer:")
    for summary in summarise(spans):
        per_block = summary.cycles_per_k_block
        if summary.role.startswith("consumer") and per_block:
            in_loop = {name: summary.shares.get(name, 0.0) for name in BY_K_BLOCK["consumer"]}
            parts = (f"{name} {share / sum(in_loop.values()) * per_block:.0f}" for name, share in in_loop.items())
            print(
                f"   {summary.role}: {per_block:.0f} cycles, {tensor / per_block:.0%} of full rate: {', '.join(parts)}"
            )

    # The loader should wait: it is a ring ahead, and a stage is free again when the consumers have read it.
    waits = {summary.role: summary.shares for summary in summarise(spans)}
    starved = max(shares.get("wait full", 0.0) for role, shares in waits.items() if role.startswith("consumer"))
    idle = waits["load"].get("wait empty", 0.0)
    print(
        f"\n3. Consumers wait {starved:.1%} for operands, the loader {idle:.1%} for room in its {config.stages} stages:"
    )
    if starved < 0.05:
        print("   the operands are there in time; the rest of a K block is promotion, and waves that end and begin.")
    elif idle > 0.5:
        print(
            "   the copies are asked for in time, and come late: the ring is too shallow, or L2 or memory is the limit."
        )
    else:
        print("   the loader is behind: issuing copies is the limit.")

    first, last = window(spans)
    print(f"\n4. From {first} to {last} cycles: K blocks, the first tile's epilogue, the next tile's first K blocks.")
    print("\n".join(f"   {line}" for line in picture(spans, first, last)))
    print(
        "   " + ", ".join(f"{letter} {'/'.join(n for n in LETTERS if LETTERS[n] == letter)}" for letter in "L.Mp!saS-")
    )
    print("   Where one consumer stages (s), does the other multiply (M)? Then the epilogue is hidden.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shape", type=parse_mnk, metavar="MxNxK", help="of which to record one, on a Hopper GPU")
    what.add_argument("--from", dest="earlier", type=Path, metavar="JSON", help="a trace that was recorded before")
    parser.add_argument("--picture", type=Path, metavar="PATH.png", help="draw it too (needs fp8gemm[plot])")
    options = parser.parse_args()
    if options.earlier is None and not lacks_gpu("a trace of this machine's own"):
        timeline = recorded(*options.shape or SHAPE)
    elif options.shape is not None:
        return Exit.NO_GPU
    else:
        try:
            timeline = Timeline.from_json(read_json(options.earlier or SHIPPED, Kind("a trace", 64 << 20)))
        except ValueError as error:  # no such file, or it holds something else
            parser.error(f"--from: {error}")
    tell(timeline)
    if options.picture is not None:
        draw(timeline, options.picture)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
