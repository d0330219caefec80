"""A kernel small enough to read, for the driver's tests: it copies a matrix by TMA and reports its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fp8gemm.driver.arguments import ArgumentBlock
from fp8gemm.driver.launch import LaunchConfig
from fp8gemm.driver.tensor_map import encode_2d
from fp8gemm.jit import kernel
from fp8gemm.jit.request import KernelRequest

BOX_ROWS, BOX_COLUMNS = 32, 64
ROWS, COLUMNS = 100, 48  # the last box hangs over the matrix on both sides
PITCH = 80
BOXES = 4
DYNAMIC_SHARED = 8192
REPORT_BYTES = 6 * 8

HEADER = r"""
// A kernel for the driver tests: every CTA copies one box of a matrix of bytes by TMA, and thread 0 of the first CTA
// reports what it sees of its arguments and its launch.
#pragma once

namespace fp8gemm {

using uint32_t = unsigned int;
using int64_t = long long;

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

template <class Config>
struct Probe {
    static constexpr uint32_t kNumThreads = 128;
    static constexpr uint32_t kBoxBytes = Config::kBoxRows * Config::kBoxColumns;

    struct alignas(64) Params {
        TensorMap tensor_map_a, tensor_map_b, tensor_map_scales_a, tensor_map_scales_b, tensor_map_d;
        TensorMap tensor_map_a_tail, tensor_map_b_tail;
        const float* scales_b;
        unsigned char* d;
        int64_t d_stride_m, d_stride_n;
        const void* c;
        int64_t c_stride_m, c_stride_n;
        const void* bias;
        uint32_t m;
    };
    static_assert(sizeof(Params) == 1024, "the host's block begins with these");

    // d: one box for each CTA, then the report of six 64-bit numbers.
    static __device__ void run(const Params& params) {
        extern __shared__ __align__(1024) unsigned char box[];
        __shared__ __align__(8) unsigned long long barrier;
        asm volatile("griddepcontrol.wait;" ::: "memory");
        const auto barrier_address = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_address));
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            load_box(params.tensor_map_a, barrier_address, static_cast<uint32_t>(__cvta_generic_to_shared(box)));
        }
        __syncthreads();
        wait(barrier_address);
        for (uint32_t i = threadIdx.x; i < kBoxBytes; i += kNumThreads) params.d[blockIdx.x * kBoxBytes + i] = box[i];
        if (blockIdx.x == 0 && threadIdx.x == 0) report(params);
    }

    static __device__ void load_box(const TensorMap& map, uint32_t barrier, uint32_t box) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kBoxBytes));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
            "[%4];" ::"r"(box),
            "l"(&map), "r"(0), "r"(blockIdx.x * Config::kBoxRows), "r"(barrier)
            : "memory");
    }

    static __device__ void wait(uint32_t barrier) {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
            "@!done bra again;\n"
            "}\n" ::"r"(barrier)
            : "memory");
    }

    static __device__ void report(const Params& params) {
        uint32_t cluster_ctas, dynamic_shared;
        asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(cluster_ctas));
        asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic_shared));
        auto* numbers = reinterpret_cast<int64_t*>(params.d + gridDim.x * kBoxBytes);
        numbers[0] = params.m;
        numbers[1] = params.d_stride_m;
        numbers[2] = params.d_stride_n;
        numbers[3] = static_cast<int64_t>(params.scales_b[0]);
        numbers[4] = cluster_ctas;
        numbers[5] = dynamic_shared;
    }
};

}  // namespace fp8gemm
"""


@dataclass(frozen=True)
class Probe:
    """The probe kernel's request and header directory."""

    request: KernelRequest
    include_dir: Path

    def load(self, device: torch.device, dynamic_shared_bytes: int = DYNAMIC_SHARED) -> kernel.LoadedKernel:
        return kernel.load(self.request, device.index, dynamic_shared_bytes, include_dir=self.include_dir)

    def config(self, device: torch.device, *, cluster_x: int = 1, programmatic: bool = False) -> LaunchConfig:
        return LaunchConfig(
            function=self.load(device).function,
            device_index=device.index,
            grid_x=BOXES,
            threads=128,
            cluster_x=cluster_x,
            dynamic_shared_bytes=DYNAMIC_SHARED,
            programmatic=programmatic,
        )


def make_probe(place: Path) -> Probe:
    """A probe kernel whose header, and so whose key, is of this place alone."""
    include_dir = place / "include"
    include_dir.mkdir()
    (include_dir / "driver_probe.cuh").write_text(f"// {place}\n{HEADER}")
    config = (("box_rows", BOX_ROWS), ("box_columns", BOX_COLUMNS))
    request = KernelRequest(label="driver-probe", header="driver_probe.cuh", family="Probe", config=config)
    return Probe(request, include_dir)


def make_matrix(device: torch.device, generator: torch.Generator) -> Tensor:
    """ROWS x COLUMNS bytes in rows of PITCH; what lies between the rows must not be read."""
    memory = torch.randint(1, 256, (ROWS, PITCH), dtype=torch.uint8, device=device, generator=generator)
    return memory[:, :COLUMNS]


def make_output(device: torch.device) -> Tensor:
    return torch.full((BOXES * BOX_ROWS * BOX_COLUMNS + REPORT_BYTES,), 0xA5, dtype=torch.uint8, device=device)


def make_arguments(matrix: Tensor, scales: Tensor, output: Tensor) -> ArgumentBlock:
    arguments = ArgumentBlock()
    encode_2d(
        arguments.tensor_map_a,
        address=matrix.data_ptr(),
        dtype="uint8",
        inner=COLUMNS,
        outer=ROWS,
        outer_stride_bytes=PITCH,
        box_inner=BOX_COLUMNS,
        box_outer=BOX_ROWS,
    )
    arguments.params.scales_b = scales.data_ptr()
    arguments.params.d = output.data_ptr()
    arguments.params.d_stride_m, arguments.params.d_stride_n, arguments.params.m = 2**40 + 1, -3, 2**32 - 5
    return arguments


def check_output(output: Tensor, matrix: Tensor, *, scale: int = 7, cluster_x: int = 1) -> None:
    """Every box holds the matrix, and zeros outside it; the report holds what was passed."""
    torch.cuda.synchronize(output.device)
    expected = torch.zeros(BOXES * BOX_ROWS, BOX_COLUMNS, dtype=torch.uint8, device=output.device)
    expected[:ROWS, :COLUMNS] = matrix
    assert torch.equal(output[:-REPORT_BYTES].view_as(expected), expected)
    report = output[-REPORT_BYTES:].clone().view(torch.int64).tolist()
    assert report == [2**32 - 5, 2**40 + 1, -3, scale, cluster_x, DYNAMIC_SHARED]
