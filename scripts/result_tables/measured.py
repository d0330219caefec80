"""The page that names every picture and result file: what it shows, of which GPU and day, and where its table is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from fp8gemm.lab.bench.regimes import Regime
from result_tables.markdown import MISSING, Result, table

SHOWS = {
    "bench-h200.json": ("products beside other libraries', by rows and by shape", "tuning.md#speed-by-rows"),
    "prefill-burst-h200.json": ("the same, each alone, in bursts", "tuning.md#speed-by-rows"),
    "prefill-sustained-h200.json": ("and under load that lasts", "tuning.md#speed-by-rows"),
    "prefill-samples-h200.json": ("the same with the choice before, sample by sample", "tuning.md#speed-by-rows"),
    "random-burst-h200.json": ("100 random shapes beside DeepGEMM, in bursts", "tuning.md#the-choice"),
    "random-sustained-h100.json": ("100 others under load that lasts, before that", "tuning.md#the-choice"),
    "random-sustained-h200.json": ("the same under load that lasts", "tuning.md#the-choice"),
    "random-sustained-choice-h200.json": ("and others, the choice alone", "tuning.md#the-choice"),
    "random-sustained-outliers-h200.json": ("eight of those behind, with other tiles", "tuning.md#the-choice"),
    "random-sustained-outliers-burst-h200.json": ("and these in bursts", "tuning.md#the-choice"),
    "random-sustained-first-card-h200.json": ("100 others on both cards of a host: the first", "tuning.md#the-choice"),
    "random-sustained-second-card-h200.json": ("and the second", "tuning.md#the-choice"),
    "one-round-h200.json": ("five of those behind, most of them one round", "tuning.md#what-limits-prefill"),
    "random-sustained-fifth-h200.json": ("a fifth hundred", "tuning.md#the-choice"),
    "random-sustained-sixth-h200.json": ("a sixth, with the choice of 9eec1d4", "tuning.md#the-choice"),
    "random-sustained-seventh-h200.json": ("a seventh, with scales fetched ahead", "tuning.md#the-choice"),
    "random-sustained-eighth-h200.json": ("an eighth, with fewer instructions of a wave", "tuning.md#the-choice"),
    "random-sustained-ninth-h200.json": ("a ninth, with the choice of ae30acd", "tuning.md#the-choice"),
    "random-burst-ninth-h200.json": ("and others in bursts", "tuning.md#the-choice"),
    "short-k-tiles-h200.json": ("128x128 with five stages beside what was chosen", "tuning.md#the-choice"),
    "shorter-chunks-h200.json": ("shorter chunks of K blocks", "tuning.md#less-time-to-compile"),
    "wide-tiles-h200.json": ("what is chosen beside tiles about as fast", "tuning.md#the-choice"),
    "back-edge-h200.json": ("what stands between chunks of K, before and after", "tuning.md#what-limits-prefill"),
    "fetched-scales-h200.json": ("where scales of a K block are looked up", "tuning.md#what-limits-prefill"),
    "one-copy-h200.json": ("one copy of the main loop for tiles with any border", "tuning.md#what-limits-prefill"),
    "fewer-instructions-h200.json": ("fewer instructions of a wave", "tuning.md#what-limits-prefill"),
    "kept-bases-h200.json": ("bases of descriptors that the compiler does not know", "tuning.md#what-limits-prefill"),
    "policy-of-weights-h200.json": ("weights with an L2 policy", "tuning.md#what-limits-prefill"),
    "sm-state-h200.json": ("large outputs by SMs that are slow for a while", "tuning.md#what-limits-prefill"),
    "shorter-code-h200.json": ("kernels of fewer instructions", "tuning.md#what-limits-prefill"),
    "row-scales-ahead-h200.json": ("row scales loaded ahead of a K block", "tuning.md#epilogues-and-scalings"),
    "width-224-h200.json": ("128x224 beside what is chosen", "tuning.md#what-limits-prefill"),
    "placement-h200.json": ("tiles by where SMs are, and loads in other orders", "tuning.md#what-limits-prefill"),
    "tiles-beside-h200.json": ("128x192 in one round, 256x128 and 128x256, clusters", "tuning.md#what-limits-prefill"),
    "k-divided-many-rows-h200.json": ("192x128 of which two CTAs divide K", "tuning.md#k-divided-by-a-cluster"),
    "random-burst-choice-h200.json": ("and others in bursts, the choice alone", "tuning.md#the-choice"),
    "random-burst-candidates-h200.json": ("and others in bursts, with candidates", "tuning.md#the-choice"),
    "random-burst-outliers-h200.json": ("five of those behind, with other tiles", "tuning.md#the-choice"),
    "few-parts-sustained-h200.json": ("twelve of those behind under load, with other tiles", "tuning.md#the-choice"),
    "few-rounds-h200.json": ("tiles for one round or two, beside the choice without them", "tuning.md#the-choice"),
    "large-tiles-h200.json": ("128x192, 128x256 and 256x128 beside each other", "tuning.md#the-choice"),
    "missing-rows-and-scales-h200.json": ("zeros for missing rows, scales of long K", "tuning.md#what-limits-prefill"),
    "long-k-h200.json": ("products beyond K = 8192, and what of their kernels costs", "tuning.md#what-limits-prefill"),
    "few-parts-burst-h200.json": ("where tiles of few parts are chosen no more", "tuning.md#the-choice"),
    "few-parts-few-rows-h200.json": ("and few rows, where they still are", "tuning.md#the-choice"),
    "bench-small-m-h200.json": ("few rows, beside reading the weight alone", "tuning.md#small-m"),
    "few-rows-h200.json": ("1 to 32 rows beside DeepGEMM", "tuning.md#few-rows-beside-deepgemm"),
    "few-rows-48-to-192-h200.json": ("48 to 192 rows beside DeepGEMM", "tuning.md#few-rows-beside-deepgemm"),
    "few-rows-48-to-192-burst-h200.json": ("and in bursts", "tuning.md#few-rows-beside-deepgemm"),
    "few-rows-multiplication-h200.json": ("and without multiplication", "tuning.md#few-rows-beside-deepgemm"),
    "equal-launches-h200.json": ("equal launches that write to other memory", "tuning.md#few-rows-beside-deepgemm"),
    "few-rows-variants-h200.json": ("what was tried with few rows and experts", "tuning.md#what-was-tried"),
    "few-rows-choice-h200.json": ("the choice for few rows at other N x K", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-choice-static-h200.json": ("the same of static weights", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-large-h200.json": ("the same of eight large weights", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-large-static-h200.json": ("and of them static", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-small-static-h200.json": ("and small ones", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-small-static-choices-h200.json": (
        "where two constants change the choice of those",
        "tuning.md#few-rows-at-other-n-x-k",
    ),
    "few-rows-divided-h200.json": ("narrow tiles of which a cluster divides K", "tuning.md#narrow-tiles"),
    "few-rows-decode-h200.json": ("eight N x K of smaller models", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-fit-h200.json": ("what that choice was fitted to", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-eight-h200.json": ("what it was fitted to with 8 rows", "tuning.md#few-rows-at-other-n-x-k"),
    "few-rows-tiles-h200.json": ("tiles of 96, 128 and 192 rows that were tried", "tuning.md#few-rows-at-other-n-x-k"),
    "dependent-launch-h200.json": ("products ahead of and behind the kernel before", "tuning.md#ahead-or-behind"),
    "bench-linear-h200.json": ("whole layers beside bfloat16 ones", "linear.md#measured"),
    "bench-quantize-h200.json": ("quantisers alone, beside a copy", "linear.md#measured"),
    "bench-grouped-h200.json": ("grouped products", "grouped.md#measured"),
    "layers-h200.json": ("layers of experts, beside bfloat16 and reading the weights", "grouped.md#measured"),
    "contiguous-burst-h200.json": ("contiguous groups beside DeepGEMM", "grouped.md#measured"),
    "contiguous-sustained-h200.json": ("the same under load that lasts", "grouped.md#measured"),
    "masked-burst-h200.json": ("masked groups beside DeepGEMM", "grouped.md#measured"),
    "masked-sustained-h200.json": ("the same under load that lasts", "grouped.md#measured"),
    "gradients-burst-h200.json": ("weight gradients beside DeepGEMM", "training.md#measured"),
    "gradients-sustained-h200.json": ("the same under load that lasts", "training.md#measured"),
    "wave-overlap-h200.json": ("epilogues beside waves, clusters, groups of columns", "tuning.md#what-limits-prefill"),
    "gather-lanes-h200.json": ("chunks of a gather multiplied on two streams", "parallel.md#overlap"),
    "row-scales-h200.json": ("row scales of B: what they cost, and what was tried", "tuning.md#row-scales-of-b"),
    "shorter-chunks-row-scales-h200.json": ("row scales in shorter chunks", "tuning.md#row-scales-of-b"),
    "k-grouped-burst-h200.json": ("groups of columns beside DeepGEMM", "grouped.md#measured"),
    "k-grouped-sustained-h200.json": ("the same under load that lasts", "grouped.md#measured"),
    "decoder-h200.json": ("a decoder's prefill and decode", "linear.md#measured"),
    "host-h200.json": ("what a call costs the host", "linear.md#measured"),
    "batch-invariant-h200.json": ("the price of batch invariance", "batch-invariance.md#why-it-costs-what-it-costs"),
    "warmup.json": ("kernels of whole models, and how long they compile", "serving.md#measured"),
    "coldstart-h200.json": ("the first result of a process", "serving.md#cold-start"),
    "sealed-h200.json": ("a sealed cache on the GPU", "serving.md#measured"),
    "cache-faults-h200.json": ("faults of cache and compiler", "serving.md#faults-of-the-cache-and-the-compiler"),
    "accuracy-h200.json": ("what FP8 costs a product", "numerics.md#is-fp8-good-enough"),
    "model-accuracy-h200.json": ("what FP8 costs a trained network", "numerics.md#a-real-network"),
    "fold-error.json": ("what folding scales of 32x32 blocks costs", "numerics.md#blocks-of-32x32"),
    "blocks-32x32-h200.json": ("the speed of folded weights", "numerics.md#blocks-of-32x32"),
    "vllm-few-rows-h200.json": ("vLLM's linear layers on each of its kernels", "engines.md#measured"),
    "vllm-many-rows-h200.json": ("the same with many rows", "engines.md#measured"),
    "gates-h200.json": ("500 random products", "numerics.md#500-random-products"),
    "stress-h200.json": ("100 000 launches", "numerics.md#105-launches"),
    "faults-h200.json": ("faults that must not hurt", "numerics.md#faults-that-must-not-hurt"),
    "sanitize-h200.json": ("compute-sanitizer's tools", "numerics.md#sanitizers"),
    "mutations-h200.json": ("faulty kernels, and what catches them", "mutations.md"),
    "release-order-h200.json": ("when a stage is let go of", "architecture.md#who-lets-go-of-what"),
    "compare-headers-h200.json": ("kernels before and after that", "architecture.md#who-lets-go-of-what"),
    "compare-headers-outliers-h200.json": ("its slowest shapes again", "architecture.md#who-lets-go-of-what"),
    "install-matrix.json": ("the wheel under each Python and beside each torch", "install.md#what-was-tested"),
    "parallel-speed-h200.json": ("two GPUs: MLPs, experts, gathers, the host", "parallel.md#measured"),
    "parallel-speed-four-h200.json": ("four GPUs: MLPs, and what overlap gives each layer", "parallel.md#four-gpus"),
    "parallel-model.json": ("what 8 and 64 GPUs would give, by a model", "parallel.md#what-8-and-64-gpus-would-give"),
    "training-loss-reference.json": ("losses of a small model that is trained", "training.md"),
    "timeline-h200.json": ("what the warps of a CTA do over time", "profiling.md"),
    "sustained-clock-h100.json": ("how the clock rings behind idleness", "tuning.md#how-speeds-are-compared"),
    "calibration-h200.json": ("the cost model against measured times", "tuning.md#the-choice"),
    "sweep-h200.json": ("what it was fitted to: nine M at six N x K", "tuning.md#the-choice"),
    "sweep-random-h200.json": ("what it was fitted to: random shapes", "tuning.md#the-choice"),
    "prefill-variants.json": ("variants of the mainloop", "tuning.md#where-the-cycles-of-prefill-go"),
    "first-operands-h200.json": ("a CTA's first operands, sooner", "tuning.md#where-the-cycles-of-prefill-go"),
    "tile-edges-h200.json": ("the borders of tiles", "tuning.md#where-the-cycles-of-prefill-go"),
    "one-warpgroup-h100.json": ("one consumer warpgroup", "tuning.md#where-the-cycles-of-prefill-go"),
    "ablation-h100.json": ("kernels without one of their parts", "tuning.md#what-limits-prefill"),
    "raster-h100.json": ("the order of tiles", "tuning.md#where-the-cycles-of-prefill-go"),
    "band-order-h200.json": ("bands of tiles walked to and fro", "tuning.md#what-limits-prefill"),
    "narrow-outputs-burst-h200.json": ("256x128 tiles for N below 4096", "tuning.md#the-choice"),
    "narrow-outputs-sustained-h200.json": ("the same under load that lasts", "tuning.md#the-choice"),
    "few-rows-192-h200.json": ("192 rows: clusters of three, K divided by more", "tuning.md#what-was-tried"),
    "few-rows-left-out-h200.json": ("48 to 192 rows with parts left out", "tuning.md#few-rows-beside-deepgemm"),
    "few-rows-loads-h200.json": ("few rows: what their loads cost", "tuning.md#what-was-tried"),
    "few-rows-three-warpgroups-h200.json": ("tiles of 192 rows, by three warpgroups", "tuning.md#what-was-tried"),
    "streamed-weights-h200.json": ("weights that leave L2 first", "tuning.md#weights-that-leave-l2-first"),
    "streamed-weights-h100.json": ("the same, the first steps apart", "tuning.md#weights-that-leave-l2-first"),
    "pieces-h200.json": ("last tiles of groups loaded in pieces", "tuning.md#what-limits-prefill"),
    "halves-h200.json": ("tiles of a last round divided between two CTAs", "tuning.md#what-limits-prefill"),
    "divided-columns-h200.json": ("the same by columns, in single products", "tuning.md#what-limits-prefill"),
    "passed-over-h200.json": ("rows that are not there, passed over", "tuning.md#what-limits-prefill"),
    "turns-of-the-ring-h200.json": ("straight code of whole turns of the ring", "tuning.md#what-limits-prefill"),
    "place-of-code-h200.json": ("the main loop some bytes further on", "tuning.md#what-limits-prefill"),
    "chunk-ends-h200.json": ("other ends of the main loop's chunks", "tuning.md#what-limits-prefill"),
    "chunk-exits-h200.json": ("main loops of longer straight code", "tuning.md#what-limits-prefill"),
    "clusters-of-two-h200.json": ("clusters of two for short K and one round", "tuning.md#what-limits-prefill"),
    "k-backwards-h200.json": ("every second round of tiles from the end of K", "tuning.md#what-limits-prefill"),
    "in-place-h200.json": ("gradients that L2 adds to, and K-grouped loops", "grouped.md#how-it-works"),
    "output-prefetch-h200.json": ("when what L2 adds to is brought there", "tuning.md#epilogues-and-scalings"),
    "staging-slots-h200.json": ("slots for each part of 128x128 and 64x256", "tuning.md#what-limits-prefill"),
}
"""Of each result file, what it shows, and the page with its table."""
_PAGE = "docs"


def measured(folder: Path, plots: Mapping[str, str]) -> list[str]:
    """The page's lines.

    Args:
        folder: of the result files.
        plots: the result file of each picture, by the picture's path from the root.
    """
    results = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    lines = ["## Pictures"]
    for plot, file in plots.items():
        if file in results:
            shows, page = told(file)
            where = f"{_source(results[file])}. [Table]({page}), [figures](results/{file})."
            picture = plot.removeprefix(f"{_PAGE}/")
            lines += ["", f"### {shows[0].upper()}{shows[1:]}", "", where, "", f"![{shows}]({picture})"]
    order = {file: place for place, file in enumerate(SHOWS)}
    files = sorted(results, key=lambda file: order.get(file, len(order)))
    heads = ("what", "GPU", "date", "regime", "figures")
    return [*lines, "", "## All results", "", *table(heads, (_row(file, results[file]) for file in files))]


def told(file: str) -> tuple[str, str]:
    """What a result file shows, and where.

    Raises:
        LookupError: nobody has said so yet.
    """
    if file not in SHOWS:
        raise LookupError(f"docs/results/{file}: say in scripts/result_tables/measured.py what it shows, and where")
    return SHOWS[file]


def _row(file: str, result: Result) -> tuple[str, ...]:
    shows, page = told(file)
    heading = _heading(result)
    gpu = str(heading.get("gpu", MISSING))
    regimes = ", ".join(_regimes(result)) or MISSING
    return f"[{shows}]({page})", gpu, str(heading["date"]), regimes, f"[`{file}`](results/{file})"


def _source(result: Result) -> str:
    heading = _heading(result)
    return ", ".join([str(heading.get("gpu", MISSING)), str(heading["date"]), *_regimes(result)])


def _heading(result: Result) -> Result:
    """With the GPU of its parts, and the last date of its rows, where each has its own; a timeline keeps its heading
    apart."""
    gpus = dict.fromkeys(str(run["gpu"]) for run in result.get("runs", ()) if "gpu" in run)
    dates = [str(row["date"]) for row in result.get("rows", ()) if isinstance(row, Mapping) and "date" in row]
    of_parts = {**({"gpu": " and ".join(gpus)} if gpus else {}), **({"date": max(dates)} if dates else {})}
    return {**of_parts, **result.get("otherData", {}), **result}


def _regimes(result: Result) -> Iterator[str]:
    """How peers shared the GPU's time, as rows, the result or its method say; nothing where none were timed so."""
    said = {row.get("regime") for row in result.get("rows", ()) if isinstance(row, Mapping)}
    said.add(result.get("regime"))
    method = str(result.get("method", ""))
    for regime in Regime:
        by_turns = regime is Regime.TURN and " in turn" in method
        if regime.value in said or f"{regime.value}:" in method or by_turns:
            yield regime.value
