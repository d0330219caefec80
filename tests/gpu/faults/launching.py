"""Launching: CUDA graphs, many streams and threads, other devices, and the same bits in every run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import (
    F16,
    F32,
    KINDS,
    Kind,
    build_chosen,
    every_kind,
    kernels_of_every_config,
    launch,
    multiply,
)

SHAPES = [(1, 2112, 7168), (65, 576, 512), (333, 7168, 2048), (4096, 576, 7168)]
REPLAYS = RUNS = 1000
THREADS = 8
CALLS = 10_000
RING = 50
"""Outputs that are written before they are compared all at once: every one is compared, at a cost that is shared."""


@pytest.fixture(scope="module", autouse=True)
def built(device: torch.device) -> None:
    """Most kernels of this file, compiled at once rather than one by one."""
    build_chosen((kind.problem(*shape) for kind in KINDS for shape in SHAPES), device)


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


def differing(outputs: Tensor, expected: Tensor) -> Tensor:
    """How many elements have other bits, as a tensor on the GPU, so that nothing waits."""
    bits = torch.int32 if expected.element_size() == 4 else torch.int16
    return (outputs.view(bits) != expected.view(bits)).sum()


def tensors_of(case: Case) -> list[Tensor]:
    return [*case.operands, *case.epilogue.values()]


class Replayed:
    """A product in a graph, with three sets of inputs and the output that each gives."""

    def __init__(self, shape: tuple[int, int, int], kind: Kind, *, seed: int, device: torch.device) -> None:
        self.variants = [cases.signed(*shape, seed=seed + i, device=device, **kind.options) for i in range(3)]
        self.expected = [multiply(variant, kind) for variant in self.variants]
        self.case = cases.signed(*shape, seed=seed, device=device, **kind.options)
        self.kind = kind
        self.out = torch.empty_like(self.expected[0])
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.graph = captured(self._product, device)

    def _product(self) -> None:
        terms = self.case.epilogue
        if self.kind.in_place:
            self.out.copy_(terms["c"])
            terms["c"] = self.out
        fp8gemm.gemm(*self.case.operands, **terms, out=self.out)

    def replay(self, i: int) -> None:
        """Change every input in place, replay, and count what is wrong, all on the current stream."""
        for tensor, value in zip(tensors_of(self.case), tensors_of(self.variants[i % 3]), strict=True):
            tensor.copy_(value)
        self.out.fill_(math.nan)
        self.graph.replay()
        self.wrong += differing(self.out, self.expected[i % 3])


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[7]], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fault_16_graph_replays_see_inputs_changed_in_place(shape, kind, device, seed):
    product = Replayed(shape, kind, seed=seed, device=device)
    for i in range(REPLAYS):
        product.replay(i)
    assert product.wrong.item() == 0, f"{product.case}: {product.wrong.item()} elements in {REPLAYS} replays"


@pytest.mark.parametrize("shapes", [SHAPES[:2], SHAPES[1:3], SHAPES[3:] * 2], ids=str)
def test_fault_16_two_graphs_at_once(shapes, device, seed):
    """Each on a stream of its own, replayed in turn so that they overlap."""
    pair = [Replayed(shape, Kind(), seed=seed + 10 * i, device=device) for i, shape in enumerate(shapes)]
    streams = [torch.cuda.Stream(device) for _ in pair]
    torch.cuda.synchronize(device)
    for i in range(REPLAYS):
        for product, stream in zip(pair, streams, strict=True):
            with torch.cuda.stream(stream):
                product.replay(i)
    torch.cuda.synchronize(device)
    assert [product.wrong.item() for product in pair] == [0, 0], [str(product.case) for product in pair]


@every_kind
def test_fault_16_output_allocated_inside_a_graph(kind, device, seed):
    case = cases.signed(65, 576, 512, seed=seed, device=device, **kind.options)
    outputs: list[Tensor] = []
    graph = captured(lambda: outputs.append(multiply(case, kind)), device)
    graph.replay()
    case.check(outputs[-1]).raise_if_failed(case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [2, 8])
def test_fault_17_streams_at_once(count, shape, device, seed):
    """Each with its own operands and outputs, launched in turn so that the kernels overlap."""
    kinds = [KINDS[i % len(KINDS)] if count == 8 else Kind() for i in range(count)]
    products = [cases.signed(*shape, seed=seed + i, device=device, **kind.options) for i, kind in enumerate(kinds)]
    expected = [multiply(case, kind) for case, kind in zip(products, kinds, strict=True)]
    outputs = [torch.full((20, *value.shape), math.nan, dtype=value.dtype, device=device) for value in expected]
    streams = [torch.cuda.Stream(device) for _ in products]
    torch.cuda.synchronize(device)
    for i in range(20):
        for case, kind, output, stream in zip(products, kinds, outputs, streams, strict=True):
            with torch.cuda.stream(stream):
                multiply(case, kind, output[i])
    torch.cuda.synchronize(device)
    for case, output, value in zip(products, outputs, expected, strict=True):
        assert same_bits(output, value.expand_as(output)), case


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Run all at once, and raise here the first error of any."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(work))

    def guarded(function: Callable[[], None]) -> None:
        try:
            barrier.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def call_often(plan: fp8gemm.Plan, tokens: Sequence[Case], calls: int, counts: list[int]) -> None:
    """Call a plan on a stream of this thread's own with inputs in turn; append how many elements were wrong."""
    device = tokens[0].a.device
    with torch.cuda.stream(torch.cuda.Stream(device)):
        expected = [plan(case.a, case.scales_a).clone() for case in tokens]
        rings = [torch.full((RING, *value.shape), math.nan, dtype=value.dtype, device=device) for value in expected]
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        rounds = -(-calls // (RING * len(tokens)))
        for _ in range(rounds):
            for slot in range(RING):
                for case, ring in zip(tokens, rings, strict=True):
                    plan(case.a, case.scales_a, out=ring[slot])
            for ring, value in zip(rings, expected, strict=True):
                wrong += differing(ring, value)
                ring.fill_(math.nan)
        counts.append(int(wrong.item()))
    for case, value in zip(tokens, expected, strict=True):
        case.check(value).raise_if_failed(case)


@pytest.mark.parametrize("bias", [None, F32])
def test_fault_17_eight_threads_share_a_plan(bias, device, seed):
    """With inputs of their own and of two sizes, which two kernels serve; 10^4 calls each."""
    n, k = 1024, 512
    weight = cases.signed(1, n, k, seed=seed, device=device, bias=bias)
    plan = fp8gemm.plan(weight.b, weight.scales_b, max_m=1024, bias=weight.bias, out_dtype=F16)
    assert plan.kernel_for(1) is not plan.kernel_for(600)
    work, counts = [], []
    for i in range(THREADS):
        tokens = []
        for m in (1 + i, 600 + i):
            made = cases.signed(m, n, k, seed=seed + 100 * i + m, device=device)
            tokens.append(Case("signed", made.seed, made.a, made.scales_a, weight.b, weight.scales_b, bias=weight.bias))
        work.append(lambda tokens=tokens: call_often(plan, tokens, CALLS, counts))
    torch.cuda.synchronize(device)
    in_threads(work)
    assert counts == [0] * THREADS, f"seed {seed}"


def two_devices() -> list[torch.device]:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"two devices need two GPUs; this machine has {count}")
    return [torch.device("cuda", index) for index in range(2)]


def on_both(shape: tuple[int, int, int], kind: Kind, seed: int) -> list[Case]:
    """The same operands on two devices; they are made on the CPU, because each device draws its own."""
    devices = two_devices()
    made = cases.signed(*shape, seed=seed, **kind.options)

    def moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
        return None if tensor is None else tensor.to(device)

    names = ("a", "scales_a", "b", "scales_b", "c", "bias")
    return [Case(made.data, made.seed, *(moved(getattr(made, name), device) for name in names)) for device in devices]


@every_kind
def test_fault_17_two_devices_and_the_wrong_one_current(kind, device, seed):
    for shape in ((1, 576, 512), (333, 2112, 1040)):
        pair = on_both(shape, kind, seed)
        outputs = []
        for current in (0, 1, 0):
            with torch.cuda.device(current):
                outputs += [multiply(case, kind) for case in pair]
                assert torch.cuda.current_device() == current
        for case, out in zip(pair * 3, outputs, strict=True):
            assert out.device == case.a.device
            case.check(out).raise_if_failed(case)
            assert same_bits(out.cpu(), outputs[0].cpu()), case


def test_fault_17_two_devices_at_once_from_two_threads(device, seed):
    pair = on_both((64, 576, 512), Kind(), seed)
    plans = [fp8gemm.plan(case.b, case.scales_b, max_m=64) for case in pair]
    counts: list[int] = []
    in_threads([lambda p=p, c=c: call_often(p, [c], CALLS, counts) for p, c in zip(plans, pair, strict=True)])
    assert counts == [0, 0]


def test_fault_17_operands_on_two_devices_are_refused(device, seed):
    first, second = on_both((64, 576, 512), Kind(), seed)
    plan = fp8gemm.plan(first.b, first.scales_b, max_m=64)
    with pytest.raises(InputError, match="^a: expected the device of b, cuda:0, got cuda:1"):
        plan(second.a, second.scales_a)
    with pytest.raises(InputError, match="cuda:1"):
        fp8gemm.gemm(second.a, second.scales_a, first.b, first.scales_b)
    with pytest.raises(InputError, match="^out: expected the device of b"):
        fp8gemm.gemm(*first.operands, out=torch.empty(64, 576, dtype=torch.bfloat16, device=second.a.device))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4], KINDS[7]], ids=str)
def test_fault_18_a_thousand_runs_are_bitwise_identical(kind, shape, device, seed):
    case = cases.signed(*shape, seed=seed, device=device, **kind.options)
    first = multiply(case, kind)
    ring = torch.empty((RING, *first.shape), dtype=first.dtype, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(RUNS // RING):
        for out in ring:
            multiply(case, kind, out)
        wrong += differing(ring, first)
    assert wrong.item() == 0, case


@pytest.mark.parametrize("m", [520, 77])
def test_fault_18_under_every_config(m, device, seed):
    """Clusters, whose CTAs wait for one another, most of all."""
    for kind in (Kind(), Kind(F32, c=F32)):
        case = cases.signed(m, 1032, 2048, seed=seed, device=device, **kind.options)
        problem = kind.problem(m, 1032, 2048)
        for kernel in kernels_of_every_config(problem, device):
            ring = torch.full((RING, m, 1032), math.nan, dtype=kind.output, device=device)
            first = launch(kernel, case, ring[0]).clone()
            case.check(first).raise_if_failed(f"{case}, {kernel.config}")
            wrong = torch.zeros((), dtype=torch.int64, device=device)
            for _ in range(RUNS // RING):
                for out in ring:
                    launch(kernel, case, out)
                wrong += differing(ring, first)
                ring.fill_(math.nan)
            assert wrong.item() == 0, f"{case}, {kernel.config}"
