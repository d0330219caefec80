"""Time from ``import fp8gemm`` to the first result, in fresh processes, with an empty cache and with a warm one.

In each process torch is imported and its CUDA context made before the clock starts, as a server has them anyway. Those
with a warm cache go on to load other cached kernels of the shape. Prints a table. Needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm import settings  # noqa: E402
from fp8gemm.cli.arguments import parse_mnk, parse_positive  # noqa: E402
from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, note, tell, tell_json  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, diagnose  # noqa: E402
from fp8gemm.jit.parallel import build_many  # noqa: E402
from fp8gemm.kernels.catalogue import kernel_request  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.tuning.problem import Problem  # noqa: E402
from fp8gemm.tuning.select import enumerate_configs  # noqa: E402

SHAPE = "4096x7168x2048"
LEAST_WARM = 5
"""Processes with a warm cache, at least: what they measure takes a few milliseconds."""

CHILD = """
import json, sys, time
import torch
m, n, k, loads = map(int, sys.argv[1:])
a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
k_blocks = -(-k // 128)
scales_a = torch.rand(k_blocks, -(-m // 4) * 4, device="cuda").t()[:m]
scales_b = torch.rand(-(-n // 128), k_blocks, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
import fp8gemm
imported = time.perf_counter()
gemm = fp8gemm.gemm
found = time.perf_counter()
gemm(a, scales_a, b, scales_b)
torch.cuda.synchronize()
end = time.perf_counter()
nvrtc_opened = "cuda.bindings.nvrtc" in sys.modules

load_ms, read_ms = [], []
if loads:
    from fp8gemm import settings
    from fp8gemm.kernels.catalogue import kernel_request, shared_bytes
    from fp8gemm.jit.kernel import is_loaded, load
    from fp8gemm.cache.store import Store
    from fp8gemm.tuning.problem import Problem
    problem, store = Problem(m, n, k), Store.from_settings(settings.current())
    for config in fp8gemm.enumerate_configs(n, k, m):
        request = kernel_request(problem, config)
        if is_loaded(request, 0):
            continue  # that of the first result, with all that comes once in a process
        started = time.perf_counter()
        loaded = load(request, 0, shared_bytes(problem, config), allow_compile=False)
        load_ms.append(1e3 * (time.perf_counter() - started))
        started = time.perf_counter()
        entry = store.find(request.label, loaded.artifact.key).entry
        read_ms.append(1e3 * (time.perf_counter() - started))
        assert entry is not None
print(json.dumps({
    "gpu": torch.cuda.get_device_name(),
    "import_ms": 1e3 * (imported - start),
    "gemm_import_ms": 1e3 * (found - imported),
    "first_result_ms": 1e3 * (end - start),
    "nvrtc_opened": nvrtc_opened,
    "load_ms": load_ms,
    "read_ms": read_ms,
}))
"""


def first_call(shape: tuple[int, int, int], cache: Path, *, loads: bool = False) -> dict[str, Any]:
    """One fresh process.

    Returns:
        The GPU's name; milliseconds to import, to import what `gemm` needs, and to the first result; whether NVRTC was
        opened; with ``loads`` also milliseconds to load each other kernel of the shape, and to read it alone.
    """
    environment = {**os.environ, "FP8GEMM_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    command = [sys.executable, "-c", CHILD, *map(str, shape), str(int(loads))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"coldstart: the measured process failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def warm_up(shape: tuple[int, int, int], cache: Path) -> None:
    """Compile what the shape's N and K are computed with, for every M up to its own."""
    m, n, k = shape
    requests = [kernel_request(Problem(m, n, k), config) for config in enumerate_configs(n, k, m)]
    with settings.scope(cache_dirs=(cache,), jit="compile"):
        build_many(requests)


def measure(shape: tuple[int, int, int], repeats: int) -> dict[str, Any]:
    """Medians over ``repeats`` processes that find an empty cache directory, and as many or more with a warm one."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as directory:
        warmed = Path(directory, "warm")
        warm_up(shape, warmed)
        # The first process of all also pays for the machine's own cold files; it is not counted.
        first_call(shape, Path(directory, "discarded"))
        first_call(shape, warmed)
        for index in range(max(repeats, LEAST_WARM)):
            if index < repeats:
                cold.append(first_call(shape, Path(directory, str(index))))
            warm.append(first_call(shape, warmed, loads=True))
    return summary(shape, cold, warm)


def summary(shape: tuple[int, int, int], cold: list[dict[str, Any]], warm: list[dict[str, Any]]) -> dict[str, Any]:
    """What is printed, from what each process measured."""

    def median(values: list[float], digits: int = 1) -> float | None:
        return round(statistics.median(values), digits) if values else None

    imports = [run["import_ms"] for run in warm]
    loads, reads = ([ms for run in warm for ms in run[name]] for name in ("load_ms", "read_ms"))
    return {
        "gpu": warm[0]["gpu"],
        "m": shape[0],
        "n": shape[1],
        "k": shape[2],
        "repeats": len(cold),
        "cold_ms": median([run["first_result_ms"] for run in cold]),
        "warm_ms": median([run["first_result_ms"] for run in warm]),
        "warm_import_ms": median(imports),
        "warm_gemm_import_ms": median([run["gemm_import_ms"] for run in warm]),
        "warm_repeats": len(warm),
        "import_ms": median(imports),
        "import_ms_max": round(max(imports), 1),
        "kernels": len(warm[0]["load_ms"]),
        "load_ms": median(loads, 2),
        "load_ms_max": round(max(loads), 2) if loads else None,
        "read_ms": median(reads, 2),
        "read_ms_max": round(max(reads), 2) if reads else None,
        "nvrtc_opened_when_warm": any(run["nvrtc_opened"] for run in warm),
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The result as a table."""
    shape = "x".join(str(result[name]) for name in ("m", "n", "k"))
    yield f"from `import fp8gemm` to the first result, {shape}, medians"
    yield _row(f"empty cache (compile, publish, load), {result['repeats']} processes", result["cold_ms"])
    yield _row(f"warm cache (verify, load), {result['warm_repeats']} processes", result["warm_ms"])
    yield _row("  of which the import", result["import_ms"], result["import_ms_max"])
    yield _row("  of which importing what gemm needs", result["warm_gemm_import_ms"])
    if result["kernels"]:
        yield _row(f"loading another kernel, of {result['kernels']}", result["load_ms"], result["load_ms_max"])
        yield _row("  of which finding and verifying it", result["read_ms"], result["read_ms_max"])
    yield f"NVRTC opened with a warm cache: {'yes' if result['nvrtc_opened_when_warm'] else 'no'}"


def _row(name: str, milliseconds: float, most: float | None = None) -> str:
    return f"  {name:<52} {milliseconds:8.2f} ms" + ("" if most is None else f", at most {most:.2f}")


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", type=parse_mnk, default=SHAPE, metavar="MxNxK", help=f"default {SHAPE}")
    parser.add_argument("--repeats", type=parse_positive, default=3, help="processes of each kind, default 3")
    add_json(parser)
    options = parser.parse_args()
    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        note(f"coldstart: {diagnosis.message}")
        return Exit.NO_GPU
    result = measure(options.shape, options.repeats)
    tell(options, "\n".join(lines(result)))
    tell_json(options, {**result, "date": datetime.date.today().isoformat(), **provenance()})
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
