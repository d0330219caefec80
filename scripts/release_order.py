"""Counts what comes out wrong where a ring's stage may be overwritten before its scales have been read.

First the call on which that was seen, 1024 masked groups of 512 rows with N = 65 and K = 128: so many wrong of so many
calls, with other headers too if ``--include`` names a directory that holds them. Then every family of kernels, behind
element-wise stores that keep the load/store units busy. Runs from a checkout, on a Hopper GPU.

Exit code 0: nothing was wrong, with these headers. 1: something was, or a kernel does not end. 2: bad arguments.
3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fp8gemm.cli.arguments import parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, note, prints_json, tell_json  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, diagnose  # noqa: E402
from fp8gemm.jit.compiler import nvrtc_version  # noqa: E402
from fp8gemm.kernels.loaded import device_chip  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from tests.clogged import FAMILIES, graphs_of  # noqa: E402
from tests.launches import Played, play  # noqa: E402
from tests.mutations import tree  # noqa: E402
from tests.reused_stages import VARIANTS, Calls, make_operands  # noqa: E402

CALLS, OTHER_CALLS, LAUNCHES = 200_000, 20_000, 100_000
CALLS_LIMIT_S, LIMIT_S = 160.0, 90.0
"""For all calls, and for the launches of each family. Where they take longer there are fewer of them."""
START_S = 120.0
"""For a process to start, and to make its operands."""

Row = dict[str, Any]


class HangError(Exception):
    """A kernel does not end, and the GPU is of no use to this process any more."""


def counted(played: Played, **names: object) -> Row:
    """A row of the result.

    Raises:
        HangError: the launches did not end.
    """
    if played.hangs:
        raise HangError(f"{played.worst} does not end, after {played.launches} launches")
    return {
        **names,
        "launches": played.launches,
        "wrong": played.wrong.launches,
        "wrong_elements": played.wrong.elements,
        "worst": played.worst,
        "seconds": round(played.seconds, 1),
    }


def count_calls(wanted: int, seed: int, device: torch.device) -> list[Row]:
    """Every variant of the call, so many calls of them in all."""
    operands, rows = make_operands(seed, device), []
    for variant in VARIANTS:
        calls = Calls(variant, operands)
        of_variant = -(-wanted // len(VARIANTS))
        played = play([calls], of_variant, limit_s=CALLS_LIMIT_S / len(VARIANTS), to_the_end=True)
        rows.append(counted(played, variant=str(variant), tile=variant.tile(device_chip(device.index))))
        print(line(rows[-1]), flush=True)
    return rows


def count_calls_with(include: Path, name: str, wanted: int, seed: int) -> Row:
    """The same with other headers, in a process of its own; and what kept it from its end."""
    with tempfile.TemporaryDirectory(prefix="fp8gemm-release-order-") as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, str(Path(__file__).resolve()), "--headers", str(include.resolve()), "--families", ""]
        command += ["--calls", str(wanted), "--seed", str(seed), "--json", str(report)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, timeout=CALLS_LIMIT_S + START_S, stdin=subprocess.DEVNULL, stdout=2
            )
            problem = f"the process ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            problem = "the process did not end"
        found = json.loads(report.read_text() or "{}") if report.is_file() else {}
        if "calls" in found:
            return {"headers": name, "calls": found["calls"], "problem": ""}
        return {"headers": name, "calls": [], "problem": found.get("hangs", problem)}


def count_families(names: Sequence[str], wanted: int, seed: int, device: torch.device) -> Iterator[Row]:
    """Every family, so many launches of each."""
    for name in names:
        graphs = graphs_of(name, seed, device)
        torch.cuda.synchronize(device)
        played = play(graphs, wanted, limit_s=LIMIT_S, to_the_end=True)
        row = counted(played, family=name, kernels=len(graphs))
        print(line(row), flush=True)
        yield row


def line(row: Row) -> str:
    """A row of the table."""
    name = f"{row['variant']} {row['tile']}" if "variant" in row else f"{row['family']}, {row['kernels']} kernels"
    worst = f"  most of {row['worst']}" if row["wrong"] else ""
    return f"{name:<52} {row['wrong']:>7} wrong of {row['launches']:>7} in {row['seconds']:>5.1f} s{worst}"


def total(rows: Sequence[Row]) -> str:
    """How many were wrong of how many."""
    return f"{sum(row['wrong'] for row in rows)} wrong of {sum(row['launches'] for row in rows)}"


def use_headers(include: Path, directory: Path) -> None:
    """Compile a copy of these headers, into a cache beside it."""
    copy = directory / "include"
    shutil.copytree(include, copy)
    tree.use(copy)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(made, ", again after each part")
    made.add_argument("--include", type=Path, metavar="DIR", help="other headers, to compare; DIR holds fp8gemm/")
    made.add_argument("--include-name", metavar="NAME", help="what they are called in the figures, such as a commit")
    made.add_argument("--headers", type=Path, metavar="DIR", help="compile these headers instead of the checkout's")
    made.add_argument("--calls", type=parse_positive, default=CALLS, help=f"default {CALLS}")
    made.add_argument(
        "--include-calls", type=parse_positive, default=OTHER_CALLS, help=f"with other headers, default {OTHER_CALLS}"
    )
    made.add_argument("--launches", type=parse_positive, default=LAUNCHES, help=f"of a family, default {LAUNCHES}")
    made.add_argument(
        "--families", default=",".join(FAMILIES), metavar="NAME,...", help='default all of them; "" for none'
    )
    made.add_argument("--seed", type=int, help="of all operands, default a fresh one")
    made.add_argument("--commit", help="of the checkout, where git cannot tell")
    return made


def families_of(text: str) -> list[str]:
    """Names with commas between them."""
    names = [name for name in text.split(",") if name]
    if unknown := sorted(set(names) - set(FAMILIES)):
        raise ValueError(f"--families: expected some of {', '.join(FAMILIES)}, got {', '.join(unknown)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, count, report."""
    options = parser().parse_args(argv)
    try:
        names = families_of(options.families)
    except ValueError as error:
        parser().error(str(error))
    for given in (options.include, options.headers):
        if given is not None and not (given / "fp8gemm").is_dir():
            parser().error(f"{given}: expected a directory that holds fp8gemm/")
    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        note(f"release_order: {diagnosis.message}")
        return Exit.NO_GPU
    with tempfile.TemporaryDirectory(prefix="fp8gemm-headers-") as directory:
        if options.headers is not None:
            use_headers(options.headers, Path(directory))
        return count(options, names)


def count(options: argparse.Namespace, names: Sequence[str]) -> int:
    """All parts that the options name; the exit code."""
    with apart(options):
        result = _count(options, names)
    if prints_json(options):
        tell_json(options, result)
    if "hangs" in result:
        sys.stdout.flush()
        os._exit(Exit.FAILED)  # destructors would wait for the GPU
    return Exit.FAILED if any(row["wrong"] for row in (*result["calls"], *result["families"])) else Exit.DONE


def _count(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    seed = random.randrange(2**31) if options.seed is None else options.seed
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "nvrtc": nvrtc_version(),
        **provenance(options.commit),
        "seed": seed,
    }

    def put(**part: Any) -> None:
        result.update(part)
        if not prints_json(options):
            tell_json(options, result)

    print(" ".join(f"{name} {value}" for name, value in result.items()), flush=True)
    try:
        if options.include is not None:
            name = options.include_name or options.include.resolve().name
            other = count_calls_with(options.include, name, options.include_calls, seed)
            put(other=other)
            said = other["problem"] or f"{total(other['calls'])} calls"
            print(f"with the headers of {name}: {said}", flush=True)
        put(calls=count_calls(options.calls, seed, device))
        print(f"{total(result['calls'])} calls", flush=True)
        put(families=[])
        for row in count_families(names, options.launches, seed, device):
            put(families=[*result["families"], row])
    except HangError as error:
        put(hangs=str(error))
        note(f"release_order: {error}")
    return result


if __name__ == "__main__":
    sys.exit(main())
