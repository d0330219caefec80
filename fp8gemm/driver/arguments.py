"""What kernels are called with, laid out as the device code declares it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Generic, TypeVar

from fp8gemm.driver.tensor_map import MAP_ALIGNMENT, MAP_BYTES

_TensorMap = ctypes.c_uint64 * (MAP_BYTES // 8)


class KernelParams(ctypes.Structure):
    """``Kernel::Params`` as the device code declares it: the one table of offsets on the host.

    Attributes:
        tensor_map_a, tensor_map_b, tensor_map_scales_a, tensor_map_scales_b, tensor_map_d, tensor_map_a_tail,
            tensor_map_b_tail: the maps, at offsets 0, 128, 256, 384, 512, 640 and 768.
        scales_b: device address of B's scales, where a kernel reads them without a map.
        d: device address of the output.
        d_stride_m, d_stride_n: the output's strides, in elements.
        c: device address of the matrix that is added.
        c_stride_m, c_stride_n: its strides, in elements.
        bias: device address of the row that is added to every row.
        m: rows of A and of the output; where groups are masked, of each group.
        static_weights: nonzero lets a kernel read B, its scales and what belongs to each group before the previous
            grids have ended.
        b: device address of B, where a kernel reads it without a map.
        scales_a: device address of A's scales, where a kernel reads them without a map.
        scales_a_stride_m, scales_a_stride_k: their strides, in elements.
        scales_a_stride_group: from a group's to the next one's, where groups are masked.
        group_begins, group_ends: device addresses of int32s that say what belongs to each group.
        k: columns of A and B, where groups are columns.
        zero: never anything else; see ``include/fp8gemm/mainloop/release.cuh``.
    """

    _fields_ = [
        ("tensor_map_a", _TensorMap),
        ("tensor_map_b", _TensorMap),
        ("tensor_map_scales_a", _TensorMap),
        ("tensor_map_scales_b", _TensorMap),
        ("tensor_map_d", _TensorMap),
        ("tensor_map_a_tail", _TensorMap),
        ("tensor_map_b_tail", _TensorMap),
        ("scales_b", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("d_stride_m", ctypes.c_int64),
        ("d_stride_n", ctypes.c_int64),
        ("c", ctypes.c_void_p),
        ("c_stride_m", ctypes.c_int64),
        ("c_stride_n", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("m", ctypes.c_uint32),
        ("static_weights", ctypes.c_uint32),
        ("b", ctypes.c_void_p),
        ("scales_a", ctypes.c_void_p),
        ("scales_a_stride_m", ctypes.c_int64),
        ("scales_a_stride_k", ctypes.c_int64),
        ("scales_a_stride_group", ctypes.c_int64),
        ("group_begins", ctypes.c_void_p),
        ("group_ends", ctypes.c_void_p),
        ("k", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
        ("_padding", ctypes.c_uint32 * 14),  # the size is a multiple of the alignment
    ]


class QuantizeParams(ctypes.Structure):
    """``QuantizeParams`` as ``include/fp8gemm/quantize/params.cuh`` declares them; strides and pitches in elements.

    Attributes:
        x, residual, weight: device addresses of what is read; 0 for what there is not.
        codes, scales, summed: of what is written.
        x_stride, residual_stride: from row to row.
        rows, k: of the codes.
        scales_pitch: from a K block's scales to the next one's.
        eps: of the norm.
        counts: device address of the rows that there are of each group, out of ``rows``; 0 without groups.
        x_group_stride: from group to group.
        groups: how many; 0 without.
        transposed, transposed_scales: device addresses of what is written of the transpose; 0 without.
        transposed_pitch: from a block's scales to the next one's, there.
        rows_of_tokens, kept_rows: device addresses of where each row goes, and of how many of these rows there are; 0
            where rows stay in their order.
        top_k: how many rows each row goes to; 0 where they stay.
    """

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("summed", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("residual_stride", ctypes.c_int64),
        ("rows", ctypes.c_uint32),
        ("k", ctypes.c_uint32),
        ("scales_pitch", ctypes.c_uint32),
        ("eps", ctypes.c_float),
        ("counts", ctypes.c_void_p),
        ("x_group_stride", ctypes.c_int64),
        ("groups", ctypes.c_uint32),
        ("transposed_pitch", ctypes.c_uint32),
        ("transposed", ctypes.c_void_p),
        ("transposed_scales", ctypes.c_void_p),
        ("rows_of_tokens", ctypes.c_void_p),
        ("kept_rows", ctypes.c_void_p),
        ("top_k", ctypes.c_uint32),
    ]


class GroupRangesParams(ctypes.Structure):
    """``GroupRangesParams`` as ``include/fp8gemm/kernels/group_ranges.cuh`` declares them.

    Attributes:
        indices: device address of the group of each row, int32.
        begins, ends: device addresses of what is written for each group, int32.
        rows, groups: how many there are.
    """

    _fields_ = [
        ("indices", ctypes.c_void_p),
        ("begins", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("rows", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
    ]


class RouteParams(ctypes.Structure):
    """``RouteParams`` as ``include/fp8gemm/kernels/route_tokens.cuh`` declares them.

    Attributes:
        ids: device address of the expert of each flat index.
        counts: of what each chunk has of each group; 0 where there is one chunk.
        offsets, rows, kept: of what is written.
        first_expert: the id of group 0.
        count, groups: of indices, and of groups.
        wide: nonzero where ids are int64.
        chunks: CTAs of the launch.
    """

    _fields_ = [
        ("ids", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("first_expert", ctypes.c_int64),
        ("count", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
        ("wide", ctypes.c_uint32),
        ("chunks", ctypes.c_uint32),
    ]


class RouteAndQuantizeParams(ctypes.Structure):
    """``RouteAndQuantizeParams`` as ``include/fp8gemm/kernels/route_and_quantize.cuh`` declares them.

    Attributes:
        quantize: without what tells where rows go.
        route: of one chunk.
    """

    _fields_ = [("quantize", QuantizeParams), ("route", RouteParams)]


class CopyParams(ctypes.Structure):
    """``CopyParams`` as ``include/fp8gemm/kernels/copy_to_rows.cuh`` declares them; strides and pitch in elements.

    Attributes:
        codes, scales, rows: device addresses of what is read.
        codes_of_rows, scales_of_rows: of what is written.
        kept_rows: of how many rows there are; those behind them are not written.
        codes_stride, scales_stride, scales_stride_k: from token to token, and from K block to K block.
        tokens, top_k, k: of what is read, of the rows of each token, and of columns.
        scales_pitch: from a K block's written scales to the next one's.
    """

    _fields_ = [
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("codes_of_rows", ctypes.c_void_p),
        ("scales_of_rows", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("kept_rows", ctypes.c_void_p),
        ("codes_stride", ctypes.c_int64),
        ("scales_stride", ctypes.c_int64),
        ("scales_stride_k", ctypes.c_int64),
        ("tokens", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("k", ctypes.c_uint32),
        ("scales_pitch", ctypes.c_uint32),
    ]


class UnpermuteParams(ctypes.Structure):
    """``UnpermuteParams`` as ``include/fp8gemm/kernels/unpermute.cuh`` declares them.

    Attributes:
        y, weights, rows, kept: device addresses of what is read.
        out: of the sums.
        y_stride: from row to row, in elements.
        tokens, top_k, n: of the sums, of the rows of each, and of columns.
        weights_type: the place of the weights' type among ``InputType`` of ``include/fp8gemm/common/types.cuh``.
    """

    _fields_ = [
        ("y", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("y_stride", ctypes.c_int64),
        ("tokens", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("n", ctypes.c_uint32),
        ("weights_type", ctypes.c_uint32),
    ]


_Params = TypeVar("_Params", bound=ctypes.Structure)


@cache
def _memory_of(params: type[ctypes.Structure]) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * (ctypes.sizeof(params) + MAP_ALIGNMENT)


class Arguments(Generic[_Params]):
    """The arguments of one launch: one structure at a 64-byte boundary.

    The driver copies it during the launch, so that it may be changed as soon as `launch` has returned.

    Attributes:
        params: the fields to set before a launch.
        kernel_params: the ``void**`` that the driver takes: an array of one pointer, to the structure.
    """

    __slots__ = ("_memory", "_pointers", "kernel_params", "params")

    def __init__(self, params: type[_Params]) -> None:
        self._memory = _memory_of(params)()
        self.params: _Params = params.from_buffer(self._memory, -ctypes.addressof(self._memory) % MAP_ALIGNMENT)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.params))
        self.kernel_params = ctypes.c_void_p(ctypes.addressof(self._pointers))

    def read_from(self, other: Arguments[_Params]) -> None:
        """Become equal to another one."""
        ctypes.memmove(ctypes.addressof(self.params), ctypes.addressof(other.params), ctypes.sizeof(other.params))


class ArgumentBlock(Arguments[KernelParams]):
    """The arguments of a GEMM.

    Attributes:
        tensor_map_a, tensor_map_b, tensor_map_scales_a, tensor_map_scales_b, tensor_map_d, tensor_map_a_tail,
            tensor_map_b_tail: host addresses for `encode_2d`.
    """

    __slots__ = (
        "tensor_map_a",
        "tensor_map_a_tail",
        "tensor_map_b",
        "tensor_map_b_tail",
        "tensor_map_d",
        "tensor_map_scales_a",
        "tensor_map_scales_b",
    )

    def __init__(self) -> None:
        super().__init__(KernelParams)
        address = ctypes.addressof(self.params)
        self.tensor_map_a = address + KernelParams.tensor_map_a.offset
        self.tensor_map_b = address + KernelParams.tensor_map_b.offset
        self.tensor_map_scales_a = address + KernelParams.tensor_map_scales_a.offset
        self.tensor_map_scales_b = address + KernelParams.tensor_map_scales_b.offset
        self.tensor_map_d = address + KernelParams.tensor_map_d.offset
        self.tensor_map_a_tail = address + KernelParams.tensor_map_a_tail.offset
        self.tensor_map_b_tail = address + KernelParams.tensor_map_b_tail.offset
