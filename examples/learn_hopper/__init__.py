"""Five small kernels that build up to the library's own; see docs/learn-hopper.md."""
