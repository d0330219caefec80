"""What only measures or shows: nothing that serves imports it."""

DEVICE = "cuda:0"
"""Where it is measured."""
