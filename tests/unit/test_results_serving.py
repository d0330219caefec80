"""What is drawn of warmups, first calls and faults of the cache."""

from __future__ import annotations

from typing import Any

from tests.scripts import load_script

results = load_script("results")


def draw(name: str, result: dict[str, Any]) -> str:
    return "\n".join(results.SECTIONS[name].draw(result))


def warmup_result(**changes: Any) -> dict[str, Any]:
    """Two runs of a model; the second was made ready for one more chip."""
    run = {
        "model": "tiny",
        "max_m": 512,
        "kernels_with_experts": 120,
        "bytes": 3 << 20,
        "cold_seconds": 31.26,
        "warm_seconds": 0.714,
    }
    runs = [
        {**run, "tp": [1], "kernels": 40, "chips": {"h200": 30}},
        {**run, "tp": [8], "kernels": 90, "chips": {"h200": 60, "h20": 55}, **changes},
        {**run, "tp": [1, 8], "kernels": 99, "chips": {"h200": 66}, "cold_seconds": 90.0, "warm_seconds": 3.0},
    ]
    machine = {"date": "2026-01-02", "cpu": "Some CPU", "cores": 2, "python": "3.12.1", "nvrtc": "12.9", "repeats": 3}
    return {**machine, "layout": "none", "limits": {"cold_seconds": 60.0, "warm_seconds": 2.0}, "runs": runs}


def test_warmups_are_one_row_each_and_judged_by_the_slowest() -> None:
    text = draw("warmup", warmup_result())
    assert text.startswith("Some CPU, 2 processors, no GPU, 2026-01-02, Python 3.12.1, NVRTC 12.9. ")
    assert "the median of 3" in text and "--layout none`: the linear layers alone" in text
    head, rule, first, second, both = (line for line in text.splitlines() if line.startswith("| "))
    counts = "kernels | with experts | for h200 | for h20"
    assert head == f"| model | ranks | M up to | {counts} | MiB | from nothing, s | all there, s |"
    assert first == "| tiny | 1 | 512 | 40 | 120 | 30 | - | 3.0 | 31.3 | 0.71 |"
    assert second == "| tiny | 8 | 512 | 90 | 120 | 60 | 55 | 3.0 | 31.3 | 0.71 |"
    assert both == "| tiny | 1, 8 | 512 | 99 | 120 | 66 | - | 3.0 | 90.0 | 3.00 |"
    assert head.count("|") == rule.count("|") == first.count("|")
    assert "- seconds from nothing: worst of the 2 for one number of ranks 31.3, at most 60 is asked: met." in text
    assert text.endswith("- seconds, all there: worst of the 2 for one number of ranks 0.714, at most 2 is asked: met.")


def test_a_slow_warmup_stands_out() -> None:
    text = draw("warmup", warmup_result(cold_seconds=60.5, warm_seconds=2.5))
    assert "60.5, at most 60 is asked: **not met**." in text and "2.5, at most 2 is asked: **not met**." in text


def faults_result(*outcomes: str, **where: str) -> dict[str, Any]:
    faults = [
        {"number": number, "what": f"fault {number}", "tests": 2, "seconds": 1.5, "result": outcome}
        for number, outcome in enumerate(outcomes, 1)
    ]
    return {**where, "date": "2026-01-02", "faults": faults}


def test_faults_of_the_cache_are_counted_and_drawn_one_by_one() -> None:
    text = draw("cache_faults", faults_result("passed", "1 of 2 failed, exit code 1", machine="no GPU"))
    assert text.startswith("no GPU, 2026-01-02. 1 of 2 passed, 4 tests in 3 s.\n")
    assert text.endswith("| 1 | fault 1 | 2 | passed |\n| 2 | fault 2 | 2 | 1 of 2 failed, exit code 1 |")


FIRST_CALL = {"m": 1, "n": 2, "k": 16, "cold_ms": 570.4, "warm_ms": 39.0}
MEASURED_APART = {
    "warm_repeats": 5,
    "import_ms": 21.5,
    "kernels": 4,
    "load_ms": 1.234,
    "load_ms_max": 5.25,
    "read_ms": 0.5,
    "read_ms_max": 0.75,
}


def test_the_first_call_is_drawn_with_what_was_measured_apart() -> None:
    first, empty, *apart = draw("coldstart", FIRST_CALL | MEASURED_APART).splitlines()
    assert first.endswith("570 ms with an empty cache, 39 ms with a warm one.") and not empty
    assert apart == [
        "- milliseconds of the import: median of 5 21.5, at most 60 is asked: met.",
        "- milliseconds to read, verify and load a kernel: median 1.23, worst of 20 5.25, at most 5 is asked: "
        "**not met**.",
        "- of these, without the driver: median 0.5, worst 0.75.",
    ]


def test_a_shape_of_one_kernel_has_no_times_of_others() -> None:
    alone = FIRST_CALL | MEASURED_APART | {"kernels": 0, "load_ms": None, "load_ms_max": None, "read_ms": None}
    lines = draw("coldstart", alone).splitlines()
    assert len(lines) == 3 and lines[-1].startswith("- milliseconds of the import")


def test_what_a_sealed_cache_served_is_a_row_for_each_weight() -> None:
    rows = [
        {"n": 100, "k": 128, "calls": 8, "worst_error": 0.00181, "longest_ms": 3.14},
        {"n": 2112, "k": 7168, "calls": 8, "worst_error": 0.0017, "longest_ms": 0.5},
    ]
    result = {"gpu": "Some GPU", "date": "2026-01-02", "calls": 4, "warmup": {"kernels": 30}, "served": rows}
    text = draw("sealed", result)
    assert "30 kernels" in text and "4 random M" in text and "16 calls, none of which missed" in text
    assert "| 100x128 | 8 | 1.81e-03 | 3.1 |" in text and "| 2112x7168 | 8 | 1.70e-03 | 0.5 |" in text
