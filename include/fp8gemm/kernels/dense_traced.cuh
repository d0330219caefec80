// The dense kernel, instrumented: with kTraceCta in Config its roles record what they do. See trace/recorder.cuh.
#pragma once

#include "fp8gemm/kernels/dense.cuh"
#include "fp8gemm/trace/recorder.cuh"
