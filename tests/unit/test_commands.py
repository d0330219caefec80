"""The table of commands: help comes from it alone, and a command imports itself alone."""

from __future__ import annotations

import importlib
import json

import pytest

from fp8gemm.cli import main as cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_is_a_module_of_its_name(name: str) -> None:
    module = importlib.import_module(f"fp8gemm.cli.{name}")
    assert callable(module.add_arguments) and callable(module.run) and module.EXAMPLE.startswith(f"fp8gemm {name}")


def test_help_lists_every_command_and_imports_none(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for name, summary in cli.COMMANDS.items():
        assert f"{name} {summary[0].lower()}{summary[1:].rstrip('.')}" in text


def test_a_command_imports_itself_alone(monkeypatch, capsys) -> None:
    imported = []
    monkeypatch.setattr(cli, "import_module", lambda name: imported.append(name) or importlib.import_module(name))
    assert cli.main(["explain", "64", "256", "512", "--json"]) == 0
    assert imported == ["fp8gemm.cli.explain"] and json.loads(capsys.readouterr().out)
