"""Bar charts of the benchmark page, drawn from the tables on it.

``python tools/benchmark_plots.py`` writes them anew after the figures changed. A comment such as
``<!-- plot: planning | log | ms -->`` before a table names the chart, its scale and its unit.
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "about" / "benchmarks.md"
FOLDER = DOCS / "assets" / "benchmarks"
_TABLE = re.compile(r"<!-- plot: (\w+) \| (\w+) \| (\S+) -->\n(?:\n!\[[^\n]*\n)?\n((?:\|[^\n]*\n)+)")
_COLOURS = ("#7c3aed", "#0284c7", "#d97706")
_LEFT, _WIDTH, _BAR, _GAP = 230, 760, 15, 14


def charts() -> dict[str, str]:
    """Name -> SVG, for every marked table."""
    found = _TABLE.findall(PAGE.read_text("utf-8"))
    return {name: _chart(_rows(table), scale == "log", unit) for name, scale, unit, table in found}


def _rows(table: str) -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    return [[cell.strip() for cell in line] for line in lines if not set("".join(line)) <= set("-: ")]


def _chart(rows: list[list[str]], log: bool, unit: str) -> str:
    (_, *series), *groups = rows
    values = [[float(cell) for cell in row[1:]] for row in groups]
    # a column of failures beside rates is not drawn
    columns = [i for i, name in enumerate(series) if not name.startswith("failed")]
    most = max(v[i] for v in values for i in columns)
    room = _WIDTH - _LEFT - 90

    def length(value: float) -> float:
        share = math.log10(1 + value) / math.log10(1 + most) if log else value / most
        return max(round(share * room, 1), 2)

    y, parts = 34, []
    for n, i in enumerate(columns):
        x = _LEFT + 150 * n
        parts.append(f'<rect x="{x}" y="10" width="11" height="11" fill="{_COLOURS[n]}"/>')
        parts.append(f'<text x="{x + 16}" y="20">{escape(series[i])}</text>')
    for row, found in zip(groups, values, strict=True):
        middle = y + _BAR * len(columns) / 2 + 4
        parts.append(f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(row[0])}</text>')
        for n, i in enumerate(columns):
            end = length(found[i])
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{end}" height="{_BAR - 2}" rx="2" fill="{_COLOURS[n]}"/>'
            )
            parts.append(f'<text x="{_LEFT + end + 6}" y="{y + 11}">{row[1 + i]} {unit}</text>')
            y += _BAR
        y += _GAP
    note = "logarithmic scale" if log else ""
    parts.append(f'<text x="{_WIDTH - 10}" y="{y + 6}" text-anchor="end" fill="#64748b">{note}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 14}" role="img"'
    style = ' font-family="system-ui, sans-serif" font-size="12" fill="#334155">'
    back = f'<rect width="{_WIDTH}" height="{y + 14}" rx="8" fill="#f8fafc"/>'
    return "\n".join([head + style, back, *parts, "</svg>", ""])


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in charts().items():
        (FOLDER / f"{name}.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
