"""Words that say what a server will be asked for, read and written again."""

from __future__ import annotations

import argparse
import os
from typing import Any

import pytest

from fp8gemm.cli import asked_words
from fp8gemm.cli.asked_words import add_asked, words_of

USED = {
    "nk": "256x512,264x1024",
    "grouped": "4x256x512",
    "model": os.path.abspath("a model/config.json"),
    "recorded": os.path.abspath("asked.jsonl"),
    "quantizers": "512,1024",
    "max_m": "77",
    "tp": "1,8",
    "ep": "2",
    "layout": "columns,masked",
    "merged": None,
    "out_dtype": "float16,float32",
    "norm_weights": "float32",
    "epilogue": "c:float32+bias,none",
    "calls": "gemm",
    "scaling": "1d1d",
    "batch_invariant": None,
    "any_strides": None,
}


def parsed(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_asked(parser)
    return vars(parser.parse_args(words))


def written(name: str) -> list[str]:
    value = USED[name]
    return [f"--{name.replace('_', '-')}", *([] if value is None else [value])]


def test_every_option_can_be_written() -> None:
    assert parsed().keys() == asked_words._TEXTS.keys() == USED.keys()
    assert words_of(argparse.Namespace(**parsed())) == []


@pytest.mark.parametrize("name", USED)
def test_what_is_written_is_what_was_read(name: str) -> None:
    options = parsed(*written(name))
    assert options != parsed(), "it is another value than the default"
    assert words_of(argparse.Namespace(**options)) == written(name)


def test_all_of_them_at_once() -> None:
    words = [word for name in USED for word in written(name)]
    assert words_of(argparse.Namespace(**parsed(*words))) == words
    assert words_of(argparse.Namespace(**parsed("--layout", "none"))) == ["--layout", "none"]
