"""Everything that happens before the first request: which products a model needs, and their kernels made ready."""
