"""``fp8gemm report``: from a model to one page of HTML about its layers, what they take, and their kernels."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fp8gemm import __version__, settings
from fp8gemm.ahead.kernels import chips_named
from fp8gemm.ahead.warming import check_ready
from fp8gemm.cli.arguments import CHIP_HELP, Words, parse_m
from fp8gemm.cli.asked import Asked, asked_for
from fp8gemm.cli.asked_words import add_asked, words_of
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.findings import Findings, cache_layers, collect
from fp8gemm.cli.interrupts import loading
from fp8gemm.cli.output import PRINTED, add_json, json_file, lacks_gpu, prints_json, tell, tell_json
from fp8gemm.driver.device import DeviceStatus, conclude
from fp8gemm.errors import InputError
from fp8gemm.kernels.hints import MAX_M, warmup_with
from fp8gemm.kernels.loaded import device_chip
from fp8gemm.lab.provenance import provenance
from fp8gemm.lab.report.data import CacheDirectory, Kernels, Report
from fp8gemm.lab.report.gather import all_points, looked_up, steps_of, tables_of
from fp8gemm.lab.report.layers import Layer, Point, merged
from fp8gemm.lab.report.page import page
from fp8gemm.quoting import counted, cut, printable, quoted_path
from fp8gemm.terminal.progress import bar
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import CHIPS, Chip, chip_name, named_chip
from fp8gemm.tuning.problem import Grouping
from fp8gemm.writing import obstacle, write_text

EXAMPLE = "fp8gemm report --nk 7168x2048,2112x7168 --m 1,64,4096 --chip h200"
DEFAULT_M = "1,16,64,256,1024,4096"
DEFAULT_OUTPUT = Path("fp8gemm-report.html")
DEFAULT_CHIP = "h200"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    add_asked(parser)
    parser.add_argument(
        "--m", type=parse_m, metavar="M,...", help=f"rows of a step, default {DEFAULT_M}, as far as --max-m goes"
    )
    parser.add_argument(
        "--chip",
        type=Words(_one_chip, tuple(CHIPS)),
        metavar="NAME",
        help=f"{CHIP_HELP}; default that of this machine's Hopper GPU, else {DEFAULT_CHIP}",
    )
    parser.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        help="also time each layer on this machine's GPU, which compiles its kernels; default if that is of the chip",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help=f"the page, - for standard output; default {DEFAULT_OUTPUT}, and none if --json is printed",
    )
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="where kernels are, default FP8GEMM_CACHE_DIR")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Draw the page and write it. 0; 3 if it is to measure and there is no Hopper GPU.

    Raises:
        InputError: there is nothing to draw, options exclude each other, or a file cannot be read or written.
        UnsupportedError: a model whose layers are not known.
        CompileError, CacheMissError, DriverError: a kernel that is to be measured could not be built or launched.
    """
    output = _output(options)
    changes: dict[str, Any] = {} if options.cache_dir is None else {"cache_dirs": (options.cache_dir,)}
    with settings.scope(**changes):
        asked = asked_for(options, "what to draw")
        layers, weighted = _layers(asked, options)
        with loading():  # of torch, most of all
            findings = collect()
        if options.measure and lacks_gpu("report"):
            return Exit.NO_GPU
        chip, unmeasured = _target(options, findings)
        points = all_points(layers, _rows(options), chip)
        method = ""
        if not unmeasured:
            points, method = _measured(points, chip)
        steps = steps_of(looked_up(points))
        report = Report(
            title=_title(options),
            facts=_facts(options, findings),
            chip=chip,
            layers=[point.layer for point in steps[0].points],
            steps=steps,
            weighted=weighted,
            method=method,
            unmeasured=unmeasured,
            tables=tables_of(chip),
            cache=_cache(),
            kernels=_kernels(options, asked, chip),
        )
    if output == PRINTED:
        print(page(report))
    elif output is not None:
        write_text(output, page(report))
        tell(options, f"{quoted_path(output)}: {_summary(report)}")
    tell_json(options, report.as_json())
    return Exit.DONE


def _one_chip(name: str) -> str:
    named_chip(name)
    return name


def _output(options: argparse.Namespace) -> Path | None:
    """Where the page goes, looked at before there is anything to lose; None for nowhere."""
    if prints_json(options):
        if options.output == PRINTED:
            raise InputError("--output -: expected another place beside --json without a path, which is printed too")
        if options.output is None:
            return None
    output: Path = options.output or DEFAULT_OUTPUT
    for name, path in (("--output", output), ("--json", json_file(options))):
        if path not in (None, PRINTED) and (found := obstacle(path)):
            raise InputError(f"{name}: expected a file that can be written, got {printable(found)}")
    return output


def _rows(options: argparse.Namespace) -> list[int]:
    """Every M, once, in order."""
    if options.m is not None:
        return sorted(set(options.m))
    most = MAX_M if options.max_m is None else options.max_m
    return [m for m in parse_m(DEFAULT_M) if m <= most]


def _layers(asked: Asked, options: argparse.Namespace) -> tuple[list[Layer], bool]:
    """What is drawn, each weight as it is asked for first; and whether all of them are counted."""
    for name, ranks in (("--tp", options.tp), ("--ep", options.ep)):
        if len(set(ranks)) > 1:
            raise InputError(f"{name}: expected one number of ranks, whose layers are drawn, got {_joined(ranks)}")
    found, weighted = [], True
    for weight in asked.weights:
        drawn = [each for each in weight.problems if not _is_gradient(each)]
        if drawn:
            weighted = weighted and (weight.layers is not None or options.model is None)
            found.append(Layer((weight.name,), drawn[0], weight.layers or 1, weight.routed))
    if not found:
        raise InputError("expected products to draw: --nk, --grouped, --model or --recorded name none")
    return merged(found), weighted


def _is_gradient(problem: object) -> bool:
    return isinstance(problem, GroupedProblem) and problem.grouping is Grouping.COLUMNS


def _joined(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _target(options: argparse.Namespace, findings: Findings) -> tuple[Chip, str]:
    """The chip, and why nothing is measured on it, or an empty string."""
    diagnosis = conclude(findings.probed)
    here = device_chip(0) if diagnosis.status is DeviceStatus.READY and findings.settings.backend == "auto" else None
    if options.chip is None:
        chip = here or chips_named(DEFAULT_CHIP)[0]
    else:
        (chip,) = chips_named(options.chip)
    if options.measure is False:
        return chip, "--no-measure: nothing was to be measured."
    if here is None:
        reference = diagnosis.status is DeviceStatus.READY
        reason = "FP8GEMM_BACKEND asks for the reference." if reference else diagnosis.found
        if options.measure:
            raise InputError(f"--measure: {reason}")
        return chip, reason
    if here != chip:
        reason = f"this machine's GPU is {chip_name(here)}, and kernels are chosen for {chip_name(chip)}"
        if options.measure:
            raise InputError(f"--measure: expected the chip of the GPU; {reason}")
        return chip, reason[0].upper() + reason[1:] + "."
    return chip, ""


def _measured(points: list[Point], chip: Chip) -> tuple[list[Point], str]:
    from fp8gemm.driver.device import device_info
    from fp8gemm.lab.report.measure import how_measured, measured

    with bar(len(points), "products", "report") as shown:
        return measured(points, device_info(0), chip, shown.update), how_measured(point.m for point in points)


def _cache() -> list[CacheDirectory]:
    """The cache directories as they are now."""
    return [
        CacheDirectory(printable(layer.path), layer.state, layer.kernels, layer.bytes, printable(layer.note))
        for layer in cache_layers()
    ]


def _title(options: argparse.Namespace) -> str:
    if options.model is not None:
        path = Path(os.path.abspath(options.model))
        name = path.parent.name if path.name == "config.json" else path.stem if path.is_file() else path.name
        return printable(name or str(path))
    shapes = ["x".join(map(str, shape)) for shape in (*options.nk, *options.grouped)]
    return cut(", ".join(shapes)) if shapes else printable(options.recorded.name)


def _facts(options: argparse.Namespace, findings: Findings) -> dict[str, str | None]:
    gpus = [str(gpu) for gpu in findings.gpus]
    model = options.model or options.recorded
    return {
        "model": None if model is None else printable(os.path.abspath(model)),
        "ranks": _ranks(options),
        "date": datetime.datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        "version": __version__,
        **provenance(),
        "python": platform.python_version(),
        "torch": findings.probed.torch_version,
        "nvrtc": findings.nvrtc.version,
        "gpu": "; ".join(gpus) or None,
        "status": conclude(findings.probed).found,
    }


def _ranks(options: argparse.Namespace) -> str | None:
    """Which layers those of a model are, if they are not whole."""
    (tp, *_), (ep, *_) = options.tp, options.ep
    return None if options.model is None or (tp, ep) == (1, 1) else f"one of tp {tp}, ep {ep}"


def _kernels(options: argparse.Namespace, asked: Asked, chip: Chip) -> Kernels:
    wanted = asked.demand([chip])
    done = check_ready(wanted)
    words = words_of(options)
    if options.cache_dir is not None:
        words += ["--cache-dir", os.path.abspath(options.cache_dir)]
    return Kernels(
        command=printable(warmup_with(words, chip)),
        products=tuple(request.label for requests in wanted.gemms.values() for request in requests),
        quantizers=tuple(request.label for request in wanted.quantizers),
        missing={each.label: printable(each.problem) for each in done.missing},
        bytes=done.bytes,
        max_m=MAX_M if options.max_m is None else options.max_m,
    )


def _summary(report: Report) -> str:
    kernels, shapes = report.kernels, counted(len(report.layers), "shape")
    measured = "measured" if report.method else "predicted"
    return (
        f"{shapes} of {report.title} on {chip_name(report.chip)}, {measured}; "
        f"{kernels.ready} of {counted(kernels.count, 'kernel')} ready"
    )
