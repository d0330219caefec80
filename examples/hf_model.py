"""A model of Hugging Face transformers with FP8 layers: it says nearly what the original says, in half the memory.

    python examples/hf_model.py                                # a small one with random weights; nothing is downloaded
    python examples/hf_model.py --model Qwen/Qwen3-8B          # a name on the hub, or a directory: made FP8 here
    python examples/hf_model.py --model Qwen/Qwen3-8B-FP8      # a checkpoint in block FP8: its codes are kept, and
                                                               # compared with their values in bfloat16

It needs ``pip install 'fp8gemm[transformers]'``. The original and the FP8 model are in memory at once, to be
compared; a program of your own has one of them, and one line of ``converted`` or ``read``. Without a GPU the layers
compute the reference, which says what FP8 does to a model, and nothing of its speed. Of random weights many tokens
are nearly as likely, so the two soon say other things; what a trained network's answers lose is in docs/numerics.md.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config, Qwen3Config

import fp8gemm
from fp8gemm.integrations.transformers import load_quantized

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BYTES = 256
"""Vocabulary of the small model: its tokens are the bytes of a text."""


def small() -> Any:
    """A model of Qwen3's architecture, as small as layers that are worth converting can be."""
    torch.manual_seed(0)
    sizes = {"vocab_size": BYTES, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    kind: Any = AutoModelForCausalLM
    return kind.from_config(Qwen3Config.from_dict({**sizes, **heads}), dtype=torch.bfloat16).to(DEVICE).eval()


def converted(original: Any) -> Any:
    """A model whose weights are not FP8 yet: ``convert`` does it in place, here to a copy."""
    model = copy.deepcopy(original)
    print(fp8gemm.nn.convert(model))  # what changed, what did not, and the memory
    return model


def read(directory: str) -> Any:
    """A checkpoint in block FP8: its codes and scales, checked, and kept as they are."""
    model, report = load_quantized(directory, dtype=torch.bfloat16, device_map=DEVICE)
    print(report)
    return model


def pair_of(name: str) -> tuple[Any, Any, Any]:
    """The original, the FP8 model and the tokenizer of a name on the hub or a directory."""
    directory = name
    if not os.path.isdir(name):
        from huggingface_hub import snapshot_download

        directory = snapshot_download(name)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device_map": DEVICE}
    quantized = getattr(AutoConfig.from_pretrained(directory), "quantization_config", None)
    if quantized is not None:  # the same weights in bfloat16, of which transformers needs no FP8 kernel
        options["quantization_config"] = FineGrainedFP8Config(**{**quantized, "dequantize": True})
    original: Any = AutoModelForCausalLM.from_pretrained(directory, **options)
    model = converted(original) if quantized is None else read(directory)
    return original, model, AutoTokenizer.from_pretrained(directory)


@torch.no_grad()
def said(model: Any, ids: Tensor, count: int) -> tuple[Tensor, Tensor, float]:
    """Logits of a prompt, the tokens that follow it greedily, and milliseconds for each of them."""
    logits = model(ids).logits
    # What says that the text ends is left out, so that both models say as much.
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    model.generate(ids, max_new_tokens=2, **options)  # kernels are compiled, or found, and loaded
    started = time.perf_counter()
    tokens = model.generate(ids, max_new_tokens=count, **options)[0, ids.shape[1] :].cpu()  # which waits for the GPU
    return logits.float(), tokens, 1e3 * (time.perf_counter() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", metavar="NAME_OR_DIR", help="a checkpoint; by default a small model of random weights"
    )
    parser.add_argument("--prompt", default="The quick brown fox jumps over")
    parser.add_argument("--tokens", type=int, default=16, help="how many follow it, default 16")
    options = parser.parse_args()

    if options.model is None:
        original = small()
        model, ids = converted(original), torch.tensor([list(options.prompt.encode())], device=DEVICE)
        with tempfile.TemporaryDirectory() as directory:  # the same way as a checkpoint of others takes
            model.save_pretrained(directory)
            again = read(directory)
        with torch.no_grad():
            print(f"saved and read again, the same logits: {torch.equal(again(ids).logits, model(ids).logits)}")
    else:
        original, model, tokenizer = pair_of(options.model)
        ids = tokenizer(options.prompt, return_tensors="pt").input_ids.to(DEVICE)

    expected, tokens, before = said(original, ids, options.tokens)
    found, fp8_tokens, after = said(model, ids, options.tokens)
    print(f"the original says {tokens.tolist()}")
    print(f"the FP8 model     {fp8_tokens.tolist()}")
    if DEVICE == "cuda":
        print(f"{torch.cuda.get_device_name()}: {before:.1f} ms a token, in FP8 {after:.1f} ms")
    print(f"{100 * (found - expected).norm() / expected.norm():.1f} % off the original's logits, root mean square")


if __name__ == "__main__":
    main()
