"""Whole programs that run."""
