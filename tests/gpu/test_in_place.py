"""Weight gradients that are accumulated where they lie: L2 adds to them what threads that read them would write, to the
last bit, whatever is there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.lab.labels import labelled_config
from fp8gemm.scales import to_mn_major
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling
from tests import cases
from tests.calls import same_bits
from tests.cases import Case
from tests.gpu.faults.support import launch, make_kernels

F32, ROW = torch.float32, Scaling.ROW
SHAPES = [(300, 584, 1040), (129, 4, 144), (1, 136, 2064)]
NAN = 0x7F812345
"""With a payload, and signalling."""
FEW_SMS = 5


def everything(m: int, n: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """(M, N) float32: normal numbers, and of every fourth to sixteenth element something else."""
    there = torch.randn(m, n, device=device, generator=generator)
    flat = there.view(-1)
    flat[1::4] *= 2.0**-127  # subnormal
    flat[2::8] = -0.0
    flat[3::16] = math.inf
    flat[7::16] = -math.inf
    flat[11::16] = torch.finfo(F32).max
    flat.view(torch.int32)[15::16] = NAN
    return there


def tiny(case: Case) -> Case:
    """The same with every second row scaled so far down that its sums are subnormal, and the next one with none."""
    scales = case.scales_a.clone()
    scales[1::4] *= 2.0**-130
    scales[3::4] = 0.0
    return replace(case, scales_a=to_mn_major(scales))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_what_is_there_is_added_as_threads_add_it(
    m: int, n: int, k: int, device: torch.device, seed: int, generator: torch.Generator
) -> None:
    """Under every config, by few CTAs, each of which has several tiles."""
    read = Problem(m, n, k, OutputType.FLOAT32, scaling=ROW, c=Addend.FLOAT32)
    configs = list(candidate_configs(read.store, read.output, read.scaling, k))
    kernels = make_kernels(
        [(problem, config) for config in configs for problem in (read, read.accumulating())], device, num_sms=FEW_SMS
    )
    for maker in (cases.signed, cases.small_integers):
        case = tiny(maker(m, n, k, seed=seed, device=device, scaling=ROW))
        c = everything(m, n, device, generator)
        for by_threads, in_l2 in zip(kernels[::2], kernels[1::2], strict=True):
            out = c.clone()
            expected = launch(by_threads, case, torch.full_like(c, math.nan), c=c)
            assert same_bits(launch(in_l2, case, out, c=out), expected), f"{case}, {in_l2.config}"


def test_what_lies_around_it_stays(device: torch.device, seed: int) -> None:
    """Of rows in the midst of longer ones, of whose last tile TMA adds a part."""
    case = cases.signed(129, 68, 272, seed=seed, device=device, scaling=ROW)
    around = torch.full((131, 80), -0.0, device=device)
    around.view(torch.int32)[::2] = NAN
    before, part = around.clone(), (slice(1, 130), slice(4, 72))
    around[part] = before[part] = 1.0
    inside = around[part]
    with settings.scope(batch_invariant=True):  # the same order of sums, whatever the configs
        assert fp8gemm.gemm(*case.operands, c=inside, out=inside) is inside
        expected = fp8gemm.gemm(*case.operands, c=before[part], out_dtype=F32)
    before[part] = expected
    assert same_bits(around, before)


@pytest.mark.parametrize("m", [1, 100, 200, 256])
@pytest.mark.parametrize("n", [4, 136, 400])
def test_groups_whose_rows_end_inside_a_part(
    m: int, n: int, device: torch.device, seed: int, generator: torch.Generator
) -> None:
    """Behind a group's last row comes the next one's first. Groups of 0 to 13 K blocks have chunks of every length."""
    sizes = [128 * blocks for blocks in (1, 0, 4, 13, 3, 8, 12, 5)]
    k = sum(sizes)
    case = tiny(cases.signed(m, n, k, seed=seed, device=device, scaling=ROW))
    offsets = torch.tensor([0, *sizes], device=device).cumsum(0).to(torch.int32)
    out = torch.stack([everything(m, n, device, generator) for _ in sizes])
    expected, bounds = out.clone(), offsets.tolist()
    for group, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        if begin < end:
            blocks = slice(begin // 128, end // 128)
            of_group = replace(
                case,
                a=case.a[:, begin:end].contiguous(),
                b=case.b[:, begin:end].contiguous(),
                scales_a=to_mn_major(case.scales_a[:, blocks]),
                scales_b=to_mn_major(case.scales_b[:, blocks]),
            )
            problem = Problem(m, n, end - begin, OutputType.FLOAT32, scaling=ROW, c=Addend.FLOAT32)
            (kernel,) = make_kernels([(problem, labelled_config("128x128", problem))], device)
            launch(kernel, of_group, expected[group], c=expected[group].clone())
    for _ in range(2):  # as called first, and as repeated
        given = out.clone()
        assert fp8gemm.gemm_k_grouped(*case.operands, offsets, c=given, out=given) is given
        assert same_bits(given, expected), case
