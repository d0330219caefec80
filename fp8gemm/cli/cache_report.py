"""What ``fp8gemm cache`` prints of directories and kernels: lines for people, plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fp8gemm.cache.eviction import Item, Removal
from fp8gemm.cache.inventory import Inventory, Kernel
from fp8gemm.quoting import counted, printable, size_text
from fp8gemm.terminal.screen import screen
from fp8gemm.terminal.table import Cell, Column, Group, Painted, Table

_COLUMNS = (
    *(Column("size", 10), Column("regs"), Column("spills"), Column("NVRTC"), Column("age", 6)),
    Column("state", len("damaged"), left=True),
)


def age_text(seconds: float) -> str:
    """A time span for people, in its largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 1:.0f} s"


def directory_lines(inventory: Inventory) -> Iterator[str]:
    """A directory and its kernels, one a line."""
    kernels = inventory.kernels
    facts = [inventory.state.value, counted(len(kernels), "kernel"), size_text(sum(kernel.size for kernel in kernels))]
    if inventory.damaged:
        facts.append(f"{len(inventory.damaged)} damaged")
    if inventory.manifest is not None:
        facts.append(f"manifest of fp8gemm {inventory.manifest.version}")
    yield screen().fill(f"{inventory.layer.path}: {', '.join(facts)}")
    if kernels:
        name = Column("kernel", max(len(_name(kernel)) for kernel in kernels), left=True)
        table = Table(Group((*_COLUMNS, name)), gap="  ")
        yield table.header()
        for kernel in sorted(kernels, key=lambda kernel: (kernel.label, kernel.key)):
            yield table.line(*_kernel_cells(kernel))
    for leftover in inventory.leftovers:
        yield f"leftover, {size_text(leftover.size)}, {age_text(leftover.age_s)}: {printable(leftover.name)}"
    for path in inventory.foreign:
        yield f"not ours: {printable(path)}"


def directory_json(inventory: Inventory) -> dict[str, Any]:
    """A directory and its kernels."""
    return {
        **_counts(inventory),
        "bytes": inventory.size,
        "manifest": inventory.manifest and {"version": inventory.manifest.version, "count": inventory.manifest.count},
        "kernels": [_kernel_json(kernel) for kernel in inventory.kernels],
        "leftovers": [item_json(leftover) for leftover in inventory.leftovers],
        "foreign": list(inventory.foreign),
    }


def verdict_lines(inventory: Inventory, problems: Sequence[str]) -> Iterator[str]:
    """Whether a directory is as it should be, and what is wrong with it, one a line."""
    held = f"{inventory.state.value}, {counted(len(inventory.kernels), 'kernel')}"
    verdict = screen().paint(counted(len(problems), "problem"), "red" if problems else "green")
    yield screen().fill(f"{inventory.layer.path}: {held}; {verdict}")
    yield from (f"  {printable(problem)}" for problem in problems)


def verdict_json(inventory: Inventory, problems: Sequence[str]) -> dict[str, Any]:
    """The same."""
    return {**_counts(inventory), "problems": problems}


def _counts(inventory: Inventory) -> dict[str, Any]:
    return {
        "path": str(inventory.layer.path),
        "state": inventory.state.value,
        "count": len(inventory.kernels),
        "damaged": len(inventory.damaged),
    }


def removal_lines(removal: Removal, inventory: Inventory, *, dry_run: bool) -> Iterator[str]:
    """What was removed from a directory, and what is still there against the user's wish."""
    verb = "would remove" if dry_run else "removed"
    kernels = sum(isinstance(item, Kernel) for item in removal.removed)
    yield (
        f"{inventory.layer.path}: {verb} {counted(kernels, 'kernel')} and "
        f"{counted(len(removal.removed) - kernels, 'leftover')}, {size_text(removal.size)}; "
        f"{size_text(inventory.size - removal.size)} stay"
    )
    if dry_run:
        yield from (
            f"  {printable(item.name)}: {size_text(item.size)}, {age_text(item.age_s)}" for item in removal.removed
        )
    yield from (f"  still there: {printable(name)}: {reason}" for name, reason in removal.left)
    for kernel in inventory.kernels:
        if kernel.foreign:
            yield f"  left alone: {printable(kernel.name)}: not ours in it: {', '.join(map(printable, kernel.foreign))}"


def removal_json(removal: Removal, inventory: Inventory, *, dry_run: bool) -> dict[str, Any]:
    """What was removed from a directory."""
    return {
        "directory": str(inventory.layer.path),
        "dry_run": dry_run,
        "removed": [item_json(item) for item in removal.removed],
        "count": len(removal.removed),
        "bytes": removal.size,
        "bytes_left": inventory.size - removal.size,
        "left": dict(removal.left),
        "foreign": list(inventory.foreign),
    }


def item_json(item: Item) -> dict[str, Any]:
    """An entry or a leftover."""
    return {"name": item.name, "bytes": item.size, "age_s": round(item.age_s, 3)}


def _name(kernel: Kernel) -> str:
    return f"{printable(kernel.label)}.{kernel.key[:8]}"


def _kernel_cells(kernel: Kernel) -> Iterator[Cell]:
    def told(value: object) -> str:
        return "-" if value is None else str(value)

    yield size_text(kernel.size)
    yield from map(told, (kernel.registers, kernel.spill_bytes, kernel.nvrtc_version))
    yield age_text(kernel.age_s)
    yield Painted("damaged", "red") if kernel.problem else Painted("ok", "green")
    yield f"{_name(kernel)}: {printable(kernel.problem)}" if kernel.problem else _name(kernel)


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    config = kernel.metadata.get("config")
    config = config if isinstance(config, dict) else {}
    return {
        "label": kernel.label,
        "key": kernel.key,
        "bytes": kernel.size,
        "registers": kernel.registers,
        "spill_bytes": kernel.spill_bytes,
        "nvrtc_version": kernel.nvrtc_version,
        "arch": kernel.metadata.get("arch"),
        "family": kernel.metadata.get("family"),
        "n": config.get("n"),
        "k": config.get("k"),
        "config": config,
        "age_s": round(kernel.age_s, 3),
        "problem": kernel.problem or None,
    }
