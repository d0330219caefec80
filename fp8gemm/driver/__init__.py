"""Checked access to the CUDA driver: contexts, kernels, tensor maps, launches."""
