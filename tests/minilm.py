"""Where tests find all-MiniLM-L6-v2: in the folder that FP8GEMM_TEST_MINILM names, else in the installed package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fp8gemm.errors import UnsupportedError
from fp8gemm.lab.accuracy.encoder import find_model_folder

ROOT = Path(__file__).resolve().parents[1]
SENTENCES = ROOT / "tests" / "data" / "sentences.txt"

_VARIABLE = "FP8GEMM_TEST_MINILM"


def model_folder() -> Path:
    """The folder; without one the test is skipped, and a wrong FP8GEMM_TEST_MINILM fails it."""
    named = os.environ.get(_VARIABLE)
    try:
        return find_model_folder(Path(named) if named else None)
    except UnsupportedError as error:
        pytest.skip(f"{error}, by {_VARIABLE}")
