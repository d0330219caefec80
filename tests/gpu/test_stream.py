"""The streaming floor runs for any weight, with either launch, reads all of it, and writes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fp8gemm.errors import InputError
from fp8gemm.kernels.stream import StreamConfig, StreamKernel
from fp8gemm.lab.bench.graph import GraphTimer
from fp8gemm.lab.bench.operands import Call
from fp8gemm.lab.bench.timing import Schedule

MOST_BYTES_PER_US = 5.5e6
"""Above what any Hopper GPU's memory delivers: a kernel that seems faster has not read it all."""
LEAST_BYTES_PER_US = 1.2e6
"""Below what the slowest one delivers."""


def weight(n: int, k: int, device: torch.device) -> Tensor:
    return torch.zeros(n, k, dtype=torch.float8_e4m3fn, device=device)


def call_of(kernel: StreamKernel, b: Tensor) -> Call:
    def call() -> Tensor:
        kernel(b, torch.cuda.current_stream(b.device).cuda_stream)
        return b

    return call


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("config", [StreamConfig(), StreamConfig(6, 16 * 1024), StreamConfig(2, 128, ctas_per_sm=2)])
@pytest.mark.parametrize(("n", "k"), [(1, 16), (7, 144), (576, 7168), (1031, 2064), (24576, 1536)])
def test_any_weight_is_streamed_and_left_as_it_was(
    n: int, k: int, config: StreamConfig, programmatic: bool, device: torch.device
) -> None:
    b = weight(n, k, device)
    b.view(torch.uint8).random_(0, 127)
    before = b.view(torch.uint8).clone()
    kernel = StreamKernel(n, k, device_index=device.index, config=config, programmatic=programmatic)
    for _ in range(20):
        kernel(b, torch.cuda.current_stream(device).cuda_stream)
    torch.cuda.synchronize(device)
    assert torch.equal(b.view(torch.uint8), before)


@pytest.mark.parametrize("programmatic", [False, True])
def test_it_takes_the_time_that_reading_takes(programmatic: bool, device: torch.device, say) -> None:
    n, k = 8192, 16384
    weights = [weight(n, k, device) for _ in range(2)]
    kernel = StreamKernel(n, k, device_index=device.index, programmatic=programmatic)
    timer = GraphTimer([call_of(kernel, b) for b in weights], Schedule(sets=2, calls=40, replays=3))
    rate = n * k / min(timer() for _ in range(3))
    say(f"streaming {n} x {k}{' with programmatic launch' if programmatic else ''}: {rate / 1e6:.2f} TB/s")
    assert LEAST_BYTES_PER_US < rate < MOST_BYTES_PER_US


def test_programmatic_launches_keep_their_order_with_other_kernels(device: torch.device) -> None:
    """What comes after a chain of them begins after what came before it has ended."""
    b, kernel = weight(576, 7168, device), StreamKernel(576, 7168, device_index=device.index, programmatic=True)
    slow, copied = torch.zeros(1 << 26, device=device), torch.empty(1 << 26, device=device)
    for value in range(1, 6):
        slow.fill_(value)
        for _ in range(4):
            kernel(b, torch.cuda.current_stream(device).cuda_stream)
        copied.copy_(slow)
        assert bool((copied == value).all())


def test_another_weight_is_refused(device: torch.device) -> None:
    kernel = StreamKernel(64, 128, device_index=device.index)
    for b in (weight(128, 64, device), weight(64, 256, device)[:, :128], weight(64, 128, device).float()):
        with pytest.raises(InputError, match=r"b: expected \(64, 128\), one byte per element"):
            kernel(b, 0)
