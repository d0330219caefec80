"""A decoder with Qwen3-8B's sizes and random weights, bfloat16 beside FP8: time of a prefill and of decode steps.

Both models are in memory and take turns, each step captured in a CUDA graph. It needs transformers, a Hopper GPU and,
at full size, about 45 GB of its memory. With ``--device cpu`` plain calls take the graphs' place: slow, and right for a
look at what is measured, with ``--layers 2 --hidden 512`` or so.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fp8gemm.cli.arguments import parse_m, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, apart, json_file, note, tell_json  # noqa: E402
from fp8gemm.errors import UnsupportedError  # noqa: E402
from fp8gemm.lab.bench.decoder import (  # noqa: E402
    BF16,
    BF16_COMPILED,
    DESCRIPTIONS,
    FP8,
    FP8_COMPILED,
    FP8_MERGED,
    GATES,
    METHOD,
    DecoderBench,
    DecoderRow,
    DecoderTable,
    Step,
    steps_of,
)
from fp8gemm.lab.bench.decoder_model import (  # noqa: E402
    DecoderShape,
    build_decoder,
    converted_copy,
    layer_bytes,
    weight_bytes,
)
from fp8gemm.lab.bench.graph import Rounds  # noqa: E402
from fp8gemm.lab.bench.load import Load  # noqa: E402
from fp8gemm.lab.bench.sweep import Mode, Sweep, one_row  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402

GB = 1e9


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Time a decoder's steps, bfloat16 beside FP8.")
    parser.add_argument("--prefill", type=int, default=2048, metavar="TOKENS", help="default 2048; 0 for none")
    parser.add_argument(
        "--batches", type=parse_m, default=[1, 16, 64], metavar="B,...", help="decoded, default 1,16,64"
    )
    parser.add_argument("--context", type=parse_positive, default=128, help="of a decode step, default 128 tokens")
    for name, default in vars(DecoderShape()).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=parse_positive, default=default, help=f"default {default}")
    parser.add_argument("--compile", action="store_true", help="also with each layer compiled by torch.compile")
    parser.add_argument("--merge", action="store_true", help="also compiled so that a shared input is quantised once")
    parser.add_argument("--rounds", type=parse_positive, default=5, help="measurements per variant, default 5")
    parser.add_argument("--measure-ms", type=float, default=150.0, help="length of one measurement, default 150")
    parser.add_argument("--warm-seconds", type=float, default=1.0, help="load before the first step, default 1")
    parser.add_argument("--budget-seconds", type=float, help="start no further step after this long")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--seed", type=int, help="of weights and tokens, default a fresh one")
    add_json(parser, ", again after each step")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write. 0; 1 if a variant has no time for a step; 3 without a Hopper GPU."""
    options = _parser().parse_args(argv)
    gpu = _gpu() if options.device == "cuda" else {"gpu": "none, on the CPU"}
    if gpu is None:
        return Exit.NO_GPU
    with apart(options):
        sweep = _measure(options, gpu)
    tell_json(options, sweep.as_json())
    return Exit.FAILED if sweep.lacks_ours() else Exit.DONE


def _measure(options: argparse.Namespace, gpu: dict[str, Any]) -> Sweep[Step, DecoderRow]:
    """Every step that the budget allows."""
    import torch

    seed = random.randrange(2**31) if options.seed is None else options.seed
    shape = DecoderShape(**{name: getattr(options, name) for name in vars(DecoderShape())})
    device = "cuda:0" if options.device == "cuda" else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    models: dict[str, Any] = {}
    for name in (BF16, FP8):
        start = time.perf_counter()
        models[name] = build_decoder(shape, generator) if name == BF16 else converted_copy(models[BF16])
        memory = f"{weight_bytes(models[name]) / GB:.2f} GB, {layer_bytes(models[name]) / GB:.2f} GB in its layers"
        _say(f"{name}: {memory}, made in {time.perf_counter() - start:.1f} s")

    variants = [BF16, FP8]
    if options.compile or options.merge:
        variants += [BF16_COMPILED] + [FP8_COMPILED] * options.compile + [FP8_MERGED] * options.merge
    bench = DecoderBench(
        models,
        shape,
        generator,
        Rounds(rounds=options.rounds, warm_seconds=options.warm_seconds, load=Load()),
        measure_ms=options.measure_ms,
        variants=variants,
        emit=_say,
    )
    heading = {
        **gpu,
        **_heading(options.rounds, seed, shape),
        "variants": {name: DESCRIPTIONS[name] for name in variants},
        "weight_bytes": {name: weight_bytes(model) for name, model in models.items()},
        "layer_bytes": {name: layer_bytes(model) for name, model in models.items()},
    }
    steps = steps_of(prefill=options.prefill, batches=options.batches, context=options.context)
    rows = one_row(bench.measure)
    mode = Mode(steps, DecoderTable(), rows, [GATES], lambda row: bool(row.failed), heading, unit="")
    sweep = Sweep(mode, json_path=json_file(options), budget_seconds=options.budget_seconds, emit=_say)
    sweep.run()
    return sweep


def _gpu() -> dict[str, Any] | None:
    """What the JSON says of the GPU; None without a Hopper GPU, and then the reason is printed."""
    from fp8gemm.driver.device import DeviceStatus, device_info, diagnose

    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        note(f"decoder: {diagnosis.message}")
        return None
    device = device_info(0)
    return {"gpu": device.name, "driver_cuda": device.driver_version}


def _heading(rounds: int, seed: int, shape: DecoderShape) -> dict[str, Any]:
    import torch
    import transformers

    from fp8gemm import settings

    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **provenance(),
        "method": METHOD.format(rounds=rounds),
        "pdl": settings.current().pdl,
        "seed": seed,
        "decoder": {**vars(shape), "description": str(shape)},
    }


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsupportedError as error:
        sys.exit(f"decoder: {error}")
