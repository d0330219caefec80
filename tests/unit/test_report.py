"""``fp8gemm report``: the page says what `select` and `explain` say, needs nothing else, and fails before it works."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fp8gemm
from fp8gemm import settings
from fp8gemm.cli import main as cli
from fp8gemm.cli import report as command
from fp8gemm.cli.exits import Exit
from fp8gemm.driver.device import DeviceStatus, Diagnosis
from fp8gemm.lab.report.layers import Point
from fp8gemm.lab.report.plots import Scale
from fp8gemm.lab.report.words import share_text, time_text
from fp8gemm.tuning.explain import explain_choice
from fp8gemm.tuning.explain_grouped import explain_grouped
from fp8gemm.tuning.grouped_problem import grouped_problem
from fp8gemm.tuning.hopper import CHIPS
from fp8gemm.tuning.problem import Grouping, packed_problem

DEEPSEEK_V3 = Path(__file__).resolve().parents[1] / "data" / "configs" / "deepseek-v3.json"
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_hidden_layers": 7,
}
VOID = {"meta", "br", "link", "img", "hr", "input"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and an empty cache. Nothing is timed where there is a GPU."""
    monkeypatch.chdir(tmp_path)
    with settings.scope(cache_dirs=(tmp_path / "cache",), backend="reference", tables=()):
        yield tmp_path


def model_at(path: Path, **changes: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(MODEL | changes))
    return path


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["report", *words, "--json"]) == Exit.DONE
    return json.loads(capsys.readouterr().out)


class Outline(HTMLParser):
    """What a page is made of. Elements must be closed in the order in which they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} stands twice"
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self.open[-1] if self.open else "", []).append(data)

    def text(self, *tags: str) -> str:
        return " ".join(word for tag in tags or self.words for word in self.words.get(tag, []))


def test_choices_and_times_are_those_of_select_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--nk", "7168x2048,264x1024", "--m", "4096,1,64", "--chip", "h100")
    assert [layer["names"] for layer in found["layers"]] == [["7168x2048"], ["264x1024"]]
    for layer in found["layers"]:
        assert [point["m"] for point in layer["points"]] == [1, 64, 4096]
        for point in layer["points"]:
            problem = replace(packed_problem(point["m"], layer["n"], layer["k"]), static_weights=True)
            chosen = fp8gemm.select(point["m"], layer["n"], layer["k"], chip="h100", static_weights=True)
            expected = explain_choice(problem, CHIPS["h100"], 0)
            terms = {row.name: row.values[0] for row in expected.rows}
            assert point["config"] == chosen.label and point["verdict"] == list(expected.verdict)
            assert point["us"] == pytest.approx(terms["total_us"], abs=1e-3)
            burst = terms.get("burst_us")
            assert point["burst_us"] == (burst if burst is None else pytest.approx(burst, abs=1e-3))
        ranges = {each["max_m"]: each["config"] for each in layer["configs"]}
        for m in (1, 9, 200, 5000, 16384):
            label = fp8gemm.select(m, layer["n"], layer["k"], chip="h100", static_weights=True).label
            assert ranges[min(most for most in ranges if most >= m)] == label
    assert {point["burst_us"] is None for layer in found["layers"] for point in layer["points"]} == {True, False}


def test_layers_weigh_as_often_as_the_model_has_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--model", str(model_at(here / "tiny")), "--m", "64")
    assert found["title"] == "tiny" and found["weighted"]
    counts = {tuple(layer["names"]): layer["count"] for layer in found["layers"]}
    # q and o are 512x512, k and v 256x512.
    pairs = [("q_proj", "o_proj"), ("k_proj", "v_proj"), ("gate_proj", "up_proj")]
    assert counts == dict.fromkeys(pairs, 14) | {("down_proj",): 7}
    (step,) = found["steps"]
    parts = [layer["count"] * layer["points"][0]["us"] for layer in found["layers"]]
    assert step["us"] == pytest.approx(sum(parts), abs=0.1) and sum(step["shares"]) == pytest.approx(1, abs=1e-4)
    assert step["shares"] == pytest.approx([part / sum(parts) for part in parts], abs=1e-3)
    unknown = {name: value for name, value in MODEL.items() if name != "num_hidden_layers"}
    (here / "unknown.json").write_text(json.dumps(unknown))
    found = as_json(capsys, "--model", "unknown.json", "--m", "64")
    assert not found["weighted"] and [layer["count"] for layer in found["layers"]] == [2, 2, 2, 1]


def test_experts_have_the_rows_that_tokens_bring_them(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--model", str(DEEPSEEK_V3), "--m", "1,96,4096", "--ep", "8", "--layout", "masked")
    of_experts = next(layer for layer in found["layers"] if layer["names"] == ["experts.gate_up_proj"])
    assert (of_experts["groups"], of_experts["count"], of_experts["grouping"]) == (32, 58, "masked")
    # Of 256 experts a token goes to 8, of 32 that are here to one.
    points = of_experts["points"]
    assert [(point["groups_with_rows"], point["rows"]) for point in points] == [(1, 1), (32, 3), (32, 128)]
    for point in points[1:]:
        problem = grouped_problem(Grouping.MASKED, 32, point["rows"], 4096, 7168)
        expected = explain_grouped(problem, CHIPS["h200"], 0)
        (us,) = (row.values[0] for row in expected.rows if row.name == "total_us")
        assert (point["config"], point["us"]) == (expected.configs[0].label, pytest.approx(us, abs=1e-3))
    assert points[0]["us"] < points[1]["us"] / 8, "weights of groups without rows are not read"
    gradients = as_json(capsys, "--grouped", "4x256x512", "--nk", "256x512", "--layout", "columns", "--m", "8")
    assert [layer["names"] for layer in gradients["layers"]] == [["256x512"]]
    assert any("columns" in name or "grouped" in name for name in gradients["warmup"]["products"])


def test_the_page_says_what_the_document_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "--model", str(model_at(here / "tiny")), "--m", "1,4096", "--output", "a/page.html"]
    assert cli.main([*words, "--json", "page.json"]) == Exit.DONE
    assert capsys.readouterr().out.startswith("a/page.html: 4 shapes of tiny on h200, predicted; 0 of ")
    text, found = (here / "a" / "page.html").read_text(), json.loads((here / "page.json").read_text())
    page = Outline(text)
    told = page.text()
    for layer in found["layers"]:
        assert ", ".join(layer["names"]) in told
        for point in layer["points"]:
            assert point["config"] in told and time_text(point["us"]) in told
        assert all(f"to {each['max_m']}: " in told and each["config"] in told for each in layer["configs"])
    for step in found["steps"]:
        assert time_text(step["us"]) in told and all(share_text(share) in told for share in step["shares"])
    facts = [found[name] for name in ("version", "commit", "headers", "date", "torch", "nvrtc", "python", "model")]
    assert all(fact in told for fact in facts if fact) and "h200.json, shipped" in told
    assert found["warmup"]["command"] in page.text("pre") and all(name in told for name in found["warmup"]["missing"])
    assert str(here / "cache") in told and "absent" in json.dumps(found["cache"])
    # Two widths of each of two plots; the wider ones have a dot for each point.
    assert [attributes["class"] for tag, attributes in page.seen if tag == "svg" and "role" in attributes] == [
        *("plot wide", "plot narrow") * 2
    ]
    assert sum(attributes.get("class") == "mark" for _, attributes in page.seen) == 2 * 2 * len(found["layers"])


def test_the_page_needs_nothing_else(here: Path) -> None:
    assert cli.main(["report", "--nk", "256x512", "--output", "page.html"]) == Exit.DONE
    text = (here / "page.html").read_text()
    page = Outline(text)
    assert text.isascii() and text.startswith("<!doctype html>")
    assert not re.search(r"(?:https?:)?//\w|url\(|@import|@font-face|javascript:", text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.seen}
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in page.seen)
    assert not any(name.startswith("on") for _, attributes in page.seen for name in attributes)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_names_are_text_whatever_they_are(here: Path) -> None:
    name = "<script>alert('1')</script>&amp;\"\x07\udcff\n\N{SNOWMAN}"
    path = here / "outer"
    path.mkdir()
    model = model_at(path / name.replace("/", "|"))
    assert cli.main(["report", "--model", str(model), "--m", "1", "--output", "page.html"]) == Exit.DONE
    page = Outline((here / "page.html").read_text())
    assert "script" not in {tag for tag, _ in page.seen} and "<script>alert(" in page.text("h1")


def test_what_the_cache_has_is_ready_and_the_command_makes_the_rest(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--nk", "256x512", "--m", "8,64", "--max-m", "64", "--calls", "layer", "--chip", "h20"]
    before = as_json(capsys, *words)
    total = before["warmup"]["kernels"]
    assert before["warmup"]["ready"] == 0 and len(before["warmup"]["missing"]) == total
    assert before["cache"] == [
        {"path": str(here / "cache"), "state": "absent", "kernels": 0, "bytes": 0, "note": "not there yet"}
    ]
    assert cli.main(["report", *words]) == Exit.DONE and not (here / "cache").exists(), "a look makes nothing"
    program, *rest = shlex.split(before["warmup"]["command"])
    assert program == "fp8gemm" and cli.main([*rest, "--jobs", "2"]) == Exit.DONE
    capsys.readouterr()
    after = as_json(capsys, *words)
    assert (after["warmup"]["ready"], after["warmup"]["missing"]) == (total, {}) and after["warmup"]["bytes"] > 0
    assert after["cache"][0]["kernels"] == total
    assert all(point["ready"] for layer in after["layers"] for point in layer["points"])
    assert not any(point["ready"] for layer in before["layers"] for point in layer["points"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "expected what to draw: --nk, --grouped, --model, --recorded or --quantizers"),
        (["--quantizers", "512"], "expected products to draw"),
        (["--nk", "256x512", "--output", "."], "--output: expected a file that can be written, got the directory "),
        (["--nk", "256x512", "--output", "file/page.html"], "file above it, which is no directory"),
        (["--nk", "256x512", "--json", "file/out.json"], "--json: expected a file that can be written, got "),
        (["--nk", "256x512", "--output", "-", "--json"], "--output -: expected another place beside --json"),
        (["--model", "none", "--tp", "1,8"], "--model|none"),
        (["--nk", "256x512", "--tp", "1,8"], "--tp: expected one number of ranks, whose layers are drawn, got 1,8"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_anything_is_written(
    words: list[str], complaint: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").write_text("here")
    monkeypatch.setattr(command, "all_points", lambda *_: pytest.fail("it works before it looks"))
    assert cli.main(["report", *words]) == Exit.FAILED
    told = capsys.readouterr()
    assert not told.out and re.search(complaint, told.err) and os.listdir(here) == ["file"]


@pytest.mark.parametrize("words", ["--m 0", "--m x", "--chip h900", "--chip h200,h100", "--nk 5", "--measure 1"])
def test_bad_words_end_with_2(words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", "--nk", "256x512", *words.split()])
    assert caught.value.code == Exit.WORDS


def test_without_a_gpu_it_predicts_and_measures_only_if_it_must(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fp8gemm.driver.device.diagnose", lambda index=0: Diagnosis(DeviceStatus.NO_GPU, "no GPU here"))
    assert cli.main(["report", "--nk", "256x512", "--measure"]) == Exit.NO_GPU
    told = capsys.readouterr()
    assert not told.out and told.err == "report: no GPU here\n" and not os.listdir(here)
    found = as_json(capsys, "--nk", "256x512", "--no-measure", "--max-m", "100")
    assert found["unmeasured"].startswith("--no-measure") and [step["m"] for step in found["steps"]] == [1, 16, 64]
    assert all(step["measured_us"] is None for step in found["steps"]) and not os.listdir(here)


def test_the_page_on_standard_output_is_all_of_it(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert cli.main(["report", "--nk", "256x512", "--output", "-"]) == Exit.DONE
    told = capsys.readouterr()
    assert told.out.startswith("<!doctype html>") and told.out.rstrip().endswith("</html>") and not os.listdir(here)


def test_times_that_were_measured_stand_beside_those_predicted(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(points: list[Point], chip: object) -> tuple[list[Point], str]:
        lasts = [point.m >= 512 for point in points]
        times = [{"sustained": 2e3, "burst": 1e3} if each else {"turn": 10.0} for each in lasts]
        return [replace(point, measured=us) for point, us in zip(points, times, strict=True)], "by a clock"

    monkeypatch.setattr(command, "_target", lambda *_: (CHIPS["h200"], ""))
    monkeypatch.setattr(command, "_measured", played)
    words = ["report", "--model", str(model_at(here / "tiny")), "--m", "64,512", "--output", "page.html"]
    assert cli.main([*words, "--json", "page.json"]) == Exit.DONE
    found, told = json.loads(Path("page.json").read_text()), Outline(Path("page.html").read_text()).text()
    assert "measured; 0 of" in capsys.readouterr().out and found["method"] == "by a clock"
    # 49 products in a step.
    assert [step["measured_us"] for step in found["steps"]] == [490.0, 98_000.0]
    assert found["steps"][1]["measured_shares"] == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7], abs=1e-4)
    assert "98.0 ms" in told and "by a clock" in told and "measured" in told


@pytest.mark.parametrize(("us", "text"), [(1.004, "1.00"), (9.996, "10.0"), (99.96, "100"), (999.4, "999")])
def test_figures_have_three_digits(us: float, text: str) -> None:
    assert time_text(us) == f"{text} \N{MICRO SIGN}s"
    assert time_text(1e3 * us) == f"{text} ms" and time_text(None) == "\N{EN DASH}"


def test_a_logarithmic_axis() -> None:
    scale = Scale(1.0, 1000.0, 0.0, 300.0)
    assert [scale(value) for value in (1.0, 10.0, 1000.0)] == pytest.approx([0, 100, 300])
    assert scale.ticks(10) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert scale.ticks(9) == [1, 10, 100, 1000]
