"""Faults of the kernels of routing are noticed where they run on an emulated Hopper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fp8gemm.checks.dtypes import INPUTS
from fp8gemm.kernels.quantize import quantizer_to_rows
from fp8gemm.kernels.routing import (
    CHUNK,
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.reference import quantize_rows
from fp8gemm.reference import routing as reference
from tests.emulated.routing import emulated_routing
from tests.routed import drawn, is_copied, is_quantized, is_routed, is_routed_and_quantized, is_summed
from tests.thirds import third_of

ROUTE, TO_ROWS, TOKEN = "kernels/route_tokens.cuh", "kernels/quantize_to_rows.cuh", "quantize/rows_of_token.cuh"
UNPERMUTE, COPY, AT_ONCE = (f"kernels/{name}.cuh" for name in ("unpermute", "copy_to_rows", "route_and_quantize"))
_STEP = """\
                rank_[i] = before + __popc(same & ((1u << lane_) - 1));
                __syncwarp();
"""
_SUM = """\
#pragma unroll
        for (uint32_t warp = 0; warp < kWarps; ++warp) {
            sum += warp < warp_"""
QUANTIZING = "quantize", "route and quantize"
FAULTS = {
    "ranks count lanes behind": (ROUTE, "same & ((1u << lane_) - 1)", "same & ~((2u << lane_) - 1)"),
    "a lane counts before the others have read": (ROUTE, _STEP, _STEP.replace("                __syncwarp();\n", "")),
    "warps before are forgotten": (ROUTE, "static_cast<uint16_t>(sum);", "0;"),
    "warps' counts are added up before all have counted": (
        ROUTE,
        "        }\n        __syncthreads();\n    }\n\n    /// How many",
        "        }\n    }\n\n    /// How many",
    ),
    "sums are read before all warps have left theirs": (
        ROUTE,
        f"        __syncthreads();\n{_SUM}",
        _SUM,
    ),
    "places are computed before all groups begin": (
        ROUTE,
        "            }\n        }\n        __syncthreads();\n    }\n\n    FP8GEMM_DEVICE void store()",
        "            }\n        }\n    }\n\n    FP8GEMM_DEVICE void store()",
    ),
    "groups of threads before are forgotten": (ROUTE, "shared_.begins[group] += before;", ""),
    "chunks before are forgotten": (ROUTE, "sums.before += chunk < blockIdx.x ? of_chunk : 0;", ""),
    "every chunk counts as before": (ROUTE, "chunk < blockIdx.x ? of_chunk : 0", "of_chunk"),
    "ids have 32 bits": (ROUTE, "params.wide != 0 ? wide : narrow", "narrow"),
    "what is of no group is kept": (ROUTE, "group_[i] < params_.groups ? 1 : 0", "1"),
    "counts of the launch before are not cleared": (ROUTE, "shared.of_warps[warp_][group] = 0;", ""),
    "rows of no group are written": (TO_ROWS, "place.inside && row < kept_rows", "place.inside"),
    "columns past K are written": (TO_ROWS, "place.inside && row < kept_rows", "row < kept_rows"),
    "the second block has the first one's scale": (TO_ROWS, "(place.col / kBlockCols)", "(0)"),
    "an equal id counts wherever it is": (AT_ONCE, "group_[step] == group && is_earlier", "group_[step] == group"),
    "an equal id that is earlier does not count": (AT_ONCE, "group_[step] == group && is_earlier", "false"),
    "the first step of ids counts alone": (AT_ONCE, "if (step * kLanes < params_.count) {", "if (step == 0) {"),
    "rows of no group are written at once": (AT_ONCE, "if (group < params_.groups) {", "if (group != kNoIndex) {"),
    "the first tokens are nobody's": (AT_ONCE, "blockIdx.x - 1", "blockIdx.x"),
    "rows past a warp's are those of its first": (TOKEN, "k > 0 && k % kLanes == 0", "false"),
    "scales of copies lie by K": (COPY, "(block) * params.scales_pitch", "(block) * params.k"),
    "copies end at whole warps": (COPY, "inside && row < kept_rows", "row < kept_rows"),
    "rows of no group are copied": (COPY, "inside && row < kept_rows", "inside"),
    "what was not kept is added": (UNPERMUTE, "params.kept[place] != 0", "true"),
    "only the first rows are added": (UNPERMUTE, "first += Config::kAhead", "first += params.top_k"),
    "products are fused with sums": (
        UNPERMUTE,
        "__fadd_rn(sum.value[i], __fmul_rn(values.value[i], weight))",
        "std::fma(values.value[i], weight, sum.value[i])",
    ),
    "float16 weights are bfloat16": (UNPERMUTE, "params.weights_type == InputType::kBfloat16 ?", "true ?"),
}


@pytest.mark.parametrize("fault", third_of(FAULTS, str))
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    assert not all_is_right(tmp_path, _with(*FAULTS[fault]))


def test_without_a_fault_nothing_is_noticed(tmp_path: Path) -> None:
    assert all_is_right(tmp_path, lambda path, text: text)


def all_is_right(directory: Path, edit: Callable[[str, str], str]) -> bool:
    """Whether a few cases have the reference's bits, with several seeds."""
    wanted = [COUNT_ROUTES, ROUTE_TOKENS, COPY_TO_ROWS, unpermute_request(INPUTS[torch.float32])]
    names = "count", "route", "copy", "unpermute torch.float32", *(f"{which} torch.bfloat16" for which in QUANTIZING)
    bf16 = INPUTS[torch.bfloat16]
    runs = emulated_routing([*wanted, quantizer_to_rows(bf16), route_and_quantize_request(bf16)], directory, edit)
    kernels = dict(zip(names, runs, strict=True))
    several = drawn(60, 8, 300, 1), drawn(2 * CHUNK + 40, 1, 300, 1), torch.tensor([[2**32 + 3]])
    x, routes = torch.randn(5, 400).bfloat16(), reference.route(drawn(5, 40, 4, 1), 4, 3)
    return (
        all(is_routed(kernels, ids, 300, 3, seed) for seed in range(3) for ids in several)
        and is_quantized(kernels, x, drawn(5, 40, 4, 1), 4)
        and is_routed_and_quantized(kernels, torch.randn(30, 400).bfloat16(), drawn(30, 8, 4, 1), 4)
        and is_copied(kernels, *quantize_rows(x), routes)
        and is_summed(kernels, torch.randn(200, 72), routes, torch.randn(5, 40).half())
    )


def _with(header: str, old: str, new: str) -> Callable[[str, str], str]:
    def edit(path: str, text: str) -> str:
        assert path != header or text.count(old) == 1, old
        return text.replace(old, new) if path == header else text

    return edit
