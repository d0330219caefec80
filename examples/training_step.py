"""A small language model trained three times from one start on the same batches: in float32, in bfloat16, with FP8.

    python examples/training_step.py --steps 300 --plot loss.png

It reads sums that are written out, "seven plus five is twelve. ", a character at a time. Master weights and optimiser
are in float32 each time; in bfloat16 and with FP8 the rest runs under autocast, and with FP8 the products of linear
layers, forward and backward, are those of `fp8gemm.linear`. Without a Hopper GPU these are computed by the reference:
what is learnt is the same, how fast says nothing.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fp8gemm
from fp8gemm.lab.provenance import provenance
from fp8gemm.lab.pyplot import load_pyplot

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
LETTERS = sorted(set(" .plus is" + "".join(WORDS)))
HIDDEN, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 2, 64, 16
RATE, SMOOTHED = 2e-3, 20
FORMS = ("float32", "bfloat16", "fp8")


class Block(nn.Module):
    """Attention and a feed-forward layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, HIDDEN) to the same."""
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm_mlp(x))))
        return out


class Model(nn.Module):
    """Letters to logits of the letters that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.lm_head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, len(LETTERS))

    def forward(self, text: Tensor) -> Tensor:
        """(B, T) numbers of letters to (B, T, letters)."""
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        out: Tensor = self.lm_head(self.norm(self.blocks(x)))
        return out


def batches(count: int, device: str, seed: int) -> list[Tensor]:
    """Texts of CONTEXT + 1 letters, BATCH in each batch, drawn anew."""
    generator, numbers = torch.Generator().manual_seed(seed), {letter: at for at, letter in enumerate(LETTERS)}
    texts = []
    for _ in range(count * BATCH):
        text = ""
        while len(text) <= CONTEXT:
            a, b = torch.randint(0, 10, (2,), generator=generator).tolist()
            text += f"{WORDS[a]} plus {WORDS[b]} is {WORDS[a + b]}. "
        texts.append([numbers[letter] for letter in text[: CONTEXT + 1]])
    return list(torch.tensor(texts, device=device).view(count, BATCH, CONTEXT + 1))


def loss_of(model: nn.Module, text: Tensor, form: str) -> Tensor:
    """Of the next letter, mean of all places."""
    with torch.autocast(text.device.type, torch.bfloat16, enabled=form != "float32"):
        logits = model(text[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())


def train(model: nn.Module, form: str, texts: list[Tensor], held_out: list[Tensor]) -> tuple[list[float], float]:
    """The loss of each step, and afterwards that of texts that it did not see."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    if form == "fp8":
        print(fp8gemm.nn.convert(model, trainable=True, min_features=HIDDEN))  # in place, all but lm_head
    losses = []
    for text in texts:
        loss = loss_of(model, text, form)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(round(loss.item(), 6))
    with torch.no_grad():
        return losses, sum(loss_of(model, text, form).item() for text in held_out) / len(held_out)


def figure_of(result: dict[str, Any]) -> Any:
    """Above the losses, below how far those of bfloat16 and FP8 are from float32's, means of some steps."""
    figure, (above, below) = load_pyplot().subplots(2, sharex=True, figsize=(9, 7), layout="constrained")
    exact, window = torch.tensor(result["losses"]["float32"]), min(SMOOTHED, result["steps"])
    for (form, losses), width in zip(result["losses"].items(), (4.0, 2.0, 0.7), strict=True):
        (line,) = above.plot(losses, label=form, linewidth=width)
        apart = (torch.tensor(losses) - exact).unfold(0, window, 1).mean(-1)
        below.plot(range(window - 1, result["steps"]), apart, color=line.get_color())
    above.set_ylabel("loss, nats a letter")
    above.set_ylim(bottom=0)
    above.legend()
    above.set_title(f"{result['parameters']} parameters, {result['tokens']} letters a step; {result['device']}")
    below.set_ylabel(f"difference from float32, mean of {window} steps")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    return figure


def main() -> None:
    """Train, print the losses, write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the losses; needs matplotlib")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every loss")
    options = parser.parse_args()
    device, code = "cuda" if torch.cuda.is_available() else "cpu", provenance()  # of now: it may change meanwhile
    torch.manual_seed(options.seed)
    start = Model().to(device)
    texts, held_out = (batches(count, device, options.seed + at) for at, count in enumerate((options.steps, 8)))
    losses, unseen = {}, {}
    for form in FORMS:
        losses[form], unseen[form] = train(copy.deepcopy(start), form, texts, held_out)
    print("step", *(f"{form:>9}" for form in FORMS))
    for step in sorted({*range(0, options.steps, max(options.steps // 10, 1)), options.steps - 1}):
        print(f"{step:>4}", *(f"{losses[form][step]:9.4f}" for form in FORMS))
    result = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "a CPU, FP8 by the reference",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        **code,
        "seed": options.seed,
        "steps": options.steps,
        "tokens": BATCH * CONTEXT,
        "parameters": sum(parameter.numel() for parameter in start.parameters()),
        "unseen": unseen,
        "losses": losses,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(result) + "\n")
    if options.plot is not None:
        figure_of(result).savefig(options.plot)
    print("of texts that it did not see:", ", ".join(f"{form} {loss:.4f}" for form, loss in unseen.items()))


if __name__ == "__main__":
    main()
