"""What each option of the benchmark measures, whom it compares, and what it refuses."""

from __future__ import annotations

import argparse
import sys
import types

import pytest
import torch

from fp8gemm.cli import bench as command
from fp8gemm.errors import InputError
from fp8gemm.integrations import deep_gemm
from fp8gemm.lab.bench import chain, gradients, peers, timing
from fp8gemm.lab.bench.graph import prepare_timer
from fp8gemm.lab.bench.operands import MAX_RELATIVE_ERROR, Call, Operands, relative_error
from fp8gemm.lab.bench.report import Row, Shape
from fp8gemm.lab.bench.suite import Suite, chain_suite
from fp8gemm.lab.bench.summary import Summary


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


def suite(*arguments: str) -> Suite:
    given = options(*arguments)
    return command.suite_of(given, command.shapes_of(given))


EVERY_PEER = peers.PEERS


def names(found: Suite) -> list[str]:
    return [peer.name for peer in found.peers]


def ratios(found: Suite) -> dict[str, dict[str, tuple[str, str]]]:
    return {each.key: dict(each.ratios) for each in found.summaries if isinstance(each, Summary)}


@pytest.fixture(autouse=True)
def same_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every machine: ours, one whose launch cannot be chosen, and one whose launch can, which may be missing."""
    ours, *_, deep_gemm = peers.PEERS
    other = peers.Peer("other", "", lambda operands: operands.product)
    monkeypatch.setattr(peers, "PEERS", (ours, other, deep_gemm))


def test_a_preset_is_shapes_and_options_and_either_can_be_overruled() -> None:
    by_default, small = command.shapes_of(options()), command.shapes_of(options("--small-m"))
    assert {shape.m for shape in by_default} == set(command.parse_m(command.DEFAULT_M))
    assert len(small) == 10 * 7 and Shape(128, 576, 7168) in small
    assert command.shapes_of(options("--small-m", "--m", "3", "--nk", "64x128")) == [Shape(3, 64, 128)]
    assert names(suite("--small-m", "--no-peers")) == ["fp8gemm", "fp8gemm_pdl", "floor", "floor_pdl"]
    assert names(suite("--pdl", "--floor", "--no-peers")) == names(suite("--small-m", "--no-peers"))


def test_who_is_measured_and_compared() -> None:
    assert names(suite("--no-peers")) == ["fp8gemm"] and ratios(suite("--no-peers")) == {"geomean_relative_speed": {}}
    assert names(suite("--floor", "--no-peers")) == ["fp8gemm", "floor"]
    assert names(suite("--batch-invariant")) == ["fp8gemm", "invariant"]
    found = suite("--small-m")
    assert names(found)[:2] == ["fp8gemm", "other"] and found.table.ours == "fp8gemm"
    compared = ratios(found)
    assert compared["geomean_time_over_floor"] == {
        "floor": ("fp8gemm", "floor"),
        "floor_pdl": ("fp8gemm_pdl", "floor_pdl"),
    }
    assert compared["geomean_relative_speed"]["other"] == ("other", "fp8gemm")
    assert compared["geomean_relative_speed_pdl"]["other"] == ("other", "fp8gemm_pdl")
    assert compared["geomean_relative_speed_pdl"]["fp8gemm"] == ("fp8gemm", "fp8gemm_pdl")
    assert not {"floor", "floor_pdl"} & {*compared["geomean_relative_speed"], *compared["geomean_relative_speed_pdl"]}


def test_other_libraries_are_measured_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert names(suite("--peers", "bf16")) == ["fp8gemm"]
    monkeypatch.setattr(peers, "PEERS", EVERY_PEER)
    assert names(suite("--peers", "rowwise,bf16")) == ["fp8gemm", "bf16", "rowwise"]
    assert tuple(peer.name for peer in EVERY_PEER[1:]) == command.OTHERS
    assert names(suite("--peers", "bf16", "--pdl", "--floor"))[:3] == ["fp8gemm", "bf16", "fp8gemm_pdl"]
    with pytest.raises(SystemExit):
        options("--peers", "triton")
    assert "expected bf16, tensorwise, rowwise, cublas_block or deepgemm, got 'triton'" in capsys.readouterr().err
    for mode in ("--chain", "--linear", "--grouped"):
        with pytest.raises(InputError, match=f"expected no --peers beside {mode}"):
            suite(mode, "--peers", "bf16")


def test_options_that_exclude_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("--chain", "--batch-invariant"):
        for option in ("--pdl", "--floor"):
            with pytest.raises(InputError, match=f"expected neither --pdl nor --floor beside {mode}"):
                suite(mode, option)
    with pytest.raises(SystemExit):
        options("--chain", "--small-m")
    assert "not allowed with" in capsys.readouterr().err


def test_gradients_are_summed_over_rows() -> None:
    shapes = command.shapes_of(options("--weight-gradients"))
    assert len(shapes) == 7 and Shape(2112, 7168, 4096) in shapes
    assert command.shapes_of(options("--weight-gradients", "--m", "48,64", "--nk", "32x16")) == [
        Shape(32, 16, 48),
        Shape(32, 16, 64),
    ]
    assert names(suite("--weight-gradients", "--no-peers")) == ["fp8gemm", "fp8gemm_new"]
    compared = ratios(suite("--weight-gradients"))["geomean_relative_speed"]
    assert compared["bf16"] == ("bf16", "fp8gemm") and compared["fp8gemm_new"] == ("fp8gemm_new", "fp8gemm")
    with pytest.raises(InputError, match="expected M to be a multiple of 16, got 40"):
        suite("--weight-gradients", "--m", "40")
    with pytest.raises(InputError, match="expected no --peers beside --weight-gradients"):
        suite("--weight-gradients", "--peers", "bf16")


def test_gradients_are_added_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    operands = random_operands(48, 64, 144)
    once = operands.product().double()
    for peer in gradients.PEERS:
        call = peer.prepare(operands)
        first = call().double()
        assert relative_error(first, once) < 0.05, peer.name
        adds = peer.name in (gradients.OURS, gradients.DEEP_GEMM)
        assert relative_error(call(), 2 * first if adds else first) < 1e-6, peer.name
    assert gradients.config_label(operands) == "reference"


def test_gradients_are_judged_beside_deep_gemm() -> None:
    def row(n: int, deep_gemm: float) -> Row:
        return Row(us={"fp8gemm": 1.0, "deepgemm": deep_gemm}, shape=Shape(64, n, 64))

    verdicts = gradients.GATES.as_json([row(64, 1.3), row(128, 0.9)])
    assert [verdict["met"] for verdict in verdicts.values()] == [False, True]


def test_a_chain_needs_an_n_that_can_be_k() -> None:
    with pytest.raises(InputError, match="multiple of 16, as K of the second product, got 1x100x128"):
        suite("--chain", "--m", "1", "--nk", "64x128,100x128")


def test_deep_gemm_is_told_how_to_launch_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    module = types.SimpleNamespace(set_pdl=said.append, fp8_gemm_nt=lambda a, b, out: said.append("multiplied"))
    monkeypatch.setitem(sys.modules, "deep_gemm", module)
    by_name = {peer.name: peer for peer in (*peers.PEERS, *peers.PDL_PEERS)}
    operands = random_operands(4, 64, 128)
    calls = [by_name[name].prepare(operands) for name in ("deepgemm", "deepgemm_pdl")]
    assert said == [] and by_name["deepgemm_pdl"].why_missing() == ""
    for call in (*calls, calls[0]):
        call()
    assert said == [False, "multiplied", True, "multiplied", False, "multiplied"]
    del module.set_pdl
    by_name["deepgemm"].prepare(operands)()
    assert said[6:] == ["multiplied"] and "has no set_pdl" in by_name["deepgemm_pdl"].why_missing()


def random_operands(m: int, n: int, k: int) -> Operands:
    return Operands.random(m, n, k, torch.Generator().manual_seed(7))


class OneCall:
    """In place of a CUDA graph."""

    def __init__(self, calls: list[Call], schedule: timing.Schedule) -> None:
        self.calls = calls


def test_a_floor_is_not_held_to_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8gemm.lab.bench.graph.GraphTimer", OneCall)
    operands = [random_operands(4, 64, 128)]
    reader = peers.Peer("reader", "", lambda operands: lambda: operands.w, expected=None)
    prepare_timer(reader, operands, timing.Schedule(1, 1, 1))
    assert peers.FLOOR.expected is peers.FLOOR_PDL.expected is None


@pytest.mark.parametrize("peer", chain.PEERS, ids=lambda peer: str(peer.name))
def test_every_chain_gives_the_product_of_products(peer: peers.Peer) -> None:
    operands = random_operands(12, 192, 320)
    assert peer.expected is not None
    expected = peer.expected(operands)
    assert expected.shape == operands.x.shape
    assert relative_error(peer.prepare(operands)(), expected) < MAX_RELATIVE_ERROR
    assert chain_suite([Shape(12, 192, 320)]).label(operands) == "reference, reference"
