"""What the options of the command ask for: shapes, who measures them, and what is said of the rows."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fp8gemm import settings
from fp8gemm.driver.device import DeviceInfo
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.bench import grouped, host, quantize
from fp8gemm.lab.bench.graph import Bench, Rounds
from fp8gemm.lab.bench.grouped_cases import CASES as GROUPED_CASES
from fp8gemm.lab.bench.grouped_cases import SIZES_SEED, GroupedCase
from fp8gemm.lab.bench.grouped_peers import BF16, DEEP_GEMM, missing
from fp8gemm.lab.bench.quantize_cases import CASES, Size
from fp8gemm.lab.bench.regimes import Regime, default_regimes, method
from fp8gemm.lab.bench.report import Row, Shape
from fp8gemm.lab.bench.suite import Suite
from fp8gemm.lab.bench.sweep import Mode, one_row
from fp8gemm.tuning.grouped import select_grouped
from fp8gemm.tuning.hopper import chip_of_device


def suite_mode(suite: Suite, shapes: Sequence[Shape], bench: Bench, heading: Mapping[str, Any]) -> Mode[Shape, Row]:
    """Peers on the same operands; ``heading`` says how they are measured."""
    heading = {
        **heading,
        "peers": {peer.name: peer.description for peer in suite.peers},
        "skipped": dict(suite.skipped),
    }
    return Mode(
        shapes,
        suite.table,
        bench.measure,
        suite.summaries,
        lambda row: suite.ours not in row.us,
        heading,
        suite.skipped,
    )


def quantize_mode(
    options: argparse.Namespace, device: DeviceInfo, generator: torch.Generator, rounds: Rounds
) -> Mode[Size, quantize.QuantizeRow]:
    """The quantise functions beside a copy."""
    bench = quantize.QuantizeBench(generator, rounds, l2_bytes=device.l2_bytes, measure_us=1e3 * options.measure_ms)
    heading = {
        "method": quantize.METHOD.format(rounds=options.rounds or Regime.TURN.rounds),
        "pdl": settings.current().pdl,
        "cases": {case.name: case.description for case in CASES},
    }
    return Mode(
        quantize.sizes(options.m, None if options.nk is None else [k for _, k in options.nk]),
        quantize.QuantizeTable(),
        one_row(bench.measure),
        [quantize.GATES],
        lambda row: len(row.us) < len(CASES),
        heading,
        unit=" (M x K)",
    )


def grouped_mode(
    options: argparse.Namespace, device: DeviceInfo, generator: torch.Generator, rounds: Rounds
) -> Mode[GroupedCase, grouped.GroupedRow]:
    """Grouped products and layers of experts. Their kernels are compiled here, all at once."""
    cases = [case for case in GROUPED_CASES if options.only in (None, case.part)]
    chip = chip_of_device(device.name, device.num_sms)
    problems = (problem for case in cases for problem in case.problems())
    requests = [kernel_request(problem, select_grouped(problem, chip)) for problem in problems]
    build_many(list(dict.fromkeys(requests)))
    skipped = {} if options.no_peers else missing()
    others = [] if options.no_peers else [name for name in (DEEP_GEMM, BF16) if name not in skipped]
    bench = grouped.GroupedBench(
        generator,
        rounds,
        chip,
        l2_bytes=device.l2_bytes,
        measure_us=1e3 * options.measure_ms,
        others=others,
    )
    heading = {
        "method": grouped.METHOD.format(how=how_measured(options, [case.rows for case in cases])),
        "pdl": settings.current().pdl,
        "sizes_seed": SIZES_SEED,
        "skipped": skipped,
    }
    return Mode(
        cases,
        grouped.GroupedTable(),
        bench.measure,
        [grouped.GATES],
        lambda row: row.lacks,
        heading,
        skipped,
        unit="",
    )


def host_mode(
    shapes: Sequence[Shape], generator: torch.Generator, rounds: Rounds, round_count: int
) -> Mode[Shape, Row]:
    """The host's time per call."""
    heading = {
        "method": host.METHOD.format(rounds=round_count),
        "pdl": settings.current().pdl,
        "python": platform.python_version(),
        "cpu": processor_name(),
        "calls": {name: description for name, (description, _) in host.PREPARE.items()},
    }
    bench = host.HostBench(generator, rounds, host.CurrentGpu())
    return Mode(
        shapes,
        host.HostTable(),
        one_row(bench.measure),
        [host.GATES],
        lambda row: len(row.us) < len(host.PREPARE),
        heading,
    )


def how_measured(options: argparse.Namespace, rows: Iterable[int]) -> str:
    """In which regimes products of so many rows each are measured, and how often."""
    found = [regime for m in rows for regime in options.regime or default_regimes(m)]
    return method([regime for regime in Regime if regime in found], options.rounds)


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model as Linux names it, or its architecture."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()
