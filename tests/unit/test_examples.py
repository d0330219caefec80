"""The last line of every command's help is an example, and it works."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8gemm import settings
from fp8gemm.cli import main as cli
from tests.jit.caches import fill

NEED_A_GPU = ("tune", "bench")
ACTIONS = ("ls", "verify", "export", "import", "prune", "clear", "seal")
COMMANDS = [[name] for name in cli.COMMANDS] + [["cache", action] for action in ACTIONS]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with two kernels in ./kernels, which is the cache: by the settings, because the environment
    may have been read before, and an example clears it."""
    fill(tmp_path / "kernels", 1, 2)
    monkeypatch.chdir(tmp_path)
    with settings.scope(cache_dirs=(tmp_path / "kernels",)):
        yield tmp_path


def example(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "-h"])
    line = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert ended.value.code == 0 and line.startswith("example: fp8gemm "), line
    return shlex.split(line)[2:]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_example_works(words: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = example(words, capsys)
    assert asked[: len(words)] == words
    if words[0] in NEED_A_GPU:
        options = cli.command_parser(words[0]).parse_args(asked)
        assert options.run is not None
        return
    if words == ["cache", "import"]:
        assert cli.main(example(["cache", "export"], capsys)) == 0
    assert cli.main(asked) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
