"""What shells are told of the commands: all that the parsers know, in scripts that the shells read and obey."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fp8gemm.cli import main as cli
from fp8gemm.cli.completion import Kind, commands_of
from fp8gemm.cli.shells import SHELLS
from fp8gemm.tuning.hopper import CHIPS
from tests.children import environment

COMMANDS = {" ".join(each.path): each for each in commands_of(cli.command_parser(*cli.COMMANDS))}
CHECK = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-config", "-n"]}


def need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture
def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What the command prints for a shell."""
    assert cli.main(["completion", shell]) == 0
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out)
    return path


def test_commands_options_and_values_are_those_of_the_parsers() -> None:
    assert [name for name, _ in COMMANDS[""].commands] == list(cli.COMMANDS)
    assert {"cache ls", "cache prune", "explain"} <= COMMANDS.keys()
    values = {name: each.value for command in COMMANDS.values() for each in command.options for name in each.names}
    with_output = {path for path, command in COMMANDS.items() for each in command.options if "--output" in each.names}
    assert with_output == {"report"}, "where it is an old spelling of --out-dtype it is not taught"
    assert (each := values["--chip"]) is not None and each.words[:4] == tuple(CHIPS)
    assert values["--batch-invariant"] is None and values["--help"] is None
    kinds = {name: (value.kind, value.optional) for name, value in values.items() if value is not None}
    assert kinds["--cache-dir"] == (Kind.DIRECTORY, False) and kinds["--model"] == (Kind.FILE, False)
    assert kinds["--json"] == (Kind.FILE, True) and kinds["--jobs"] == (Kind.OTHER, False)
    listed = COMMANDS["warmup"].options, COMMANDS["bench"].options
    words = {name: each.value.words for some in listed for each in some for name in each.names if each.value}
    assert words["--regime"] == ("turn", "burst", "sustained") and words["--calls"] == ("layer", "gemm")
    assert {"bfloat16", "float16", "float32"} == {*words["--out-dtype"]} and "all" in words["--layout"]


def test_a_script_is_whole_and_its_shell_reads_it(shell: str, script: Path) -> None:
    text = script.read_text()
    assert "@" not in text.replace("@)", "").replace("$@", "").replace("[@]", ""), "a part was left open"
    assert not {"python", "eval"} & set(text.split())
    done = subprocess.run([*CHECK[shell], str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_json_holds_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["completion", "bash", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": "bash", "script": printed}


CASES = {
    "wa": "warmup",
    "explain 64 7168 2048 --chip ": " ".join(CHIPS),
    "explain --chip h10": "h100 h100-pcie",
    "cache ": "ls verify seal export import prune clear",
    "cache --": "--help",
    "completion ": "bash zsh fish",
    "info --j": "--json",
    "explain --out-dtype b": "bfloat16",
    "bench --only m": "masked",
    "warmup --jobs ": "",
    "warmup --model fi": "file.json",
    "warmup --cache-dir fo": "folder",
    "cache seal fo": "folder",
    "warmup --nk 7168x2048 --chip h200 --calls l": "layer",
}
"""What is typed, and what all shells offer."""

OF_BASH = {
    "explain --chip = h10": "h100 h100-pcie",
    "explain --chip =": " ".join(CHIPS),
    "warmup --chip h200,h10": "h200,h100 h200,h100-pcie",
    "bench --regime turn,b": "turn,burst",
    "warmup --json --mod": "--model",
    "warmup --json fi": "file.json",
    "info x y ": "--help --json -h",
    "explain 64 7168 2048 --sta": "--static-weights",
}
"""With words as bash divides them."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "folder").mkdir(parents=True)
    (tmp_path / "work" / "file.json").write_text("")
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shell", ["bash"], indirect=True)
@pytest.mark.parametrize(("typed", "offered"), [*CASES.items(), *OF_BASH.items()])
def test_bash_completes(typed: str, offered: str, script: Path) -> None:
    words = ["fp8gemm", *typed.split(" ")]
    call = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fp8gemm; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", call, "bash", *words], capture_output=True, text=True)
    assert done.stderr == "" and sorted(done.stdout.split()) == sorted(offered.split())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shell", ["fish"], indirect=True)
@pytest.mark.parametrize(("typed", "offered"), [*CASES.items(), ("warmup --chip h200,h10", "h200,h100 h200,h100-pcie")])
def test_fish_completes(typed: str, offered: str, script: Path, tmp_path: Path) -> None:
    call = f"source {script}; complete -C 'fp8gemm {typed}'"
    variables = environment(HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path))
    done = subprocess.run(["fish", "--no-config", "-c", call], capture_output=True, text=True, env=variables)
    found = [line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()]
    assert done.stderr == "" and sorted(found) == sorted(offered.split())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shell", ["zsh"], indirect=True)
def test_zsh_completes(script: Path, tmp_path: Path) -> None:
    """What is typed is completed on a terminal, since zsh has no other way; and then printed instead of run."""
    import pty

    typed = ["fp8gemm wa\t", "fp8gemm explain 64 7168 2048 --chip h2\t", "fp8gemm explain --chip=h100-\t"]
    typed += ["fp8gemm warmup --chip h200,h100-\t", "fp8gemm cache v\t", "fp8gemm warmup --model fi\t"]
    found = ["fp8gemm warmup", "fp8gemm explain 64 7168 2048 --chip h20", "fp8gemm explain --chip=h100-pcie"]
    found += ["fp8gemm warmup --chip h200,h100-pcie", "fp8gemm cache verify", "fp8gemm warmup --model file.json"]
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(TERM="dumb", ZDOTDIR=str(tmp_path), HOME=str(tmp_path)))
    log = tmp_path / "said"
    setup = f"autoload -U compinit; compinit -u -D; source {script}; fp8gemm() {{ print -r -- fp8gemm $@ >> {log} }}"
    try:
        for number, line in enumerate([setup, *typed]):
            os.write(terminal, f"{line}\n".encode())
            ends = time.monotonic() + 30
            while time.monotonic() < ends and not (log.exists() and log.read_text().count("\n") >= number > 0):
                if select.select([terminal], [], [], 0.05)[0]:
                    os.read(terminal, 65536)
                elif number == 0:
                    break
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    assert log.read_text().splitlines() == found


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "fp8gemm")
def test_every_help_fits_80_columns(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*path.split(), "--help"])
    long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert not long
