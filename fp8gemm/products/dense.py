"""The dense block-scaled GEMM: check, choose a kernel, launch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

import fp8gemm.products.operators  # noqa: F401  # which are what is traced
from fp8gemm import settings
from fp8gemm.checks import memory
from fp8gemm.checks.dtypes import OUTPUTS, dtype_of
from fp8gemm.checks.operands import check_product
from fp8gemm.driver.current import current_stream, on_device
from fp8gemm.driver.launch import BoundLaunch
from fp8gemm.kernels.gemm import SingleKernel
from fp8gemm.kernels.loaded import device_chip, kernel_for
from fp8gemm.products import operands as layout
from fp8gemm.products.calls import Key, RepeatedCalls, key_of_call
from fp8gemm.products.watched import goes_to_operator, is_plain
from fp8gemm.tuning.problem import Problem, Scaling

_NAMES = "a scales_a b scales_b c? bias? out?"

Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
"""As `_NAMES` has them."""
Options = tuple[torch.dtype | str, bool | None, bool]
"""out_dtype, batch_invariant, static_weights."""

_calls, _calls_of_operators = RepeatedCalls(256), RepeatedCalls(256)
"""Apart, because operators are also given tensors that are more than memory, which `gemm` has to send to them."""


def gemm(
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    batch_invariant: bool | None = None,
    static_weights: bool = False,
) -> Tensor:
    """``D[m, n] = sum_kb scales_a[m, kb] scales_b[n / 128, kb] sum_{k in kb} a[m, k] b[n, k] (+ c[m, n]) (+ bias[n])``.

    Sums are FP32, K blocks in ascending order, then C, then the bias; the output is rounded once, to nearest even.

    On a Hopper GPU this launches a kernel on the current stream of the tensors' device; CPU tensors, and any with
    ``FP8GEMM_BACKEND=reference``, go to `fp8gemm.reference.gemm_reference`.

    Args:
        a: (M, K) float8_e4m3fn, K contiguous and a multiple of 16; rows any multiple of 16 bytes apart. M may be 0.
        scales_a: (M, ceil(K/128)) float32 multipliers. MN-major ones (strides (1, align(M, 4))) are read in place;
            any other layout is copied first.
        b: (N, K) float8_e4m3fn, laid out like ``a``.
        scales_b: float32 multipliers: (ceil(N/128), ceil(K/128)), contiguous, one per 128x128 block; or
            (N, ceil(K/128)), one per row and 128 columns, ``scales_b[n, kb]`` above, laid out like ``scales_a``.
        c: (M, N) bfloat16 or float32 to add, of any strides.
        bias: (N,) bfloat16 or float32 to add to every row, contiguous.
        out: (M, N) to write to, of any strides, in memory that no input occupies; but it may be ``c`` itself, to
            accumulate in place: the same bits, and where B has row scales, no bias is added and ``out`` is float32, L2
            does it. TMA writes it if its rows are contiguous and its base, row pitch and row length are multiples of 16
            bytes, and if rows of ``c`` are contiguous and its base and row pitch multiples of two elements; a slower
            element-wise store otherwise. A new tensor without it.
        out_dtype: bfloat16, float16 (overflow is Inf) or float32, as torch's or by name; that of ``out`` by default,
            bfloat16 without ``out``.
        batch_invariant: whether a row of the result has the same bits whatever M and the other rows are; some shapes
            are then slower. ``FP8GEMM_BATCH_INVARIANT`` by default.
        static_weights: a promise that no kernel still queued or running on the GPU writes ``b`` or ``scales_b``; see
            `fp8gemm.plan`.

    Returns:
        ``out``, or a new (M, N) tensor, row-major.

    Raises:
        InputError: an operand is not as described; nothing was launched.
        UnsupportedDeviceError: the tensors are on a GPU that is not Hopper, or this process was forked from one that
            had started CUDA.
        CompileError, CacheMissError, DriverError: the kernel could not be built, found or launched.
    """
    if out_dtype is None:
        out_dtype = getattr(out, "dtype", torch.bfloat16)
    operands = a, scales_a, b, scales_b, c, bias, out
    options = out_dtype, batch_invariant, static_weights
    if is_dynamo_compiling():
        return _traced(operands, options)
    # Others may notice that they are looked at, and no call with them is kept here.
    key = key_of_call(options, *operands) if is_plain(a) else None
    done, made = _calls.repeat(key, out)
    if done is not None:
        return done
    if goes_to_operator(_NAMES, *operands):
        return _traced(operands, options)
    return _multiply(_calls, key, made, operands, options)


def multiply(operands: Operands, options: Options) -> Tensor:
    """`gemm` of tensors with memory, traced by nobody: what its operators compute."""
    key = key_of_call(options, *operands)
    done, made = _calls_of_operators.repeat(key, operands[-1])
    return _multiply(_calls_of_operators, key, made, operands, options) if done is None else done


def _multiply(
    calls: RepeatedCalls, key: Key | None, made: Tensor | None, operands: Operands, options: Options
) -> Tensor:
    """A call from its checks on; ``made`` is memory for its output, if there is some already."""
    a, scales_a, b, scales_b, c, bias, out = operands
    asked_dtype, batch_invariant, static_weights = options
    out_dtype = dtype_of("out_dtype", asked_dtype, OUTPUTS)
    terms = check_product(*operands, out_dtype)
    memory.check_addresses(a=a, scales_a=scales_a, b=b, scales_b=scales_b, c=c, bias=bias, out=out)
    given = out is not None
    if out is None:
        out = torch.empty((a.shape[0], b.shape[0]), dtype=out_dtype, device=a.device) if made is None else made
    else:
        memory.check_memory(out, c, a=a, scales_a=scales_a, b=b, scales_b=scales_b, bias=bias)
    if layout.uses_reference(a):
        from fp8gemm.reference import gemm_reference  # here, because the first product on a GPU does without

        return out.copy_(gemm_reference(a, scales_a, b, scales_b, c=c, bias=bias, out_dtype=out_dtype))
    if not a.shape[0]:
        return out
    if batch_invariant is None:
        batch_invariant = settings.current().batch_invariant
    store, index = layout.store_kind(out, c), a.device.index
    m, (n, k) = a.shape[0], b.shape
    problem = Problem(m, n, k, terms.output, store, terms.scaling, terms.c, terms.bias, batch_invariant, static_weights)
    if layout.accumulates(out, c):
        problem = problem.accumulating()
    kernel = kernel_for(problem, device_chip(index), index)
    bound = launch(kernel, a, scales_a, b, scales_b, out=out, c=c, bias=bias, static_weights=static_weights)
    if bound is not None:
        calls.keep(key, out, bound, given=given)
    return out


def _traced(operands: Operands, options: Options) -> Tensor:
    """`gemm` as a node of a graph that is being traced."""
    *terms, out = operands
    asked_dtype, batch_invariant, static_weights = options
    out_dtype = dtype_of("out_dtype", asked_dtype, OUTPUTS)
    if out is None:
        product: Tensor = torch.ops.fp8gemm.gemm(*terms, out_dtype, batch_invariant, static_weights)
        return product
    torch.ops.fp8gemm.gemm_out(*terms, batch_invariant, static_weights, out=out)
    return out


def launch(
    kernel: SingleKernel,
    a: Tensor,
    scales_a: Tensor,
    b: Tensor,
    scales_b: Tensor,
    *,
    out: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    static_weights: bool = False,
) -> BoundLaunch | None:
    """Launch on the current stream of the operands' device; they are checked, and M is not 0.

    Returns:
        The launch, which may be repeated on that stream as long as operands lie where they are; None if scales had to
        be copied for it.
    """
    read_a = layout.tma_scales(scales_a) if kernel.reads_scales_by_tma else scales_a
    read_b = layout.tma_scales(scales_b) if kernel.problem.scaling is Scaling.ROW else scales_b
    index = a.device.index
    with on_device(index):
        bound = kernel.bind(
            a, read_a, b, read_b, out=out, stream=current_stream(index), c=c, bias=bias, static_weights=static_weights
        )
        bound()
    return bound if read_a is scales_a and read_b is scales_b else None
