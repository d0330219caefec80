"""scripts/parallel_model.py: what collectives take by its formulas, what follows from that, and what a page shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import SCRIPTS, load_script

model = load_script("parallel_model")
GIVEN = model.Assumptions()
FEW = ("--m", "16,4096", "--tokens", "128,4096")


def result(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    file = tmp_path / "result.json"
    assert model.main([*FEW, *arguments, "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_collectives_are_those_of_rings() -> None:
    plain = model.Assumptions(nvlink_gbs=100, nvlink_share=1, ib_gbs=10, ib_share=1, latency_us=5, ib_latency_us=7)
    # 1 MB at 100 GB/s is 10 us.
    assert model.all_reduce(1e6, 2, plain) == pytest.approx(5 + 10)
    assert model.all_reduce(1e6, 8, plain) == pytest.approx(5 + 17.5)
    assert model.gather(1e6, 4, plain) == pytest.approx(5 + 7.5)
    assert model.gather(1e6, 1, plain) == 0
    assert plain.exchanged(1e6, 8) == pytest.approx(5 + 8.75)
    # Of 64 ranks 56 are elsewhere, and the network is the slower.
    assert plain.exchanged(1e6, 64) == pytest.approx(7 + 87.5)


def test_a_row_is_what_gathers_send() -> None:
    assert model.row_bytes(8192) == 8192 + 4 * 64
    assert model.row_bytes(256) == 256 + 16, "two scales, up to a boundary of 16 bytes"


def test_the_formulas_are_within_a_fifth_of_what_was_measured() -> None:
    rows = list(model.checked(GIVEN))
    assert len(rows) == len(model.MEASURED) and {row["collective"] for row in rows} >= {"all-reduce", "reduce-scatter"}
    assert all(0.8 < row["model_us"] / row["measured_us"] < 1.2 for row in rows)


def test_sending_less_is_faster_and_products_alone_are_the_bound(tmp_path: Path) -> None:
    found = result(tmp_path)
    for row in found["tensor_parallel"]["rows"]:
        us = row["us"]
        assert us["products"] < us["overlapped"] < us["fp8_gather"] < us["bf16_gather"]
        assert row["alone_us"] / us["products"] <= row["ranks"] * 1.02, "no more than ranks"
        assert us["all_reduce"] < us["bf16_gather"], "the same bytes in fewer collectives"
    for row in found["expert_parallel"]["rows"]:
        us = row["us"]
        assert us["products"] < us["overlapped"] < us["fp8_exchange"] < us["bf16_exchange"]
    assert [row["ranks"] for row in found["expert_parallel"]["rows"]] == [8, 64] * 2
    assert found["assumptions"]["latency_us"] == GIVEN.latency_us


def test_every_assumption_is_an_option(tmp_path: Path) -> None:
    before = result(tmp_path)
    free = ("--latency-us", "0", "--ib-latency-us", "0", "--nvlink-gbs", "1000000000", "--ib-gbs", "1000000000")
    after = result(tmp_path, *free)
    assert before["assumptions"].keys() == after["assumptions"].keys() == vars(GIVEN).keys()
    for row in (*after["tensor_parallel"]["rows"], *after["expert_parallel"]["rows"]):
        assert len(set(row["us"].values())) == 1, "nothing is sent"
    slower = result(tmp_path, "--nvlink-share", "0.3", "--overlap", "0")
    for row, other in zip(slower["tensor_parallel"]["rows"], before["tensor_parallel"]["rows"], strict=True):
        assert row["us"]["all_reduce"] > other["us"]["all_reduce"]
        assert row["us"]["overlapped"] == row["us"]["fp8_gather"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nvlink-share", "0"), "expected a number above 0, got '0'"),
        (("--latency-us", "soon"), "expected a number of at least 0, got 'soon'"),
        (("--node", "0"), "--node"),
        (("--chip", "h300"), "h300"),
        (("--dense", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        model.main([*FEW, *arguments])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_it_is_a_program_that_prints_a_line_for_each_case() -> None:
    command = [sys.executable, str(SCRIPTS / "parallel_model.py"), "--m", "16", "--tokens", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr
    assert len(done.stdout.splitlines()) == 3 + 2 + len(model.MEASURED)
