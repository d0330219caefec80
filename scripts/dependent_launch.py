"""Times products that start while the kernel ahead of them ends, and the same that start behind it.

Each in two ways: one product behind the other, and each behind the quantiser of its activation, as layers have them.
The weight does not change, and is read ahead where a product starts ahead. What `fp8gemm.tuning.dependent_launch` says
of a shape is noted, and not followed, so that the results show whether it is right. Runs from a checkout, on a Hopper
GPU.

Exit code 0: measured. 2: bad arguments. 3: no Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from fp8gemm.cli.arguments import parse_m, parse_nk  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, note, prints_json, tell_json  # noqa: E402
from fp8gemm.driver.current import current_stream  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, device_info, diagnose  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.kernels.catalogue import kernel_request, load_kernel  # noqa: E402
from fp8gemm.kernels.gemm import SingleKernel  # noqa: E402
from fp8gemm.kernels.loaded import device_chip  # noqa: E402
from fp8gemm.lab.bench.graph import GraphTimer  # noqa: E402
from fp8gemm.lab.bench.operands import Call, normal  # noqa: E402
from fp8gemm.lab.bench.timing import measure_in_turn, schedule  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.lab.tune.measure import rotated  # noqa: E402
from fp8gemm.products.quantize import quantize_activation, quantize_weight  # noqa: E402
from fp8gemm.tuning.dependent_launch import starts_ahead  # noqa: E402
from fp8gemm.tuning.hopper import Chip  # noqa: E402
from fp8gemm.tuning.problem import Problem, packed_problem  # noqa: E402
from fp8gemm.tuning.select import Config, select_config  # noqa: E402

ROWS = "8,16,32,48,64,96,128,192,256,512,1024"
WEIGHTS = (
    "2112x7168,7168x2048,32768x512,5120x5120,4096x7168,24576x1536,8192x8192,10240x8192,16384x7168,7168x16384,"
    "5120x25600,7168x18432,8192x28672,36864x7168,57344x8192,"
    "4096x4096,6144x4096,4096x14336,28672x4096,7168x9216,18432x7168"  # the rule was made without these
)
WAYS = ("products", "quantized")
TURN_US, ROUNDS, OUTPUTS = 2_000.0, 5, 4
METHOD = (
    "CUDA-graph replay over rotating weights larger than three times L2, microseconds per call; all of a shape in "
    f"turns of {TURN_US / 1e3:g} ms, median of {ROUNDS}"
)
Row = dict[str, Any]


def choices(problem: Problem, chip: Chip) -> dict[str, Config]:
    """The config that is chosen for a product that starts ahead, and for one that does not."""
    with mock.patch("fp8gemm.tuning.select.starts_ahead", return_value=True):
        ahead = select_config(replace(problem, static_weights=True), chip)
    return {"ahead": ahead, "behind": select_config(problem, chip)}


def calls(
    problem: Problem, kernels: Mapping[str, SingleKernel], generator: torch.Generator, sets: int
) -> Iterator[tuple[str, list[Call]]]:
    """By a kernel's name and way, a call for each weight: of products alone, and behind a quantiser."""
    m, n, k = problem.m, problem.n, problem.k
    x = normal(generator, m, k)
    a, scales_a = quantize_activation(x)
    b, scales_b = quantize_weight(normal(generator, n, k))
    weights = [(rotated(b, rows), scales_b.clone()) for rows in range(sets)]
    outs = [torch.empty(m, n, dtype=torch.bfloat16, device="cuda") for _ in range(OUTPUTS)]

    def multiply(kernel: SingleKernel, index: int, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        out, stream = outs[index % OUTPUTS], current_stream(0)
        with mock.patch("fp8gemm.kernels.gemm.starts_ahead", return_value=True):  # if the kernel may at all
            kernel(codes, scales, *weights[index], out=out, stream=stream, static_weights=True)
        return out

    def quantized(kernel: SingleKernel, index: int) -> torch.Tensor:
        return multiply(kernel, index, *quantize_activation(x))

    for name, kernel in kernels.items():
        yield f"{name} products", [partial(multiply, kernel, index, a, scales_a) for index in range(sets)]
        yield f"{name} quantized", [partial(quantized, kernel, index) for index in range(sets)]


def measure(problem: Problem, chip: Chip, generator: torch.Generator) -> Row:
    m, n, k = problem.m, problem.n, problem.k
    plan = schedule(m, n, k, l2_bytes=device_info(0).l2_bytes, measure_us=TURN_US)
    chosen = choices(problem, chip)
    kernels = {
        name: load_kernel(problem, config, device_index=0, num_sms=chip.num_sms, programmatic=name == "ahead")
        for name, config in chosen.items()
    }
    timers: Mapping[str, Callable[[], float]] = {
        name: GraphTimer(of_name, plan) for name, of_name in calls(problem, kernels, generator, plan.sets)
    }
    us = measure_in_turn(timers, rounds=ROUNDS).us
    row: Row = {"m": m, "n": n, "k": k}
    for name, config in chosen.items():
        row[name] = {"config": config.label, **{way: us[f"{name} {way}"] for way in WAYS}}
    row["rule"] = "ahead" if starts_ahead(m, n, k, chosen["ahead"], chip.num_sms) else "behind"
    return row


def shown(row: Row) -> str:
    """How much faster it is to start ahead."""
    speeds = (f"{way} {row['behind'][way] / row['ahead'][way]:.3f}" for way in WAYS)
    return f"{row['m']}x{row['n']}x{row['k']}".ljust(18) + f" {row['ahead']['config']:26} {' '.join(speeds)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=parse_m, default=parse_m(ROWS), help=f"rows, default {ROWS}")
    parser.add_argument("--nk", type=parse_nk, default=parse_nk(WEIGHTS), help="N x K, default those of models")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no shape after this many, default 240")
    parser.add_argument("--commit", help="of the checkout, where git cannot tell")
    add_json(parser, ", again after each shape")
    options = parser.parse_args()
    diagnosis = diagnose()
    if diagnosis.status is not DeviceStatus.READY:
        note(f"dependent_launch: {diagnosis.message}")
        return Exit.NO_GPU
    started, chip, rows = time.monotonic(), device_chip(0), list[Row]()
    problems = [packed_problem(m, n, k) for n, k in options.nk for m in options.m]
    build_many([kernel_request(each, config) for each in problems for config in choices(each, chip).values()])
    generator = torch.Generator("cuda").manual_seed(27112600)
    result = {
        "gpu": torch.cuda.get_device_name(0),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        **provenance(options.commit),
        "method": METHOD,
        "rows": rows,
    }
    for problem in problems:
        if time.monotonic() - started > options.seconds:
            break
        rows.append(measure(problem, chip, generator))
        with apart(options):
            print(shown(rows[-1]), flush=True)
        if not prints_json(options):
            tell_json(options, result)
    if prints_json(options):
        tell_json(options, result)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
