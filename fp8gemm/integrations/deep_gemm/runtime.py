"""What DeepGEMM keeps for a whole process: how many SMs and which launches its kernels use, and the groups' alignment.

fp8gemm itself has no such switches: its settings are the environment's, or those of a scope. So these values live
here, and hold for the calls of this package alone, as a scope around each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fp8gemm import settings
from fp8gemm.errors import InputError, UnsupportedDeviceError
from fp8gemm.integrations.deep_gemm.arguments import RefusedError, in_deep_gemm_words

MK_ALIGNMENT = 128
"""The rows or columns that DeepGEMM pads each group to on SM90."""

_num_sms: int | None = None
_pdl: bool | None = None
_tc_util = 0
_mk_alignment = MK_ALIGNMENT
_made: tuple[settings.Settings, settings.Settings] | None = None
"""The settings that were in force at a call, and what they are with the values above."""


def run(product: Callable[..., Tensor], *operands: Tensor, **options: object) -> None:
    """Call one of fp8gemm's products under the settings of this module; while a graph is traced, under fp8gemm's own.

    Raises:
        RefusedError: where the product raises an `InputError`.
    """
    # NOTE: settings.scope() would validate anew, and a product knows a call again only under the very same settings.
    unchanged = (_num_sms is None and _pdl is None) or is_dynamo_compiling()
    token = None if unchanged else settings.enter(_changed_settings())
    try:
        product(*operands, **options)
    except InputError as error:
        raise RefusedError(in_deep_gemm_words(str(error))) from error
    finally:
        if token is not None:
            settings.leave(token)


def _changed_settings() -> settings.Settings:
    global _made
    base, made = settings.current(), _made
    if made is None or made[0] is not base:
        changed = replace(
            base,
            num_sms=base.num_sms if _num_sms is None else _num_sms,
            pdl=base.pdl if _pdl is None else _pdl,
        )
        _made = made = base, changed
    return made[1]


def set_num_sms(new_num_sms: int) -> None:
    """Let kernels that are called through this package occupy at most so many SMs; 0 for all that the settings allow.

    Raises:
        RefusedError: it is no number of SMs that the current GPU has.
    """
    global _num_sms, _made
    most = _device_sms() if torch.cuda.is_available() else None
    if type(new_num_sms) is not int or new_num_sms < 0 or (most is not None and new_num_sms > most):
        found = f"0 to {most}" if most is not None else "0 or more"
        raise RefusedError(f"num_sms: expected {found}, got {new_num_sms!r}")
    # What is in force anyway needs no settings of its own, so `set_num_sms(get_num_sms())` leaves the fast path alone.
    unlimited = new_num_sms == 0 or (settings.current().num_sms or most) == new_num_sms
    _num_sms = None if unlimited else new_num_sms
    _made = None


def get_num_sms() -> int:
    """The most SMs that kernels occupy: what was set, else what fp8gemm's settings allow, else the current GPU's.

    Raises:
        UnsupportedDeviceError: none of these says, because torch finds no GPU.
    """
    return _num_sms or settings.current().num_sms or _device_sms()


def set_pdl(new_enable_pdl: bool) -> None:
    """Whether a kernel may start before the one ahead of it has ended; until this is called fp8gemm's setting holds."""
    global _pdl, _made
    _pdl = bool(new_enable_pdl)
    if _pdl is settings.current().pdl:
        _pdl = None
    _made = None


def get_pdl() -> bool:
    """Whether a kernel may start before the one ahead of it has ended; unlike DeepGEMM's, fp8gemm's do by default."""
    return settings.current().pdl if _pdl is None else _pdl


def set_tc_util(new_tc_util: int) -> None:
    """Kept for `get_tc_util`, and nothing else: 0 to 100, 0 for 100.

    Raises:
        RefusedError: another number.
    """
    global _tc_util
    if not 0 <= new_tc_util <= 100:
        raise RefusedError(f"tc_util: expected 0 to 100, got {new_tc_util!r}")
    _tc_util = new_tc_util


def get_tc_util() -> int:
    """What was set last, 100 by default."""
    return _tc_util or 100


def set_ignore_compile_dims(new_value: bool) -> None:
    """Accepted, and without meaning here: which sizes a kernel is compiled for is fp8gemm's own choice."""


def use_deterministic_algorithms(enabled: bool) -> None:
    """Accepted, and without meaning here: results are always the same bits for the same inputs and tile config."""


def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """Accepted, and without meaning here: tiles are fp8gemm's own choice."""


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Say to which multiple of rows the groups of contiguous products are padded.

    fp8gemm's kernels need no padding: with 1 there is none, and rows marked -1 are not written.

    Raises:
        RefusedError: it is not a positive integer.
    """
    global _mk_alignment
    if type(new_value) is not int or new_value < 1:
        raise RefusedError(f"mk_alignment: expected a positive integer, got {new_value!r}")
    _mk_alignment = new_value


def get_mk_alignment_for_contiguous_layout() -> int:
    """To which multiple of rows the groups of contiguous products are padded; 128 by default."""
    return _mk_alignment


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """What DeepGEMM advises to pad groups to, which on SM90 is always 128.

    Args:
        expected_m: rows of a typical group, or with ``num_groups`` those of all groups together, as vLLM and SGLang
            call it where their own DeepGEMM takes it so. Neither changes anything.
        num_groups: how many groups there are.
    """
    return MK_ALIGNMENT


def _device_sms() -> int:
    if not torch.cuda.is_available():
        raise UnsupportedDeviceError("num_sms: expected a GPU to count the SMs of, got a torch that finds none")
    count: int = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return count
