"""The pages show what was measured, not what somebody typed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
H200: dict[str, Any] = {"gpu": "NVIDIA H200", "date": "2026-01-02"}


results = load_script("results")


def test_the_pages_show_the_results_in_the_repository() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "results.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def draw(name: str, result: dict[str, Any]) -> str:
    lines = results.SECTIONS[name].draw(result)
    assert not [line for line in lines if "\n" in line or line != line.rstrip()]
    columns = 0
    for line in lines:  # the cells of a table are as many in every line
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("| ") else 0
        assert not cells or not columns or cells == columns, line
        columns = cells
    return "\n".join(lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one result file."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    start = {"m": 1, "n": 2, "k": 16, "cold_ms": 570.4, "warm_ms": 39.0, "seed": 7}
    (folder / "coldstart-h200.json").write_text(json.dumps(start))
    return tmp_path


BEGIN, END = "<!-- results:coldstart:begin -->", "<!-- results:coldstart:end -->"


@pytest.mark.parametrize(
    ("page", "link"), [("README.md", "docs/results/coldstart-h200.json"), ("docs/a.md", "results/coldstart-h200.json")]
)
def test_what_is_between_two_markers_is_drawn_and_the_rest_is_left(root, page, link) -> None:
    drawn = results.redrawn(f"before\n{BEGIN}\nstale\n{END}\nbetween\n{BEGIN}{END} after\n", page, root)
    section = (
        f"{BEGIN}\nFrom `import fp8gemm` to the first result, 1x2x16, with torch imported and its context made before: "
        f"570 ms with an empty cache, 39 ms with a warm one.\n\nAll figures: [`{link}`]({link}), seed 7.\n{END}"
    )
    assert drawn == f"before\n{section}\nbetween\n{section} after\n"
    assert results.redrawn(drawn, page, root) == drawn


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{BEGIN}\n", "coldstart begins and does not end"),
        (f"{END}\n", "does not pair up"),
        (f"{BEGIN}{BEGIN}{END}", "does not pair up"),
        (f"{BEGIN}<!-- results:gates:end -->", "does not pair up"),
        ("<!-- results:nonsense:begin -->", "expected results:NAME with one of bench, .*, got nonsense"),
        ("<!-- results:gates:begin --><!-- results:gates:end -->", "docs/results/gates-h200.json, which is missing"),
    ],
)
def test_a_page_that_cannot_be_drawn_says_why(root, text, complaint) -> None:
    with pytest.raises(results.PageError, match=complaint) as caught:
        results.redrawn(text, "README.md", root)
    assert str(caught.value).startswith("README.md: ")


def test_check_fails_for_an_old_page_and_a_run_renews_it(root, monkeypatch, capsys) -> None:
    for name, value in (("ROOT", root), ("PAGES", ("a.md", "b.md"))):
        monkeypatch.setattr(results, name, value)
    monkeypatch.setattr(results.redrawn, "__defaults__", (root,))
    old = f"{BEGIN}\nstale\n{END}\n"
    (root / "a.md").write_text("<!-- results:gates:begin --><!-- results:gates:end -->")
    (root / "b.md").write_text(old)

    def run(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["results.py", *arguments])
        return results.main(), capsys.readouterr().err.splitlines()

    code, complaints = run("--check")
    assert code == 1 and "gates-h200.json, which is missing" in complaints[0]
    assert complaints[1] == "results: b.md does not show docs/results; run scripts/results.py"
    assert (root / "b.md").read_text() == old
    code, complaints = run()
    assert code == 1 and len(complaints) == 1, "a page that cannot be drawn hides no other"
    assert "570 ms" in (root / "b.md").read_text()
    (root / "a.md").write_text("nothing to draw\n")
    assert run("--check") == (0, [])


def test_batch_invariance_costs_the_geometric_mean_and_the_worst_shape() -> None:
    def row(m: int, n: int, **us: float) -> dict[str, Any]:
        return {"m": m, "n": n, "k": 128, "us": us}

    rows = [row(1, 256, fp8gemm=10, invariant=20), row(1, 512, fp8gemm=10, invariant=5)]
    rows += [row(64, 256, fp8gemm=10, invariant=11), row(64, 512, fp8gemm=10)]
    text = draw("batch_invariant", {**H200, "torch": "2.11", "method": "medians", "rows": rows})
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11. Medians.\n")
    assert "| 1 | 1.00 | 2.00 | 256 x 128 |" in text and "| 64 | 1.10 | 1.10 | 256 x 128 |" in text
    assert text.endswith("Worst of all: 1x256x128, 20.0 against 10.0 µs.")


def bench_result() -> dict[str, Any]:
    """Two M of two layers; the second layer's row at M = 512 has no time for one peer, and that peer none at M = 1."""
    rows = []
    for m, scale in ((1, 1.0), (512, 2.0)):
        for n, tensorwise in ((256, 5.0), (64, 20.0)):
            us = {"fp8gemm": 10.0 * scale, "tensorwise": tensorwise * scale, "bf16": 15.0 * scale}
            if m == 512 and n == 256:
                us["cublas_block"] = 21.0
            rows.append({"m": m, "n": n, "k": 128, "us": us, "config": f"tile{n}"})
    heading = {**H200, "torch": "2.11", "driver_cuda": "13.0", "method": "medians", "seed": 7}
    peers = dict.fromkeys(("fp8gemm", "bf16", "tensorwise", "cublas_block"), "a description")
    return {**heading, "peers": peers, "rows": rows}


def test_the_benchmark_is_drawn_by_m_with_its_range_and_its_count() -> None:
    text = draw("bench", bench_result())
    assert "geometric mean over 2 N x K" in text
    assert "| M | `torch.mm`, bf16 | `torch._scaled_mm`, per-tensor scales | `F.scaled_mm`, block scales |" in text
    assert "| 1 | 1.50 (1.50 to 1.50) | 1.00 (0.50 to 2.00) | - |" in text
    assert "| 512 | 1.50 (1.50 to 1.50) | 1.00 (0.50 to 2.00) | 1.05 (1.05 to 1.05, 1 of 2) |" in text
    assert text.endswith("| faster at | 4 of 4 | 2 of 4 | 1 of 1 |")


def test_the_benchmark_is_drawn_shape_by_shape_layer_after_layer() -> None:
    result = bench_result()
    del result["rows"][0]["us"]["fp8gemm"]
    lines = [line for line in draw("bench_shapes", result).splitlines() if line.startswith("| ")][2:]
    assert [line.split(" | ")[:2] for line in lines] == [
        ["| 64 x 128", "1"],
        ["| 64 x 128", "512"],
        ["| 256 x 128", "1"],
        ["| 256 x 128", "512"],
    ]
    assert lines[1:] == [
        "| 64 x 128 | 512 | tile64 | 20.0 | 0 | 1.50 | 2.00 | - |",
        "| 256 x 128 | 1 | tile256 | - | - | - | - | - |",
        "| 256 x 128 | 512 | tile256 | 20.0 | 2 | 1.50 | 0.50 | 1.05 |",
    ]


def test_random_shapes_are_drawn_by_class_of_m() -> None:
    def row(m: int, choice: str, tensorwise: float | None, **us: float) -> dict[str, Any]:
        return {"m": m, "n": 64, "k": 128, "us": us, "choice": choice, "peers": {"tensorwise": tensorwise or 0.0}}

    rows = [row(300, "a", 20.0, a=10.0, b=8.0), row(1000, "b", 5.0, a=12.0, b=10.0)]
    rows += [{**row(5000, "a", None, a=11.0, b=10.0), "peers": {}}, row(300, "c", 1.0, a=1.0)]
    text = draw("random", {**H200, "torch": "2.11", "method": "medians", "rows": rows})
    assert text.startswith("NVIDIA H200, 2026-01-02, torch 2.11, 3 random shapes. Medians.\n")
    assert "| worst | `torch._scaled_mm`, per-tensor scales | as fast at |" in text and "DeepGEMM" not in text
    assert "| 256-1023 | 2 | 12.5 % | 23.8 % | 25.0 % | 1.00 (0.50 to 2.00) | 1 of 2 |" in text
    assert "| 4096-16384 | 1 | 10.0 % | 10.0 % | 10.0 % | - | - |" in text
    assert "| all | 3 | 11.7 % | 23.5 % | 25.0 % | 1.00 (0.50 to 2.00) | 1 of 2 |" in text
    rows[0]["peers"]["deepgemm"] = 10.0
    text = draw("random", {**H200, "torch": "2.11", "method": "medians", "rows": rows})
    assert "| as fast at | DeepGEMM | as fast at |" in text and "| 1 of 2 | 1.00 (1.00 to 1.00) | 1 of 1 |" in text
    assert text.endswith("\n\nShapes at which the choice was not measured: 1.")


@pytest.fixture
def plotted(tmp_path: Path) -> Path:
    """A repository with the results of a benchmark and none of a calibration."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "bench-h200.json").write_text(json.dumps(bench_result()))
    return tmp_path


BENCH_PLOT = "docs/plots/bench-h200.png"
STALE = f"{BENCH_PLOT} does not show docs/results/bench-h200.json; run scripts/results.py"


def test_a_plot_is_drawn_from_its_result_and_shown_on_a_page(plotted: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    shown = [("README.md", f"a ![speed]({BENCH_PLOT}) b"), ("docs/a.md", "nothing")]
    assert results.check_plots(shown, plotted) == [STALE]
    results.draw_plots(plotted)
    assert (plotted / BENCH_PLOT).read_bytes().startswith(b"\x89PNG") and results.check_plots(shown, plotted) == []
    assert not (plotted / "docs" / "plots" / "calibration-h200.png").exists()
    assert results.check_plots([("docs/a.md", "![speed](plots/bench-h200.png)")], plotted) == []
    assert results.check_plots([("docs/a.md", f"![speed]({BENCH_PLOT})")], plotted) == [f"no page shows {BENCH_PLOT}"]

    (plotted / "docs" / "results" / "bench-h200.json").write_text(json.dumps({**bench_result(), "seed": 8}))
    assert results.check_plots(shown, plotted) == [STALE], "the result has changed since"


def test_without_matplotlib_the_tables_are_drawn_and_the_plots_are_not(plotted, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name, value in (("ROOT", plotted), ("PAGES", ("a.md",))):
        monkeypatch.setattr(results, name, value)
    monkeypatch.setattr(results.redrawn, "__defaults__", (plotted,))
    monkeypatch.setattr(sys, "argv", ["results.py"])
    markers = "<!-- results:bench:begin --><!-- results:bench:end -->"
    (plotted / "a.md").write_text(f"{markers}\n![speed]({BENCH_PLOT})\n")
    assert results.main() == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("results: no plots drawn: ") and "matplotlib" in printed.out
    assert printed.err == f"results: {STALE}\n"
    assert "| faster at |" in (plotted / "a.md").read_text()


def test_gates_are_drawn_by_gate_data_and_output() -> None:
    def worst(gate: str, data: str, output: str, figure: float, limit: float) -> dict[str, Any]:
        return {"gate": gate, "data": data, "output": output, "worst": figure, "limit": limit, "case": f"a {output}"}

    rows = [
        worst("rms row", "signed", "bfloat16", 2.06e-3, 2.5e-3),
        worst("rms row", "signed", "float32", 2.7e-4, 3e-4),
        worst("exact", "exact", "bfloat16", 0.0, 0.0),
    ]
    text = draw("gates", {**H200, "seed": 1, "cases": 1234, "seconds": 61.26, "worst": rows})
    assert "1 234 cases in 61.3 s" in text
    assert "| rms row | signed | 2.06e-3 of 2.5e-3 | 2.70e-4 of 3e-4 | a float32, float32 |" in text
    assert "| exact | exact | 0 | - | - |" in text


def test_a_mutant_that_no_test_caught_stands_out() -> None:
    def mutant(name: str, result: str, **more: Any) -> dict[str, Any]:
        fields = {"what": f"the {name}", "files": ["a.cuh"], "caught_by": None, "how": None, "result": result}
        return {"name": name, "reason": None, **fields, **more}

    caught = mutant("fence", "caught", caught_by=["t::a", "t::b"], how="a|b")
    unseen = mutant("sleep", "not observable", reason="it only sleeps")
    control = mutant("control", "survived", files=[])
    text = draw("mutations", {**H200, "mutants": [caught, unseen, control]})
    assert "1 of 2 mutants caught, 1 not observable." in text and "Missed" not in text
    assert "| fence | the fence | `t::a`, `t::b` | a\\|b |" in text
    assert "- sleep (the sleep): it only sleeps" in text and text.endswith("Controls: the control: survived.")
    text = draw("mutations", {**H200, "mutants": [caught, mutant("tile", "survived")]})
    assert "1 of 2 mutants caught" in text and text.endswith("**Missed by every test:**\n\n- tile (the tile): survived")


def test_faults_are_one_row_each() -> None:
    fault = {"number": 14, "what": "K iterations", "tests": ["t::a"], "seconds": 4000.2, "result": "passed"}
    assert "| 14 | K iterations | `t::a` | 1:06:40 | passed |" in draw("faults", {**H200, "faults": [fault]})


def test_what_the_sanitizer_found_is_not_hidden_by_what_was_clean() -> None:
    def finding(tool: str, kernel: str, shape: str, status: str = "clean") -> dict[str, Any]:
        return {"tool": tool, "kernel": kernel, "shape": shape, "status": status}

    found = [finding("memcheck", "dense", "1x2x3"), finding("memcheck", "dense", "4x5x6")]
    found += [finding("racecheck", "dense", "1x2x3"), finding("racecheck", "dense", "4x5x6", "2 errors")]
    found += [finding("memcheck", "row", "1x2x3")]
    text = draw("sanitize", {**H200, "findings": found, "limits": "No TMA."})
    assert "| dense | clean, 2 shapes | 4x5x6: 2 errors |" in text and "| row | clean, 1 shape | - |" in text
    assert text.endswith("\n\nNo TMA.")


@pytest.mark.parametrize(("wrong", "outcome"), [(0, ": no hang and no wrong result."), (2, "0 hangs and 2 wrong")])
def test_stress_is_one_sentence(wrong: int, outcome: str) -> None:
    figures = {"launches": 100000, "kernels": ["a", "b"], "shapes": 30, "seconds": 90, "hangs": 0, "wrong": wrong}
    text = draw("stress", {**H200, **figures})
    assert text.startswith("100 000 launches of 2 kernels on 30 shapes in 90 s: ") and outcome in text


def test_release_order_has_a_row_for_each_family_and_for_either_headers() -> None:
    call, family = {"launches": 100000, "wrong": 0, "seconds": 20.0}, {"family": "swapped", "kernels": 18}
    other = {"headers": "593b71d", "calls": [{**call, "wrong": 30}, call], "problem": ""}
    result = {**H200, "nvrtc": "13.0", "commit": "abc", "calls": [call], "families": [{**call, **family}]}
    text = draw("release_order", {**result, "other": other})
    assert text.startswith("NVIDIA H200, 2026-01-02, NVRTC 13.0, commit abc.")
    assert "| the call, headers of 593b71d | 200 000 | **30** | 40 s |" in text
    assert "| the call | 100 000 | 0 | 20 s |" in text and "| swapped, 18 kernels | 100 000 | 0 | 20 s |" in text
    assert "593b71d" not in draw("release_order", result)
    assert "| 0 | 0 | it died |" in draw(
        "release_order", {**result, "other": {**other, "calls": [], "problem": "it died"}}
    )


@pytest.mark.parametrize(
    ("value", "small", "limit"),
    [(0.0, "0", "0"), (2.5e-3, "2.50e-3", "2.5e-3"), (1.0, "1.00e0", "1e0"), (1.0587e-3, "1.06e-3", "1.06e-3")],
)
def test_figures_are_short(value: float, small: str, limit: str) -> None:
    from result_tables import markdown  # on the path since scripts/results.py was loaded

    assert (markdown.small(value), markdown.limit(value)) == (small, limit)
