"""Layers divided among GPUs: what each way of sending costs and gives, all of it in one run.

    torchrun --nproc-per-node 2 scripts/parallel_speed.py --json parallel-speed.json

Ranks begin each timing together, and a figure is the median of rounds of the slowest rank, in microseconds. ``prefill``
and ``decode``: gated MLPs on one GPU, and divided, by each way that rows and sums travel, beside torch's own layers in
bfloat16. ``limits``: the two layers by themselves, overlapped and not, by rows, and sums of few rows by each kernel:
what fp8gemm/parallel/limits.py is set by. ``gathers``: rows in FP8 beside bfloat16. ``experts``: those of
DeepSeek-V3, by each exchange. ``host``: what a call takes of a CPU. A name with a stroke is the time of the one over
that of the other. What fails is in its place in words, and the rest goes on.
``--json FILE`` is written after each line. ``--dry-run`` measures nothing: tiny sizes, on CPUs.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]
# NOTE: before torch is imported. Not every host lets a process have multicast, and no way shall depend on it.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from parallel_speed_parts import SECTIONS  # noqa: E402
from parallel_speed_timing import Figures, Part, Ranks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from fp8gemm.cli.arguments import Words, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, note, tell_json  # noqa: E402
from fp8gemm.errors import InputError  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402


def as_line(section: str, name: str, figures: Figures) -> str:
    """One of the table's, with what failed behind the figures."""
    told, failed = [], []
    for key, value in figures.items():
        if isinstance(value, str):
            failed.append(f"\n{'':10}{key}: {value}")
        else:
            told.append(f"{key} {value:,.2f}" if value < 10 else f"{key} {value:,.1f}")
    return f"{section:8} {name:34} {'  '.join(told)}{''.join(failed)}"


class Report:
    """What was found so far; the first rank tells it at once, because a limit of time may cut the rest off."""

    def __init__(self, options: argparse.Namespace, heading: dict[str, Any]) -> None:
        self._options, self.document = options, {**heading, "rows": []}

    def add(self, section: str, name: str, figures: Figures) -> None:
        self.document["rows"].append({"section": section, "name": name, **figures})
        if dist.get_rank():
            return
        with apart(self._options):
            print(as_line(section, name, figures), flush=True)
        if self._options.json is not None and str(self._options.json) != "-":
            tell_json(self._options, self.document)


def measure(world: Ranks, options: argparse.Namespace, report: Report) -> None:
    """All sections that were asked for, until the time is used up, which ranks agree on."""
    start = time.monotonic()
    for section in options.sections:
        if world.most(time.monotonic() - start) > options.limit_s:
            report.add(section, "left out", {"because": f"{options.limit_s} s are over"})
            continue
        begun = time.monotonic()
        part = Part(world, partial(report.add, section))
        try:
            SECTIONS[section](part)
        except Exception as error:
            report.add(section, "failed", {"because": f"{type(error).__name__}: {error}"[:500]})
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        report.add(section, "seconds", {"s": time.monotonic() - begun})


def _sections(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise InputError(f"expected some of {','.join(SECTIONS)}, got {unknown[0]!r}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--sections", type=Words(_sections), default=list(SECTIONS), metavar="NAME,...", help="default: all"
    )
    parser.add_argument("--rounds", type=Words(parse_positive), default=7, help="of a timing, default 7")
    parser.add_argument("--round-ms", type=Words(parse_positive), default=15, help="least of a round, default 15")
    parser.add_argument(
        "--limit-s", type=Words(parse_positive), default=130, help="no section begins later, default 130"
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPUs, to see what is measured")
    add_json(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code."""
    options = _parser().parse_args(arguments)
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        note("parallel_speed: start it on several ranks, with torchrun --nproc-per-node 2")
        return Exit.WORDS
    if not options.dry_run and not torch.cuda.is_available():
        note("parallel_speed: torch finds no GPU; --dry-run shows what would be measured")
        return Exit.NO_GPU
    kind, number = ("cpu" if options.dry_run else "cuda"), int(os.environ["LOCAL_RANK"])
    device = torch.device(kind, number) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    world = Ranks(mesh, device, rounds=options.rounds, round_ms=options.round_ms)
    heading = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        **provenance(),
        "ranks": world.ranks,
    }
    if kind == "cuda":
        heading["gpu"] = torch.cuda.get_device_name(device)
    report = Report(options, heading)
    with torch.no_grad():
        measure(world, options, report)
    if not dist.get_rank():
        tell_json(options, report.document)
    dist.barrier()
    sys.stdout.flush()
    os._exit(Exit.DONE)  # graphs hold kernels of groups, which are not to be waited for one by one


if __name__ == "__main__":
    sys.exit(main())
