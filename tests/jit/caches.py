"""What the tests of looking after a cache share: kernels that nobody compiled, and a look at what lies there."""

from __future__ import annotations

from pathlib import Path

from fp8gemm.cache.archive import export_kernels
from fp8gemm.cache.entry import Entry, directory_name
from fp8gemm.cache.inventory import Inventory, take_inventory
from fp8gemm.cache.store import Layer, Store

METADATA = {
    "arch": "sm_90a",
    "config": {"n": 7168, "k": 2048, "block_m": 128},
    "family": "Tiny",
    "nvrtc_version": "12.9",
    "resources": {"registers": 168, "spill_store_bytes": 8},
}


def kernel(value: int) -> Entry:
    """A kernel that differs from those of other values."""
    return Entry(f"{value:064x}", f"tiny-{value}", b"\x7fELF" + bytes([value]) * 5000, METADATA)


def name_of(value: int) -> str:
    """The name of its directory."""
    entry = kernel(value)
    return directory_name(entry.label, entry.key)


def fill(place: Path, *values: int) -> Layer:
    """A cache directory with a kernel for each value."""
    for value in values:
        assert Store([place]).publish(kernel(value), f"// tiny {value}\n") is not None
    return Layer(place)


def look(place: Path) -> Inventory:
    """Its inventory."""
    return take_inventory(Layer(place))


def finds(place: Path, value: int) -> bool:
    """Whether a loader gets the kernel, and meets nothing damaged on the way."""
    entry = kernel(value)
    found = Store([place]).find(entry.label, entry.key)
    assert found.damaged == ()
    assert found.entry is None or found.entry.cubin == entry.cubin
    return found.entry is not None


def export(layer: Layer, file: Path) -> Path:
    """Write all kernels of a cache directory into a file."""
    export_kernels([(layer, each) for each in look(layer.path).kernels], file, version="1.2")
    return file
