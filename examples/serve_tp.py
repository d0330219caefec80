"""A decoder of Llama's shape with FP8 layers, divided among the GPUs of one machine, that answers a batch of prompts.

    torchrun --nproc-per-node 2 examples/serve_tp.py --check

Each rank has a part of every layer: q, k, v, gate and up by their columns, with them whole heads, and o and down by
their rows, whose sums the ranks add. Weights are random, and so is what it says. ``--check`` lets the first rank say it
alone too, with all of the model, and compares the tokens: with ``--dtype float32`` they are the same; in bfloat16 parts
of sums are rounded before they are added, and where two tokens are as likely the other may win. Without GPUs the ranks
are processes that compute the reference.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import scaled_dot_product_attention, silu

import fp8gemm
from fp8gemm.parallel import ColwiseParallel, RowwiseParallel

PLAN = {
    **{f"{name}_proj": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
    **{f"{name}_proj": RowwiseParallel() for name in ("o", "down")},
}


@dataclass(frozen=True)
class Sizes:
    """Of a decoder; heads and key-value heads are shared by the ranks."""

    layers: int = 2
    hidden: int = 1024
    intermediate: int = 2048
    heads: int = 16
    key_value_heads: int = 8
    vocabulary: int = 4096
    longest: int = 256

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Block(nn.Module):
    """Attention with a cache of keys and values, and a gated MLP, each behind a norm and added to what came in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        kv = sizes.key_value_heads * sizes.head_dim
        self.head_dim = sizes.head_dim
        self.attention_norm, self.mlp_norm = nn.RMSNorm(sizes.hidden), nn.RMSNorm(sizes.hidden)
        self.q_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.o_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor, start: int, cache: list[Tensor]) -> Tensor:
        batch, length, _ = x.shape
        normed = self.attention_norm(x)
        # As many heads as this rank has.
        q, k, v = (
            each(normed).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        if not cache:
            room = (batch, k.shape[1], angles.shape[0], self.head_dim)
            cache += [x.new_zeros(room), x.new_zeros(room)]
        keys, values = cache
        now = slice(start, start + length)
        q, k = rotated(q, angles[now]), rotated(k, angles[now])
        keys[:, :, now], values[:, :, now] = k, v
        seen = slice(0, start + length)
        heard = scaled_dot_product_attention(
            q, keys[:, :, seen], values[:, :, seen], is_causal=start == 0, enable_gqa=True
        )
        x = x + self.o_proj(heard.transpose(1, 2).reshape(batch, length, -1))
        normed = self.mlp_norm(x)
        out: Tensor = x + self.down_proj(silu(self.gate_proj(normed)) * self.up_proj(normed))
        return out


class Decoder(nn.Module):
    """From token ids to the ids that follow."""

    angles: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        rates = 10_000.0 ** -(torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        self.register_buffer("angles", torch.outer(torch.arange(sizes.longest), rates), persistent=False)

    def forward(self, ids: Tensor, start: int, caches: list[list[Tensor]]) -> Tensor:
        x = self.embedding(ids)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, self.angles, start, cache)
        following: Tensor = self.lm_head(self.norm(x[:, -1])).argmax(-1)
        return following


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of a head's columns turned by each position's angles."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.float().cos(), angles.float().sin()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


@torch.no_grad()
def generate(model: Decoder, prompts: Tensor, count: int, wait: Callable[[], None]) -> tuple[Tensor, float]:
    """So many tokens for each prompt, greedily, and the seconds from the second of them on."""
    caches: list[list[Tensor]] = [[] for _ in model.blocks]
    said = [model(prompts, 0, caches)]
    wait()
    started = time.perf_counter()
    for step in range(count - 1):
        said.append(model(said[-1][:, None], prompts.shape[1] + step, caches))
    wait()
    return torch.stack(said, 1), time.perf_counter() - started


def built(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The same decoder on every rank; its linear layers are FP8, but for ``lm_head``."""
    torch.manual_seed(0)
    model = Decoder(sizes).to(device, dtype)
    fp8gemm.nn.convert(model, batch_invariant=True)
    return model


def main() -> None:
    options = parsed()
    has_gpus = torch.cuda.is_available()
    kind = "cuda" if has_gpus else "cpu"
    if has_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if has_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(kind, torch.cuda.current_device()) if has_gpus else torch.device(kind)
    wait = torch.cuda.synchronize if has_gpus else (lambda: None)
    sizes = Sizes(options.layers, options.hidden, 2 * options.hidden, longest=options.prompt + options.tokens)

    if sizes.key_value_heads % ranks:
        raise SystemExit(
            f"expected a number of ranks that divides {sizes.key_value_heads} key-value heads, got {ranks}"
        )
    model = built(sizes, device, options.dtype)
    mesh = init_device_mesh(kind, (ranks,))
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    prompts = torch.randint(sizes.vocabulary, (options.batch, options.prompt), device=device)  # after the same seed
    generate(model, prompts, 2, wait)  # kernels are compiled, or found, and loaded
    said, seconds = generate(model, prompts, options.tokens, wait)

    result: dict[str, Any] = {
        "ranks": ranks,
        "device": torch.cuda.get_device_name() if has_gpus else "cpu",
        "tokens_per_second": round(options.batch * (options.tokens - 1) / seconds, 1),
        "said": said[0, :8].tolist(),
    }
    if options.check and rank == 0:
        alone, _ = generate(built(sizes, device, options.dtype), prompts, options.tokens, wait)
        result["same_as_alone"] = int((alone == said).sum())
        result["of"] = said.numel()
    if rank == 0:
        print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    dist.barrier()
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 256 for each rank")
    parser.add_argument("--batch", type=int, default=4, help="prompts")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="that follow each")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--check", action="store_true", help="say it with one rank too, and compare the tokens")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
