"""``fp8gemm cache``: list, verify, seal, export, import, prune and clear directories of compiled kernels."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fp8gemm import __version__, settings
from fp8gemm.cache.access import State, require_writable
from fp8gemm.cache.archive import export_kernels, import_kernels
from fp8gemm.cache.entry import label_and_key
from fp8gemm.cache.eviction import Item, Removal, expendable, removable, remove, remove_locks
from fp8gemm.cache.inventory import Inventory, Kernel, Progress, take_inventory
from fp8gemm.cache.manifest import Manifest
from fp8gemm.cache.seal import find_problems, seal_layer
from fp8gemm.cache.store import Layer, Store
from fp8gemm.cli import cache_report as report
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, note, tell, tell_json
from fp8gemm.errors import CacheError, InputError
from fp8gemm.quoting import counted, printable, size_text
from fp8gemm.terminal.progress import bar

EXAMPLE = "fp8gemm cache ls"

_AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    actions = parser.add_subparsers(required=True, metavar="action")

    def add(
        name: str, action: Callable[[argparse.Namespace], int], words: str, summary: str
    ) -> argparse.ArgumentParser:
        told, example = summary[0].lower() + summary[1:].rstrip("."), f"example: fp8gemm cache {name} {words}".rstrip()
        command = actions.add_parser(name, help=told, description=summary, epilog=example)
        add_json(command)
        command.set_defaults(action=action)
        return command

    every = "default every one of FP8GEMM_CACHE_DIR"
    last = "default the last one of FP8GEMM_CACHE_DIR, where new kernels go"
    listing = add("ls", _list, "", "List the kernels of cache directories, and whatever else lies there.")
    listing.add_argument("directory", nargs="?", type=Path, metavar="DIR", help=every)
    verify = add(
        "verify", _verify, "kernels", "Verify every kernel and, where there is a manifest, that all is as it was then."
    )
    verify.add_argument("directory", nargs="?", type=Path, metavar="DIR", help=every)
    seal = add("seal", _seal, "kernels", "Write a manifest into a cache directory and close it to every writer.")
    seal.add_argument("directory", type=Path, metavar="DIR", help="that holds intact kernels and nothing else")
    seal.add_argument("--anew", action="store_true", help="also without kernels that it had when it was sealed before")
    export = add("export", _export, "kernels.tar.gz --from kernels", "Write all intact kernels into one file.")
    export.add_argument("file", type=Path, metavar="FILE", help="to write, a gzipped tar")
    export.add_argument("--from", dest="directory", type=Path, metavar="DIR", help=every)
    bring = add(
        "import", _import, "kernels.tar.gz --into served", "Check a file that export wrote, then publish its kernels."
    )
    bring.add_argument("file", type=Path, metavar="FILE", help="that export wrote, by somebody whose code may run here")
    bring.add_argument("--into", dest="directory", type=Path, metavar="DIR", help=last)
    prune = add(
        "prune",
        _prune,
        "--older-than 30d --max-bytes 2G",
        "Remove kernels by age since they were written, or the oldest ones by size.",
    )
    prune.add_argument("directory", nargs="?", type=Path, metavar="DIR", help=last)
    prune.add_argument("--older-than", type=parse_age, metavar="AGE", help="what is older, as 90m, 12h, 30d or 4w")
    prune.add_argument("--max-bytes", type=parse_size, metavar="SIZE", help="what is too much, as 500M or 2G (of 1024)")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    clear = add("clear", _clear, "--yes", "Remove every kernel that we wrote, and nothing else.")
    clear.add_argument("directory", nargs="?", type=Path, metavar="DIR", help=last)
    clear.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Do what was asked for and tell it. 0; 1 if something is damaged, differs from a seal, or could not be removed.

    Raises:
        CacheError: a directory or a file cannot be used as asked; the message says why.
        InputError: the options do not say enough.
    """
    return int(options.action(options))


def parse_age(text: str) -> float:
    """Seconds from "30d" and the like."""
    match = re.fullmatch(rf"({_NUMBER})([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a number and one of {', '.join(_AGE_UNITS)}, as in 30d; got {text!r}"
        )
    return float(match[1]) * _AGE_UNITS[match[2]]


def parse_size(text: str) -> int:
    """Bytes from "500M" and the like."""
    match = re.fullmatch(rf"({_NUMBER})\s?([KMGT]?)(?:iB|B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected bytes, or a number and one of K, M, G, T, as in 500M; got {text!r}")
    return int(float(match[1]) * 1024 ** _SIZE_UNITS[match[2].upper()])


def _list(options: argparse.Namespace) -> int:
    inventories, absent = _look(options)
    directories = [report.directory_json(each) for each in inventories]
    totals = {name: sum(each[name] for each in directories) for name in ("count", "bytes")}
    lines = [line for inventory in inventories for line in report.directory_lines(inventory)]
    lines += [f"{path}: not there yet" for path in absent]
    if len(inventories) > 1:
        lines.append(f"total: {counted(totals['count'], 'kernel')}, {size_text(totals['bytes'])}")
    tell(options, "\n".join(lines))
    tell_json(options, {"directories": directories, "absent": absent, **totals})
    return Exit.DONE


def _verify(options: argparse.Namespace) -> int:
    inventories, absent = _look(options)
    found = [(inventory, find_problems(inventory)) for inventory in inventories]
    code = Exit.FAILED if any(problems for _, problems in found) else Exit.DONE
    directories = [report.verdict_json(*each) for each in found]
    lines = [line for each in found for line in report.verdict_lines(*each)]
    tell(options, "\n".join([*lines, *(f"{path}: not there yet" for path in absent)]))
    tell_json(options, {"ok": code is Exit.DONE, "directories": directories, "absent": absent})
    return code


def _seal(options: argparse.Namespace) -> int:
    layer = _layer(options.directory)
    with _bar("verify", _count(layer)) as progress:
        sealed = seal_layer(layer, version=__version__, anew=options.anew, progress=progress)
    manifest = sealed.manifest
    facts = {"directory": str(layer.path), "already_sealed": sealed.already, "version": manifest.version}
    tell_json(options, {**facts, **_contents(manifest)})
    deed = "was sealed already, and is as it was then" if sealed.already else "sealed"
    compilers = f"compiled by NVRTC {' and '.join(manifest.nvrtc_versions)}"
    tell(options, f"{layer.path}: {deed}: {counted(manifest.count, 'kernel')}, {size_text(manifest.size)}, {compilers}")
    return Exit.DONE


def _export(options: argparse.Namespace) -> int:
    if str(options.file) == "-":
        raise InputError("expected the name of a file to write; an archive is not written to standard output")
    chosen: dict[str, tuple[Layer, Kernel]] = {}
    damaged = []
    for inventory in _look(options)[0]:
        for kernel in inventory.kernels:
            if kernel.problem:
                damaged.append(f"{inventory.layer.path / kernel.name}: {kernel.problem}")
            else:  # of two with the same name the first is the one that is loaded
                chosen.setdefault(kernel.name, (inventory.layer, kernel))
    with _bar("export", len(chosen)) as progress:
        manifest = export_kernels(list(chosen.values()), options.file, version=__version__, progress=progress)
    for line in damaged:
        note(f"fp8gemm: warning: left out, damaged: {printable(line)}")
    size = options.file.stat().st_size
    facts = {"file": str(options.file), "file_bytes": size, "left_out": damaged}
    tell_json(options, {**facts, **_contents(manifest)})
    held = f"{counted(manifest.count, 'kernel')}, {size_text(manifest.size)}"
    tell(options, f"{options.file}: {held}, packed {size_text(size)}")
    return Exit.DONE


def _contents(manifest: Manifest) -> dict[str, Any]:
    """What a manifest says of all kernels together."""
    return {"count": manifest.count, "bytes": manifest.size, "nvrtc_versions": manifest.nvrtc_versions}


def _import(options: argparse.Namespace) -> int:
    layer = _layer(options.directory)
    with _bar("import") as progress:
        done = import_kernels(options.file, layer, progress=progress)
    counts = {"written": len(done.written), "present": len(done.present), "replaced": len(done.replaced)}
    tell_json(options, {"file": str(options.file), "directory": str(layer.path), **counts})
    tell(
        options,
        f"{layer.path}: {counted(counts['written'], 'kernel')} imported, {counts['present']} there already, "
        f"{counts['replaced']} in place of damaged ones",
    )
    return Exit.DONE


def _prune(options: argparse.Namespace) -> int:
    if options.older_than is None and options.max_bytes is None:
        raise InputError("expected --older-than, --max-bytes or both; found neither")
    inventory = _own(options)
    if inventory is None:
        return Exit.DONE
    chosen = expendable(inventory, older_than_s=options.older_than, max_size=options.max_bytes)
    removal = Removal(tuple(chosen), ()) if options.dry_run else _remove(inventory, chosen)
    return _tell(options, removal, inventory, dry_run=options.dry_run)


def _clear(options: argparse.Namespace) -> int:
    inventory = _own(options)
    if inventory is None:
        return Exit.DONE
    chosen = removable(inventory)
    if chosen and not options.yes:
        _ask(f"Remove {counted(len(chosen), 'item')} from {inventory.layer.path}?")
    removal = _remove(inventory, chosen)
    remove_locks(inventory.layer)
    return _tell(options, removal, inventory, dry_run=False)


def _remove(inventory: Inventory, items: Sequence[Item]) -> Removal:
    with _bar("remove", len(items)) as progress:
        return remove(inventory, items, progress=progress)


def _tell(options: argparse.Namespace, removal: Removal, inventory: Inventory, *, dry_run: bool) -> int:
    tell_json(options, report.removal_json(removal, inventory, dry_run=dry_run))
    tell(options, "\n".join(report.removal_lines(removal, inventory, dry_run=dry_run)))
    return Exit.FAILED if removal.left else Exit.DONE


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise InputError("expected --yes, because there is no terminal to ask at")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("expected y; nothing was removed")


def _own(options: argparse.Namespace) -> Inventory | None:
    """What lies in the directory to remove from; None, which is told, if no kernel was ever written to the default one.

    Raises:
        CacheError: it is sealed, read-only, or not to be used.
    """
    layer = _layer(options.directory)
    if options.directory is None and not os.path.lexists(layer.path):
        empty = Inventory(layer, State.WRITABLE, (), (), (), None, "")
        _tell(options, Removal((), ()), empty, dry_run=False)
        return None
    with _bar("verify", _count(layer)) as progress:
        inventory = take_inventory(layer, progress=progress)
    require_writable(layer, inventory.state)
    return inventory


def _look(options: argparse.Namespace) -> tuple[list[Inventory], list[str]]:
    """What lies in the directory that was named or, without a name, in all that are there; and those that are not."""
    layers = _layers(options.directory)
    absent = [layer for layer in layers if options.directory is None and not os.path.lexists(layer.path)]
    there = [layer for layer in layers if layer not in absent]
    with _bar("verify", _count(*there)) as progress:
        inventories = [take_inventory(layer, progress=progress) for layer in there]
    return inventories, [str(layer.path) for layer in absent]


def _layer(directory: Path | None) -> Layer:
    """The directory that was named, or the one that receives new kernels."""
    return _layers(directory)[-1]


def _layers(directory: Path | None) -> tuple[Layer, ...]:
    """The directory that was named, or those of the settings.

    Raises:
        CacheError: there are none.
    """
    now = settings.current()
    try:
        directories = now.cache_dirs if directory is None else (directory.expanduser().absolute(),)
    except RuntimeError as error:
        raise CacheError(f"{directory}: expected a directory, got that of a user who is not known") from error
    if not directories:
        raise CacheError("expected a cache directory, as an argument or in FP8GEMM_CACHE_DIR; found none")
    return Store(directories, trusted=now.trusted_dirs).layers


@contextmanager
def _bar(description: str, total: int | None = None) -> Iterator[Progress]:
    """A bar over kernels."""
    with bar(total, "kernels", description) as shown:
        yield shown.update


def _count(*layers: Layer) -> int | None:
    """How many kernels there are to look at, for a bar; None where that cannot be told."""
    try:
        return sum(label_and_key(name) is not None for layer in layers for name in os.listdir(layer.path))
    except OSError:  # whoever looks says what is the matter
        return None
