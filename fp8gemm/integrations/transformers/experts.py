"""The library's FP8 experts by grouped products: one more of the implementations that it chooses among.

It calls what `FP8ExpertsInterface` has under the name that a block's config gives, with the parameters that this rank
has, and moves tokens and sums between ranks itself. So that one function serves every plan of its.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fp8gemm.checks.tensors import check_no_gradient
from fp8gemm.frozen import dataclass
from fp8gemm.integrations.transformers.blocks import Operand
from fp8gemm.integrations.transformers.library import fp8_layers
from fp8gemm.nn import Fp8Experts
from fp8gemm.nn.experts_routed import of_hidden
from fp8gemm.nn.experts_shape import NAMES
from fp8gemm.nn.moving import frozen, here, part_of, whole_of
from fp8gemm.sizes import SCALE_BLOCK

IMPLEMENTATION = "fp8gemm"

_SILU = ("SiLU", "SiLUActivation")
_OTHER_GATES = ("swiglu_alpha", "swiglu_limit", "limit", "gate_softcap", "up_softcap")


@dataclass(frozen=True)
class _Use:
    """What `experts_forward` knows of a block besides its parameters.

    Attributes:
        num_experts: of the whole layer.
        batch_invariant: as in `fp8gemm.gemm_grouped`.
    """

    num_experts: int
    batch_invariant: bool | None


def are_ours(module: nn.Module) -> bool:
    """Whether a module is a block of the library's that calls `experts_forward`."""
    return "_fp8gemm" in vars(module)


def reason_to_leave(module: Any) -> str:
    """Why a block of the library's with e4m3 weights in fitting blocks keeps its own products, empty if it does not."""
    if not module.has_gate or type(module.act_fn).__name__ not in _SILU:
        return "its experts are not gated by SiLU"
    if any(getattr(module, name, None) is not None for name in _OTHER_GATES):
        return "its gate is limited or scaled"
    if str(module.config._experts_implementation).endswith("megamoe"):
        return "its weights are laid out for a kernel of DeepGEMM's"
    hidden, inner = module.down_proj.shape[1:]
    if hidden % 16:
        return "K is not a multiple of 16"
    if inner % (rows := module.block_size[0]):
        return f"its experts have {inner} rows, no multiple of {rows}, so that gate and up share scales"
    return ""


def block_around(operands: Sequence[Operand], batch_invariant: bool | None) -> Fp8Experts:
    """A block of ours around this rank's parts of the library's parameters, of `operand_of`: gate and up, then down.

    Raises:
        InputError: they do not fit together; the message begins with the name of one.
    """
    parts = [part for operand in operands for part in (operand.codes, operand.scales)]
    return Fp8Experts.from_quantized(*parts, batch_invariant=batch_invariant)


def use_block(module: Any, block: Fp8Experts) -> None:
    """Let the library's block compute what ``block``, which is around its parameters, would."""
    fp8_layers().FP8ExpertsInterface.register(IMPLEMENTATION, experts_forward)
    for name in NAMES:
        parameter, part = module._parameters[name], getattr(block, name)
        if here(parameter).data_ptr() != part.data_ptr():  # widened or folded
            module._parameters[name] = part if part_of(parameter) is None else frozen(whole_of(part, parameter))
        module._parameters[name].requires_grad_(False)
    module.block_size = (SCALE_BLOCK, SCALE_BLOCK)
    # NOTE: a config of its own, so that blocks that are not quantised, whose interface is another, keep theirs.
    module.config = copy.copy(module.config)
    module.config._experts_implementation = {"": IMPLEMENTATION}
    module._fp8gemm = _Use(module.down_proj.shape[0], block.batch_invariant)


def experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The weighted sum of what each token's experts say, of those that are here.

    Arguments are named and ordered as that library does it.

    Args:
        module: its block.
        hidden_states: (T, H) bfloat16, float16 or float32.
        top_k_index: (T, top_k) numbers of experts here; others, and so its mark for experts elsewhere, add nothing.
        top_k_weights: (T, top_k), of any floating dtype.

    Returns:
        (T, H) of the dtype of ``hidden_states``.

    Raises:
        InputError: tensors that do not fit together, or a gradient is asked for.
    """
    check_no_gradient("hidden_states", hidden_states)
    gate_up, gate_up_scales, down, down_scales = (module._parameters[name].detach() for name in NAMES)
    use: _Use = module._fp8gemm
    options = {
        "out_dtype": hidden_states.dtype,
        "expected_m": max(1, -(-top_k_index.numel() // use.num_experts)),
        "batch_invariant": use.batch_invariant,
    }
    operands = (gate_up, gate_up_scales), (down, down_scales)
    return of_hidden(hidden_states, top_k_index, top_k_weights.detach(), operands, options=options)
