"""From a request to a loaded cubin: render, name, compile, load. It knows nothing of GEMM."""
