"""What a kernel may read that was launched as a programmatic dependent: which loads see what the kernel ahead wrote.

Such a kernel may be running long before the one ahead of it writes. Here it is made to: it reads everything once before
it waits, so that its SM's caches hold the old values, then waits for the grid ahead, which writes from an SM of its own
meanwhile, and reads again. ``ld.global.cg`` and plain loads, which the kernels use for what others write, must see what
was written; ``ld.global.nc`` promises nothing, and the kernels use it for nothing.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fp8gemm.driver.arguments import Arguments
from fp8gemm.driver.launch import BoundLaunch, LaunchConfig
from fp8gemm.jit.kernel import load
from fp8gemm.jit.request import KernelRequest
from tests.mutations.tree import INCLUDE

COUNT, ROUNDS = 4096, 200
"""Floats that are written and read, 128 lines of a cache; and how often."""
WAIT_NS = 30_000

HEADER = """\
#pragma once

#include "fp8gemm/ptx/thread.cuh"

namespace fp8gemm {

struct EarlyReadsParams {
    float* data;      ///< (count,)
    uint32_t* early;  ///< (CTAs,): values that were still the old ones before the wait
    uint32_t* stale;  ///< (CTAs,): and behind it
    uint32_t count;
    uint32_t round;
};

template <class Config>
struct EarlyReads {
    using Params = EarlyReadsParams;
    static constexpr uint32_t kNumThreads = 256;

    static FP8GEMM_DEVICE void run(const Params& params) {
        if constexpr (Config::kWrites) {
            ptx::launch_dependents();
            ptx::wait_for_previous_grids();
            for (uint32_t waited = 0; waited < Config::kWaitNs; waited += 1000) {
                ptx::pause(1000);
            }
            for (uint32_t i = threadIdx.x; i < params.count; i += kNumThreads) {
                params.data[i] = static_cast<float>(params.round);
            }
        } else {
            const uint32_t early = count_other(params, params.round);
            ptx::wait_for_previous_grids();
            const uint32_t stale = count_other(params, params.round);
            atomicAdd(&params.early[blockIdx.x], early);
            atomicAdd(&params.stale[blockIdx.x], stale);
        }
    }

private:
    static FP8GEMM_DEVICE uint32_t count_other(const Params& params, uint32_t round) {
        uint32_t others = 0;
        for (uint32_t i = threadIdx.x; i < params.count; i += kNumThreads) {
            float value;
            if constexpr (Config::kLoad == 0) {
                asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(params.data + i) : "memory");
            } else if constexpr (Config::kLoad == 1) {
                asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(value) : "l"(params.data + i) : "memory");
            } else {
                asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(params.data + i) : "memory");
            }
            others += value != static_cast<float>(round);
        }
        return others;
    }
};

}  // namespace fp8gemm
"""
LOADS = {"ld.global.nc": 0, "ld.global.ca": 1, "ld.global.cg": 2}


class Params(ctypes.Structure):
    """``EarlyReadsParams``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("early", ctypes.c_void_p),
        ("stale", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("round", ctypes.c_uint32),
    ]


@pytest.fixture(scope="module")
def include(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers, with the kernels of this test among them."""
    place = tmp_path_factory.mktemp("early") / "include"
    shutil.copytree(INCLUDE, place)
    (place / "fp8gemm/kernels/early_reads.cuh").write_text(HEADER)
    return place


def launch_config(include: Path, device_index: int, *, writes: bool, kind: int, grid: int) -> LaunchConfig:
    request = KernelRequest(
        label=f"early-{'writer' if writes else 'reader'}-{kind}",
        header="fp8gemm/kernels/early_reads.cuh",
        family="EarlyReads",
        config=(("writes", writes), ("load", kind), ("wait_ns", WAIT_NS)),
    )
    loaded = load(request, device_index, 0, include_dir=include)
    return LaunchConfig(
        function=loaded.function, device_index=device_index, grid_x=grid, threads=256, programmatic=not writes
    )


@pytest.mark.parametrize("name", LOADS)
def test_what_the_grid_ahead_wrote_is_seen_behind_the_wait(
    name: str, include: Path, device: torch.device, say: Callable[[str], None]
) -> None:
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    assert device.index is not None
    writer = launch_config(include, device.index, writes=True, kind=0, grid=1)
    reader = launch_config(include, device.index, writes=False, kind=LOADS[name], grid=sms)
    data = torch.zeros(COUNT, device=device)
    early, stale = (torch.zeros(sms, dtype=torch.int32, device=device) for _ in range(2))
    stream = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    for turn in range(1, ROUNDS + 1):
        arguments = Arguments(Params)
        params = arguments.params
        params.data, params.early, params.stale = data.data_ptr(), early.data_ptr(), stale.data_ptr()
        params.count, params.round = COUNT, turn
        BoundLaunch(writer, arguments, stream.cuda_stream, 1)()
        BoundLaunch(reader, arguments, stream.cuda_stream, sms)()
    stream.synchronize()
    reads = ROUNDS * COUNT * sms
    before, behind = int(early.sum()), int(stale.sum())
    say(f"{name}: {before} of {reads} reads came before the write; behind the wait {behind} did not see it")
    assert before > reads // 2, "the reader did not start early, and so this shows nothing"
    if name != "ld.global.nc":
        assert behind == 0
