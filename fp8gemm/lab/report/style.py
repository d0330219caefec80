"""How a page looks: wide and narrow, light and dark. Nothing is loaded."""

from __future__ import annotations

COLOURS = (
    ("#2f6db5", "#7db2f0"),
    ("#c9620a", "#f5a45a"),
    ("#2b8a57", "#62c690"),
    ("#b83a4b", "#f08a96"),
    ("#7658b4", "#b9a2ee"),
    ("#80603f", "#cfa67e"),
    ("#b84d8f", "#ee9ccb"),
    ("#5f6b76", "#aab6c1"),
    ("#86800f", "#d3cb5c"),
    ("#13868f", "#5ccdd8"),
    ("#26457e", "#93a9e0"),
    ("#a3761a", "#eec566"),
)
"""Of layers, light and dark. With more layers they come round again, paler."""


def colour(index: int) -> str:
    """The class of a layer's colour."""
    return f"c{index % len(COLOURS)}" + (" again" if index >= len(COLOURS) else "")


def _variables(column: int) -> str:
    return " ".join(f"--c{index}: {pair[column]};" for index, pair in enumerate(COLOURS))


STYLE = (
    """
:root { color-scheme: light dark; --page: #ffffff; --panel: #f5f7f9; --ink: #1c2127; --dim: #59636e; --rule: #d5dbe1;
  --grid: #e6eaee; --good: #1a7f4b; --bad: #b3341f; --on: #ffffff; LIGHT }
@media (prefers-color-scheme: dark) { :root { --page: #12161b; --panel: #1a2027; --ink: #e4e9ee; --dim: #9aa5b1;
  --rule: #303a45; --grid: #252d36; --good: #62c690; --bad: #f0907c; --on: #12161b; DARK } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 6px; padding-top: 14px; border-top: 1px solid var(--rule); }
p { margin: 6px 0 12px; max-width: 76ch; }
.dim { color: var(--dim); }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { margin: 8px 0 14px; padding: 10px 12px; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 8px 24px; margin: 14px 0 0; }
dt { color: var(--dim); font-size: 12.5px; }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 8px 0 14px; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--grid); }
td:first-child { white-space: normal; min-width: 3em; }
th { color: var(--dim); font-weight: 500; }
.figure { text-align: right; }
.good { color: var(--good); } .bad { color: var(--bad); }
details { margin: 6px 0; }
summary { cursor: pointer; padding: 4px 0; overflow-wrap: anywhere; }
.names { columns: 22em; column-gap: 24px; margin: 6px 0 14px; padding: 0; list-style: none; font-size: 12.5px; }
.names li { overflow-wrap: anywhere; break-inside: avoid; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0; padding: 0; list-style: none;
  font-size: 13.5px; }
.legend svg { width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
svg.plot { display: block; width: 100%; height: auto; margin: 8px 0; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .small { font-size: 11px; } svg .dim { fill: var(--dim); }
svg .over { paint-order: stroke; stroke: var(--page); stroke-width: 3px; stroke-linejoin: round; }
.grid { stroke: var(--grid); } .axis { stroke: var(--rule); }
.roof { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.mark { fill: currentColor; stroke: var(--page); stroke-width: 1; } .hollow { fill: var(--page); stroke: currentColor;
  stroke-width: 1.6; } .way { fill: none; stroke: currentColor; stroke-width: 1.2; opacity: .45; }
.bar { fill: currentColor; stroke: var(--page); stroke-width: 1; } svg text.on { fill: var(--on); }
.again { opacity: .6; }
svg.narrow { display: none; }
@media (max-width: 700px) { main { padding: 18px 14px 36px; } h1 { font-size: 22px; } svg.wide { display: none; }
  svg.narrow { display: block; } th, td { padding-right: 10px; } .names { columns: auto; } }
@media print { body { font-size: 12px; } details { break-inside: avoid; } }
""".replace("LIGHT", _variables(0)).replace("DARK", _variables(1))
    + "".join(f".c{index} {{ color: var(--c{index}); }}\n" for index in range(len(COLOURS)))
)
