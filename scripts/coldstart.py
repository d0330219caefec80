"""Time from ``import fp8gemm`` to the first result, in fresh processes, with an empty cache and with a warm one.

In each process torch is imported and its CUDA context made before the clock starts, as a server has them anyway.
Prints a table, or with ``--json`` one object. Needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.benchmark.command import EXIT_NO_DEVICE, parse_mnk, parse_positive  # noqa: E402
from fp8gemm.driver.device import DeviceStatus, diagnose  # noqa: E402

SHAPE = "4096x7168x2048"

CHILD = """
import json, sys, time
import torch
m, n, k = map(int, sys.argv[1:])
a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
k_blocks = -(-k // 128)
scales_a = torch.rand(k_blocks, -(-m // 4) * 4, device="cuda").t()[:m]
scales_b = torch.rand(-(-n // 128), k_blocks, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
import fp8gemm
imported = time.perf_counter()
fp8gemm.gemm(a, scales_a, b, scales_b)
torch.cuda.synchronize()
end = time.perf_counter()
print(json.dumps({
    "import_ms": 1e3 * (imported - start),
    "first_result_ms": 1e3 * (end - start),
    "nvrtc_opened": "cuda.bindings.nvrtc" in sys.modules,
}))
"""


def first_call(shape: tuple[int, int, int], cache: Path) -> dict[str, Any]:
    """One fresh process: milliseconds to import and to the first result, and whether NVRTC was opened."""
    environment = {**os.environ, "FP8GEMM_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    command = [sys.executable, "-c", CHILD, *map(str, shape)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"coldstart: the measured process failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def measure(shape: tuple[int, int, int], repeats: int) -> dict[str, Any]:
    """Cold (an empty cache directory each time) and warm medians over ``repeats`` processes."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as directory:
        # The first process of all also pays for the machine's own cold files; it is not counted.
        first_call(shape, Path(directory, "discarded"))
        for index in range(repeats):
            cache = Path(directory, str(index))
            cold.append(first_call(shape, cache))
            warm.append(first_call(shape, cache))
    return {
        "m": shape[0],
        "n": shape[1],
        "k": shape[2],
        "repeats": repeats,
        "cold_ms": round(statistics.median(run["first_result_ms"] for run in cold), 1),
        "warm_ms": round(statistics.median(run["first_result_ms"] for run in warm), 1),
        "warm_import_ms": round(statistics.median(run["import_ms"] for run in warm), 1),
        "nvrtc_opened_when_warm": any(run["nvrtc_opened"] for run in warm),
    }


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", type=parse_mnk, default=SHAPE, metavar="MxNxK", help=f"default {SHAPE}")
    parser.add_argument("--repeats", type=parse_positive, default=3, help="processes of each kind, default 3")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    diagnosis = diagnose(0)
    if diagnosis.status is not DeviceStatus.READY:
        print(f"coldstart: {diagnosis.message}", file=sys.stderr)
        return EXIT_NO_DEVICE
    result = measure(options.shape, options.repeats)
    if options.json:
        print(json.dumps(result))
    else:
        shape = "x".join(map(str, options.shape))
        print(f"from `import fp8gemm` to the first result, {shape}, median of {options.repeats} processes")
        print(f"  empty cache (compile, publish, load)  {result['cold_ms']:8.1f} ms")
        print(f"  warm cache (verify, load)             {result['warm_ms']:8.1f} ms")
        print(f"    of which the import                 {result['warm_import_ms']:8.1f} ms")
        print(f"  NVRTC opened with a warm cache: {'yes' if result['nvrtc_opened_when_warm'] else 'no'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
