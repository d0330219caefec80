"""One product: quantise both operands, multiply, compare with bfloat16. On a Hopper GPU, or slowly without one."""

import torch

import fp8gemm

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(64, 2048, dtype=torch.bfloat16, device=device)
w = torch.randn(512, 2048, dtype=torch.bfloat16, device=device)

a, scales_a = fp8gemm.quantize_activation(x)  # (64, 2048) codes, a float32 multiplier per row and 128 columns
b, scales_b = fp8gemm.quantize_weight(w)  # (512, 2048) codes, a multiplier per 128x128 block
y = fp8gemm.gemm(a, scales_a, b, scales_b)  # (64, 512) in bfloat16

exact = x.float() @ w.float().t()
error = (y.float() - exact).norm() / exact.norm()
print(f"{tuple(y.shape)} on {device}: {100 * error:.1f} % off the product of what was quantised, root mean square")
