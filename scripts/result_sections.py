"""What pages show of result files: sections between their markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from result_tables import (
    accuracy,
    checks,
    choice,
    engines,
    folding,
    grouped,
    install,
    linear,
    model,
    serving,
    small_m,
    speed,
    training,
)
from result_tables.markdown import Result
from result_tables.parallel import TABLES as PARALLEL
from result_tables.parallel_speed import OF_FOUR as PARALLEL_SPEED_OF_FOUR
from result_tables.parallel_speed import TABLES as PARALLEL_SPEED


@dataclass(frozen=True)
class Section:
    """What goes between a pair of markers.

    Attributes:
        file: the result file, in ``docs/results``.
        draw: from its content to lines of Markdown.
        written_by: who writes that file, for the error where it is missing.
        picture: what a plot of the same file shows, and the plot; the section then has it at its end.
    """

    file: str
    draw: Callable[[Result], list[str]]
    written_by: str
    picture: tuple[str, str] | None = None


_ACCURACY = ("accuracy-h200.json", "scripts/accuracy.py --json")
_BENCH = ("bench-h200.json", "scripts/bench.py --json")
_CALIBRATION = "calibration-h200.json"
_MODEL, _MODEL_PLOT = "model-accuracy-h200.json", "docs/plots/model-accuracy-h200.png"
_SMALL_M, _SMALL_M_PLOT = "bench-small-m-h200.json", "docs/plots/bench-small-m-h200.png"
_LINEAR, _LINEAR_PLOT = "bench-linear-h200.json", "docs/plots/bench-linear-h200.png"
_GROUPED, _GROUPED_PLOT = "bench-grouped-h200.json", "docs/plots/bench-grouped-h200.png"
_LAYERS, _LAYERS_PLOT = "layers-h200.json", "docs/plots/layers-h200.png"
_TRAINING, _TRAINING_PLOT = "training-loss-reference.json", "docs/plots/training-loss.png"
_DECODER, _DECODER_PLOT = "decoder-h200.json", "docs/plots/decoder-h200.png"
_GOALS = "scripts/speed_goals.py"
_IN_VLLM = "fp8gemm bench --engine vllm --m --nk --json"
SECTIONS = {
    "bench": Section(_BENCH[0], speed.bench, _BENCH[1]),
    "bench_shapes": Section(_BENCH[0], speed.bench_shapes, _BENCH[1]),
    "calibration": Section(_CALIBRATION, choice.calibration, "scripts/calibrate.py --json"),
    "random": Section("random-burst-h200.json", choice.random_shapes, _GOALS),
    "random_sustained": Section("random-sustained-h200.json", choice.random_shapes, _GOALS),
    "few_rows_choice": Section("few-rows-choice-h200.json", choice.shapes, "fp8gemm tune --results"),
    "dependent_launch": Section(
        "dependent-launch-h200.json", choice.dependent_launch, "scripts/dependent_launch.py --json"
    ),
    "prefill_burst": Section("prefill-burst-h200.json", speed.bench, _GOALS),
    "prefill_sustained": Section("prefill-sustained-h200.json", speed.bench, _GOALS),
    "gradients_burst": Section("gradients-burst-h200.json", speed.bench_shapes, _GOALS),
    "gradients_sustained": Section("gradients-sustained-h200.json", speed.bench_shapes, _GOALS),
    "k_grouped_burst": Section("k-grouped-burst-h200.json", grouped.grouped, _GOALS),
    "k_grouped_sustained": Section("k-grouped-sustained-h200.json", grouped.grouped, _GOALS),
    "contiguous_burst": Section("contiguous-burst-h200.json", grouped.grouped, _GOALS),
    "masked_burst": Section("masked-burst-h200.json", grouped.grouped, _GOALS),
    "ablations": Section("ablation-h100.json", checks.ablations, "scripts/compare_headers.py --without"),
    "coldstart": Section("coldstart-h200.json", serving.coldstart, "scripts/coldstart.py --json"),
    "warmup": Section("warmup.json", serving.warmup, "scripts/warmup_time.py --json"),
    "sealed": Section("sealed-h200.json", serving.sealed, "tests/gpu/test_sealed.py"),
    "cache_faults": Section("cache-faults-h200.json", serving.cache_faults, "tests/gpu/test_cache_faults.py"),
    "batch_invariant": Section(
        "batch-invariant-h200.json", speed.batch_invariant, "scripts/bench.py --batch-invariant"
    ),
    "small_m": Section(
        _SMALL_M,
        small_m.small_m,
        "scripts/bench.py --small-m --json",
        picture=("Microseconds by M at each N x K: fp8gemm, its peers, and reading the weight alone", _SMALL_M_PLOT),
    ),
    "few_rows_48_to_192": Section(
        "few-rows-48-to-192-h200.json", small_m.small_m, "scripts/speed_goals.py few-rows --directory docs/results"
    ),
    "few_rows": Section(
        "few-rows-h200.json",
        small_m.small_m,
        "scripts/bench.py --m 1,2,4,8,16,32 --small-m --peers deepgemm --rounds 15 --json",
    ),
    "linear": Section(
        _LINEAR,
        linear.linear,
        "scripts/bench.py --linear --json",
        picture=("Speed of a linear layer relative to a bfloat16 one, by M at each N x K and on average", _LINEAR_PLOT),
    ),
    "linear_shapes": Section(_LINEAR, linear.linear_shapes, "scripts/bench.py --linear --json"),
    "quantize_kernels": Section(
        "bench-quantize-h200.json", linear.quantize_kernels, "scripts/bench.py --quantize --json"
    ),
    "grouped": Section(
        _GROUPED,
        grouped.grouped,
        "scripts/bench.py --grouped --json",
        picture=(
            "Speed of contiguous groups, and time of few rows over that of reading the weights",
            _GROUPED_PLOT,
        ),
    ),
    "experts": Section(
        _LAYERS,
        grouped.experts,
        "scripts/bench.py --grouped --only layer --json",
        picture=("Speed of layers of experts relative to bfloat16, by tokens", _LAYERS_PLOT),
    ),
    "host": Section("host-h200.json", linear.host, "scripts/bench.py --host --json"),
    "decoder": Section(
        _DECODER,
        linear.decoder,
        "scripts/decoder.py --compile --json",
        picture=("Speed of a decoder's steps in FP8 relative to bfloat16", _DECODER_PLOT),
    ),
    "training": Section(
        _TRAINING,
        training.training,
        "examples/training_step.py --json",
        picture=(
            "Loss by step in float32, in bfloat16 and with FP8 products, and differences from float32",
            _TRAINING_PLOT,
        ),
    ),
    "accuracy": Section(_ACCURACY[0], accuracy.accuracy, _ACCURACY[1]),
    "accuracy_summary": Section(_ACCURACY[0], accuracy.accuracy_summary, _ACCURACY[1]),
    "model_accuracy": Section(
        _MODEL,
        model.model_accuracy,
        "scripts/accuracy.py --model --json",
        picture=("Noise of each FP8 layer in dB, and how far each sentence's embedding moves", _MODEL_PLOT),
    ),
    "fold_error": Section("fold-error.json", folding.fold_error, "scripts/fold_error.py --json"),
    "small_blocks": Section(
        "blocks-32x32-h200.json", engines.small_blocks, "fp8gemm bench --linear --m 1,16,64,512,2048,8192 --json"
    ),
    "vllm_few_rows": Section("vllm-few-rows-h200.json", engines.vllm_kernels, _IN_VLLM),
    "vllm_many_rows": Section("vllm-many-rows-h200.json", engines.vllm_kernels, _IN_VLLM),
    "gates": Section("gates-h200.json", checks.gates, "tests/gpu/test_sweep.py"),
    "mutations": Section("mutations-h200.json", checks.mutations, "the mutation tests"),
    "mutations_summary": Section("mutations-h200.json", checks.mutations_summary, "the mutation tests"),
    "faults": Section("faults-h200.json", checks.faults, "the fault tests"),
    "sanitize": Section("sanitize-h200.json", checks.sanitize, "scripts/sanitize.py --json"),
    "stress": Section("stress-h200.json", checks.stress, "the stress test"),
    "compare_headers": Section(
        "compare-headers-h200.json", checks.compare_headers, "scripts/compare_headers.py --json"
    ),
    **{name: Section("parallel-model.json", draw, "scripts/parallel_model.py") for name, draw in PARALLEL.items()},
    **{
        name: Section("parallel-speed-h200.json", draw, "torchrun --nproc-per-node 2 scripts/parallel_speed.py --json")
        for name, draw in PARALLEL_SPEED.items()
    },
    **{
        name: Section(
            "parallel-speed-four-h200.json",
            draw,
            "torchrun --nproc-per-node 4 scripts/parallel_speed.py --sections prefill,decode,limits --json",
        )
        for name, draw in PARALLEL_SPEED_OF_FOUR.items()
    },
    "install_matrix": Section("install-matrix.json", install.matrix, "scripts/matrix.py --json"),
    "release_order": Section("release-order-h200.json", checks.release_order, "scripts/release_order.py --json"),
}
