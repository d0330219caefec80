"""What runs under compute-sanitizer: kernels of every family on small shapes, one launch each. See sanitize.py.

sanitize_kernels.py 0,3,4           # these of KERNELS; exit code 0 if all results are right
sanitize_kernels.py --control TOOL  # a launch with a fault that the tool must see
sanitize_kernels.py --reproduce ... # a right launch that a tool must be wrong about, or another that it must not
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from sanitize_grouped import GroupedProduct, Ranges, grouped  # noqa: E402
from sanitize_limits import JUDGED, MISJUDGED, reproduce  # noqa: E402
from sanitize_quantizers import Quantising, quantisings  # noqa: E402
from sanitize_routing import Routed, routed  # noqa: E402
from torch import Tensor  # noqa: E402

from fp8gemm.jit import job  # noqa: E402
from fp8gemm.jit.compiler import compile_options  # noqa: E402
from fp8gemm.jit.request import KernelRequest  # noqa: E402
from fp8gemm.kernels.catalogue import kernel_request, load_kernel  # noqa: E402
from fp8gemm.lab.bench.operands import relative_error  # noqa: E402
from fp8gemm.products.quantize import quantize_activation, quantize_weight  # noqa: E402
from fp8gemm.reference import gemm_reference  # noqa: E402
from fp8gemm.tuning.candidates import candidate_configs  # noqa: E402
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind  # noqa: E402
from fp8gemm.tuning.select import Config  # noqa: E402
from fp8gemm.tuning.swap_ab import SwapAbConfig  # noqa: E402

CONTROLLED = ("memcheck", "initcheck")
PASSED = "sanitize: all results are right"
MAX_RELATIVE_ERROR = {OutputType.BFLOAT16: 2.5e-3, OutputType.FLOAT16: 2.5e-3, OutputType.FLOAT32: 3e-4}
NUM_SMS = 4  # so that a CTA computes several tiles


@dataclass(frozen=True)
class Kernel:
    """A product under a config of its own."""

    problem: Problem
    config: Config

    @property
    def request(self) -> KernelRequest:
        """What must be built for it."""
        return kernel_request(self.problem, self.config)

    @property
    def label(self) -> str:
        """As in the cache, without N and K, which `shape` has."""
        return re.sub(r"-n\d+-k\d+", "", self.request.label)

    @property
    def shape(self) -> str:
        return f"{self.problem.m}x{self.problem.n}x{self.problem.k}"

    @property
    def limit(self) -> float:
        """Largest relative error of a right result."""
        return MAX_RELATIVE_ERROR[self.problem.output]

    def run(self, upload: Callable[[Tensor], Tensor]) -> float:
        """One launch, and its relative error."""
        return run_kernel(self, upload)


def dense_kernels() -> Iterator[Kernel]:
    """Scalings, outputs and stores in every combination, each plain, and with a cluster of two, C and bias.

    The plain ones have tails in every dimension; the others several K blocks more and, by TMA, whole tiles. Last come
    one whose warpgroups share K, with several tiles of sums to exchange, and those of three warpgroups.
    """
    addends = (Addend.BFLOAT16, Addend.FLOAT32)
    for i, (scaling, output, store) in enumerate(product(Scaling, OutputType, StoreKind)):
        configs = list(candidate_configs(store, output, scaling))
        by_tma = store is StoreKind.TMA
        plain = Problem(130, 136 if by_tma else 101, 272, output, store, scaling)
        single = [config for config in configs if config.cluster_size == 1]
        yield Kernel(plain, single[3 * i % len(single)])
        clustered = [config for config in configs if config.cluster_size == 2]
        c, bias = addends[i % 2], addends[i // 2 % 2]
        added = Problem(512, 256 if by_tma else 255, 640, output, store, scaling, c, bias)
        yield Kernel(added, clustered[7 * i % len(clustered)])
    gradient = Problem(130, 136, 272, OutputType.FLOAT32, scaling=Scaling.ROW).accumulating()
    yield Kernel(gradient, next(candidate_configs(gradient.store, gradient.output, gradient.scaling)))
    sharing = next(config for config in candidate_configs(StoreKind.TMA) if config.warpgroups_k > 1)
    yield Kernel(Problem(512, 256, 640), sharing)
    for config in candidate_configs(StoreKind.TMA):
        if config.warpgroups == 3:
            yield Kernel(Problem(250, 304, 656, c=Addend.BFLOAT16), config)


def swap_ab_kernels() -> Iterator[Kernel]:
    """Outputs and stores in every combination, with C and bias or without; every kind of tile.

    Of six or eight K blocks some shares have more than others, or none.
    """
    configs = (
        SwapAbConfig(8, 16, 2),
        SwapAbConfig(16, 32, 2, warpgroups_k=2, split_k=2),
        SwapAbConfig(24, 16, 2, split_k=7),
        SwapAbConfig(32, 64, 3, warpgroups_k=2),
        SwapAbConfig(64, 64, 2, split_k=3),
        SwapAbConfig(16, 16, 2, split_k=4),
    )
    addends = ((Addend.FLOAT32, Addend.BFLOAT16), (Addend.NONE, Addend.NONE), (Addend.BFLOAT16, Addend.FLOAT32))
    for i, (config, (output, store)) in enumerate(zip(configs, product(OutputType, StoreKind), strict=True)):
        n, k = 136 if store is StoreKind.TMA else 101, (656, 1024)[i // 2 % 2]
        c, bias = addends[i % 3]
        yield Kernel(Problem(37, n, k, output, store, c=c, bias=bias), config)


DENSE = tuple(dense_kernels())
PRODUCTS = (*DENSE, *swap_ab_kernels())
QUANTISINGS = tuple(quantisings())
KINDS = [each.kind for each in QUANTISINGS]
GROUPED = tuple(grouped())
ROUTED = tuple(routed())
KERNELS: tuple[Kernel | Quantising | GroupedProduct | Ranges | Routed, ...] = (
    *PRODUCTS,
    *QUANTISINGS,
    *GROUPED,
    *ROUTED,
)
QUICK = (
    *(2 * i + (i % 2 == 0) for i in (0, 3, 4, 7, 8, 11)),
    *(len(DENSE), len(DENSE) + 1),
    *(
        len(PRODUCTS) + [each.kind for each in QUANTISINGS].index(kind)
        for kind in ("blocks", "with-transpose", "add-norm")
    ),
    *(len(PRODUCTS) + i for i in (4, 5)),
    *(len(PRODUCTS) + len(QUANTISINGS) + i for i in (0, 5, 7, 10)),
    *(len(KERNELS) - len(ROUTED) + i for i in (0, 1, 3, 4, 5)),
)
"""Indices of six dense ones with each scaling, output and store: by TMA with clusters, C and bias, the others without;
of two small-M ones, the first of one CTA a tile with C and bias, the other of a cluster; of a quantiser of each kind,
of rows those whose warps have the most; of groups of rows, of few rows, of columns, and of ranges; and of routing, the
ids of one chunk and of several, what is quantised and what is summed."""


def upload(tensor: Tensor) -> Tensor:
    """The same tensor, strides and all, on the GPU. Copied without a kernel: to initcheck only copies are writes."""
    storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return storage.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def make_operands(problem: Problem) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The four operands, and C and bias by name, on the CPU."""
    generator = torch.Generator().manual_seed(problem.m * problem.n + problem.k)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    quantize_b = quantize_activation if problem.scaling is Scaling.ROW else quantize_weight
    operands = [*quantize_activation(normal(problem.m, problem.k)), *quantize_b(normal(problem.n, problem.k))]
    shapes = (("c", problem.c, (problem.m, problem.n)), ("bias", problem.bias, (problem.n,)))
    terms = {
        name: normal(*shape).to(getattr(torch, kind.type_name))
        for name, kind, shape in shapes
        if kind is not Addend.NONE
    }
    return operands, terms


def run_kernel(kernel: Kernel, upload: Callable[[Tensor], Tensor], control: str = "") -> float:
    """One launch, and its relative error. A control launches with scales of B that are not there."""
    problem = kernel.problem
    operands, terms = make_operands(problem)
    uploaded = [upload(operand) for operand in operands]
    if control == "memcheck":
        uploaded[3] = torch.ones(1, 1).cuda()  # and the kernel reads more than one
    elif control == "initcheck":
        uploaded[3] = torch.empty(operands[3].shape, device="cuda")
    empty = torch.full((problem.m, problem.n), math.nan, dtype=getattr(torch, problem.output.value))
    out = upload(terms["c"] if problem.c is Addend.IN_PLACE else empty)
    launched = load_kernel(problem, kernel.config, device_index=0, num_sms=NUM_SMS)
    stream = torch.cuda.current_stream().cuda_stream
    added: dict[str, Any] = {name: upload(term) for name, term in terms.items()}
    if problem.c is Addend.IN_PLACE:
        added["c"] = out
    launched(*uploaded, out=out, stream=stream, **added)
    torch.cuda.synchronize()
    return relative_error(out.cpu(), gemm_reference(*operands, **terms, out_dtype=torch.float64))


def run_kernels(indices: Sequence[int]) -> int:
    """Run these of `KERNELS` one after another, and say so if all were right."""
    wrong = 0
    for index in indices:
        kernel = KERNELS[index]
        error, limit = kernel.run(upload), kernel.limit
        right = error <= limit
        wrong += not right
        verdict = "right" if right else f"relative error {error:.3g}, expected at most {limit}"
        print(f"sanitize: {kernel.label} {kernel.shape}: {verdict}", flush=True)
    if not wrong:
        print(PASSED, flush=True)
    return int(wrong > 0)


@contextmanager
def lines_named() -> Iterator[None]:
    """Kernels that are built meanwhile have the same code, and a tool's messages name its lines."""

    def options(arch: str) -> tuple[str, ...]:
        return *compile_options(arch), "-lineinfo"

    with mock.patch.object(job, "compile_options", options):
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Run the kernels; or a control, which never fails by itself; or a reproducer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("indices", nargs="?", metavar="INDEX,...", help="which of KERNELS; all by default")
    parser.add_argument("--control", choices=CONTROLLED, help="plant the fault that this tool must see")
    parser.add_argument("--reproduce", choices=(MISJUDGED, JUDGED), help="run the smallest kernel that racecheck fails")
    options = parser.parse_args(argv)
    if options.reproduce:
        right = reproduce(options.reproduce, upload)
        print(PASSED if right else "sanitize: the reproducer is wrong", flush=True)
        return int(not right)
    if options.control:
        # One whose scales of B are read by ordinary loads: those of blocks.
        run_kernel(PRODUCTS[0], upload, options.control)
        return 0
    indices = range(len(KERNELS)) if options.indices is None else [int(i) for i in options.indices.split(",")]
    with lines_named():
        return run_kernels(indices)


if __name__ == "__main__":
    sys.exit(main())
