"""``fp8gemm doctor``: what `info` finds, judged, and with each problem what mends it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields

from fp8gemm import settings
from fp8gemm.cli.checkup import Check, Spared, Verdict, examine
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.findings import collect, setting_text
from fp8gemm.cli.interrupts import loading
from fp8gemm.cli.output import add_json, tell, tell_json
from fp8gemm.errors import InputError
from fp8gemm.quoting import counted, printable
from fp8gemm.settings import Settings
from fp8gemm.terminal.table import Column, Group, Painted, Table
from fp8gemm.tuning.table import read_table

EXAMPLE = "fp8gemm doctor --build"

_COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    build = "judge a machine that only compiles kernels, for others: without torch, driver and GPU it is well"
    parser.add_argument("--build", action="store_true", help=build)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Judge everything and tell it. 0; 1 if there is a problem."""
    with loading():  # of torch
        checks = checkup(build=options.build)
    tell(options, "\n".join(_lines(checks)))
    problems = _count(checks, Verdict.PROBLEM)
    plain = [
        {"name": each.name, "verdict": each.verdict.value, "found": each.found, "mend": each.mend} for each in checks
    ]
    counts = {"problems": problems, "warnings": _count(checks, Verdict.WARNING)}
    tell_json(options, {"ok": not problems, **counts, "checks": plain})
    return Exit.FAILED if problems else Exit.DONE


def checkup(*, build: bool = False) -> list[Check]:
    """Every check, in an order in which problems are best mended; ``build`` is for a machine that only compiles.

    Where a setting is refused, the others are judged beside that one's default.
    """
    checks = []
    try:
        now = settings.current()
    except InputError:
        bad = settings.refused(os.environ)
        for name, problem in bad.items():
            checks.append(Check("settings", Verdict.PROBLEM, problem, f"`unset {name}`, or give it such a value"))
        now = settings.from_environment({name: text for name, text in os.environ.items() if name not in bad})
    checks += _settings(now)
    token = settings.enter(now)
    try:
        checks += examine(collect(), Spared.by(now, build=build))
    finally:
        settings.leave(token)
    return [Check(each.name, each.verdict, _line(each.found), _line(each.mend)) for each in checks]


def _settings(now: Settings) -> Iterator[Check]:
    by_default = settings.from_environment({name: os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HOME")})
    changed = [
        f"{field.name} = {setting_text(value)}"
        for field in fields(now)
        if (value := getattr(now, field.name)) != getattr(by_default, field.name)
    ]
    yield Check("settings", Verdict.OK, "; ".join(changed) or "all as by default")
    for name in settings.unknown(os.environ):
        mend = f"`unset {name}`; the names are in docs/reference.md"
        yield Check("settings", Verdict.WARNING, f"{name} is no setting, and nothing reads it", mend)
    for path in now.tables:
        try:
            read_table(path)
        except InputError as error:
            yield Check("settings", Verdict.PROBLEM, str(error), "take it out of FP8GEMM_TABLES, or correct the file")
    if now.check_groups:
        found = "grouped products wait for the GPU to check their groups"
        yield Check("settings", Verdict.WARNING, found, "`unset FP8GEMM_CHECK_GROUPS` once the mistake is found")


def _line(text: str) -> str:
    """One line, whatever others said in several."""
    return printable(" ".join(text.split()))


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    table = Table(Group((Column(width=8, left=True), Column(width=12, left=True), Column(width=24, left=True))))
    for check in checks:
        yield table.line(Painted(check.verdict.value, _COLOURS[check.verdict]), check.name, check.found)
        if check.mend:
            yield table.line("", "", f"-> {check.mend}")
    problems, warnings = (counted(_count(checks, each), each.value) for each in (Verdict.PROBLEM, Verdict.WARNING))
    yield f"{problems}, {warnings}"


def _count(checks: Sequence[Check], verdict: Verdict) -> int:
    return sum(check.verdict is verdict for check in checks)
