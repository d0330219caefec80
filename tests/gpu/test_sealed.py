"""A cache that was filled without a GPU, sealed and moved serves a GPU: no miss for any M, right results, no write.

With FP8GEMM_TEST_REPORT_DIR set, what was served goes to sealed-h200.json there. FP8GEMM_TEST_SEALED_CALLS is how many
M each weight is asked for, 200 by default.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fp8gemm.ahead.architectures import linears_of_config, read_config
from fp8gemm.driver.device import device_info
from fp8gemm.tuning.hopper import chip_name, chip_of_device
from tests.jit.cases import snapshot
from tests.mutations.report import write_report

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests" / "data" / "configs" / "deepseek-v3.json"
CALLS = int(os.environ.get("FP8GEMM_TEST_SEALED_CALLS") or 200)
ROW_GATE = 2.5e-3
"""Relative RMS error of a row of bfloat16: docs/numerics.md."""


def python(*arguments: str, **changes: str) -> str:
    """What a fresh process prints; it sees no GPU unless ``changes`` say otherwise."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sealed(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The cache, where it was moved to, and what the warmup said. Made without a GPU in sight."""
    built = tmp_path_factory.mktemp("built") / "cache"
    info = device_info(device.index)
    chip = chip_name(chip_of_device(info.name, info.num_sms))
    arguments = ("--model", str(CONFIG), "--chip", chip, "--cache-dir", str(built), "--json")
    warmup = json.loads(python("-m", "fp8gemm", "warmup", *arguments, CUDA_VISIBLE_DEVICES=""))
    python("-m", "fp8gemm", "cache", "seal", str(built), CUDA_VISIBLE_DEVICES="")
    moved = tmp_path_factory.mktemp("another place") / "under another name"
    shutil.copytree(built, moved)  # with its modes; then what was built is gone
    subprocess.run(["chmod", "-R", "u+w", str(built)], check=True)
    shutil.rmtree(built)
    return moved, warmup


def test_every_m_is_served_without_a_compiler_or_a_write(
    sealed: tuple[Path, dict[str, Any]], device: torch.device, seed: int, say: Callable[[str], None]
) -> None:
    place, warmup = sealed
    before = snapshot(place)
    shapes = list(dict.fromkeys(f"{each.n}x{each.k}" for each in linears_of_config(read_config(CONFIG))))
    told = python(
        *("-m", "tests.gpu.sealed_server", str(seed), str(CALLS), *shapes),
        FP8GEMM_CACHE_DIR=str(place),
        FP8GEMM_JIT="error",
    )
    served = json.loads(told.splitlines()[-1])
    rows = served["shapes"]
    say(f"sealed cache: {warmup['kernels']} kernels, {CALLS} M each of {len(rows)} weights, as gemm and as layer")
    for row in rows:
        say(f"  {row['n']}x{row['k']}: worst row {row['worst_error']:.2e}, longest call {row['longest_ms']:.1f} ms")
    write_report("sealed-h200.json", device, warmup=warmup, served=rows, calls=CALLS, seed=seed)
    assert len(rows) == len(shapes) and all(row["calls"] == 2 * CALLS for row in rows)
    assert max(row["worst_error"] for row in rows) <= ROW_GATE
    assert not served["nvrtc_opened"]
    assert snapshot(place) == before


def test_what_was_not_warmed_is_refused_with_the_command_that_warms_it(sealed: tuple[Path, dict[str, Any]]) -> None:
    place, _ = sealed
    program = (
        "import torch, fp8gemm\n"
        "x = torch.randn(3, 512, device='cuda', dtype=torch.bfloat16)\n"
        "try: fp8gemm.gemm(*fp8gemm.quantize_activation(x), *fp8gemm.quantize_weight(x))\n"
        "except fp8gemm.CacheMissError as error: print(error.key); print(error)\n"
    )
    told = python("-c", program, FP8GEMM_CACHE_DIR=str(place), FP8GEMM_JIT="error").splitlines()
    assert len(told[0]) == 64 and told[0] in told[2]
    assert told[-1].startswith("make it ready with: fp8gemm warmup --nk 3x512 --chip ")
