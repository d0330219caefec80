"""What FP8 costs: figures against closed forms, the data, and the script from operands to table, JSON and picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.lab.accuracy import data, plot, products
from fp8gemm.lab.accuracy.figures import compare, exact_product
from fp8gemm.lab.accuracy.network import NetworkShape, measure_network
from tests.scripts import load_script

TINY = ["--quick", "--m", "16", "--nk", "144x256,256x128", "--k", "128,256", "--n", "128", "--seed", "5"]

script = load_script("accuracy")


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    with settings.scope(backend="reference"):
        yield


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_figures_are_what_their_formulas_say() -> None:
    exact = torch.tensor([[3.0, 4.0], [0.0, 12.0]], dtype=torch.float64)
    out = torch.tensor([[3.0, 4.5], [0.0, 12.0]])
    figures = compare(out, exact, torch.tensor([[5.0, 10.0], [1.0, 20.0]], dtype=torch.float64))
    assert figures.relative_rms == pytest.approx(0.5 / 13)
    assert figures.worst_row == pytest.approx(0.5 / 5)
    assert figures.max_over_s == pytest.approx(0.05)
    assert figures.sqnr_db == pytest.approx(20 * math.log10(26))
    dot, squares = 9 + 18 + 144, (169, 9 + 4.5**2 + 144)
    assert figures.cosine_loss == pytest.approx(1 - dot / math.sqrt(squares[0] * squares[1]))
    assert figures.calc_diff == pytest.approx(1 - 2 * dot / sum(squares))


def test_a_cosine_next_to_one_keeps_its_digits() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64, generator=generator())
    noise = torch.randn(64, 64, dtype=torch.float64, generator=generator(2))
    noise -= exact * (noise * exact).sum() / exact.square().sum()
    tangent = 1e-9 * float(noise.norm() / exact.norm())
    assert compare(exact + 1e-9 * noise, exact).cosine_loss == pytest.approx(tangent**2 / 2, rel=1e-5)


def test_an_exact_product_has_no_error_and_a_small_s_is_right() -> None:
    x, w = torch.randn(3, 32, generator=generator()), torch.randn(4500, 32, generator=generator(2))
    exact, magnitude = exact_product(x, w)
    assert torch.equal(exact, x.double() @ w.double().t())
    torch.testing.assert_close(magnitude, x.double().abs() @ w.double().abs().t())
    figures = compare(exact, exact, magnitude)
    assert figures.relative_rms == figures.cosine_loss == figures.calc_diff == figures.max_over_s == 0
    assert figures.sqnr_db == math.inf


def test_the_distributions_are_as_described() -> None:
    rows, columns = 128, 2048
    values = {each.name: each.activation(rows, columns, generator()) for each in data.DISTRIBUTIONS}
    assert all(each.shape == (rows, columns) and each.dtype == torch.float32 for each in values.values())
    assert values["normal"].square().mean() == pytest.approx(1, abs=0.01)
    # P(|t| > 3.182) is 5 % with 3 degrees of freedom, and 0.15 % for a normal value.
    assert (values["heavy-tailed"].abs() > 3.182).double().mean() == pytest.approx(0.05, abs=0.002)
    sizes = values["outlier channels"].square().mean(dim=0).sqrt()
    outliers = sizes > 10
    assert outliers.sum() == columns // 512 and sizes[outliers].min() > 40 and sizes[outliers].max() < 120
    massive = values["massive tokens"] > 1000
    assert massive.any(dim=1).sum() == rows // 64 and (massive.sum(dim=1).unique() == torch.tensor([0, 2])).all()
    assert (values["all-positive"] >= 0).all()


def test_equal_seeds_give_equal_operands() -> None:
    for each in data.DISTRIBUTIONS:
        drawn = [each.activation(8, 128, generator(seed)) for seed in (3, 3, 4)]
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_fp8_costs_what_its_mantissa_says() -> None:
    # Rounding to 3 mantissa bits has an RMS error of about 2.6e-2, and a product has two such operands.
    x, w = (data.normal(rows, 512, generator(rows)) for rows in (64, 128))
    exact, _ = exact_product(x, w)
    errors = {each.name: compare(each.multiply(x, w).out, exact).relative_rms for each in products.PRODUCTS}
    for name in ("block", "row", "tensor"):
        assert errors[name] == pytest.approx(3.7e-2, rel=0.1), name
    assert errors["bf16"] == pytest.approx(math.sqrt(3) * 1.67e-3, rel=0.1)


def test_one_scale_per_tensor_loses_the_tokens_beside_a_massive_one() -> None:
    x, w = data.massive_tokens(64, 512, generator()), data.normal(128, 512, generator(2))
    exact, _ = exact_product(x, w)
    worst = {each.name: compare(each.multiply(x, w).out, exact).worst_row for each in products.PRODUCTS}
    assert worst["block"] < 0.05 < 0.08 < worst["tensor"]


def test_a_network_agrees_with_itself_and_less_so_in_fp8() -> None:
    def exact(x: Tensor, w: Tensor) -> products.Result:
        return products.Result((x.double() @ w.double().t()).to(x.dtype))

    compared = [products.Product("rounded", "", exact), *products.available_products(torch.device("cpu"))]
    shape = NetworkShape(tokens=256, hidden=128, inner=256, layers=2, classes=50)
    found = measure_network(data.DISTRIBUTIONS[0], shape, compared, generator())
    # bfloat16 between the layers is left, and FP8 adds to that.
    assert found["rounded"].relative_rms < 8e-3 and found["rounded"].top1 > 0.97
    assert 0.04 < found["block"].relative_rms < 0.15 and 0.6 < found["block"].top1 < 1
    assert found["bf16"].relative_rms < found["block"].relative_rms / 5


def run_json(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "made" / "accuracy.json"
    code = script.main([*TINY, "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def test_the_script_measures_judges_and_draws(tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "also" / "accuracy.png"
    code, found = run_json(tmp_path, "--plot", str(picture))
    out = capsys.readouterr().out
    assert code == 0 and found["passed"] and "kernel gates: passed on every shape" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert found["seed"] == 5 and "seed 5, on: CPU, reference backend" in out
    names = [each.name for each in data.DISTRIBUTIONS]
    assert list(found["summary"]) == list(found["network"]["agreement"]) == names
    assert list(found["products"]) == ["block", "row", "tensor", "bf16"]  # without a GPU no fast accumulation
    shapes = [(row["sweep"], row["m"], row["n"], row["k"]) for row in found["rows"] if row["distribution"] == "normal"]
    assert shapes == [("layers", 16, 144, 256), ("layers", 16, 256, 128), ("k", 16, 128, 128), ("k", 16, 128, 256)]
    for row in found["rows"]:
        assert set(row["figures"]) == set(found["products"]) and set(row["gates"]) == {"block", "row"}
        assert all(verdict["passed"] and not verdict["failed"] for verdict in row["gates"].values())
    assert len({row["seed"] for row in found["rows"]}) == len(found["rows"])
    layers = [row["figures"]["block"] for row in found["rows"][:2]]
    summary = found["summary"]["normal"]["block"]
    assert summary["relative_rms"] == pytest.approx(sum(each["relative_rms"] for each in layers) / 2, rel=1e-3)
    assert summary["worst_row"] == max(each["worst_row"] for each in layers)
    again = tmp_path / "again.png"
    assert script.main(["--from", str(tmp_path / "made" / "accuracy.json"), "--plot", str(again)]) == 0
    assert again.read_bytes() == picture.read_bytes(), "drawn from the file, as from the run itself"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "arguments", "complaint"),
    [
        (None, ["--plot", "a.png"], "No such file"),
        ("{", ["--plot", "a.png"], "expected a file that --json wrote"),
        ("{}", ["--plot", "a.png"], "something else"),
        (json.dumps({"device": "", "products": {}, "summary": {}, "rows": []}), [], "expected --plot with it"),
    ],
)
def test_a_file_that_cannot_be_drawn_is_exit_code_two(tmp_path, capsys, content, arguments, complaint) -> None:
    path = tmp_path / "earlier.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as caught:
        script.main(["--from", str(path), *arguments])
    assert caught.value.code == 2 and complaint in capsys.readouterr().err


def test_the_pages_draw_what_the_script_writes(tmp_path) -> None:
    _, found = run_json(tmp_path)
    sections = load_script("results").SECTIONS
    found["gpu"] = "NVIDIA H200"
    page = "\n".join(sections["accuracy"].draw(found))
    errors = found["summary"]["all-positive"]["bf16"]
    assert f"| all-positive | bfloat16 | {errors['relative_rms']:.2e} |".replace("e-0", "e-") in page
    assert "\\|error\\| / S" in page and "All 40 products of fp8gemm" in page
    for k in (128, 256):
        assert f"\n| {k} | " in page
    short = "\n".join(sections["accuracy_summary"].draw(found))
    assert short.count("\n| ") == len(data.DISTRIBUTIONS) + 2
    found["rows"][3]["gates"]["row"]["passed"] = False
    assert "**1 of these 40 products" in "\n".join(sections["accuracy"].draw(found))


def test_a_wrong_kernel_fails_however_little_it_matters_beside_fp8(tmp_path, monkeypatch, capsys) -> None:
    right = fp8gemm.gemm
    _, before = run_json(tmp_path)

    def wrong(*operands: Tensor) -> Tensor:
        return right(*operands).mul_(1.006)

    monkeypatch.setattr(fp8gemm, "gemm", wrong)
    code, found = run_json(tmp_path)
    assert code == 1 and not found["passed"] and "kernel gates: FAILED" in capsys.readouterr().out
    verdict = found["rows"][0]["gates"]["block"]
    assert not verdict["passed"] and "rms tensor" in verdict["failed"]
    errors = [each["summary"]["normal"]["block"]["relative_rms"] for each in (before, found)]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def test_equal_seeds_give_equal_figures(tmp_path) -> None:
    rows = [run_json(tmp_path, "--seed", seed)[1]["rows"] for seed in ("7", "7", "8")]
    assert rows[0] == rows[1] != rows[2]


def test_a_plot_without_matplotlib_names_the_extra_before_anything_is_measured(monkeypatch, capsys) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(plot.importlib, "import_module", missing)
    with pytest.raises(SystemExit) as caught:
        script.main([*TINY, "--plot", "a.png"])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert "fp8gemm[plot]" in captured.err and not captured.out


@pytest.mark.parametrize("arguments", [["--nk", "100x128"], ["--k", "120"], ["--m", "0"], ["--n", "15"]])
def test_bad_arguments_are_exit_code_two(capsys, arguments) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main([*TINY, *arguments])
    assert caught.value.code == 2 and "expected" in capsys.readouterr().err
