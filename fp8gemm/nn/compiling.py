"""What `torch.compile` is told so that layers that read one tensor quantise it once."""

from __future__ import annotations

from typing import Any


def compile_options(*, cuda_graphs: bool = False) -> dict[str, Any]:
    """The ``options`` of `torch.compile` for a model with FP8 layers, with its default backend.

    Inductor leaves equal calls of an operator in an inference graph as they are. With these options it merges those
    that quantise one and the same tensor, as the projections to queries, keys and values do. No result changes.

    NOTE: torch 2.6 drops the option that names the pass, without a word. There
    ``torch._inductor.config.post_grad_custom_pre_pass = compile_options()["post_grad_custom_pre_pass"]`` sets it.

    Args:
        cuda_graphs: record CUDA graphs, as ``mode="reduce-overhead"`` does; `torch.compile` takes a mode or options,
            never both.
    """
    # NOTE: here, because inductor takes seconds to import.
    from fp8gemm.nn.merging import MergeQuantization

    options: dict[str, Any] = {"post_grad_custom_pre_pass": MergeQuantization()}
    return {**options, "triton.cudagraphs": True} if cuda_graphs else options
