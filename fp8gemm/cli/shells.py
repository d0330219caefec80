"""The commands as scripts of shells that complete them: bash, zsh and fish."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from fp8gemm import __version__

if TYPE_CHECKING:
    from fp8gemm.cli.completion import Command, Value

_MOST_OF_HELP = 72


def bash(commands: Sequence[Command]) -> str:
    """For bash 4.2 and newer, without the package bash-completion."""
    return _filled(_BASH, KNOWN=_KNOWN.replace("@CASES@", _cases(commands, _bash_words)))


def zsh(commands: Sequence[Command]) -> str:
    """For zsh, which shows what options do."""
    return _filled(_ZSH, KNOWN=_KNOWN.replace("@CASES@", _cases(commands, _zsh_words)))


def fish(commands: Sequence[Command]) -> str:
    """For fish, which shows what options do."""
    paths = " ".join(quote(" ".join(command.path)) for command in commands if command.path)
    lines = "\n".join(line for command in commands for line in _fish_lines(command))
    return _filled(_FISH, PATHS=paths, COMPLETE=lines)


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""What writes the script of each."""


def _filled(script: str, **parts: str) -> str:
    for name, part in {"VERSION": __version__, **parts}.items():
        script = script.replace(f"@{name}@", part)
    return script


def _cases(commands: Sequence[Command], words: Callable[[Sequence[tuple[str, str]]], str]) -> str:
    """Branches of a `case` that bash and zsh read alike: by a command's words and, behind them, what is asked of it:
    its commands, its options, one of its options' value, or the place of an argument."""

    def branch(key: str, kind: str, told: Sequence[tuple[str, str]], more: str = "") -> str:
        return f"        {quote(key)}) kind={kind}{more} known=({words(told)}) ;;"

    lines = []
    for command in commands:
        path = " ".join(command.path)
        if command.commands:
            lines.append(branch(f"{path}:1", "command", [(name, _short(told)) for name, told in command.commands]))
        for place, value in enumerate(command.positionals, 1):
            lines.append(branch(f"{path}:{place}", value.kind.value, [(word, "") for word in value.words]))
        names = [(name, _short(option.help)) for option in command.options for name in option.names]
        lines.append(branch(f"{path}:options", "words", names))
        for option in command.options:
            if (follows := option.value) is not None:
                known = [(word, "") for word in follows.words]
                more = " optional=1" if follows.optional else ""
                lines += [branch(f"{path}:{name}", follows.kind.value, known, more) for name in option.names]
    return "\n".join(lines)


def _bash_words(told: Sequence[tuple[str, str]]) -> str:
    return " ".join(quote(word) for word, _ in told)


def _zsh_words(told: Sequence[tuple[str, str]]) -> str:
    """As `_describe` takes them: a colon is before what a word does."""
    return " ".join(quote(word.replace(":", r"\:") + (f":{does}" if does else "")) for word, does in told)


def _short(told: str) -> str:
    """The beginning of a help, in a line."""
    return textwrap.shorten(re.split(r"; ", told)[0], _MOST_OF_HELP, placeholder=" ...")


def _fish_lines(command: Command) -> Iterator[str]:
    at = f"complete -c fp8gemm -n {quote('__fp8gemm_at ' + quote(' '.join(command.path)))}"
    for name, told in command.commands:
        yield f"{at} -a {name} -d {quote(_short(told))}"
    for value in command.positionals:
        yield f"{at}{_fish_value(value)}"
    for option in command.options:
        names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
        follows = "" if option.value is None else f" -r{_fish_value(option.value)}"
        yield f"{at}{names}{follows} -d {quote(_short(option.help))}"


def _fish_value(value: Value) -> str:
    words = " ".join(value.words)
    return {
        "words": f" -f -a {quote(words)}",
        "list": f" -f -a {quote(f'(__fp8gemm_list {words})')}",
        "file": " -F",
        "directory": " -f -a '(__fish_complete_directories)'",
        "other": " -f",
    }[value.kind.value]


_KNOWN = r"""
_fp8gemm_known() {
    kind= optional= known=()
    case $1 in
@CASES@
    esac
}
"""

_BASH = r"""# Completion of fp8gemm @VERSION@ for bash, printed by `fp8gemm completion bash`. For this shell:
#     source <(fp8gemm completion bash)
# For every one, where the package bash-completion is there:
#     mkdir -p ~/.local/share/bash-completion/completions
#     fp8gemm completion bash > ~/.local/share/bash-completion/completions/fp8gemm
@KNOWN@
_fp8gemm() {
    local cur=${COMP_WORDS[COMP_CWORD]} at= place=1 option= kind optional before= word
    local -a known words
    COMPREPLY=()
    # Bash takes --chip=h200 for three words.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do [[ $word == = ]] || words+=("$word"); done
    [[ $cur == = ]] && cur=
    for word in "${words[@]}"; do
        if [[ -n $option && ! (-n $optional && $word == -*) ]]; then
            option=
        elif [[ $word == -* ]]; then
            _fp8gemm_known "$at:$word"
            option=${kind:+$word}
        else
            _fp8gemm_known "$at:$place"
            if [[ $kind == command && " ${known[*]} " == *" $word "* ]]; then
                at="${at:+$at }$word" place=1
            else
                ((place++))
            fi
        fi
    done
    if [[ -n $option && ! (-n $optional && $cur == -*) ]]; then
        _fp8gemm_known "$at:$option"
    else
        [[ $cur == -* ]] || _fp8gemm_known "$at:$place"
        [[ $cur == -* || -z $kind ]] && _fp8gemm_known "$at:options"
    fi
    case $kind in
        file) compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        directory) compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        other) ;;
        *)
            [[ $kind == list && $cur == *,* ]] && before=${cur%,*},
            mapfile -t COMPREPLY < <(compgen -P "$before" -W "${known[*]}" -- "${cur#"$before"}")
            ;;
    esac
}

complete -F _fp8gemm fp8gemm
"""

_ZSH = r"""#compdef fp8gemm
# Completion of fp8gemm @VERSION@ for zsh, printed by `fp8gemm completion zsh`. For this shell, behind compinit:
#     source <(fp8gemm completion zsh)
# For every one: write it to a file _fp8gemm in a directory of $fpath.
@KNOWN@
_fp8gemm() {
    local cur=${words[CURRENT]} at= place=1 option= kind optional word
    local -a known
    for word in ${words[2,CURRENT-1]}; do
        if [[ -n $option && ! (-n $optional && $word == -*) ]]; then
            option=
        elif [[ $word == --*=* ]]; then
            option=
        elif [[ $word == -* ]]; then
            _fp8gemm_known "$at:$word"
            option=${kind:+$word}
        else
            _fp8gemm_known "$at:$place"
            if [[ $kind == command && -n ${(M)known:#$word:*} ]]; then
                at="${at:+$at }$word" place=1
            else
                ((place++))
            fi
        fi
    done
    if [[ -z $option && $cur == --*=* ]]; then
        option=${cur%%=*} optional=
        compset -P '*='
    fi
    if [[ -n $option && ! (-n $optional && $cur == -*) ]]; then
        _fp8gemm_known "$at:$option"
    else
        option=
        [[ $cur == -* ]] || _fp8gemm_known "$at:$place"
        [[ $cur == -* || -z $kind ]] && _fp8gemm_known "$at:options" && kind=option
    fi
    case $kind in
        file) _files ;;
        directory) _files -/ ;;
        list) compset -P '*,'; _describe -t values value known -S '' ;;
        option) _describe -o -t options option known ;;
        command) _describe -t commands command known ;;
        words) _describe -t values value known ;;
    esac
}

# In a file of $fpath this is the function itself.
if [[ ${funcstack[1]} == _fp8gemm ]]; then
    _fp8gemm "$@"
else
    compdef _fp8gemm fp8gemm
fi
"""

_FISH = r"""# Completion of fp8gemm @VERSION@ for fish, printed by `fp8gemm completion fish`. For this shell:
#     fp8gemm completion fish | source
# For every one:
#     fp8gemm completion fish > ~/.config/fish/completions/fp8gemm.fish

function __fp8gemm_at --description 'Whether the command line is at this command of fp8gemm'
    set -l at ''
    for word in (commandline -opc)[2..-1]
        set -l further (string trim -- "$at $word")
        contains -- $further @PATHS@; and set at $further
    end
    test "$at" = "$argv[1]"
end

function __fp8gemm_list --description 'Words of which several may stand with commas between them'
    set -l before (commandline -ct | string match -r '.*[,=]')
    set -q before[1]; or set before ''
    string join \n -- (string replace -r '.*=' '' -- $before)$argv
end

complete -c fp8gemm -f
@COMPLETE@
"""
