"""Compiled layers that share an input quantise it once, and give the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fp8gemm.nn import Fp8Linear, compile_options
from fp8gemm.nn.merging import MergeQuantization
from tests.operators import needs_the_pass

QUANTIZE = torch.ops.fp8gemm.quantize_activation.default


class Projections(nn.Module):
    """Three layers on one input, and one on another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (
            Fp8Linear.from_linear(nn.Linear(256, 256, dtype=torch.bfloat16)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.q(x) + self.k(x) * self.v(x))
        return out


def count(graph: torch.fx.Graph) -> int:
    return sum(node.target is QUANTIZE for node in graph.nodes)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(5, 256), (2, 3, 256)])
def test_equal_operators_are_merged_and_others_are_left(shape: tuple[int, ...]) -> None:
    from torch._dynamo.backends.common import aot_autograd

    counts: list[tuple[int, int]] = []

    def compiler(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        before = count(module.graph)
        MergeQuantization()(module.graph)
        module.recompile()
        module.graph.lint()
        counts.append((before, count(module.graph)))
        return module.forward

    torch.manual_seed(7)
    model, x = Projections(), torch.randn(shape, dtype=torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))
    assert torch.equal(compiled(x), model(x))
    assert counts == [(4, 2)]


@torch.no_grad()
@needs_the_pass
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on the CPU, and there is no g++")
def test_the_options_reach_inductor() -> None:
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(7)
    model, x = Projections(), torch.randn(5, 256, dtype=torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, options=compile_options())
    result, codes = run_and_get_code(compiled, x)
    assert sum(code.count("torch.ops.fp8gemm.quantize_activation.default(") for code in codes) == 2
    torch.testing.assert_close(result, model(x), atol=0.1, rtol=0.05)
