"""``fp8gemm bench``: from options to a table and a JSON file."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8gemm import settings
from fp8gemm.cli.arguments import listed, parse_m, parse_nk, parse_positive, several_of
from fp8gemm.cli.exits import Exit
from fp8gemm.cli.output import add_json, apart, json_file, lacks_gpu, note, tell_json
from fp8gemm.errors import InputError
from fp8gemm.lab import DEVICE
from fp8gemm.lab.bench.engine_mix import NAMES, STEPS, Mix, drawn
from fp8gemm.lab.bench.grouped_cases import PARTS as GROUPED_PARTS
from fp8gemm.lab.bench.regimes import ALONE_FROM, ALONE_S, Regime, parse_regime
from fp8gemm.lab.bench.report import Shape
from fp8gemm.lab.bench.sweep import Mode, Sweep
from fp8gemm.lab.labels import EXPECTED, parse_label
from fp8gemm.lab.provenance import circumstances
from fp8gemm.terminal.progress import bar

if TYPE_CHECKING:
    from fp8gemm.driver.device import DeviceInfo
    from fp8gemm.lab.bench.load import Load
    from fp8gemm.lab.bench.suite import Suite

EXAMPLE = "fp8gemm bench --m 64 --nk 7168x2048 --json bench.json"
DEFAULT_M = "1,16,64,128,512,2048,4096,8192"
DEFAULT_NK = "2112x7168,24576x1536,32768x512,7168x16384,4096x7168,7168x2048"
SMALL_M = "1,2,4,8,16,32,48,64,96,128"
SMALL_M_NK = "2112x7168,576x7168,24576x1536,32768x512,7168x16384,4096x7168,7168x2048"
GRADIENT_M = "4096"
LINEAR_M = "1,2,4,8,16,32,64,128,512,777,1024,2048,4096,8192"
HOST_M, HOST_NK = "1,16,4096", "7168x2048,4096x4096"
HOST_ROUNDS = 11
METHOD = "CUDA-graph replay over rotating operand sets larger than three times L2, microseconds per call; {how}"
_ROUNDS = ", ".join(f"{regime.rounds} {regime.value}" for regime in Regime)
_IN_TURN_ONLY = "--quantize", "--host"
OTHERS = "bf16", "tensorwise", "rowwise", "cublas_block", "deepgemm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``run`` reads."""
    parser.add_argument("--m", type=parse_m, metavar="M,...", help=f"default {DEFAULT_M}")
    parser.add_argument("--nk", type=parse_nk, metavar="NxK,...", help=f"default {DEFAULT_NK}")
    parser.add_argument(
        "--rounds", type=parse_positive, help=f"measurements per peer, default {_ROUNDS}; {HOST_ROUNDS} with --host"
    )
    parser.add_argument(
        "--regime",
        type=listed(parse_regime, (each.value for each in Regime)),
        metavar="NAME,...",
        help=f"turn: peers take turns of a few milliseconds; burst: each alone after a pause; sustained: each alone "
        f"for {ALONE_S:g} s; default turn below {ALONE_FROM} rows, then burst,sustained",
    )
    parser.add_argument("--measure-ms", type=float, default=10.0, help="length of one measurement, default 10")
    parser.add_argument("--warm-seconds", type=float, default=2.0, help="load before the first shape, default 2")
    parser.add_argument("--budget-seconds", type=float, help="start no further shape after this long")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--no-peers", action="store_true", help="measure fp8gemm alone")
    beside.add_argument(
        "--peers",
        type=several_of(OTHERS),
        default=(),
        metavar="NAME,...",
        help=f"of other libraries' products these alone, of {', '.join(OTHERS)}",
    )
    parser.add_argument(
        "--also",
        type=listed(parse_label),
        default=(),
        metavar="LABEL,...",
        help=f"ours with these tile configs as peers too, whatever the choice: {EXPECTED}",
    )
    parser.add_argument("--pdl", action="store_true", help="also with programmatic dependent launch, who has it")
    parser.add_argument("--floor", action="store_true", help="also a kernel that reads the weight and nothing else")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--batch-invariant", action="store_true", help="measure what that mode costs, and no peers")
    what.add_argument(
        "--small-m", action="store_true", help=f"--pdl --floor, by default M {SMALL_M} and NxK {SMALL_M_NK}"
    )
    what.add_argument("--chain", action="store_true", help="measure quantise, multiply, quantise, multiply, no peers")
    what.add_argument(
        "--linear",
        action="store_true",
        help=f"Fp8Linear beside bfloat16 layers and no other peers, by default M {LINEAR_M}",
    )
    what.add_argument(
        "--weight-gradients",
        action="store_true",
        help=f"gradients of N x K weights by M rows, of operands both scaled 1x128, added to float32 in place, "
        f"by default M {GRADIENT_M} and NxK {SMALL_M_NK}",
    )
    what.add_argument(
        "--quantize",
        action="store_true",
        help="the quantise functions beside a copy, by default few and many rows; of --nk only each K counts",
    )
    what.add_argument(
        "--host",
        action="store_true",
        help=f"the host's time per call, by default M {HOST_M} and NxK {HOST_NK}; --measure-ms has no effect",
    )
    what.add_argument(
        "--grouped", action="store_true", help="grouped products and layers of experts, of sizes of their own"
    )
    what.add_argument(
        "--engine",
        choices=NAMES,
        help=f"Fp8Linear beside this engine's linear layers, of --model or --nk, in a serving mix of {STEPS} steps; "
        "with --m, for these rows by each of its kernels",
    )
    parser.add_argument(
        "--model", type=Path, metavar="PATH", help="with --engine: a model's config.json, or its directory"
    )
    parser.add_argument("--tp", type=parse_positive, default=1, help="with --engine: ranks that share layers")
    parser.add_argument("--only", choices=GROUPED_PARTS, help="with --grouped, this part of them")
    parser.add_argument("--seed", type=int, help="of the random operands, default a fresh one")
    add_json(parser, ", again after each shape")


def shapes_of(options: argparse.Namespace) -> list[Shape]:
    """Every M with every N x K, as the options say or by default."""
    presets = (
        (options.small_m, SMALL_M, SMALL_M_NK),
        (options.linear, LINEAR_M, DEFAULT_NK),
        (options.host, HOST_M, HOST_NK),
        (options.weight_gradients, GRADIENT_M, SMALL_M_NK),
        (True, DEFAULT_M, DEFAULT_NK),
    )
    default_m, default_nk = next((m, nk) for chosen, m, nk in presets if chosen)
    layers = options.nk or parse_nk(default_nk)
    sizes = ((m, n, k) for m in options.m or parse_m(default_m) for n, k in layers)
    return [
        Shape(n, k, m) if options.weight_gradients else Shape(m, n, k) for m, n, k in sizes
    ]  # gradients sum over rows


def check_options(options: argparse.Namespace) -> None:
    """Whether they fit together.

    Raises:
        InputError: options that exclude each other.
    """
    modes = {
        "--chain, which measures both launches": options.chain,
        "--batch-invariant": options.batch_invariant,
        "--linear": options.linear,
        "--weight-gradients": options.weight_gradients,
        "--quantize": options.quantize,
        "--host": options.host,
        "--grouped": options.grouped,
        "--engine": options.engine,
    }
    for mode, chosen in modes.items():
        if chosen and (options.pdl or options.floor):
            raise InputError(f"expected neither --pdl nor --floor beside {mode}")
        if chosen and options.also:
            raise InputError(f"expected no --also beside {mode}")
        if chosen and options.peers:
            raise InputError(f"expected no --peers beside {mode}")
    if options.grouped and (options.m or options.nk):
        raise InputError("expected neither --m nor --nk beside --grouped, whose sizes are its own")
    for mode, chosen in zip(_IN_TURN_ONLY, (options.quantize, options.host), strict=True):
        if chosen and options.regime:
            raise InputError(f"expected no --regime beside {mode}, which is measured in turn")
    if options.engine:
        if (options.model is None) == (options.nk is None) or (options.model and options.m):
            raise InputError("expected --model, whose mix has rows of its own, or --nk beside --engine")
        if options.regime and not options.m:
            raise InputError("expected no --regime beside --engine without --m: a mix is measured in turn")
        if settings.current().engines:
            raise InputError("expected FP8GEMM_ENGINES=0 beside --engine, which measures the engine's own kernels")
    elif options.model or options.tp != 1:
        raise InputError("expected --engine beside --model and --tp")
    if options.only and not options.grouped:
        raise InputError(f"expected --grouped beside --only {options.only}")


def mix_of(options: argparse.Namespace, seed: int) -> Mix:
    """Rows that ``seed`` draws, and the layers of one block of the model, merged as engines have them.

    Raises:
        InputError: the model's config is not as it should be.
        UnsupportedError: its architecture is not known.
    """
    from fp8gemm.ahead.architectures import linears_of_config, read_config

    layers = options.nk
    if options.model:
        found = linears_of_config(read_config(options.model), tp=options.tp, merged=True)
        layers = [(layer.n, layer.k) for layer in found]
    return Mix(drawn(seed), Counter(layers), options.engine)


def suite_of(options: argparse.Namespace, shapes: Sequence[Shape]) -> Suite:
    """What the options ask for.

    Raises:
        InputError: options that exclude each other, or a shape that cannot be chained.
    """
    from fp8gemm.lab.bench import suite

    check_options(options)
    if options.engine:
        return suite.engine_kernels_suite(options.engine)
    if options.chain:
        return suite.chain_suite(shapes)
    if options.linear:
        return suite.linear_suite()
    if options.weight_gradients:
        return suite.gradient_suite(shapes, alone=options.no_peers)
    return suite.product_suite(
        alone=options.no_peers,
        others=options.peers,
        batch_invariant=options.batch_invariant,
        pdl=options.pdl or options.small_m,
        floor=options.floor or options.small_m,
        configs=options.also,
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print and write. 0; 1 if something of ours has no time for a shape; 3 without a Hopper GPU.

    Raises:
        InputError: the options do not fit together.
    """
    from fp8gemm.driver.device import device_info

    check_options(options)
    if lacks_gpu("bench"):
        return Exit.NO_GPU
    with apart(options):
        sweep = _measure(options, device_info(0))
    tell_json(options, sweep.as_json())
    return Exit.FAILED if sweep.lacks_ours() else Exit.DONE


def _measure(options: argparse.Namespace, device: DeviceInfo) -> Sweep[Any, Any]:
    """Every shape that the budget allows."""
    from fp8gemm.lab.bench.load import Load

    options.regime = [Regime.TURN] if options.engine and not options.m else options.regime
    options.rounds = options.rounds or (HOST_ROUNDS if options.host else None)
    seed = random.randrange(2**31) if options.seed is None else options.seed
    with Load() as load:
        return _swept(options, device, _mode(options, device, seed, load), seed)


def _swept(options: argparse.Namespace, device: DeviceInfo, mode: Mode[Any, Any], seed: int) -> Sweep[Any, Any]:
    import torch

    heading = {"gpu": device.name, **circumstances(device), "seed": seed, **mode.heading}
    print(f"{device.name}, driver for CUDA {device.driver_version}, torch {torch.__version__}, seed {seed}")
    for name, reason in mode.skipped.items():
        note(f"{name} skipped: {reason}")

    with bar(len(mode.shapes), "shapes") as progress:
        told, budget = replace(mode, heading=heading), options.budget_seconds
        sweep = Sweep(told, json_path=json_file(options), budget_seconds=budget, emit=progress.write)
        sweep.run(advance=progress.update)
    return sweep


def _mode(options: argparse.Namespace, device: DeviceInfo, seed: int, load: Load) -> Mode[Any, Any]:
    import torch

    from fp8gemm.lab.bench.deep_gemm_ahead import compile_deep_gemm
    from fp8gemm.lab.bench.graph import Bench, Rounds
    from fp8gemm.lab.bench.modes import grouped_mode, host_mode, how_measured, quantize_mode, suite_mode
    from fp8gemm.lab.bench.suite import engine_suite

    generator = torch.Generator(DEVICE).manual_seed(seed)
    rounds = Rounds(rounds=options.rounds, warm_seconds=options.warm_seconds, regimes=options.regime, load=load)
    if options.quantize:
        return quantize_mode(options, device, generator, rounds)
    if options.grouped:
        return grouped_mode(options, device, generator, rounds)
    mix = mix_of(options, seed) if options.engine and not options.m else None
    shapes = mix.shapes() if mix else shapes_of(options)
    if options.host:
        return host_mode(shapes, generator, rounds, options.rounds)
    suite = engine_suite(mix) if mix else suite_of(options, shapes)
    if suite.calls_deep_gemm:
        compile_deep_gemm(shapes, gradients=options.weight_gradients)
    heading: dict[str, Any] = {"method": METHOD.format(how=how_measured(options, [shape.m for shape in shapes]))}
    if options.linear or options.engine:  # products say of each peer how it is launched
        heading["pdl"] = settings.current().pdl
    bench = Bench(suite, device, generator, rounds=rounds, measure_us=1e3 * options.measure_ms)
    return suite_mode(suite, shapes, bench, heading)
