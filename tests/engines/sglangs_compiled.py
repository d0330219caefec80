"""What SGLang compiles from CUDA sources when it is first asked for, in plain PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

EPS = 1e-10
"""The smallest maximum of a group that its kernel divides by."""


def compiled(name: str, *_: Any, **__: Any) -> Any:
    """In place of SGLang's ``load_jit``: a module of the kernels in a source."""
    if name not in MODULES:
        raise NotImplementedError(f"{name}: SGLang compiles it from CUDA, and it has no stand-in")
    return MODULES[name]


def quantise(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor | None = None, _: int = -1
) -> None:
    """Codes and scales of groups of columns; of twice as many columns, the product of SiLU of the first half and the
    second is quantised. With ``counts`` other rows are left as they are."""
    if x.shape[-1] == 2 * codes.shape[-1]:
        x = silu_and_mul(x)
    groups = x.float().unflatten(-1, (scales.shape[-1], -1))
    found = groups.abs().amax(-1).clamp(min=EPS) / 448
    made = (groups / found[..., None]).clamp(-448, 448).to(codes.dtype).flatten(-2)
    if counts is None:
        codes.copy_(made)
        scales.copy_(found)
        return
    for group, count in enumerate(counts.tolist()):
        codes[group, :count], scales[group, :count] = made[group, :count], found[group, :count]


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def run_activation(x: torch.Tensor, out: torch.Tensor, name: str) -> None:
    if name != "silu":
        raise NotImplementedError(f"activation: expected silu, got {name}")
    out.copy_(silu_and_mul(x))


MODULES = {
    "per_token_group_quant": SimpleNamespace(per_token_group_quant=quantise),
    "per_token_quant_fp8": SimpleNamespace(per_token_quant_fp8=quantise),
    "activation": SimpleNamespace(run_activation=run_activation),
}
