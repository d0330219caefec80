"""Result files of test runs on a GPU: written where FP8GEMM_TEST_REPORT_DIR says, and only if it is set."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import torch

from fp8gemm.lab.provenance import provenance
from fp8gemm.writing import write_text
from tests.mutations import tree


def read_report(name: str) -> dict[str, Any]:
    """What an earlier run wrote there of the same headers; empty if nothing."""
    path = Path(os.environ.get("FP8GEMM_TEST_REPORT_DIR", ""), name)
    if not path.is_file():
        return {}
    report: dict[str, Any] = json.loads(path.read_text())
    return report if report["headers"] == provenance(include=tree.INCLUDE)["headers"] else {}


def write_report(name: str, device: torch.device, **content: Any) -> None:
    """Write ``name`` with the GPU, the date, the code and this content, as JSON."""
    directory = os.environ.get("FP8GEMM_TEST_REPORT_DIR")
    if not directory:
        return
    made = {"gpu": torch.cuda.get_device_name(device), "date": datetime.date.today().isoformat()}
    report = {**made, **provenance(include=tree.INCLUDE), **content}
    write_text(Path(directory, name), json.dumps(report, indent=1) + "\n")
