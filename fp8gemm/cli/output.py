"""What a command tells: results on standard output, everything else on standard error; with ``--json`` one document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from fp8gemm.cli.interrupts import loading
from fp8gemm.writing import write_text

PRINTED = Path("-")
"""What ``--json`` stands for without a path: the document is all that standard output holds."""


def add_json(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Declare ``--json [PATH]``; ``more`` is what to add to its help."""
    told = f"print one JSON document and nothing else or, with PATH, write it there too{more}"
    parser.add_argument("--json", nargs="?", const=PRINTED, type=Path, metavar="PATH", help=told)


def prints_json(options: argparse.Namespace) -> bool:
    """Whether standard output is for the document alone."""
    return bool(options.json == PRINTED)


def json_file(options: argparse.Namespace) -> Path | None:
    """The file to write the document to, if one was named."""
    return None if prints_json(options) else options.json


def tell(options: argparse.Namespace, text: str) -> None:
    """Print a result as people read it, unless standard output is for the document."""
    if not prints_json(options):
        print(text)


def as_text(document: Any) -> str:
    """JSON for people and machines."""
    return json.dumps(document, indent=1) + "\n"


def tell_json(options: argparse.Namespace, document: Any, form: Callable[[Any], str] = as_text) -> None:
    """Print or write the document, if it was asked for; ``form`` makes the text."""
    if options.json is None:
        return
    if prints_json(options):
        print(form(document), end="")
    else:
        write_text(options.json, form(document))


@contextmanager
def apart(options: argparse.Namespace) -> Iterator[None]:
    """Around what prints as it goes: where standard output is for the document, that goes to standard error."""
    with redirect_stdout(sys.stderr if prints_json(options) else sys.stdout):
        yield


def note(text: str) -> None:
    """Tell what is no result: progress, and the reason of whatever was not done."""
    print(text, file=sys.stderr, flush=True)


def lacks_gpu(command: str) -> bool:
    """Whether kernels cannot run on GPU 0; the reason is told, for `Exit.NO_GPU`."""
    from fp8gemm.driver.device import DeviceStatus, diagnose

    with loading():
        diagnosis = diagnose(0)
    ready = diagnosis.status is DeviceStatus.READY
    if not ready:
        note(f"{command}: {diagnosis.message}")
    return not ready
