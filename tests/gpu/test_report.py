"""A report times every layer on a GPU, beside what is predicted."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fp8gemm.cli import main as cli


def test_every_layer_has_a_time(tmp_path: Path, device: torch.device) -> None:
    path = tmp_path / "report.json"
    words = ["--nk", "512x1024", "--grouped", "4x256x512", "--m", "16,512", "--measure"]
    assert cli.main(["report", *words, "--output", str(tmp_path / "page.html"), "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    points = [point for layer in found["layers"] for point in layer["points"]]
    assert len(points) == 4 and not any(point["failed"] for point in points)
    assert {tuple(point["measured_us"]) for point in points} == {("turn",), ("burst", "sustained")}
    assert all(us > 0 for point in points for us in point["measured_us"].values())
    assert all(point["ready"] for point in points), "what was measured was compiled"
    assert found["method"] in (tmp_path / "page.html").read_text()
