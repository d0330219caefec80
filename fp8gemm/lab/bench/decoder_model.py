"""A decoder of real size with random weights, out of transformers' own layers, and one step through it.

The steps go through the layers themselves and not through the model's ``forward``: keys and values then lie where this
module put them, nothing but the layers' own work is on the GPU, and one compiled layer serves all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp8gemm.errors import UnsupportedError
from fp8gemm.lab.bench.operands import normal
from fp8gemm.nn import compile_options, convert

STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder; by default those of Qwen3-8B."""

    hidden: int = 4096
    intermediate: int = 12288
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151936

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, hidden {self.hidden}, intermediate {self.intermediate}, {self.heads} heads, "
            f"{self.kv_heads} KV heads, head {self.head_dim}, vocabulary {self.vocabulary}"
        )


class Slot:
    """Keys and values of one layer for a context whose last token is the new one; in place of transformers' cache.

    Args:
        keys, values: (batch, KV heads, context, head), filled but for the last token of each.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    @classmethod
    def random(cls, shape: DecoderShape, *, batch: int, context: int, generator: torch.Generator) -> Slot:
        """Standard normal bfloat16 ones on the generator's device."""
        size = batch, shape.kv_heads, context, shape.head_dim
        return cls(normal(generator, *size), normal(generator, *size))

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new token's (batch, KV heads, 1, head) and return all, as a layer asks its cache to."""
        self.keys[:, :, -1:].copy_(key)
        self.values[:, :, -1:].copy_(value)
        return self.keys, self.values


@dataclass(frozen=True)
class StepInputs:
    """What one step reads.

    Attributes:
        ids: (batch, tokens) int64.
        positions: the same shape, of each token in its context.
        slots: one per layer; None for a prefill, which keeps no keys and values.
    """

    ids: Tensor
    positions: Tensor
    slots: Sequence[Slot] | None

    @classmethod
    def prefill(cls, shape: DecoderShape, *, batch: int, tokens: int, generator: torch.Generator) -> StepInputs:
        """Random tokens from position 0."""
        ids = _random_ids(shape, batch, tokens, generator)
        return cls(ids, torch.arange(tokens, device=ids.device).expand(batch, tokens), None)

    @classmethod
    def decode(cls, shape: DecoderShape, *, batch: int, context: int, generator: torch.Generator) -> StepInputs:
        """One random token behind ``context - 1`` random ones."""
        ids = _random_ids(shape, batch, 1, generator)
        slots = [Slot.random(shape, batch=batch, context=context, generator=generator) for _ in range(shape.layers)]
        return cls(ids, torch.full_like(ids, context - 1), slots)


RunLayer = Callable[[nn.Module, Tensor, "tuple[Tensor, Tensor]", "Slot | None"], Tensor]
"""A layer, its input (batch, tokens, hidden), cosines and sines, and its slot; gives the next layer's input."""


def run_layer(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], slot: Slot | None) -> Tensor:
    """The layer as transformers wrote it."""
    out: Tensor = layer(
        hidden, attention_mask=None, past_key_values=slot, use_cache=slot is not None, position_embeddings=rotary
    )
    return out


def compiled_layer(*, merge: bool) -> RunLayer:
    """`run_layer`, compiled once for layers of a kind; with ``merge``, what several read is quantised once."""
    options = compile_options() if merge else None
    compiled: RunLayer = torch.compile(run_layer, fullgraph=True, dynamic=False, options=options)
    return compiled


@torch.no_grad()
def decoder_step(model: Any, inputs: StepInputs, run: RunLayer = run_layer) -> Tensor:
    """Logits of the last token, (batch, 1, vocabulary); for a decode step, keys and values are written too."""
    decoder = model.model
    hidden = decoder.embed_tokens(inputs.ids)
    rotary = decoder.rotary_emb(hidden, inputs.positions)
    for index, layer in enumerate(decoder.layers):
        hidden = run(layer, hidden, rotary, None if inputs.slots is None else inputs.slots[index])
    logits: Tensor = model.lm_head(decoder.norm(hidden[:, -1:]))
    return logits


@torch.no_grad()
def build_decoder(shape: DecoderShape, generator: torch.Generator) -> Any:
    """A bfloat16 Qwen3 decoder on the generator's device, with normal weights and norms of 1.

    Raises:
        UnsupportedError: transformers is not installed, or has no Qwen3.
    """
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError as error:
        raise UnsupportedError(f"the decoder is made of transformers' Qwen3 layers: {error}") from error
    options: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    config = Qwen3Config(**options)
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device=generator.device).eval().requires_grad_(False)
    # Its frequencies are no parameters: nothing would fill them.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(generator.device)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, STANDARD_DEVIATION, generator=generator)
    return model


def converted_copy(model: nn.Module) -> nn.Module:
    """The same weights with FP8 linear layers, the last one left in bfloat16."""
    copied = copy.deepcopy(model)
    convert(copied)
    return copied


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(parameter.nbytes for parameter in model.parameters())


def layer_bytes(model: Any) -> int:
    """Bytes of the layers' parameters: all but the embedding, the last norm and the last linear layer."""
    return weight_bytes(model.model.layers)


def _random_ids(shape: DecoderShape, batch: int, tokens: int, generator: torch.Generator) -> Tensor:
    return torch.randint(
        shape.vocabulary, (batch, tokens), device=generator.device, generator=generator, dtype=torch.int64
    )
