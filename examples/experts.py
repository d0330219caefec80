"""A mixture of experts in FP8: each token asks two of eight experts; from bfloat16 weights to the weighted sum."""

import torch

from fp8gemm.nn import Fp8Experts

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
experts, hidden, intermediate, tokens, top_k = 8, 512, 256, 32, 2
gate_up = torch.randn(experts, 2 * intermediate, hidden, dtype=torch.bfloat16, device=device) / hidden**0.5
down = torch.randn(experts, hidden, intermediate, dtype=torch.bfloat16, device=device) / intermediate**0.5
x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device)
weights, ids = torch.randn(tokens, experts, device=device).softmax(-1).topk(top_k)

with torch.inference_mode():
    y = Fp8Experts.from_bfloat16(gate_up, down)(x, ids, weights)

expected = torch.zeros(tokens, hidden, device=device)
for token in range(tokens):
    for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
        gate, up = (gate_up[expert].float() @ x[token].float()).chunk(2)
        expected[token] += weight * (down[expert].float() @ (torch.nn.functional.silu(gate) * up))
error = (y.float() - expected).norm() / expected.norm()
print(f"{tuple(y.shape)} on {device}: {100 * error:.1f} % off the experts in float32, root mean square")
