"""Checks of what a user passes to a GEMM, and the few conversions that are made for them.

Each check raises `InputError` with what was expected and what came, before anything is allocated or launched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8gemm import settings
from fp8gemm.driver import forking
from fp8gemm.errors import InputError
from fp8gemm.scales import block_count, empty_mn_major
from fp8gemm.tuning.problem import Addend, OutputType, Scaling, StoreKind

_OUTPUT_TYPES = {
    torch.bfloat16: OutputType.BFLOAT16,
    torch.float16: OutputType.FLOAT16,
    torch.float32: OutputType.FLOAT32,
}
_ADDENDS = {torch.bfloat16: Addend.BFLOAT16, torch.float32: Addend.FLOAT32}
_ALIGNMENT = 16  # bytes: TMA's rule for base addresses and row pitches


def uses_reference(tensor: Tensor) -> bool:
    """Whether an operation on ``tensor`` is one for the reference: it is on no GPU, or the settings say so.

    Raises:
        UnsupportedDeviceError: it is not, and this process cannot use CUDA, because it was forked too late.
    """
    if tensor.device.type != "cuda" or settings.current().backend == "reference":
        return True
    if forking.lost:
        forking.refuse()
    return False


def check_no_gradient(name: str, tensor: Tensor) -> None:
    """``tensor`` requires no gradient, or gradients are not enabled."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f"{name}: expected a tensor that needs no gradient (inference only), got requires_grad=True; call under "
            f"torch.no_grad() or torch.inference_mode()"
        )


def output_type(dtype: torch.dtype) -> OutputType:
    """The kernel's name for an output dtype.

    Raises:
        InputError: there is no such output.
    """
    found = _OUTPUT_TYPES.get(dtype)
    if found is None:
        raise InputError(f"out_dtype: expected one of {', '.join(map(str, _OUTPUT_TYPES))}, got {dtype}")
    return found


def addend(name: str, dtype: torch.dtype | None) -> Addend:
    """The kernel's name for the dtype of C or of the bias; None where there is no such term.

    Raises:
        InputError: no kernel adds a term of that dtype; ``name`` is what it was passed as.
    """
    if dtype is None:
        return Addend.NONE
    found = _ADDENDS.get(dtype)
    if found is None:
        raise InputError(f"{name}: expected one of {', '.join(map(str, _ADDENDS))}, got {dtype}")
    return found


def check_b(b: Tensor, scales_b: Tensor) -> Scaling:
    """``b`` is (N, K) e4m3 with K contiguous, ``scales_b`` its float32 multipliers; their shape tells the scaling.

    (ceil(N/128), ceil(K/128)), contiguous, means 128x128 blocks; (N, ceil(K/128)), any strides, means 1x128 blocks. The
    two shapes are one at N = 1 and mean the same there: contiguous scales are taken for the former.
    """
    check_codes("b", b, "(N, K)")
    n, k = b.shape
    if n == 0:
        raise InputError(f"b: expected N >= 1, got shape {tuple(b.shape)}")
    shape, of_blocks, of_rows = scales_b.shape, (block_count(n), block_count(k)), (n, block_count(k))
    if scales_b.dtype != torch.float32 or (shape != of_blocks and shape != of_rows):
        raise InputError(
            f"scales_b: expected torch.float32 of shape {of_blocks} = (ceil(N/128), ceil(K/128)) or {of_rows} = "
            f"(N, ceil(K/128)), got {scales_b.dtype} of shape {tuple(shape)}"
        )
    check_no_gradient("scales_b", scales_b)
    _check_address("scales_b", scales_b)
    check_device("scales_b", scales_b, b)
    if shape == of_blocks and scales_b.is_contiguous():
        return Scaling.BLOCK
    if shape == of_rows:
        return Scaling.ROW
    raise InputError(f"scales_b: expected contiguous rows, got strides {scales_b.stride()}; pass .contiguous()")


def check_a(a: Tensor, scales_a: Tensor, b: Tensor) -> None:
    """``a`` is (M, K) e4m3 with K contiguous, ``scales_a`` its (M, ceil(K/128)) float32, both where ``b`` is."""
    check_codes("a", a, "(M, K)")
    m, k = a.shape
    if k != b.shape[1]:
        raise InputError(f"a: expected K = {b.shape[1]} as in b, got shape {tuple(a.shape)}")
    expected = (m, block_count(k))
    if scales_a.dtype != torch.float32 or scales_a.shape != expected:
        raise InputError(
            f"scales_a: expected torch.float32 of shape {expected} = (M, ceil(K/128)), got {scales_a.dtype} of shape "
            f"{tuple(scales_a.shape)}"
        )
    check_no_gradient("scales_a", scales_a)
    _check_address("scales_a", scales_a)
    check_device("a", a, b)
    check_device("scales_a", scales_a, b)


def check_c(c: Tensor, a: Tensor, b: Tensor) -> Addend:
    """``c`` is (M, N) bfloat16 or float32 where ``b`` is, of any strides. Returns the kernel's name for its dtype."""
    return _check_addend("c", c, (a.shape[0], b.shape[0]), "(M, N)", b)


def check_bias(bias: Tensor, b: Tensor) -> Addend:
    """``bias`` is (N,) bfloat16 or float32 where ``b`` is, contiguous. Returns the kernel's name for its dtype."""
    found = _check_addend("bias", bias, (b.shape[0],), "(N,)", b)
    if not bias.is_contiguous():
        raise InputError(f"bias: expected stride 1, got stride {bias.stride(0)}; pass .contiguous()")
    return found


def check_output(out: Tensor, shape: tuple[int, int], dtype: torch.dtype, b: Tensor) -> None:
    """``out`` is ``shape`` of ``dtype`` where ``b`` is, of any strides that give each element an address of its own."""
    if out.shape != shape or out.dtype != dtype:
        raise InputError(f"out: expected {dtype} of shape {shape}, got {out.dtype} of shape {tuple(out.shape)}")
    check_device("out", out, b)
    check_no_gradient("out", out)
    _check_address("out", out)
    if out.is_contiguous():
        return
    (inner_stride, inner), (outer_stride, outer) = sorted(zip(out.stride(), out.shape, strict=True))
    if (inner > 1 and inner_stride == 0) or (outer > 1 and outer_stride < (inner - 1) * inner_stride + 1):
        raise InputError(f"out: expected each element at its own address, got strides {out.stride()} for {shape}")


def check_memory(out: Tensor, c: Tensor | None, **inputs: Tensor | None) -> None:
    """``out`` shares memory with none of ``inputs``, nor with ``c`` unless the two are one, element by element.

    What counts is the range of addresses from the first element to the last: rows that interleave share memory too.
    """
    first, end = _address_range(out)
    if first == end:
        return
    if c is not None and not _is_same(out, c):
        inputs["c"] = c
    for name, operand in inputs.items():
        if operand is not None:
            operand_first, operand_end = _address_range(operand)
            if first < operand_end and operand_first < end:
                raise InputError(f"out: expected memory of its own, got memory that {name} occupies too")


def store_kind(out: Tensor, c: Tensor | None = None) -> StoreKind:
    """Whether TMA can write ``out``: rows contiguous; base, row pitch and row length multiples of 16 bytes.

    TMA takes the pitch in such units, and writes in them: the last piece of a row whole, whatever lies past its end.
    The stride of a single row means nothing, so that new outputs of all M agree. A kernel with such a store reads
    ``c``, if there is one, in aligned pairs of a row's elements, so that must be possible too.
    """
    rows, cols = out.shape
    size = out.element_size()
    pitch = out.stride(0) if rows > 1 else cols
    aligned = not (cols * size % _ALIGNMENT or pitch * size % _ALIGNMENT or out.data_ptr() % _ALIGNMENT)
    by_tma = aligned and out.stride(1) == 1 and (c is None or _lies_in_pairs(c))
    return StoreKind.TMA if by_tma else StoreKind.PREDICATED


def tma_scales(scales: Tensor) -> Tensor:
    """Scales of rows as TMA can read them: rows adjacent, columns on 16-byte boundaries. A copy if they are not so."""
    rows, k_blocks = scales.shape
    rows_adjacent = rows == 1 or scales.stride(0) == 1
    pitched = k_blocks == 1 or (scales.stride(1) % 4 == 0 and scales.stride(1) >= rows)
    if rows_adjacent and pitched and scales.data_ptr() % _ALIGNMENT == 0:
        return scales
    return empty_mn_major(rows, k_blocks, device=scales.device).copy_(scales)


def _lies_in_pairs(c: Tensor) -> bool:
    """Whether elements (m, 2i) and (m, 2i + 1) of ``c`` are neighbours at an address that both their bytes divide."""
    in_rows = c.stride(1) == 1 and (c.shape[0] == 1 or c.stride(0) % 2 == 0)
    return in_rows and c.data_ptr() % (2 * c.element_size()) == 0


def _is_same(x: Tensor, y: Tensor) -> bool:
    """Whether element for element two tensors are one."""
    return x is y or (
        x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype
    )


def _address_range(x: Tensor) -> tuple[int, int]:
    first = x.data_ptr()
    if x.is_contiguous():
        return first, first + x.numel() * x.element_size()
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return first, first + (reach * x.element_size() if x.numel() else 0)


def check_codes(name: str, codes: Tensor, shape: str) -> None:
    if codes.dtype != torch.float8_e4m3fn or codes.dim() != 2:
        raise InputError(
            f"{name}: expected torch.float8_e4m3fn of shape {shape}, got {codes.dtype} of shape {tuple(codes.shape)}"
        )
    rows, k = codes.shape
    if k < 16 or k % 16:
        raise InputError(f"{name}: expected K to be a multiple of 16 and at least 16, got K = {k}")
    if codes.stride(1) != 1 or (rows > 1 and (codes.stride(0) % _ALIGNMENT or codes.stride(0) < k)):
        raise InputError(
            f"{name}: expected K contiguous and a row pitch that is a multiple of {_ALIGNMENT}, at least K = {k}, "
            f"got strides {codes.stride()}"
        )
    if codes.data_ptr() % _ALIGNMENT and codes.is_cuda:
        raise InputError(
            f"{name}: expected a base address that is a multiple of {_ALIGNMENT} bytes, got one that is "
            f"{codes.data_ptr() % _ALIGNMENT} bytes past; pass .clone()"
        )
    check_no_gradient(name, codes)


def _check_addend(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str, b: Tensor) -> Addend:
    found = _ADDENDS.get(tensor.dtype)
    if found is None or tensor.shape != expected:
        raise InputError(
            f"{name}: expected {' or '.join(map(str, _ADDENDS))} of shape {expected} = {meaning}, got {tensor.dtype} "
            f"of shape {tuple(tensor.shape)}"
        )
    check_device(name, tensor, b)
    check_no_gradient(name, tensor)
    _check_address(name, tensor)
    return found


def check_device(name: str, tensor: Tensor, b: Tensor) -> None:
    if tensor.device != b.device:
        raise InputError(f"{name}: expected the device of b, {b.device}, got {tensor.device}")


def _check_address(name: str, tensor: Tensor) -> None:
    """No operation of torch makes such a tensor, but memory that others have laid out can be wrapped into one."""
    if tensor.data_ptr() % tensor.element_size() and tensor.is_cuda:
        raise InputError(
            f"{name}: expected an address that is a multiple of its elements' {tensor.element_size()} bytes, got "
            f"{tensor.data_ptr():#x}"
        )
