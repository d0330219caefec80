"""A network's FP8 products on the codes of another run of it.

Left alone, two runs of an FP8 network that differ in one rounding anywhere soon differ everywhere: an activation near
the border of two codes takes the other one, which is a step of 6 to 12 percent, and so do more of them in the next
layer. Only where both runs multiply the same codes does the difference of their results say how far the products are
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from fp8gemm import settings
from fp8gemm.lab.accuracy.encoder import Batch, embed
from fp8gemm.nn import Fp8Linear
from fp8gemm.products.quantize import quantize_activation

Codes = dict[str, tuple[Tensor, Tensor]]
"""Codes and scales of each FP8 layer's inputs, by its name."""


@torch.no_grad()
def embed_both(
    network: nn.Module, batches: Sequence[Batch], reference: nn.Module, reference_batches: Sequence[Batch]
) -> tuple[Tensor, Tensor]:
    """Embeddings by the kernels and by the reference backend, of the same codes in every FP8 layer.

    Args:
        network: FP8, on the device whose kernels are judged.
        batches: its sentences, there.
        reference: the same network, on any device. The reference backend computes it, and its codes are used twice.
        reference_batches: the same batches where `reference` is.

    Returns:
        Both as from `embed`, the sentences in the same order.
    """
    found, expected = [], []
    for batch, reference_batch in zip(batches, reference_batches, strict=True):
        codes: Codes = {}
        with settings.scope(backend="reference"), _each_layer(reference, _recorder, codes):
            expected.append(embed(reference, [reference_batch]))
        with _each_layer(network, _player, codes):
            found.append(embed(network, [batch]))
    return torch.cat(found), torch.cat(expected)


Hook = Callable[[Fp8Linear, tuple[Tensor, ...], Tensor], Tensor | None]


@contextmanager
def _each_layer(network: nn.Module, make: Callable[[str, Codes], Hook], codes: Codes) -> Iterator[None]:
    """With a hook at each FP8 layer of the network, which it is made for by name."""
    with ExitStack() as hooks:
        for name, layer in network.named_modules():
            if isinstance(layer, Fp8Linear):
                hooks.enter_context(layer.register_forward_hook(make(name, codes)))
        yield


def _recorder(name: str, codes: Codes) -> Hook:
    def record(layer: Fp8Linear, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        codes[name] = quantize_activation(inputs[0].reshape(-1, layer.in_features))

    return record


def _player(name: str, codes: Codes) -> Hook:
    def play(layer: Fp8Linear, _: tuple[Tensor, ...], output: Tensor) -> Tensor:
        a, scales_a = (tensor.to(output.device) for tensor in codes[name])
        return layer.forward_quantized(a, scales_a, out_dtype=output.dtype).view(output.shape)

    return play
