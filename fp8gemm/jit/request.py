"""What the JIT is asked for: a header, the family it defines, and the constants to compile it with."""

from __future__ import annotations

from enum import Enum

from fp8gemm.frozen import dataclass

ConfigValue = int | bool | Enum


@dataclass(frozen=True)
class KernelRequest:
    """One kernel to build. Two equal requests give the same source, key and cubin on every machine.

    Attributes:
        label: file-system-safe name for people: it leads the cache directory's name and stands in messages.
        header: include path of the family's header, relative to the include directory.
        family: name of the C++ class template in namespace ``fp8gemm`` that takes the rendered ``Config``.
        config: (field name in snake case, value) pairs in the order in which they are rendered.
        arch: the real architecture to compile for.
        min_ctas: how many CTAs an SM is to have registers for.
    """

    label: str
    header: str
    family: str
    config: tuple[tuple[str, ConfigValue], ...]
    arch: str = "sm_90a"
    min_ctas: int = 1
