"""Is FP8 with block scales good enough? Products and a small network against the unquantised ones; it gates nothing.

``scripts/accuracy.py`` runs it.
"""
