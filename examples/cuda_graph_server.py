"""A loop as servers have it: kernels ready before the first request, a CUDA graph per batch size, then replays alone.

Nothing is compiled while requests are answered: with jit="error" any attempt is an error. Without a GPU the same steps
run without graphs.
"""

import torch

import fp8gemm
from fp8gemm import settings

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
N, K, BATCHES = 512, 1024, (1, 8, 32)

ready = fp8gemm.warmup([(N, K)], max_m=max(BATCHES))  # on any machine, also when an image is built
print(ready)
layer = fp8gemm.nn.Fp8Linear.from_linear(torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16, device=device))
inputs = {m: torch.zeros(m, K, dtype=torch.bfloat16, device=device) for m in BATCHES}
outputs: dict[int, torch.Tensor] = {}
graphs: dict[int, torch.cuda.CUDAGraph] = {}

with torch.inference_mode(), settings.scope(jit="error"):
    for m in BATCHES if device == "cuda" else ():
        layer(inputs[m])  # once outside the capture: kernels are loaded, memory is there
        graphs[m] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[m]):
            outputs[m] = layer(inputs[m])
    for waiting in (1, 5, 30, 8):  # requests that wait, each time the server looks
        m = next(size for size in BATCHES if size >= waiting)
        tokens = torch.randn(waiting, K, dtype=torch.bfloat16, device=device)
        inputs[m][:waiting].copy_(tokens)  # rows beyond are of earlier requests, and answer nobody
        if m in graphs:
            graphs[m].replay()
        else:
            outputs[m] = layer(inputs[m])
        assert torch.equal(outputs[m][:waiting], layer(inputs[m])[:waiting])
        print(f"{waiting} requests in a batch of {m}: {tuple(outputs[m][:waiting].shape)}")
