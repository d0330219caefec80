"""What is added to a product, and what it is stored as, in words that a command line or a file can hold."""

from __future__ import annotations

from fp8gemm.errors import InputError
from fp8gemm.tuning.problem import Addend, OutputType

NONE = "none"
_TERMS = ("c", "bias")


def parse_epilogue(text: str) -> tuple[Addend, Addend]:
    """The types of C and of the bias.

    Args:
        text: ``none``, or ``c``, ``bias`` or ``c+bias``; each term is bfloat16 unless it says otherwise, as in
            ``c:float32+bias``.

    Raises:
        InputError: it is none of these.
    """
    if text == NONE:
        return Addend.NONE, Addend.NONE
    found: dict[str, Addend] = {}
    for part in text.split("+"):
        term, _, dtype = part.partition(":")
        known = {addend.value: addend for addend in Addend if addend is not Addend.NONE}
        if term not in _TERMS or term in found or (dtype or Addend.BFLOAT16.value) not in known:
            raise InputError(
                f"epilogue: expected {NONE}, or terms among {', '.join(_TERMS)} joined by +, each alone or as "
                f"term:{' or term:'.join(known)}, got {text!r}"
            )
        found[term] = known[dtype or Addend.BFLOAT16.value]
    return found.get("c", Addend.NONE), found.get("bias", Addend.NONE)


def epilogue_text(c: Addend, bias: Addend) -> str:
    """What `parse_epilogue` reads."""
    terms = [
        name if addend is Addend.BFLOAT16 else f"{name}:{addend.value}"
        for name, addend in zip(_TERMS, (c, bias), strict=True)
        if addend is not Addend.NONE
    ]
    return "+".join(terms) or NONE


def parse_output(dtype: object) -> OutputType:
    """An output's type, from its name or from torch's dtype.

    Raises:
        InputError: products have no such output.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return OutputType(name)
    except ValueError:
        raise InputError(f"out_dtype: expected {', '.join(each.value for each in OutputType)}, got {name}") from None
