"""docs/serving.md: its commands parse, and it leaves nothing out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cache.notices import CacheEvent
from fp8gemm.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()

CACHE_ACTIONS = ("ls", "verify", "seal", "export", "import", "prune", "clear")


def commands() -> Iterator[str]:
    """What a reader can type after ``fp8gemm``, from code blocks and from tables, as one line each."""
    text = PAGE.replace("\\\n", " ")
    for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
        for line in re.split(r"\n|&&", block):
            found = re.match(r"\s*fp8gemm (.*)", line)
            if found:
                yield found[1]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`fp8gemm ([^`]+)`", prose.replace("\n", " "))


WHOLE = sorted({each for each in commands() if "..." not in each and not re.fullmatch("[a-z ]+", each)})
"""Those that are no mere names of commands."""


@pytest.mark.parametrize("command", WHOLE)
def test_the_commands_parse(command: str) -> None:
    for optional in ("", r"\1"):  # without what stands in brackets, and with it
        words = shlex.split(re.sub(r"\[(.*?)\]", optional, command))
        parsed = cli.command_parser(next(word for word in words if word in cli.COMMANDS)).parse_args(words)
        assert parsed.run is not None


def test_the_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are named without their command."""
    for words in (["warmup"], ["report"], *(["cache", action] for action in CACHE_ACTIONS)):
        with pytest.raises(SystemExit):
            cli.command_parser(words[0]).parse_args([*words, "--help"])
    known = set(re.findall(r"--[a-z][\w-]+", capsys.readouterr().out))
    named = set(re.findall(r"(?<=`)--[a-z][\w-]+", PAGE))
    assert named and named <= known, named - known


def test_settings_and_warnings_are_as_the_code_has_them() -> None:
    variables = {settings._variable(field.name) for field in fields(settings.Settings)}
    assert set(re.findall(r"FP8GEMM_[A-Z_]+", PAGE)) <= variables
    warned = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert [event for event in warned if not event.startswith("FP8GEMM_")] == [event.name for event in CacheEvent]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
    local = [link for link in links if "://" not in link and not link.startswith("results/")]
    assert local and all((ROOT / "docs" / link).exists() for link in local), local
