"""Launching `fp8gemm.gemm`: graphs, streams, repeats, plans, and what a bad input gets before anything is launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from tests import cases
from tests.cases import Case

E4M3 = torch.float8_e4m3fn
SHAPES = [(1, 2112, 7168), (65, 576, 512), (333, 7168, 2048), (4096, 576, 7168)]


def captured(function: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """`function` as a graph, after a warm call on the capturing stream."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_graph_replays_see_inputs_changed_in_place(m, n, k, device, seed):
    variants = [cases.signed(m, n, k, seed=seed + i, device=device) for i in range(3)]
    expected = [fp8gemm.gemm(*variant.operands) for variant in variants]
    case = cases.signed(m, n, k, seed=seed, device=device)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    graph = captured(lambda: fp8gemm.gemm(*case.operands, out=out), device)
    for i in range(100):
        for operand, value in zip(case.operands, variants[i % 3].operands, strict=True):
            operand.copy_(value)
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected[i % 3]), f"{case}, replay {i}"


def test_output_allocated_inside_a_graph(device, seed):
    case = cases.signed(65, 576, 512, seed=seed, device=device)
    outputs: list[Tensor] = []
    graph = captured(lambda: outputs.append(fp8gemm.gemm(*case.operands)), device)
    graph.replay()
    case.check(outputs[-1]).raise_if_failed(case)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_two_streams_at_once(m, n, k, device, seed):
    """Each with its own operands and outputs, launched in turn so that the kernels overlap."""
    pair = [cases.signed(m, n, k, seed=seed + i, device=device) for i in range(2)]
    expected = [fp8gemm.gemm(*case.operands) for case in pair]
    outputs = [torch.full((20, m, n), torch.nan, dtype=torch.bfloat16, device=device) for _ in pair]
    streams = [torch.cuda.Stream(device) for _ in pair]
    torch.cuda.synchronize(device)
    for i in range(20):
        for case, output, stream in zip(pair, outputs, streams, strict=True):
            with torch.cuda.stream(stream):
                fp8gemm.gemm(*case.operands, out=output[i])
    torch.cuda.synchronize(device)
    for case, output, value in zip(pair, outputs, expected, strict=True):
        assert (output == value).all(), str(case)


def test_runs_on_the_current_stream_in_order(device, seed):
    """The output of a slow chain on a side stream feeds the product; no stream waits for another here."""
    case = cases.signed(333, 2112, 1040, seed=seed, device=device)
    expected = fp8gemm.gemm(*case.operands)
    late = torch.zeros_like(case.scales_a)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(case.scales_a)
        out = fp8gemm.gemm(case.a, late, case.b, case.scales_b)
    stream.synchronize()
    assert torch.equal(out, expected), str(case)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_repeats_are_bitwise_identical(m, n, k, device, seed):
    case = cases.signed(m, n, k, seed=seed, device=device)
    first = fp8gemm.gemm(*case.operands)
    out = torch.empty_like(first)
    differing = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(200):
        out.fill_(torch.nan)
        fp8gemm.gemm(*case.operands, out=out)
        differing += (out != first).sum()
    assert differing.item() == 0, str(case)


@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (576, 512), (100, 112)])
def test_plan_is_gemm(n, k, device, seed):
    weight = cases.signed(1, n, k, seed=seed, device=device)
    plan = fp8gemm.plan(weight.b, weight.scales_b, max_m=1024)
    for m in (0, 1, 7, 64, 65, 333, 1024, 64):
        tokens = cases.signed(m, n, k, seed=seed + m, device=device)
        expected = fp8gemm.gemm(tokens.a, tokens.scales_a, weight.b, weight.scales_b)
        out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device=device)
        assert plan(tokens.a, tokens.scales_a, out=out) is out
        assert torch.equal(out, expected), f"{tokens}"
        assert torch.equal(plan(tokens.a, tokens.scales_a.contiguous()), expected), f"{tokens}, row-major scales"


def test_plan_follows_its_weight(device, seed):
    """Changed in place, replaced through `.data`, and its old storage overwritten: the plan sees the new values."""
    old, new = (cases.signed(65, 2112, 1040, seed=seed + i, device=device) for i in range(2))
    b, scales_b = old.b.clone(), old.scales_b.clone()
    plan = fp8gemm.plan(b, scales_b, max_m=128)
    assert torch.equal(plan(old.a, old.scales_a), fp8gemm.gemm(*old.operands))
    storage, scale_storage = b.data, scales_b.data
    b.data, scales_b.data = new.b.clone(), new.scales_b.clone()
    storage.view(torch.uint8).fill_(0x7F)  # the code of NaN
    scale_storage.fill_(torch.nan)
    assert torch.equal(plan(new.a, new.scales_a), fp8gemm.gemm(*new.operands)), str(new)
    b.copy_(old.b)
    scales_b.copy_(old.scales_b)
    assert torch.equal(plan(old.a, old.scales_a), fp8gemm.gemm(*old.operands)), str(old)


def bad_operands(case: Case) -> dict[str, dict[str, Tensor | torch.dtype]]:
    """What is wrong -> the arguments that are."""
    a, scales_a, b, scales_b = case.operands
    m, n = a.shape[0], b.shape[0]
    out = torch.empty(m, n, dtype=torch.bfloat16, device=a.device)
    return {
        "a bfloat16": {"a": a.bfloat16()},
        "a e5m2": {"a": a.float().to(torch.float8_e5m2)},
        "b float32": {"b": b.float()},
        "scales_a float64": {"scales_a": scales_a.double()},
        "scales_b bfloat16": {"scales_b": scales_b.bfloat16()},
        "a on the CPU": {"a": a.cpu()},
        "b on the CPU": {"b": b.cpu()},
        "scales_a on the CPU": {"scales_a": scales_a.cpu()},
        "scales_b on the CPU": {"scales_b": scales_b.cpu()},
        "a one-dimensional": {"a": a[0]},
        "a three-dimensional": {"a": a[None]},
        "b three-dimensional": {"b": b[None]},
        "K differs": {"b": b[:, :-16].contiguous()},
        "K not a multiple of 16": {"a": a[:, :-8].contiguous(), "b": b[:, :-8].contiguous()},
        "K = 0": {"a": a[:, :0], "b": b[:, :0], "scales_a": scales_a[:, :0], "scales_b": scales_b[:, :0]},
        "a column-major": {"a": a.t().contiguous().t()},
        "b column-major": {"b": b.t().contiguous().t()},
        "scales_a a column short": {"scales_a": scales_a[:, :-1].contiguous()},
        "scales_a a row short": {"scales_a": scales_a[:-1].contiguous()},
        "scales_a transposed": {"scales_a": scales_a.t().contiguous()},
        "scales_b transposed": {"scales_b": scales_b.t().contiguous()},
        "scales_b one per row": {"scales_b": scales_b.repeat_interleave(128, 0)[:n].contiguous()},
        "scales_a require grad": {"scales_a": scales_a.clone().requires_grad_()},
        "scales_b require grad": {"scales_b": scales_b.clone().requires_grad_()},
        "out float64": {"out": out.double()},
        "out transposed shape": {"out": out.new_empty(n, m)},
        "out a row long": {"out": out.new_empty(m + 1, n)},
        "out on the CPU": {"out": out.cpu()},
        "out overlapping itself": {"out": out[:1].expand(m, n)},
        "out overlapping a": {"out": a.view(torch.bfloat16)[:, :n]},
        "out_dtype int8": {"out_dtype": torch.int8},
    }


BAD = list(bad_operands(cases.signed(64, 200, 512, seed=0)))


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_any_launch(what, device, seed):
    case = cases.signed(64, 200, 512, seed=seed, device=device)
    arguments = dict(zip(("a", "scales_a", "b", "scales_b"), case.operands, strict=True))
    arguments["out"] = torch.full((64, 200), 7.0, dtype=torch.bfloat16, device=device)
    bad = bad_operands(case)[what]
    if "out_dtype" in bad:
        del arguments["out"]
    with pytest.raises(InputError) as error:
        fp8gemm.gemm(**(arguments | bad))
    assert any(name in str(error.value) for name in bad), f"{what}: no argument named in {error.value}"
    torch.cuda.synchronize(device)
    assert "out" not in arguments or (arguments["out"] == 7).all(), what
    case.check(fp8gemm.gemm(*case.operands)).raise_if_failed(case)
