"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element

from fp8gemm.jit.presence import ABSENT
from fp8gemm.lab.bench.regimes import Regime
from fp8gemm.lab.report.data import Report
from fp8gemm.lab.report.html import Child, document, node, table
from fp8gemm.lab.report.layers import Layer, Point
from fp8gemm.lab.report.plots import NARROW, WIDE, describe, roofline, shares, swatch
from fp8gemm.lab.report.style import STYLE
from fp8gemm.lab.report.words import MICRO, NONE, TIMES, digits, share_text, time_text
from fp8gemm.quoting import counted, size_text
from fp8gemm.tuning.explain import TABLE
from fp8gemm.tuning.hopper import chip_name

_NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The text of the file."""
    title = f"{report.title} on {chip_name(report.chip)}"
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_NOTHING_LOADED),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("title", f"{title} - fp8gemm report"),
        node("style", STYLE),
    )
    parts = (_top, _steps, _roofline, _layers, _kernels)
    main = node("main", node("h1", title), *(each for part in parts for each in part(report)))
    return document(node("html", head, node("body", main), lang="en"))


def _top(report: Report) -> Iterator[Element]:
    """What it is of, and what is in force."""
    facts, chip = report.facts, report.chip
    how = "predicted and measured." if report.method else f"predicted. Not measured: {report.unmeasured}"
    yield node("p", f"What its FP8 products take, {how}", class_="dim")
    shown = {
        "date": facts["date"],
        "fp8gemm": f"{facts['version']}, commit {facts['commit']}, headers {facts['headers']}",
        "chip": f"{chip_name(chip)}: {chip.num_sms} SMs, {size_text(chip.l2_bytes)} of L2, "
        f"{chip.dram_bytes_per_us / 1e6:.3g} TB/s, {chip.power_watts:g} W",
        "GPU here": facts["gpu"] or "none",
        "torch": facts["torch"] or "none",
        "NVRTC": facts["nvrtc"] or "none",
        "Python": facts["python"],
        "model": facts["model"],
        "ranks": facts["ranks"],
        "tuned tables": "; ".join(
            f"{each.path} ({each.chip}, {each.date}, {counted(each.entries, 'shape')}"
            f"{'' if each.holds else ', not for this chip'})"
            for each in report.tables
        )
        or "none",
        "how measured": report.method,
    }
    yield node("dl", *(node("div", node("dt", name), node("dd", text)) for name, text in shown.items() if text))


def _legend(report: Report) -> Element:
    return node(
        "ul",
        *(node("li", swatch(index), f"{layer.name}{_times(layer)}") for index, layer in enumerate(report.layers)),
        class_="legend",
    )


def _shape(layer: Layer) -> str:
    groups = f"{layer.groups} {TIMES} " if layer.groups > 1 else ""
    return f"{groups}{layer.problem.n} {TIMES} {layer.problem.k}"


def _times(layer: Layer) -> str:
    return f" {TIMES} {layer.count}" if layer.count > 1 else ""


def _steps(report: Report) -> Iterator[Element]:
    both = " Of two bars the first is predicted, the second measured." if report.method else ""
    yield node("h2", "A step, by rows")
    counts = (
        "each layer as often as the model has it"
        if report.weighted
        else "each layer once, for the configuration does not say how many there are"
    )
    yield node(
        "p",
        f"All products of a step with M rows (tokens), {counts}. Attention, norms and what else a model does is not in "
        f"it. Bars are parts of the whole; their lengths do not compare times.{both}",
    )
    yield _legend(report)
    yield from (shares(report, width) for width in (WIDE, NARROW))
    measured = any(step.measured_us is not None for step in report.steps)
    header = ["M", "predicted", "in bursts", *["measured"] * measured, *(layer.name for layer in report.layers)]
    rows = [
        [
            str(step.m),
            time_text(step.us),
            time_text(step.burst_us),
            *[time_text(step.measured_us)] * measured,
            *map(share_text, step.shares()),
        ]
        for step in report.steps
    ]
    yield _figures(table(header, rows))


def _figures(body: Element, summary: str = "The figures") -> Element:
    return node("details", node("summary", summary), body)


def _roofline(report: Report) -> Iterator[Element]:
    yield node("h2", "Roofline")
    told = (
        "A dot is measured, the ring with it predicted."
        if report.method
        else "A dot is predicted, under load that lasts."
    )
    yield node(
        "p",
        f"How fast each product is, by what it computes for each byte that must move. {told} The roof is the highest "
        "clock's; what lasts draws more power than that clock leaves, so that large products end below it.",
    )
    yield _legend(report)
    yield from (roofline(report, width) for width in (WIDE, NARROW))
    header = ["layer", "M", "FLOP per byte", "at best", "predicted", "TFLOPS", "of the roof"]
    header += ["measured", "TFLOPS", "of the roof"] if report.method else []
    rows = [
        [
            point.layer.name,
            str(point.m),
            digits(float(point.facts["intensity"])),
            time_text(point.bound_us),
            *_speed(point, point.us),
            *(_speed(point, point.measured_us) if report.method else ()),
        ]
        for layer in report.layers
        for point in report.points(layer)
    ]
    yield _figures(table(header, rows))


def _speed(point: Point, us: float | None) -> Sequence[str]:
    if us is None:
        return NONE, NONE, NONE
    return time_text(us), digits(point.tflops(us)), share_text(point.bound_us / us)


def _layers(report: Report) -> Iterator[Element]:
    yield node("h2", "Layers and their configs")
    of_rank = " on one rank" if report.facts["ranks"] else ""
    total = sum(layer.count * layer.weight_bytes for layer in report.layers)
    yield node(
        "p",
        f"{counted(len(report.layers), 'shape')}, {size_text(total)} of FP8 weights in all{of_rank}. Times are "
        f"microseconds; {NONE} where the model has one time for both regimes. Rest on a config for why it is chosen.",
    )
    header = ["layer", f"(groups {TIMES}) N {TIMES} K", "times", "output", "weight"]
    rows = [
        [
            layer.name,
            _shape(layer),
            str(layer.count),
            layer.problem.output.value,
            size_text(layer.weight_bytes),
        ]
        for layer in report.layers
    ]
    yield table(header, rows)
    for layer in report.layers:
        yield _layer(report, layer)


def _layer(report: Report, layer: Layer) -> Element:
    """A table of its rows, and every config that it may have."""
    points = report.points(layer)
    columns = _columns(layer, measured=bool(report.method))
    rows = [[text(point) for _, text in columns] for point in points]
    configs = layer.configs(report.chip)
    ranges = [node("li", f"to {m}: ", node("code", label)) for m, label in configs]
    of_what = "rows of a typical group" if layer.groups > 1 else "rows"
    failed = dict.fromkeys(f"M = {point.m} was not measured: {point.failed}" for point in points if point.failed)
    return node(
        "details",
        node("summary", node("b", layer.name), f" {_shape(layer)}, {counted(layer.count, 'time')}"),
        table([name for name, _ in columns], rows, words=2),
        *(node("p", text, class_="bad") for text in failed),
        _figures(node("ul", *ranges, class_="names"), f"Every config by {of_what}, {counted(len(configs), 'range')}"),
        open="open" if layer is report.layers[0] else None,
    )


def _columns(layer: Layer, *, measured: bool) -> list[tuple[str, Callable[[Point], Child]]]:
    def us(value: float | None) -> str:
        return NONE if value is None else digits(value)

    found: list[tuple[str, Callable[[Point], Child]]] = [("M", lambda point: str(point.m))]
    found.append(("config", _config))
    if layer.routed is not None:
        found.append((f"groups {TIMES} rows", lambda point: f"{layer.touched(point.m)} {TIMES} {point.problem.m}"))
    found += [
        (f"predicted {MICRO}", lambda point: us(point.us)),
        ("in bursts", lambda point: us(point.burst_us)),
    ]
    if measured:
        found += [
            (f"measured {MICRO}", lambda point: us(point.measured_us)),
            ("in bursts", lambda point: us(point.measured.get(Regime.BURST.value))),
        ]
    return [*found, ("TFLOPS", _tflops), ("kernel", _kernel)]


def _config(point: Point) -> Child:
    source = " (table)" if point.explanation.source == TABLE else ""
    why = " ".join(point.explanation.verdict)
    return node("span", f"{point.config.label}{source}", title=f"{describe(point)}\n{why}")


def _tflops(point: Point) -> str:
    return digits(point.tflops(point.us if point.measured_us is None else point.measured_us))


def _kernel(point: Point) -> Element:
    word, kind = ("ready", "good") if point.ready else ("missing", "bad")
    return node("span", word, class_=kind, title=point.kernel)


def _kernels(report: Report) -> Iterator[Element]:
    kernels = report.kernels
    yield node("h2", "Kernels")
    missing = len(kernels.missing)
    yield node(
        "p",
        f"A warmup of all this for up to {kernels.max_m} rows holds {counted(kernels.count, 'kernel')}: "
        f"{len(kernels.products)} that multiply and {len(kernels.quantizers)} that quantise. ",
        node("b", f"{kernels.ready} of them are ready", class_="bad" if missing else "good"),
        f", {size_text(kernels.bytes)}; {missing} missing. "
        + ("This makes the rest, on this machine or another, without a GPU:" if missing else "This checks them:"),
    )
    yield node("pre", kernels.command + ("" if missing else " --check"))
    if missing:
        names = [name if why == ABSENT else f"{name}: {why}" for name, why in sorted(kernels.missing.items())]
        yield _names(f"{missing} missing", names)
    there = [name for name in (*kernels.products, *kernels.quantizers) if name not in kernels.missing]
    if there:
        yield _names(f"{len(there)} ready", sorted(there))
    yield node("h2", "Cache")
    if not report.cache:
        yield node("p", "No directory is in force: kernels live as long as a process.")
        return
    yield table(
        ["directory", "state", "kernels", "size"],
        [[each.path, each.note or each.state, str(each.kernels), size_text(each.bytes)] for each in report.cache],
        words=2,
    )


def _names(summary: str, names: Sequence[str]) -> Element:
    items = node("ul", *(node("li", node("code", name)) for name in names), class_="names")
    return _figures(items, summary)
