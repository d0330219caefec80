"""The linear layers of a model become FP8 in one call, and the model says nearly what it said."""

import torch
from torch import nn

import fp8gemm

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Block(nn.Module):
    """A gated feed-forward block, as decoders have them."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, hidden) to (T, hidden)."""
        normed = self.norm(x)
        out: torch.Tensor = x + self.down_proj(nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return out


model = nn.Sequential(*(Block(512, 1408) for _ in range(4))).to(device, torch.bfloat16).eval()
x = torch.randn(32, 512, dtype=torch.bfloat16, device=device)
with torch.inference_mode():
    before = model(x)
    print(fp8gemm.nn.convert(model))  # in place; what changed, what did not, and the memory
    after = model(x)
error = (after.float() - before.float()).norm() / before.float().norm()
print(f"{100 * error:.1f} % off the model in bfloat16, root mean square")
