// The dense kernel, instrumented: with kTraceCta in Config its roles record what they do. See trace/recorder.cuh.
//
// Warp roles, shared memory and barriers are those of dense.cuh; marks go to global memory, and nobody waits for them.
#pragma once

#include "fp8gemm/kernels/dense.cuh"
#include "fp8gemm/trace/recorder.cuh"
