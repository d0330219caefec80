"""``scripts/accuracy.py --model`` from its options to JSON, table and picture."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8gemm import settings
from fp8gemm.lab.accuracy import model
from fp8gemm.lab.accuracy.embeddings import ModelGates
from tests.minilm import SENTENCES, model_folder
from tests.scripts import load_script

script, results = load_script("accuracy"), load_script("results")


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    with settings.scope(backend="reference"):
        yield


@pytest.fixture(scope="module")
def few_sentences(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("# a comment\n\n" + "\n".join(SENTENCES.read_text().splitlines()[9:33]) + "\n")
    return path


@pytest.fixture(scope="module")
def written(few_sentences, tmp_path_factory) -> dict[str, Any]:
    """What the script writes of a few sentences."""
    folder, path = model_folder(), tmp_path_factory.mktemp("made") / "new" / "model.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "SENTENCES", few_sentences)
        assert script.main(["--model", "--model-path", str(folder), "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def on_an_h200(written: dict[str, Any]) -> dict[str, Any]:
    """The same as a GPU would have written it."""
    found = copy.deepcopy(written)
    found["gpu"] = found["device"] = "NVIDIA H200"
    found["reference"] = {
        "cuda": {"same_codes": 0.99999912, "free": 0.9981},
        "cpu": {"same_codes": 0.9999, "free": 0.998},
    }
    return found


def test_everything_is_written(written) -> None:
    assert written["passed"] and not written["failures"] and written["backend"] == "reference"
    assert written["sentences"] == 24 and written["tokens"] > 24 * 7 and written["transformers"]
    assert list(written["forms"]) == ["bf16", "fp8", "fp8 in bf16"] and written["reference"] == {}
    assert 0.99 < written["other_batches"] <= 1
    for form in written["forms"].values():
        assert len(form["losses"]) == 24 and form["losses"] == sorted(form["losses"])
        assert form["cosine_min"] == pytest.approx(1 - form["losses"][-1], abs=1e-5)
        assert form["loss_percentiles"]["50"] == pytest.approx(sum(form["losses"][11:13]) / 2, rel=1e-2)
        assert 24 >= form["same_neighbour"] >= form["decided_same"] == form["decided"] > 10
    assert len(written["layers"]) == 36 and {"name", "n", "k", "fp8_db", "bf16_db"} == set(written["layers"][0])


def test_a_missed_gate_is_exit_code_one(written, few_sentences, monkeypatch, capsys) -> None:
    least = written["forms"]["fp8"]["cosine_min"]

    def measured(*arguments: Any, **more: Any) -> model.ModelReport:
        agreement = compare(least)
        apart = {"cpu": model.AgainstReference(same_codes=0.5, free=1.0)}
        return report_of({"fp8": agreement}, reference=apart, gates=ModelGates(cosine_min=1.0))

    monkeypatch.setattr(script.model, "measure_model", measured)
    assert script.main(["--model", "--model-path", str(model_folder())]) == 1
    out = capsys.readouterr().out
    assert "FAILED: fp8: least cosine" in out and "FAILED: fp8: least cosine 0.500000 to the reference backend" in out


def report_of(agreement: dict[str, model.EmbeddingAgreement], **more: Any) -> model.ModelReport:
    """Of three sentences."""
    fields: dict[str, Any] = {"heading": {}, "sentences": 3, "tokens": 9, "other_batches": 1.0, "layers": []}
    return model.ModelReport(agreement=agreement, **{**fields, "reference": {}, **more})


def compare(least: float) -> model.EmbeddingAgreement:
    return model.EmbeddingAgreement((0.0, 0.0, 1 - least), (0.1, 0.1, 0.1), (True, True, True))


def test_bfloat16_itself_has_no_gates() -> None:
    far = compare(0.5)
    assert report_of({"bf16": far}).failures() == []
    assert len(report_of({"fp8": far}).failures()) == 2


def test_only_embeddings_of_the_same_codes_are_held_to_the_reference() -> None:
    def failures(same_codes: float, free: float) -> list[str]:
        return report_of({}, reference={"cuda": model.AgainstReference(same_codes, free)}).failures()

    assert failures(0.99991, 0.9) == [] and len(failures(0.9998, 1.0)) == len(failures(float("nan"), 1.0)) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "--model-path", "/nowhere"], "model folder: expected config.json"),
        (["--model-path", "/nowhere"], "--model-path: expected --model with it"),
        (["--model", "--quick"], "got --quick"),
        (["--model", "--seed", "0"], "got --seed"),
        (["--model", "--plot", "a.png"], "got --plot"),
    ],
)
def test_bad_options_are_exit_code_two(arguments, complaint, capsys) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert caught.value.code == 2 and complaint in capsys.readouterr().err


def test_the_page_shows_it(written) -> None:
    found = on_an_h200(written)
    lines = results.SECTIONS["model_accuracy"].draw(found)
    text = "\n".join(lines)
    fp8 = found["forms"]["fp8"]
    row = f"| linear layers in FP8, the rest in float32 | {fp8['cosine_mean']:.5f} | {fp8['cosine_min']:.5f} |"
    assert row in text and f"| {fp8['decided']} of {fp8['decided']} |" in text
    assert "backend on the same GPU it is 0.99810, and 0.99999912 where every" in text
    assert "backend on the CPU it is 0.99800, and 0.99990000 where every" in text
    assert "and do." in text and "Missed" not in text
    downs = [layer["fp8_db"] for layer in found["layers"] if layer["k"] == 1536]
    assert f"| down | 384 x 1536 | {sum(downs) / 6:.1f} ({min(downs):.1f}) |" in text
    ups = [layer["bf16_db"] for layer in found["layers"] if layer["n"] == 1536]
    assert "| up | 1536 x 384 |" in text and f"| {sum(ups) / 6:.1f} ({min(ups):.1f}) |" in text
    assert sum(line.startswith("| ") for line in lines) == 2 + 3 + 2 + 6
    assert not [line for line in lines if "\n" in line or line != line.rstrip()]
    found["failures"] = ["fp8: it was wrong"]
    assert "**Missed: fp8: it was wrong.**" in "\n".join(results.SECTIONS["model_accuracy"].draw(found))


def test_without_a_gpu_nothing_is_said_of_one(written) -> None:
    text = "\n".join(results.SECTIONS["model_accuracy"].draw({**written, "gpu": "CPU"}))
    assert "reference backend" not in text and "\n\n\n" not in text


def test_the_picture_is_drawn_from_the_file(written, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    found, path = on_an_h200(written), tmp_path / "model.png"
    results.PLOTS["docs/plots/model-accuracy-h200.png"].draw(found, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert results.canvas.shows(path, found) and not results.canvas.shows(path, written)
