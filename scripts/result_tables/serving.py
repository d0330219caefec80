"""Before the first request: how long a warmup takes, how a process starts, and what the cache survives."""

from __future__ import annotations

from result_tables.markdown import MISSING, Result, duration, table

LOAD_LIMIT_MS = 5.0
IMPORT_LIMIT_MS = 60.0


def warmup(result: Result) -> list[str]:
    """A row for each run, and what was asked of those that are for one number of ranks."""
    runs = result["runs"]
    judged = [run for run in runs if len(run["tp"]) == 1] or runs
    chips = list(dict.fromkeys(chip for run in runs for chip in run["chips"]))
    rows = [
        [
            run["model"],
            ", ".join(map(str, run["tp"])),
            str(run["max_m"]),
            str(run["kernels"]),
            str(run["kernels_with_experts"]),
            *(str(run["chips"].get(chip, MISSING)) for chip in chips),
            f"{run['bytes'] / 2**20:.1f}",
            f"{run['cold_seconds']:.1f}",
            f"{run['warm_seconds']:.2f}",
        ]
        for run in runs
    ]
    heads = ["model", "ranks", "M up to", "kernels", "with experts", *(f"for {chip}" for chip in chips), "MiB"]
    worst = f"worst of the {len(judged)} for one number of ranks"
    names = {"cold_seconds": f"seconds from nothing: {worst}", "warm_seconds": f"seconds, all there: {worst}"}
    return [
        f"{result['cpu']}, {result['cores']} processors, no GPU, {result['date']}, Python {result['python']}, NVRTC "
        f"{result['nvrtc']}. `fp8gemm warmup --model ... --tp ... --layout {result['layout']}`: the linear layers "
        f"alone; without `--layout` there are the kernels of `with experts`. Seconds of the whole process, the start "
        f"of Python included; with every kernel there the median of {result['repeats']}. A kernel may serve several "
        f"chips; those that quantise are counted in `kernels` alone.",
        "",
        *table([*heads, "from nothing, s", "all there, s"], rows),
        "",
        *(_limit(name, max(run[key] for run in judged), result["limits"][key]) for key, name in names.items()),
    ]


def sealed(result: Result) -> list[str]:
    """What a sealed cache served, a row for each weight."""
    served, warmup = result["served"], result["warmup"]
    calls = sum(row["calls"] for row in served)
    rows = [
        [f"{row['n']}x{row['k']}", str(row["calls"]), f"{row['worst_error']:.2e}", f"{row['longest_ms']:.1f}"]
        for row in served
    ]
    return [
        f"{result['gpu']}, {result['date']}: {warmup['kernels']} kernels that were compiled without a GPU, sealed and "
        f"moved, `FP8GEMM_JIT=error`; {result['calls']} random M up to 16384 for each weight, half of them uniform and "
        f"half log-uniform, through `gemm` and through `Fp8Linear`. {calls} calls, none of which missed a kernel, "
        f"opened NVRTC or wrote to the cache.",
        "",
        *table(["N x K", "calls", "worst row's relative RMS error", "longest call on the host, ms"], rows),
    ]


def cache_faults(result: Result) -> list[str]:
    """One row per fault of the cache and the compiler."""
    where = result.get("gpu", result.get("machine"))
    faults = result["faults"]
    passed = sum(each["result"].startswith("passed") for each in faults)
    tests = sum(each["tests"] for each in faults)
    seconds = sum(each["seconds"] for each in faults)
    rows = [[str(each["number"]), each["what"], str(each["tests"]), each["result"]] for each in faults]
    return [
        f"{where}, {result['date']}. {passed} of {len(faults)} passed, {tests} tests in {duration(seconds)}.",
        "",
        *table(["", "fault", "tests", "result"], rows),
    ]


def coldstart(result: Result) -> list[str]:
    """One sentence, and below it what was measured apart."""
    lines = [
        f"From `import fp8gemm` to the first result, {result['m']}x{result['n']}x{result['k']}, with torch imported "
        f"and its context made before: {result['cold_ms']:.0f} ms with an empty cache, "
        f"{result['warm_ms']:.0f} ms with a warm one."
    ]
    apart = []
    if "import_ms" in result:
        imports = f"milliseconds of the import: median of {result['warm_repeats']}"
        apart.append(_limit(imports, result["import_ms"], IMPORT_LIMIT_MS))
    if result.get("load_ms") is not None:
        count = result["kernels"] * result["warm_repeats"]
        loads = f"milliseconds to read, verify and load a kernel: median {result['load_ms']:.3g}, worst of {count}"
        apart.append(_limit(loads, result["load_ms_max"], LOAD_LIMIT_MS))
        reads = f"median {result['read_ms']:.3g}, worst {result['read_ms_max']:.3g}"
        apart.append(f"- of these, without the driver: {reads}.")
    return [*lines, "", *apart] if apart else lines


def _limit(what: str, worst: float, most: float) -> str:
    verdict = "met" if worst <= most else "**not met**"
    return f"- {what} {worst:.3g}, at most {most:g} is asked: {verdict}."
