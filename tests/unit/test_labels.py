"""Configs that are tried by their labels: what a label stands for, and what no kernel can be made of."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import torch

from fp8gemm.cli import bench, main
from fp8gemm.cli.tune import plan_work
from fp8gemm.errors import InputError
from fp8gemm.lab.bench import peers
from fp8gemm.lab.bench.operands import Operands
from fp8gemm.lab.bench.report import Row, Shape
from fp8gemm.lab.bench.suite import product_suite
from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import violations
from fp8gemm.tuning.hopper import SHARED_BYTES_PER_CTA, named_chip
from fp8gemm.tuning.problem import Problem, StoreKind

PROBLEM = Problem(4096, 4096, 7168)


@pytest.mark.parametrize("config", list(candidate_configs(StoreKind.TMA)), ids=lambda config: str(config.label))
def test_a_candidate_is_found_by_its_label_and_without_its_stages(config) -> None:
    assert labelled_config(config.label, PROBLEM) == config
    assert labelled_config(re.sub(r"-s\d+", "", config.label), PROBLEM) == config


def test_a_deeper_ring_has_the_most_staging_slots_that_are_left() -> None:
    config = labelled_config("128x256-s4", PROBLEM)
    assert (config.label, config.staging_slots, config.waves_in_flight) == ("128x256-s4-c1x1", 3, 1)
    assert labelled_config("128x256", PROBLEM).stages == 3
    assert labelled_config("256x128-c1x2", PROBLEM).cluster_n == 2
    assert labelled_config("128x128-s3", PROBLEM).waves_in_flight == 2
    for label in ("128x256-s4", "256x128-s3-c1x2", "256x112-s4", "64x256-s5"):
        assert violations(labelled_config(label, PROBLEM), StoreKind.TMA) == []


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("128x256-s5", f"exceed {SHARED_BYTES_PER_CTA}"),
        ("256x256-s2", "registers for promotion"),
        ("96x128", "expected a tile that fits, of 4096x4096x7168"),
        ("96x128-s4", "block_m = 96"),
        ("128x128-s1", "1 stages cannot"),
        ("128x128-s4-c2x2", "a cluster has one or two CTAs"),
        ("swap64x16-d8-c1", "expected a label such as 128x256-s4-c1x1"),
        ("128x", "got '128x'"),
    ],
)
def test_what_no_kernel_can_be_made_of_is_refused(label: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        labelled_config(label, PROBLEM)


def test_they_are_peers_of_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is loaded for what a label says of the operands at hand, and launched on them."""
    made: list[object] = []

    def load(problem: Problem, config: object, *, device_index: object, num_sms: int) -> object:
        made.extend((problem, config, num_sms))
        return lambda *operands, out, stream: made.extend((*map(id, operands), stream))

    monkeypatch.setattr(peers, "load_kernel", load)
    monkeypatch.setattr(peers, "device_chip", lambda index: named_chip("h200"))
    monkeypatch.setattr(peers, "current_stream", lambda index: 17)
    suite = product_suite(alone=True, batch_invariant=False, pdl=False, floor=False, configs=["128x256-s4", "64x64"])
    assert [peer.name for peer in suite.peers] == ["fp8gemm", "128x256-s4", "64x64"]
    operands = Operands.random(40, 256, 384, torch.Generator().manual_seed(1))
    assert suite.peers[1].prepare(operands)().shape == (40, 256)
    wanted = labelled_config("128x256-s4", PROBLEM)
    assert made == [Problem(40, 256, 384), wanted, 132, *map(id, operands.blocks), 17]
    header, line = suite.table.header(), suite.table.line(Row(Shape(40, 256, 384), us={"fp8gemm": 2.0, "64x64": 3.0}))
    assert len(header.splitlines()[1].split("|")[1]) == len(line.split("|")[1])
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(InputError, match="expected no --also beside --linear"):
        bench.check_options(parser.parse_args(["--linear", "--also", "64x64"]))


def test_they_are_timed_beside_the_candidates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    labels = list(plan_work(PROBLEM, named_chip("h200"), 2, ["128x256-s2", "256x128-s3-c1x2"]).candidates)
    assert labels[-2:] == ["128x256-s2-c1x1", "256x128-s3-c1x2"] and len(labels) in (4, 5)
    assert main.main(["tune", "--also", "128x256", "--table", str(tmp_path / "t.json")]) != 0
    assert "expected no --table beside --also" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["tune", "--also", "wide"])
    assert "--also: expected a label such as" in capsys.readouterr().err
