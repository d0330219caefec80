"""The machine code of a kernel as a graph of instructions: what is read, what is written, and what may come next.

Source order is a wish. Whether a value has been loaded before something else happens is decided by the instructions:
one that reads a loaded register waits for the load, one that only follows it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

_LABEL = re.compile(r"^(\.L\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][^;]*?)\s*;")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_PREDICATE = re.compile(r"!?U?P(?:\d|T)$")
_NO_RESULT = re.compile(
    r"(ST|RED|BAR|BRA|BSYNC|BSSY|BREAK|EXIT|RET|CALL|NOP|MEMBAR|FENCE|DEPBAR|SYNCS\.ARRIVE|SYNCS\.EXCH|UTMA|UBLKCP|CCTL|"
    r"ERRBAR|CGAERRBAR|UCGABAR|WARPSYNC|WARPGROUP|ACQBULK|PREEXIT|NANOSLEEP|R2UR|USETMAXREG|.*SETP|PLOP3|VOTE)"
)


@dataclass(frozen=True)
class Instruction:
    """One line of a listing.

    Attributes:
        guard: the predicate under which it runs, as ``@!P0``; empty if always.
        text: opcode and operands.
        target: the label that it may continue at besides the next line; empty if there is none.
        reads, writes: numbers of registers.
    """

    guard: str
    text: str
    target: str
    reads: frozenset[int]
    writes: frozenset[int]

    @cached_property
    def opcode(self) -> str:
        return self.text.split()[0]

    @cached_property
    def ends(self) -> bool:
        """Whether the next line never follows."""
        return not self.guard and self.opcode in ("BRA", "EXIT", "RET", "BRX")


def parse_instruction(guard: str, text: str) -> Instruction:
    opcode, _, rest = text.partition(" ")
    target = found[1] if (found := _TARGET.search(rest)) else ""
    operands = [operand.strip() for operand in re.split(r",(?![^\[]*\])", _TARGET.sub("", rest))]
    writes: set[int] = set()
    if not _NO_RESULT.match(opcode):
        while operands and _PREDICATE.match(operands[0]):
            operands.pop(0)
        if operands and (result := re.fullmatch(r"R(\d+)", operands[0])):
            first = int(result[1])
            writes = set(range(first, first + _width(opcode)))
            operands.pop(0)
    reads = frozenset(int(number) for operand in operands for number in _REGISTER.findall(operand))
    return Instruction(guard, text, target if opcode.startswith("BRA") else "", reads, frozenset(writes))


def _width(opcode: str) -> int:
    """Registers that a result takes."""
    if wave := re.match(r"QGMMA\.64x(\d+)x", opcode):
        return int(wave[1]) // 2
    if opcode.startswith(("LD", "ATOM")):
        return 4 if ".128" in opcode else 2 if ".64" in opcode else 1
    return 2 if ".WIDE" in opcode or opcode == "CS2R" else 1


@dataclass
class Listing:
    """A kernel's instructions in the order of the disassembler."""

    ENTRY: ClassVar[int] = -1
    """The place ahead of the first instruction."""

    label: str
    instructions: list[Instruction] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, label: str, text: str) -> Listing:
        listing = cls(label)
        for line in text.splitlines():
            if name := _LABEL.match(line):
                listing.places[name[1]] = len(listing.instructions)
            elif found := _INSTRUCTION.search(line):
                listing.instructions.append(parse_instruction(found[1] or "", found[2]))
        return listing

    def followers(self, place: int) -> Sequence[int]:
        """What may run after an instruction."""
        return (0,) if place == self.ENTRY else self._followers[place]

    @cached_property
    def _followers(self) -> list[tuple[int, ...]]:
        found = []
        for place, instruction in enumerate(self.instructions):
            target = (self.places[instruction.target],) if instruction.target else ()
            is_last = instruction.ends or place + 1 == len(self.instructions)
            found.append(target if is_last else (*target, place + 1))
        return found

    def where(self, pattern: str) -> list[int]:
        """The places of the instructions whose opcode starts as the pattern says."""
        return [i for i, each in enumerate(self.instructions) if re.match(pattern, each.text)]

    def reached(self, start: int, ends: Callable[[Instruction], bool]) -> Iterator[int]:
        """All that may run after an instruction, up to and with the first on each path at which `ends` holds."""
        waiting, seen = list(self.followers(start)), set[int]()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            yield place
            if not ends(self.instructions[place]):
                waiting += self.followers(place)
